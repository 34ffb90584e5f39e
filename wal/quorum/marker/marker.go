// Package marker is raft's store of snapshots. It has one snapshot, which is a marker: entry, term and members, but no
// state. The owner of the log has the state up to the marker, or can read what it lacks again from the log.
//
// A marker never goes backwards. This node's own is durable when raft is done with it; one that comes from the leader
// only once the state that it stands for is in place (Incoming, Save, Done). Instead of the state, raft sends a
// locator, which says from whom the state can be fetched. While one is being sent, the log keeps what its receiver will
// need afterwards (InTransit).
package marker

import (
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/durable"
)

// Marker is the file MARKER: JSON, and a line with its CRC-32C. It never goes backwards.
type Marker struct {
	Version            int                `json:"version"`
	Index              uint64             `json:"index"`
	Term               uint64             `json:"term"`
	Configuration      raft.Configuration `json:"configuration"`
	ConfigurationIndex uint64             `json:"configuration_index"`
	// Restored says that the state came from another node, and that earlier entries of the old log may be left.
	Restored bool `json:"restored"`
}

const (
	// Name is the name of the file.
	Name = "MARKER"
	// Version is the version of its format.
	Version = 1
)

// Is reports whether two markers are of the same entry.
func (m *Marker) Is(o *Marker) bool { return m.Index == o.Index && m.Term == o.Term }

func (m *Marker) id() string { return fmt.Sprintf("%d-%d", m.Term, m.Index) }

func (m *Marker) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: id, Index: m.Index, Term: m.Term, Size: snapshotBytes,
		Configuration: m.Configuration, ConfigurationIndex: m.ConfigurationIndex,
	}
}

// Read reads the file. It returns a zero marker when there is none.
func Read(path string) (m Marker, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := durable.UnsealText(b, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", wal.ErrCorrupt, path, err)
	}
	if m.Version != Version {
		return m, fmt.Errorf("quorum: %s has version %d, and this program knows %d", path, m.Version, Version)
	}
	return m, nil
}
