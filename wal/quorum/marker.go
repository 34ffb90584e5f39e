package quorum

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/durable"
)

// markers is raft's store of snapshots. It has one snapshot, which is a marker: entry, term and members, but no state.
// The owner has the state up to the marker, or can read what it lacks again from the log.
type markers struct {
	l    *Log
	path string

	mu         sync.Mutex // guards all fields below
	cur        marker
	marking    bool    // this node's own marker is being made
	installing bool    // the state of another node is being taken in
	incoming   *marker // the marker of that state
	from       Node    // the node that has that state
	sending    map[uint64]int
}

// marker is the file MARKER: JSON, and a line with its CRC-32C. It never goes backwards.
type marker struct {
	Version            int                `json:"version"`
	Index              uint64             `json:"index"`
	Term               uint64             `json:"term"`
	Configuration      raft.Configuration `json:"configuration"`
	ConfigurationIndex uint64             `json:"configuration_index"`
	// Restored says that the state came from another node, and that earlier entries of the old log may be left.
	Restored bool `json:"restored"`
}

const (
	markerName    = "MARKER"
	markerVersion = 1
)

func (m *marker) entry() entryID { return entryID{index: m.Index, term: m.Term} }
func (m *marker) id() string     { return fmt.Sprintf("%d-%d", m.Term, m.Index) }

func (m *marker) meta(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: id, Index: m.Index, Term: m.Term, Size: snapshotSize,
		Configuration: m.Configuration, ConfigurationIndex: m.ConfigurationIndex,
	}
}

// readMarker returns a zero marker when there is none.
func readMarker(path string) (m marker, err error) {
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
	if m.Version != markerVersion {
		return m, fmt.Errorf("quorum: %s has version %d, and this program knows %d", path, m.Version, markerVersion)
	}
	return m, nil
}

// List returns the marker.
func (s *markers) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.Index == 0 {
		return nil, nil
	}
	return []*raft.SnapshotMeta{s.cur.meta(s.cur.id())}, nil
}

// Create begins a marker: this node's own, when the state machine says so (marking.Persist), or one that comes from the
// leader.
func (s *markers) Create(
	_ raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &sink{s: s, m: marker{Version: markerVersion, Index: index, Term: term, Configuration: c,
		ConfigurationIndex: configurationIndex}}, nil
}

// Open returns what is sent to a node that lacks too much: a locator, with which that node fetches the state from this
// one (restore.go). Until the locator is closed, the log keeps what the receiver will need afterwards. On the receiver,
// Open returns the locator for the state machine.
func (s *markers) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming != nil && id == incomingID(s.incoming) {
		return s.incoming.meta(id), io.NopCloser(&locator{}), nil
	}
	if id != s.cur.id() {
		return nil, nil, fmt.Errorf("quorum: snapshot %s is superseded", id)
	}
	index := s.cur.Index
	s.sending[index]++
	return s.cur.meta(id), &locator{rest: newLocator(s.l.self), close: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sending[index]--; s.sending[index] == 0 {
			delete(s.sending, index)
		}
	}}, nil
}

func incomingID(m *marker) string { return "from-leader-" + m.id() }

// inTransit returns the oldest marker that is being sent.
func (s *markers) inTransit() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.sending {
		if !ok || i < index {
			index, ok = i, true
		}
	}
	return index, ok
}

func (s *markers) current() marker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

func (s *markers) entry() entryID {
	m := s.current()
	return m.entry()
}

// save replaces the current marker.
func (s *markers) save(m marker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Index < s.cur.Index {
		return fmt.Errorf("quorum: the marker stands at %d and does not go back to %d", s.cur.Index, m.Index)
	}
	if err := durable.ReplaceFile(s.path, durable.SealText(m), 0o644); err != nil {
		return s.l.fail(fmt.Errorf("write the marker: %w", err))
	}
	s.cur = m
	return nil
}

// mark makes a marker of what has been handed back.
func (s *markers) mark() error {
	s.mu.Lock()
	if s.installing || s.marking {
		s.mu.Unlock()
		return errors.New("quorum: another snapshot is under way")
	}
	s.marking = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.marking = false
		s.mu.Unlock()
	}()
	return s.l.node.Load().raft.Snapshot().Error()
}

// sink takes a marker from raft.
type sink struct {
	s      *markers
	m      marker
	own    bool
	got    []byte
	begun  bool
	closed bool
}

// ID names the marker once it is complete.
func (k *sink) ID() string {
	if k.own {
		return k.m.id()
	}
	return incomingID(&k.m)
}

// Write takes the leader's locator. The first Write decides whether the state is taken in at all.
func (k *sink) Write(p []byte) (int, error) {
	if !k.begun {
		if err := k.s.admit(&k.m); err != nil {
			return 0, err
		}
		k.begun = true
	}
	k.got = append(k.got, p[:min(len(p), snapshotSize-len(k.got))]...)
	return len(p), nil
}

// Close completes the marker. This node's own marker is then durable; one from the leader is durable only after the
// state has been restored.
func (k *sink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if k.own {
		if err := k.s.save(k.m); err != nil {
			return err
		}
		k.s.l.store.SetMarker(k.m.Index, k.m.Term, false)
		return nil
	}
	from, err := parseLocator(k.got)
	if err != nil {
		k.s.done()
		return err
	}
	k.s.mu.Lock()
	k.s.incoming, k.s.from = &k.m, from
	k.s.mu.Unlock()
	return nil
}

// Cancel drops the marker.
func (k *sink) Cancel() error {
	if k.begun && !k.closed {
		k.s.done()
	}
	k.closed = true
	return nil
}

func (s *markers) done() {
	s.mu.Lock()
	s.installing, s.incoming = false, nil
	s.mu.Unlock()
}

// admit judges a snapshot that the leader wants this node to take in. Raft would take any. When a message comes late,
// it would go back to before what was handed back. It would also keep the end of a log that contradicts the snapshot,
// take that end for entries that it has, and then neither accept the leader's next entries nor vote as it should. Raft
// calls admit from its main goroutine, so nothing changes meanwhile.
func (s *markers) admit(m *marker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marking || s.installing {
		return errors.New("quorum: another snapshot is under way; try again")
	}
	last, err := s.l.store.LastIndex()
	if err != nil {
		return err
	}
	passed := s.l.passed.index.Load()
	switch {
	case m.entry() == s.cur.entry() && last <= m.Index && passed == m.Index: // the leader did not hear that it is done
	case m.Index <= passed:
		return fmt.Errorf("quorum: a snapshot at %d is late: %d is handed back", m.Index, passed)
	case last >= m.Index:
		var e raft.Log
		if err := s.l.store.GetLog(m.Index, &e); err != nil {
			return err
		}
		if e.Term == m.Term {
			return fmt.Errorf("quorum: a snapshot at %d is late: the log has that entry", m.Index)
		}
		go s.l.rejoin(m.Index)
		return fmt.Errorf("quorum: the log contradicts the snapshot at %d; its end is removed first", m.Index)
	}
	s.installing = true
	return nil
}
