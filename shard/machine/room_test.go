package machine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/op"
)

// However much is to be evicted, readers get their turn in between. Each step looks at a bounded number of slots and
// goes on where the step before has ended. All steps together evict everything that can be evicted.
func TestEvictingIsDoneInSteps(t *testing.T) {
	testsize.SkipSerial(t)
	e := openSingle(t)
	const users, most = 3000, 5
	b := e.NewBatch(1, 0)
	for i := range users {
		testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
	}
	require.NoError(t, b.Commit())
	b.Release()
	require.NoError(t, e.Checkpoint())
	w := e.workers[0]
	w.Lock()
	defer w.Unlock()
	entries := func() (n int) {
		for _, p := range w.parts {
			for i := range p.Slots {
				if p.Slots[i] != 0 {
					n++
				}
			}
		}
		return n
	}
	steps := 0
	for turns := 2 * len(w.parts); turns > 0; steps++ { // in the first round what was used lately stays
		before := entries()
		_, ended, err := w.evict(most)
		require.NoError(t, err)
		require.LessOrEqual(t, before-entries(), most)
		if ended {
			turns--
		}
	}
	require.Zero(t, entries())
	require.Greater(t, steps, users/most)
}

// What is to be evicted isn't looked for, again and again, where everything is dirty: only once entries were saved, or
// read back.
func TestEvictingLeavesOutWhatIsDirty(t *testing.T) {
	testsize.SkipSerial(t)
	e := openSingle(t)
	const users = 3000
	change := func() {
		b := e.NewBatch(1, 0)
		defer b.Release()
		for i := range users {
			testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
		}
		require.NoError(t, b.Commit())
	}
	change()
	require.NoError(t, e.Checkpoint())
	change()
	w := e.workers[0]
	evictable := func() (parts, count int) {
		w.Lock()
		defer w.Unlock()
		for _, p := range w.parts {
			count += p.Count
			if p.evictable {
				parts++
			}
		}
		return parts, count
	}
	trim := func(memory int64) {
		e.memory.Store(memory)
		_, err := w.Trim()
		require.NoError(t, err)
	}
	const none, plenty = 0, 1 << 30
	trim(none)
	parts, count := evictable()
	require.Zero(t, parts)
	require.Equal(t, users, count)

	require.NoError(t, e.Checkpoint()) // which trims
	trim(none)
	_, count = evictable()
	require.Zero(t, count)

	e.memory.Store(plenty)
	l, err := e.Lend(e.hasher.Number(1, op.ExternalID, []byte("user1")), ToChange)
	require.NoError(t, err)
	l.Back()
	_, count = evictable()
	require.Equal(t, 1, count)
	trim(none)
	_, count = evictable()
	require.Zero(t, count)
}

// A table that has lost its entries gives back all its memory, a half at a time, though there is nothing left to be
// evicted.
func TestEvictingShrinksTables(t *testing.T) {
	e := openSingle(t)
	w := e.workers[0]
	p := w.parts[5]
	w.Lock()
	for i := range uint64(100_000) {
		_, err := w.admit(p, uint64(p.ID)<<56|(i+1)*7, entries.AppendTombstone(nil, 1, 0))
		require.NoError(t, err)
	}
	require.Positive(t, w.tables)
	w.Unlock()
	e.memory.Store(0)
	for range 20 {
		_, err := w.Trim()
		require.NoError(t, err)
	}
	w.Lock()
	defer w.Unlock()
	require.Zero(t, p.Count)
	require.Zero(t, w.tables)
}
