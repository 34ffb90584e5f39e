package eventlog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// track commits an event under an identifier; number is for op.SvcID.
func (w *world) track(id op.IDKind, key string, number uint64, name string) {
	w.t.Helper()
	b := w.e.NewBatch(1, 0)
	defer b.Release()
	start := testengine.BeginEvent(&b.Builder, name)
	if id == op.SvcID {
		b.EndNumber(start, op.Event, 0, number)
	} else {
		b.Buf = append(b.Buf, key...)
		b.End(start, op.Event, 0, id, len(key))
	}
	require.NoError(w.t, b.Commit())
}

func (w *world) batch(fill func(b *shard.Batch)) {
	w.t.Helper()
	b := w.e.NewBatch(1, 0)
	defer b.Release()
	fill(b)
	require.NoError(w.t, b.Commit())
}

// number is the number of the only user whom an identifier names, 0 for nobody.
func (w *world) number(id op.IDKind, key string) uint64 {
	w.t.Helper()
	users, err := w.e.Find(1, id, []byte(key))
	require.NoError(w.t, err)
	if len(users) == 0 {
		return 0
	}
	return users[0].Number
}

func (w *world) merge(pairs ...uint64) {
	w.t.Helper()
	w.batch(func(b *shard.Batch) {
		for i := 0; i < len(pairs); i += 2 {
			b.Merge(pairs[i], pairs[i+1])
		}
	})
	w.settle()
}

func (w *world) settle() {
	w.t.Helper()
	require.NoError(w.t, w.e.Replica().Settle(w.t.Context()))
}

// exportedNames are the names of all events that are exported, sorted.
func (w *world) exportedNames() (names []string) {
	w.t.Helper()
	require.NoError(w.t, w.l.Export(context.Background(), Query{}, func(e *event.Event) error {
		names = append(names, string(e.Name))
		return nil
	}))
	slices.Sort(names)
	return names
}

// onDiskNames are the names of all events in blocks.
func (w *world) onDiskNames() (names []string) {
	w.t.Helper()
	for _, b := range w.l.blocks {
		require.NoError(w.t, w.l.readBlock(context.Background(), b, func(rs *blocks.Rows) error {
			for i := range rs.List {
				if !event.IsEvent(rs.List[i].Kind) {
					continue
				}
				names = append(names, string(rs.Name(rs.List[i].Name)))
			}
			return nil
		}))
	}
	slices.Sort(names)
	return names
}

// stages runs f with the events in the tail, in blocks, and in both. f calls pack in the middle.
func stages(t *testing.T, f func(t *testing.T, w *world, pack func())) {
	for name, when := range map[string][2]bool{"tail": {}, "blocks": {true, true}, "both": {true, false}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, vfs.NewMem(), manual())
			f(t, w, func() {
				if when[0] {
					w.pack()
				}
			})
			want := w.exportedNames()
			if when[1] {
				w.pack()
			}
			require.Equal(t, want, w.exportedNames())
			w.reopen(manual())
			require.Equal(t, want, w.exportedNames())
			w.pack()
			require.Equal(t, want, w.exportedNames())
			require.NoError(t, w.l.maintain(true))
			require.Equal(t, want, w.exportedNames())
			require.Equal(t, want, w.onDiskNames())
		})
	}
}

