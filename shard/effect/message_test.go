package effect

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// TestMessage: the parts of which a message was made are read back, whether its body lies beside it or apart. They are
// the message's own, although the next message is built in the same memory.
func TestMessage(t *testing.T) {
	var scratch op.Builder
	rec := &op.Record{Workspace: 3, Stamp: 5}
	const number, owner = 7<<56 | 11, 13
	for _, size := range []int{0, 1, 60, 128, 129, 4000} {
		body := bytes.Repeat([]byte{'b'}, size)
		m := NewMessage(&scratch, 2, 17, owner, rec, op.Absorb, 0, number, body, []byte("key"), false)
		NewMessage(&scratch, 9, 99, 9, rec, op.Unpin, 0, 9, bytes.Repeat([]byte{'x'}, size), []byte("other"), false)

		read, err := ParseMessage(m.Body)
		require.NoError(t, err)
		require.Equal(t, m, read)
		require.EqualValues(t, 2, read.Sender)
		require.EqualValues(t, 17, read.Seq)
		require.EqualValues(t, number, read.Number)
		require.True(t, read.Last)
		inner, err := op.ParseRecord(MessageRecord(m.Body), nil)
		require.NoError(t, err)
		o, rest := op.Next(inner.Ops)
		require.Empty(t, rest)
		require.Equal(t, body, slices.Clone(o.Body()))
		require.Equal(t, "key", string(o.Key()))
	}
}

func TestList(t *testing.T) {
	var l List
	require.True(t, l.IsEmpty())
	for round := range 3 { // what was taken out can be in a list again
		messages := []*Message{{Seq: 1}, {Seq: 2}, {Seq: 3}}[:round+1]
		for _, m := range messages {
			l.Add(m)
		}
		require.False(t, l.IsEmpty())
		other := l
		require.Equal(t, messages, slices.Collect(other.All()))
		for _, m := range messages {
			require.Nil(t, m.next)
		}
		l = List{}
	}
}
