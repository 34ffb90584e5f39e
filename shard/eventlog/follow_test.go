package eventlog

import (
	"cmp"
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Rows come in the order of their ids, whether many positions have some or few have.
func TestFollowerOrder(t *testing.T) {
	rnd := testseed.Rand(t)
	for range 200 {
		positions := uint64(1) << rnd.IntN(12)
		f := &Follower{since: math.MinInt64, deleted: &deletedSet{}, x: exporter{filter: newFilter(Query{Workspace: 1})}}
		from := rnd.Uint64N(positions)
		var want []place
		for part := range 1 + rnd.IntN(3) {
			rs := new(blocks.Rows)
			for row := range rnd.IntN(100) {
				r := blocks.Row{Position: 5 + rnd.Uint64N(positions), Ordinal: rnd.Uint32N(1 << rnd.IntN(20)), Index: rnd.Uint32N(3),
					Workspace: 1 + rnd.Uint32N(2), Kind: op.Event}
				rs.List = append(rs.List, r)
				if r.Workspace == 1 && r.Position >= from {
					want = append(want, place{r.Position, uint64(r.Ordinal)<<32 + uint64(r.Index), uint32(part), uint32(row)})
				}
			}
			f.parts = append(f.parts, rs)
		}
		f.index(from)
		less := func(a, b place) int {
			x, y := &f.parts[a.part].List[a.row], &f.parts[b.part].List[b.row]
			return cmp.Or(cmp.Compare(x.Position, y.Position), cmp.Compare(x.Ordinal, y.Ordinal), cmp.Compare(x.Index, y.Index))
		}
		require.True(t, slices.IsSortedFunc(f.order, less))
		require.ElementsMatch(t, want, f.order)
	}
}

// Who follows is told of what expires while he reads, and of nothing that he has had; at the end he keeps no memory of
// blocks.
func TestFollowerMisses(t *testing.T) {
	const day = 24 * time.Hour
	w := newWorld(t, vfs.NewMem(), manual())
	var ends []uint64
	for range 3 {
		w.commitMore(3, 5)
		w.pack()
		ends = append(ends, w.l.Stats().Packed)
		w.clock.move(10 * day)
	}
	second := w.l.blockFrom(ends[0] + 1)
	f, got := w.l.Follow(0, Query{Workspace: 1}, time.Time{}), [3]int{} // events of each block
	_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
		if got == [3]int{} {
			require.NotEmpty(t, f.pool)
			require.Zero(t, f.Missed())
			w.clock.move(15 * day)
			require.NoError(t, w.l.maintain(false))
		}
		i, _ := slices.BinarySearch(ends, e.Position)
		got[i]++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, ends[1], f.Missed())
	require.NotZero(t, got[0])
	require.Zero(t, got[1])
	require.NotZero(t, got[2])
	require.Nil(t, f.pool)

	none := func(*blocks.Rows) error { t.Fatal("it has gone"); return nil }
	require.Equal(t, errGone, w.l.readGroups(context.Background(), second, nil, func() *blocks.Rows { return new(blocks.Rows) }, none))
	require.NoError(t, w.l.readBlock(context.Background(), second, nil, new(blocks.Rows), none), "exports leave out what expires meanwhile")

	at := func(position uint64) time.Duration { return w.clock.now().Sub(w.l.Waits(position, 1)).Round(day) }
	require.Equal(t, 25*day, at(0), "in the block that is left")
	w.commitMore(1, 1)
	require.Zero(t, at(w.l.Stats().Packed))
	require.True(t, w.l.Waits(w.l.Applied(), 1).IsZero())
}
