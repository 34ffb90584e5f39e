package machine

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Engine is a replica that is alone, with all partitions: its machine, and all that is above it, which tests drive it
// by.
type Engine struct {
	*Machine
	Above
}

// EngineOptions are those that tests set of an engine that is alone.
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
	NewBatch(workspace, actor uint32) *Batch
	Find(workspace uint32, id op.IDKind, key []byte) ([]User, error)
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	Checkpoint() error
	Failed() error
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

// settle waits until nothing is on its way.
func settle(t *testing.T, e *Engine) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := e.Stats()
		return s.OutboxKept == 0 && s.Deferred == 0 && s.Held == 0 && s.MergesWaiting == 0
	}, time.Minute, time.Millisecond)
}

func first[T any](x T, _ error) T { return x }

// longField is an attribute that takes about size bytes.
func longField(size int) []byte {
	return attrField(op.AttrFirstName, strings.Repeat("x", size))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
