package machine

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Entries that the trail holds in memory count against the memory budget until a checkpoint has written them.
func TestTrailIsBounded(t *testing.T) {
	testsize.SkipSerial(t)
	o := testOptions(vfs.NewMem())
	o.Workers = 1
	o.MemoryBytes = 1 << 20
	e := openTest(t, o)
	w := e.workers[0]
	most := int64(0)
	for i := range 1000 {
		b := e.NewBatch(1, 0)
		b.SetSource(op.SourceEmailStatus)
		state := profile.State{Kind: profile.StateEmail, Value: []string{"subscribed", "unsubscribed"}[i%2]}
		for user := range 100 {
			b.SetAddressStates(op.Email, fmt.Append(nil, "m", user, "@example.com"), state)
		}
		require.NoError(t, b.Commit())
		b.Release()
		w.Lock()
		most = max(most, w.arena.Used+w.unwritten)
		w.Unlock()
	}
	require.Less(t, most, 2*o.MemoryBytes)
	require.NoError(t, e.Checkpoint())
	w.Lock()
	defer w.Unlock()
	require.Zero(t, w.unwritten)
}

// A start reads all books that are held in memory, and none of the others.
func TestBooksAreLoaded(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	p := &Partition{Books: books.Books{ID: 77, Positions: books.Positions{Applied: 5, LastMessage: 6, LastDeferred: 7}}}
	p.Take(3, 9)
	rec := op.Record{Workspace: 1, Stamp: 2}
	p.Outbox = []*effect.Message{effect.NewMessage(new(op.Builder), p.ID, 6, 0, &rec, op.RowRemove, 0, 1<<56|1, []byte("12345678"), nil, false)}
	p.Deferred.Add(7, 0, []byte("record"))
	p.Dropped.Add(books.DroppedOp{Position: 1, Ordinal: 2})
	p.Suppressed.Move(1, 1, profile.StateChange{}, profile.StateChange{State: profile.State{Kind: profile.StateBounce, On: true}})
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	require.NoError(t, p.saveBooks(batch))
	require.NoError(t, batch.Commit(pebble.NoSync))
	q := &Partition{Books: books.Books{ID: p.ID}}
	require.NoError(t, q.load(e.store, nil))
	require.Equal(t, p.Positions, q.Positions)
	require.Equal(t, p.Taken(), q.Taken())
	require.Len(t, q.Outbox, 1)
	require.Equal(t, p.Outbox[0].Body, q.Outbox[0].Body)
	require.True(t, q.Outbox[0].Stored)
	require.Equal(t, p.Deferred.All(), q.Deferred.All())
	require.Empty(t, q.Dropped)
	require.NoError(t, e.store.Scan(store.AppendBookKey(nil, p.ID, store.BookLazy), store.AppendEntryKey(nil, uint64(p.ID)<<56|1), func(k, _ []byte) error {
		require.Contains(t, []byte{store.BookTrail, store.BookAudit, store.BookSuppressed, store.BookDropped, store.BookNoted}, k[9])
		return nil
	}))
}