// A deleted user's events are gone, with those of all users who were merged into that user, under whatever identifier
// the events came. Events of users who got such an identifier later stay.
func TestDeletionOfMergedUsers(t *testing.T) {
	testsize.SkipSerial(t)
	alias := string(op.AppendAliasKey(nil, []byte("l"), []byte("n")))
	build := func(w *world, pack func()) (ada, bob uint64) {
		w.track(op.ExternalID, "bob", 0, "bob")
		w.track(op.ExternalID, "ada", 0, "ada1")
		ada, bob = w.number(op.ExternalID, "ada"), w.number(op.ExternalID, "bob")
		w.track(op.SvcID, "", ada, "ada2")
		w.track(op.Alias, alias, 0, "al1")
		w.track(op.Alias, alias, 0, "al2")
		w.track(op.Email, "m@example.com", 0, "em1")
		w.track(op.Email, "m@example.com", 0, "em2")
		pack()
		// these events reach bob over two merges
		w.merge(w.number(op.Alias, alias), ada)
		w.merge(ada, bob, w.number(op.Email, "m@example.com"), bob)
		w.track(op.SvcID, "", ada, "late")
		w.track(op.Alias, alias, 0, "al3")
		w.track(op.ExternalID, "ada", 0, "new1")
		w.track(op.ExternalID, "ada", 0, "new2")
		w.track(op.Email, "m@example.com", 0, "em3")
		w.track(op.Email, "m@example.com", 0, "em4")
		require.Len(t, w.exportedNames(), 13)
		return ada, bob
	}
	t.Run("kept user", func(t *testing.T) {
		stages(t, func(t *testing.T, w *world, pack func()) {
			_, bob := build(w, pack)
			w.batch(func(b *shard.Batch) { b.Delete(bob) })
			require.Equal(t, []string{"em3", "em4", "new1", "new2"}, w.exportedNames())
		})
	})
	t.Run("who came later", func(t *testing.T) {
		stages(t, func(t *testing.T, w *world, pack func()) {
			build(w, pack)
			w.batch(func(b *shard.Batch) {
				b.Delete(w.number(op.ExternalID, "ada"))
				b.Delete(w.number(op.Email, "m@example.com"))
			})
			require.Equal(t, []string{"ada1", "ada2", "al1", "al2", "al3", "bob", "em1", "em2", "late"}, w.exportedNames())
		})
	})
	t.Run("deletion from before the merge", func(t *testing.T) {
		stages(t, func(t *testing.T, w *world, pack func()) {
			w.track(op.ExternalID, "bob", 0, "bob")
			w.track(op.ExternalID, "ada", 0, "ada")
			bob := w.number(op.ExternalID, "bob")
			b := w.e.NewBatch(1, 0)
			b.Delete(bob) // knows of bob alone
			pack()
			w.merge(w.number(op.ExternalID, "ada"), bob)
			require.NoError(t, b.Commit())
			b.Release()
			w.settle()
			w.track(op.ExternalID, "ada", 0, "new")
			require.Equal(t, []string{"new"}, w.exportedNames())
		})
	})
}

// The events that came under an external id belong to the user who had it at the time.
func TestDeletionAfterRemovalOfID(t *testing.T) {
	testsize.SkipSerial(t)
	for _, who := range []string{"first", "second"} {
		t.Run(who, func(t *testing.T) {
			stages(t, func(t *testing.T, w *world, pack func()) {
				w.track(op.ExternalID, "old", 0, "o1")
				first := w.number(op.ExternalID, "old")
				w.batch(func(b *shard.Batch) { b.RenameExternalID(first, []byte("old"), []byte("new")) })
				w.track(op.ExternalID, "old", 0, "o2")
				w.track(op.ExternalID, "new", 0, "o3")
				pack()
				w.batch(func(b *shard.Batch) { b.RemoveExternalID(first, []byte("old")) })
				w.track(op.ExternalID, "old", 0, "f1")
				w.track(op.SvcID, "", first, "o4")
				second := w.number(op.ExternalID, "old")
				require.NotEqual(t, first, second)
				if who == "first" {
					w.batch(func(b *shard.Batch) { b.Delete(first) })
					require.Equal(t, []string{"f1"}, w.exportedNames())
					return
				}
				w.batch(func(b *shard.Batch) { b.Delete(second) })
				require.Equal(t, []string{"o1", "o2", "o3", "o4"}, w.exportedNames())
			})
		})
	}
}

