// Package testengine is what the tests of the engine's packages have in common: how they write ops of users, and what
// they ask of users then. It knows the coordinator by its methods alone, since the packages below that can't import it.
// Tests import it, nothing else does.
package testengine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Engine is what commits and reads.
type Engine interface {
	NewBatch(workspace, actor uint32) *Batch
	Find(workspace uint32, id op.IDKind, key []byte) ([]User, error)
}

// User is a shard.User.
type User struct {
	Number uint64
	Blob   []byte
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
	KeepAnswer(key []byte, bodyHash [32]byte, status int, body []byte)
	SetAddressStates(id op.IDKind, key []byte, states ...profile.State)
	Commit() error
	Release()
}

// BeginEvent begins the op of an event.
func BeginEvent(b *op.Builder, name string) (start int) {
	start = b.Begin()
	b.Buf = op.AppendEventBody(b.Buf)
	op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000, b.Intern([]byte(name)), 0)
	return start
}

// AddEvent writes the op of one event.
func AddEvent(b *Batch, id op.IDKind, key, name string, flags op.Flags) bool {
	start := BeginEvent(b.Builder, name)
	b.Buf = append(b.Buf, key...)
	return b.Request.End(start, op.Event, flags, id, len(key))
}

// AddAttributes writes the op of an attributes object; AttrField makes fields.
func AddAttributes(b *Batch, id op.IDKind, key string, flags op.Flags, fields ...[]byte) bool {
	start := b.Begin()
	for _, f := range fields {
		b.Buf = append(b.Buf, f...)
	}
	b.Buf = append(b.Buf, key...)
	return b.Request.End(start, op.Attributes, flags, id, len(key))
}

// AttrField is a reserved attribute that is a string.
func AttrField(code byte, value string) []byte { return op.AppendString([]byte{code}, []byte(value)) }

// LongField is an attribute that takes about size bytes.
func LongField(size int) []byte { return AttrField(op.AttrFirstName, strings.Repeat("x", size)) }

// CommitEvent commits one event.
func CommitEvent(t *testing.T, e Engine, id op.IDKind, key, name string, flags op.Flags) {
	t.Helper()
	Commit(t, e, func(b *Batch) { require.True(t, AddEvent(b, id, key, name, flags)) })
}

// Commit commits what f writes.
func Commit(t testing.TB, e Engine, f func(b *Batch)) {
	t.Helper()
	b := e.NewBatch(1, 0)
	f(b)
	require.NoError(t, b.Commit())
	b.Release()
}

// DeleteAll deletes who has an identifier.
func DeleteAll(t *testing.T, e Engine, id op.IDKind, key string) {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	Commit(t, e, func(b *Batch) {
		for _, u := range users {
			b.Delete(u.Number)
		}
	})
}

// EventCount is how often a user has had an event; -1: there is no such user.
func EventCount(t *testing.T, e Engine, id op.IDKind, key, name string) int {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	if len(users) == 0 {
		return -1
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int(s.Count)
}

// Within panics when f takes longer: everything that is bounded ends.
func Within(t *testing.T, limit time.Duration, what string, f func()) {
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

// NotYet fails when something comes for a while.
func NotYet[T any](t *testing.T, c <-chan T, why string) {
	t.Helper()
	select {
	case <-c:
		t.Fatal(why)
	case <-time.After(20 * time.Millisecond):
	}
}
