package replica

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Engine is a replica that is alone, with all partitions, and the coordinator above it, which tests drive it by.
type Engine struct {
	*Replica
	Coordinator
}

// Coordinator is what tests use of a shard.Coordinator. This package can't import it: coordinator_test.go brings it.
type Coordinator interface {
	NewBatch(workspace, actor uint32) *Batch
	Find(workspace uint32, id op.IDKind, key []byte) ([]User, error)
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	Barrier() error
	Replica() *Replica
	Close() error
}

// Batch is a shard.Batch.
type Batch struct {
	*op.Builder
	Request
}

// Request is what tests use of a batch besides its builder.
type Request interface {
	End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) bool
	SetSource(op.Source)
	Delete(number uint64) (ref int)
	Merge(gone, keep uint64)
	Identify(number uint64, externalID []byte, mode profile.MergeMode) (ref int)
	RenameExternalID(number uint64, current, id []byte) (ref int)
	RemoveExternalID(number uint64, id []byte) (ref int)
	ReplaceAnswer(key []byte, bodyHash [32]byte, status int, body []byte)
	SetAddressStates(id op.IDKind, key []byte, states ...profile.State)
	Commit() error
	Release()
}

// User is a shard.User.
type User struct {
	Number uint64
	Blob   []byte
}

// OpenAlone opens an engine that is alone.
var OpenAlone func(o EngineOptions) (Coordinator, error)

// Close closes both.
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

// addEvent writes the op of one event.
func addEvent(b *Batch, id op.IDKind, key, name string, flags op.Flags) bool {
	start := b.Begin()
	b.Buf = op.AppendEventBody(b.Buf)
	op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000, b.Intern([]byte(name)), 0)
	b.Buf = append(b.Buf, key...)
	return b.Request.End(start, op.Event, flags, id, len(key))
}

// addAttributes writes the op of an attributes object.
func addAttributes(b *Batch, id op.IDKind, key string, flags op.Flags, fields ...[]byte) bool {
	start := b.Begin()
	for _, f := range fields {
		b.Buf = append(b.Buf, f...)
	}
	b.Buf = append(b.Buf, key...)
	return b.Request.End(start, op.Attributes, flags, id, len(key))
}

func attrField(code byte, value string) []byte { return op.AppendString([]byte{code}, []byte(value)) }

func commitEvent(t *testing.T, e *Engine, id op.IDKind, key, name string, flags op.Flags) {
	t.Helper()
	b := e.NewBatch(1, 0)
	require.True(t, addEvent(b, id, key, name, flags))
	require.NoError(t, b.Commit())
	b.Release()
}

// deleteAll deletes who has an identifier.
func deleteAll(t *testing.T, e *Engine, id op.IDKind, key string) {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	b := e.NewBatch(1, 0)
	for _, u := range users {
		b.Delete(u.Number)
	}
	require.NoError(t, b.Commit())
	b.Release()
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

// eventCount is countOf; -1: there is no such user.
func eventCount(t *testing.T, e *Engine, id op.IDKind, key, name string) int {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	if len(users) == 0 {
		return -1
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int(s.Count)
}

// within panics when f takes longer: everything that is bounded ends.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		panic(fmt.Sprintf("%s: %s hangs", t.Name(), what)) // with all stacks
	}
}

// notYet fails when something comes for a while.
func notYet[T any](t *testing.T, c <-chan T, why string) {
	t.Helper()
	select {
	case <-c:
		t.Fatal(why)
	case <-time.After(20 * time.Millisecond):
	}
}