// A user is merged and deleted at the same time. The user's events are gone exactly when the user is.
func TestDeletionDuringMerge(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	gone := 0
	var want []string
	for i := range 200 {
		from, to := fmt.Sprint("a", i), fmt.Sprint("b", i)
		w.track(op.ExternalID, from, 0, from)
		w.track(op.ExternalID, to, 0, to)
		a, b := w.number(op.ExternalID, from), w.number(op.ExternalID, to)
		var merging sync.WaitGroup
		merging.Go(func() { w.batch(func(x *shard.Batch) { x.Merge(a, b) }) })
		time.Sleep(time.Duration(i%30) * 2 * time.Microsecond)
		w.batch(func(x *shard.Batch) { x.Delete(b) })
		merging.Wait()
		w.settle()
		users, err := w.e.FindNumber(1, a)
		require.NoError(t, err)
		if len(users) > 0 {
			want = append(want, from)
		} else {
			gone++
		}
		if i%50 == 10 {
			w.pack()
		}
	}
	slices.Sort(want)
	t.Logf("%d were merged before, or while, the other one was deleted", gone)
	require.Equal(t, want, w.exportedNames())
	w.pack()
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, want, w.onDiskNames())
}

// A deletion may name more users than a small field can count, and STATE keeps them all.
func TestDeletionOfMany(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "keep", 0, "keep")
	keep := w.number(op.ExternalID, "keep")
	const n = 1500
	var numbers []uint64
	for at := 0; at < n; at += 100 {
		w.batch(func(b *shard.Batch) {
			for i := range 100 {
				start := b.Begin()
				b.Buf = op.AppendEventBody(b.Buf)
				op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1, b.Intern([]byte("e")), 0)
				key := fmt.Sprint("u", at+i)
				b.Buf = append(b.Buf, key...)
				b.End(start, op.Event, 0, op.ExternalID, len(key))
			}
		})
	}
	for i := range n {
		numbers = append(numbers, w.number(op.ExternalID, fmt.Sprint("u", i)), keep)
	}
	w.merge(numbers...)
	require.Len(t, w.exportedNames(), n+1)
	w.pack()
	w.batch(func(b *shard.Batch) { b.Delete(keep) })
	require.Empty(t, w.exportedNames())
	w.pack()
	w.reopen(manual())
	require.Empty(t, w.exportedNames())
	require.NoError(t, w.l.maintain(true))
	require.Empty(t, w.onDiskNames())
}

// A deletion waits for a user who is on the way into the deleted one. It takes along everything of both: events that
// came meanwhile, and the row of the merge. Streams hear of both deletions, behind everything that they could have
// heard of these users.
func TestDeletionThatWaited(t *testing.T) {
	stages(t, func(t *testing.T, w *world, pack func()) {
		w.track(op.ExternalID, "ada", 0, "ada1")
		w.track(op.ExternalID, "bob", 0, "bob1")
		ada, bob := w.number(op.ExternalID, "ada"), w.number(op.ExternalID, "bob")
		pack()
		w.batch(func(b *shard.Batch) { // as it is between the Pin and the Absorb of a merge
			m := bodies.Merge{Other: ada, Mode: profile.MergeUsers, Room: 1 << 12}
			b.Append(op.Pin, op.MakeFlags(0, op.SvcID), bob, m.Append(nil), nil)
			b.Delete(bob)
			start := testengine.BeginEvent(&b.Builder, "bob2")
			b.EndNumber(start, op.Event, 0, bob)
		})
		w.settle()
		require.Zero(t, w.number(op.ExternalID, "ada"))
		require.Zero(t, w.number(op.ExternalID, "bob"))
		require.Empty(t, w.exportedNames())
		_, merges := w.followedKinds(event.Merged)
		require.Empty(t, merges, "it has the external id of who was merged")
		told, end := map[uint64]string{}, ""
		for _, deletion := range w.followed() {
			var at string
			var number uint64
			_, err := fmt.Sscanf(deletion, "%s %x", &at, &number)
			require.NoError(t, err)
			told[number], end = at[:16], at[:16]
		}
		require.Equal(t, map[uint64]string{ada: end, bob: end}, told)
	})
}
