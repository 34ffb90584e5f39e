package eventlog

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
)

// What waits in a log that has no block yet is counted: neither are records taken for events, nor what has none.
func TestBehindInAYoungLog(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	require.Zero(t, w.l.Behind(0, 1, time.Time{}))
	commit := func(records, events int) (last uint64) {
		for n := range int64(records) {
			b := w.e.NewBatch(1, 0)
			b.Append(op.Attributes, 0, 0, nil, []byte("u1"))
			for k := range int64(events) {
				o := object{n: n, kind: op.Event, id: op.ExternalID, key: "u1", name: "e", time: baseTime + k}
				require.True(t, o.write(b))
			}
			require.NoError(t, b.Commit())
			b.Release()
		}
		return w.l.Applied()
	}
	middle := commit(4, 25)
	w.clock.move(time.Minute)
	later := w.clock.now()
	commit(2, 25)
	last := commit(50, 0)
	require.EqualValues(t, 150, w.l.Behind(0, 1, time.Time{}))
	require.EqualValues(t, 50, w.l.Behind(middle, 1, time.Time{}))
	require.EqualValues(t, 50, w.l.Behind(0, 1, later))
	require.Zero(t, w.l.Behind(last-50, 1, time.Time{}), "the last records have no events")
	require.Zero(t, w.l.Behind(0, 2, time.Time{}), "of another workspace")
	w.pack()
	require.Zero(t, w.l.Behind(w.l.Stats().Packed, 1, time.Time{}))
}

// However long a log becomes before its first block, there are only so many runs, and the sum stays exact.
func TestYoungRunsAreBounded(t *testing.T) {
	var y young
	const positions = 10 * youngRuns
	for position := uint64(1); position <= 2*positions; position += 2 { // a group's positions have gaps
		var events []blocks.Row
		if position > positions {
			events = []blocks.Row{{Workspace: 1}, {Workspace: 1}, {Workspace: 2}}
		}
		y.add(position, events)
		require.LessOrEqual(t, len(y.runs), youngRuns)
	}
	sum, last := map[uint32]int64{}, uint64(0)
	for _, r := range y.runs {
		require.Greater(t, r.first, last)
		last = r.last
		for workspace, n := range r.events {
			sum[workspace] += n
		}
	}
	require.Equal(t, uint64(2*positions-1), last)
	require.Equal(t, map[uint32]int64{1: positions, 2: positions / 2}, sum)
}
