package replica

import (
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Engine is a replica that is alone and has all partitions, and the coordinator above it, by which tests drive it.
type Engine struct {
	*Replica
	Coordinator
}

// Coordinator is what tests use of a shard.Coordinator. This package can't import it: coordinator_test.go brings it.
type Coordinator interface {
	testengine.Engine
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	Barrier() error
	Replica() *Replica
	Close() error
}

// OpenAlone opens an engine that is alone.
var OpenAlone func(o EngineOptions) (Coordinator, error)

// Close closes both replica and coordinator.
func (e *Engine) Close() error { return e.Coordinator.Close() }

func openEngine(o EngineOptions) (*Engine, error) {
	c, err := OpenAlone(o)
	if err != nil {
		return nil, err
	}
	return &Engine{c.Replica(), c}, nil
}

// testOptions are small bounds on a file system in memory.
func testOptions(fs vfs.FS) EngineOptions {
	return EngineOptions{
		FS: fs, Dir: "data", Workers: 2, MemoryBytes: 64 << 20, StoreCacheBytes: 1 << 20,
		StoreMemTableBytes: 1 << 20, // larger ones cost the race detector more than all that happens in them
		Log:                wal.Options{SegmentBytes: 1 << 20, MinFreeBytes: -1, MinFreePercent: -1},
		Logger:             slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func openTest(t *testing.T, o EngineOptions) *Engine {
	t.Helper()
	e, err := openEngine(o)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// countOf is how often a user has had an event.
func countOf(e *Engine, id op.IDKind, key, name string) (int64, error) {
	users, err := e.Find(1, id, []byte(key))
	if err != nil || len(users) == 0 {
		return 0, err
	}
	if len(users) > 1 {
		return 0, fmt.Errorf("%d users are called %q", len(users), key)
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int64(s.Count), nil
}
