package machine

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Engine is the machine of a replica that is alone and has all partitions, and everything above the machine, by which
// tests drive it.
type Engine struct {
	*Machine
	Above
}

// EngineOptions are the options that tests set for an engine that is alone.
type EngineOptions struct {
	FS              vfs.FS
	Workers         int
	MemoryBytes     int64
	MaxDeltaChanges int
	Limits          profile.Limits
	SegmentBytes    int64
}

// Above is what tests use of a replica and its coordinator. This package can't import them: above_test.go brings them.
type Above interface {
	testengine.Engine
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	Checkpoint() error
	Failed() error
	Close() error
}

// OpenAlone opens an engine that is alone.
var OpenAlone func(o EngineOptions) (*Machine, Above, error)

// testOptions are small bounds on a file system in memory.
func testOptions(fs vfs.FS) EngineOptions {
	return EngineOptions{FS: fs, Workers: 2, MemoryBytes: 64 << 20, SegmentBytes: 1 << 20}
}

func openTest(t *testing.T, o EngineOptions) *Engine {
	t.Helper()
	m, above, err := OpenAlone(o)
	require.NoError(t, err)
	t.Cleanup(func() { above.Close() })
	return &Engine{m, above}
}

// openSingle opens a machine with one worker.
func openSingle(t *testing.T) *Engine {
	t.Helper()
	o := testOptions(vfs.NewMem())
	o.Workers = 1
	return openTest(t, o)
}

// settle waits until nothing is under way.
func settle(t *testing.T, e *Engine) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := e.Stats()
		return s.OutboxKept == 0 && s.Deferred == 0 && s.Held == 0 && s.MergesWaiting == 0
	}, time.Minute, time.Millisecond)
}

func first[T any](x T, _ error) T { return x }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
