package shard

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
)

func merge(t *testing.T, e *Engine, pairs ...uint64) {
	t.Helper()
	b := e.NewBatch(1, 0)
	for i := 0; i < len(pairs); i += 2 {
		b.Merge(pairs[i], pairs[i+1])
	}
	require.NoError(t, b.Commit())
	b.Release()
}

func request(t *testing.T, e *Engine, fill func(b *Batch)) {
	t.Helper()
	b := e.NewBatch(1, 0)
	fill(b)
	require.NoError(t, b.Commit())
	b.Release()
}

// eventNumber writes an event that is addressed by svc_id.
func eventNumber(b *Batch, number uint64, name string) {
	start := b.Begin()
	b.Buf = op.AppendEventBody(b.Buf)
	op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000, b.Intern([]byte(name)), 0)
	b.EndNumber(start, op.Event, 0, number)
}

func TestMerge(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	ada, bob, eve := makeUser(t, e, "ada"), makeUser(t, e, "bob"), makeUser(t, e, "eve")
	request(t, e, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ada", op.Contact, attrField(op.AttrEmail, "ada@example.com"), attrField(op.AttrPhone, "+491"), attrField(op.AttrFirstName, "Ada"))
		b.AddAlias(ada, []byte("l"), []byte("a"))
		b.AddAlias(bob, []byte("l"), []byte("b"))
	})
	merge(t, e, ada, bob)
	settle(t, e)
	e = twice(t, fs, e, func(e *Engine) {
		require.Zero(t, numberOf(t, e, op.ExternalID, "ada"))
		users, err := e.FindNumber(1, ada)
		require.NoError(t, err)
		require.Empty(t, users, "nobody is there by its svc_id")
		for _, name := range []string{"a", "b"} {
			require.Equal(t, bob, numberOf(t, e, op.Alias, aliasKey("l", name)), "no name is lost")
		}
		require.Equal(t, bob, numberOf(t, e, op.Phone, "+491"))
		require.Zero(t, numberOf(t, e, op.Email, "ada@example.com"), "/users/merge leaves the email")
		require.Equal(t, 2, eventCount(t, e, op.ExternalID, "bob", "made"))
		users, err = e.FindNumber(1, bob)
		require.NoError(t, err)
		v, _ := profile.Attr(users[0].Blob, op.AttrFirstName)
		require.Equal(t, "Ada", string(v.Bytes()))
	})

	request(t, e, func(b *Batch) { eventNumber(b, ada, "late") })
	commitEvent(t, e, op.Alias, aliasKey("l", "a"), "late", op.UpdateOnly)
	commitEvent(t, e, op.Phone, "+491", "late", op.UpdateOnly)
	require.Equal(t, 3, eventCount(t, e, op.ExternalID, "bob", "late"), "what is sent to the merged user reaches the kept one")
	commitEvent(t, e, op.ExternalID, "ada", "made", 0)
	again := numberOf(t, e, op.ExternalID, "ada")
	require.NotContains(t, []uint64{0, ada, bob}, again, "the external id is free")
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "ada", "made"))

	merge(t, e, ada, eve)         // gone already: no effect
	merge(t, e, bob, bob)         // into itself
	merge(t, e, ada+9, bob)       // nobody
	merge(t, e, again, bob+1)     // into nobody
	merge(t, e, bob, eve, eve, 7) // a chain; 7 is nobody
	settle(t, e)
	require.Equal(t, 3, eventCount(t, e, op.ExternalID, "eve", "made"))
	request(t, e, func(b *Batch) { eventNumber(b, ada, "late") })
	require.Equal(t, 4, eventCount(t, e, op.ExternalID, "eve", "late"), "over two merges")
	merge(t, e, again, ada) // into who it is now
	settle(t, e)
	require.Equal(t, 4, eventCount(t, e, op.ExternalID, "eve", "made"))
	require.Zero(t, numberOf(t, e, op.ExternalID, "ada"))
}

// Rings and crossing pairs of merges in one request: all end, and all are one.
func TestMergeRings(t *testing.T) {
	for n := 2; n < 9; n++ {
		for round := range 6 {
			e := openTest(t, testOptions(vfs.NewMem()))
			var users, pairs []uint64
			for i := range n {
				users = append(users, makeUser(t, e, fmt.Sprint("u", i)))
			}
			for i := range users {
				a, b := users[i], users[(i+1)%n]
				if round%2 == 1 && i%2 == 1 {
					a, b = b, a
				}
				pairs = append(pairs, a, b)
			}
			merge(t, e, pairs...)
			settle(t, e)
			left, events := 0, 0
			for _, number := range users {
				found, err := e.FindNumber(1, number)
				require.NoError(t, err)
				for _, u := range found {
					s, _ := profile.Event(u.Blob, []byte("made"))
					left++
					events += int(s.Count)
				}
			}
			require.Equal(t, n, events)
			if round%2 == 0 {
				require.Equal(t, 1, left, "%d users in a ring", n)
			}
			require.NoError(t, e.Close())
		}
	}
}
