package machine

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/bodies"
	"millrace/shard/op"
	"millrace/shard/store"
)

// The book of merges counts what is held, comes back from the store as it was, and is empty when nobody is held.
func TestHeld(t *testing.T) {
	var w Worker
	w.applying.rec = &op.Record{Workspace: 3, Actor: 4, Stamp: 5, Source: op.SourceMerge}
	p := &Partition{tokens: new(atomic.Int64)}
	p.hold(7, 100)
	p.hold(7, 50)
	p.hold(9, 1)
	p.unhold(7, 100)
	require.Equal(t, []any{true, 50, 1, 0}, []any{p.isPinned(7), p.reserved(7), p.reserved(9), p.reserved(8)})
	w.park(p, op.Seal, 7, (&bodies.Merge{Other: 8, Ref: 2, Room: 11}).Append(nil), []byte("id"))
	w.park(p, op.Pin, 7, (&bodies.Merge{Other: 6}).Append(nil), nil)
	require.Empty(t, p.takeWaiting(7), "it is pinned")

	book := p.encodeHeld()
	for n := range book {
		cut := &Partition{tokens: new(atomic.Int64)}
		if err := cut.decodeHeld(book[:n]); err != nil {
			require.ErrorIs(t, err, store.ErrStore)
		} else {
			require.Less(t, len(cut.held), 2)
		}
	}
	again := &Partition{tokens: new(atomic.Int64)}
	require.NoError(t, again.decodeHeld(book))
	require.Equal(t, p.held, again.held)
	require.Equal(t, book, again.encodeHeld())
	require.False(t, again.heldNew)

	again.unhold(7, 50)
	require.True(t, again.waits(7))
	list := again.takeWaiting(7)
	require.Len(t, list, 2)
	rec, err := op.ParseRecord(list[0].record, nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	m, _, err := bodies.ParseMerge(o.Body())
	require.NoError(t, err)
	require.Equal(t, []any{uint32(3), uint32(4), int64(5), op.SourceMerge, op.Seal, uint64(7), "id", bodies.Merge{Other: 8, Ref: 2, Room: 11}},
		[]any{rec.Workspace, rec.Actor, rec.Stamp, rec.Source, o.Kind(), o.Number(), string(o.Key()), m})
	again.unhold(9, 1)
	require.Empty(t, again.held)
	require.Empty(t, again.encodeHeld())
	require.True(t, again.heldNew)
	require.Panics(t, func() { again.unhold(9, 1) })
}
