package machine

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// fullWorker is a worker that has one entry and no memory left but for entries of the same size. failed is what it has
// ended with.
func fullWorker(t *testing.T, number uint64, entry []byte) (w *Worker, failed *error) {
	failed = new(error)
	m := New(Options{
		Count: 1, Workers: 1, MemoryBytes: 1 << 30, Addressable: 8 << 20, Limits: *profile.DefaultLimits(),
		Fail: func(err error) { *failed = err }, Failed: func() error { return *failed },
	})
	t.Cleanup(m.Free)
	w = m.workers[0]
	_, err := w.insert(w.parts[0], number, entry)
	require.NoError(t, err)
	useUp(t, w, make([]byte, 60_000))
	return w, failed
}

// useUp inserts entries until there is no memory for another one.
func useUp(t *testing.T, w *Worker, entry []byte) {
	p := w.parts[0]
	for number := uint64(1 << 20); ; number++ {
		if p.Find(number) == nil {
			if _, err := w.insert(p, number, entry); err != nil {
				require.ErrorContains(t, err, noMemory)
				return
			}
		}
	}
}

const noMemory = "memory that it can address"

// userOfSize is a profile of at least so many bytes, and the delta that makes it.
func userOfSize(t *testing.T, r *rand.Rand, key string, size int) (user, delta []byte) {
	f := entries.Folder{}
	limits := profile.DefaultLimits()
	delta = entries.AppendDelta(nil, 3, op.ExternalID, []byte(key))
	for changes := 1; len(f.Entry) < size; changes++ {
		o, rec := randomUserOp(t, r, int64(changes))
		more, ok := entries.AppendChange(delta, o, rec, profile.Place{})
		require.True(t, ok)
		delta = more
		entries.Delta(delta).SetSize(changes)
		require.NoError(t, f.Begin(nil, limits))
		require.NoError(t, f.Add(delta))
	}
	return bytes.Clone(f.Entry), delta
}

// A delta is in memory until the profile that it is folded into is there: when there is no memory for the profile, the
// next checkpoint still saves the delta.
func TestDeltaStaysWithoutMemoryForItsProfile(t *testing.T) {
	user, delta := userOfSize(t, testseed.Rand(t), "ann", 1000)
	w, failed := fullWorker(t, 7, delta)
	useUp(t, w, delta)
	p := w.parts[0]
	before := w.arena.Bytes(*p.Find(7))
	w.deltas = before
	_, err := w.admit(p, 7, user)
	require.ErrorContains(t, err, noMemory)
	require.NoError(t, *failed)
	s := p.Find(7)
	require.NotNil(t, s)
	require.Equal(t, delta, w.entryOf(s)[:len(delta):len(delta)])
	require.NotZero(t, *s&arena.Dirty)
	require.Equal(t, before, w.deltas)
	checkArena(t, w)
}

// Changes that lie at the number of somebody else are moved to their own users. When there is no memory for these, the
// machine ends before anything is saved without the changes.
func TestStraysEndTheMachineWithoutMemory(t *testing.T) {
	_, delta := userOfSize(t, testseed.Rand(t), "ann", 1000)
	bob := profile.New(nil, 3, op.ExternalID, []byte("bob"), 1)
	w, failed := fullWorker(t, 8, bob)
	p := w.parts[0]
	p.complete = true
	mixed := entries.Folder{Entry: bob, Strays: delta}
	_, err := w.admit(p, 7, mixed.Value())
	require.ErrorContains(t, err, noMemory)
	require.Equal(t, err, *failed)
	require.Equal(t, err, w.Save(p, nil, nil))
}

// A record that can't be applied whole ends the machine before the lock is released, so that a checkpoint under way
// doesn't save the part that was applied: after the start, the whole record is applied.
func TestPartOfARecordIsNotSaved(t *testing.T) {
	e := openSingle(t)
	w := e.workers[0]
	b := e.NewBatch(1, 0)
	testengine.AddEvent(b, op.ExternalID, "ann", "e", 0)
	ann := e.hasher.Number(1, op.ExternalID, []byte("ann"))
	b.Append(op.Claim, op.MakeFlags(0, op.ExternalID), ann, nil, []byte("x"))
	c := commitOf(t, b)
	b.Release()
	c.At = 1
	w.Lock()
	defer w.Unlock()
	require.ErrorIs(t, w.Apply([]*Commit{c}), op.ErrMalformed)
	p := e.partitions[ann>>56]
	require.Equal(t, 1, p.Count)
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	require.ErrorIs(t, w.Save(p, batch, nil), op.ErrMalformed)
	require.True(t, batch.Empty())
}
