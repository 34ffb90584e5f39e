package eventlog

import (
	"cmp"
	"context"
	"fmt"
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

// A follower gets every event once and in the order of the log, however far it reads at a time, wherever it stops, and
// whatever becomes of the block in which it is. It gets no event of users who have been deleted by then.
func TestFollowerGoesOn(t *testing.T) {
	rng := testseed.Rand(t)
	o := manual()
	o.BlockBytes, o.tailBytes, o.groupRows = 1<<20, 4<<10, 700 // so that a group is read in two parts
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(80, 25)
	w.pack()
	require.Equal(t, 1, w.l.Stats().Blocks)
	w.commitMore(8, 25)

	var all, got []followedEvent
	gone := map[string]bool{}
	read := func(e *event.Event) followedEvent {
		return followedEvent{e.Position, string(e.AppendID(nil)), string(e.Key)}
	}
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(e *event.Event) error {
		all = append(all, read(e))
		return nil
	}))
	require.True(t, slices.IsSortedFunc(all, func(a, b followedEvent) int { return cmp.Compare(a.id, b.id) }))
	end := all[len(all)-1].position
	f := w.l.Follow(0, Query{}, time.Time{})
	for through := uint64(0); through < end; {
		to, most := uint64(math.MaxUint64), rng.IntN(300)
		if rng.IntN(2) == 0 {
			to = through + 1 + rng.Uint64N(20) // it doesn't know yet what is deleted behind that
		}
		var err error
		through, err = f.Read(context.Background(), to, func(e *event.Event) error {
			if most--; most < 0 {
				return Stop
			}
			require.False(t, to == math.MaxUint64 && gone[string(e.Key)], "%s is gone", e.Key)
			got = append(got, read(e))
			return nil
		})
		require.NoError(t, err)
		got = slices.DeleteFunc(got, func(e followedEvent) bool { return e.position > through }) // they come again
		if rng.IntN(4) == 0 {
			f.LetGo()
			require.Zero(t, f.group)
			require.Zero(t, f.stretch)
			require.Zero(t, f.event)
		}
		if user := fmt.Sprint("u", rng.IntN(40)); !gone[user] && (len(gone) == 0 || rng.IntN(4) == 0) {
			w.deleteUser(op.ExternalID, user)
			gone[user] = true
		}
		if rng.IntN(8) == 0 {
			w.pack()
			require.NoError(t, w.l.maintain(true)) // forgets who was deleted
		}
	}
	require.NotEmpty(t, gone)
	want := slices.DeleteFunc(slices.Clone(all), func(e followedEvent) bool { return gone[e.key] })
	require.Equal(t, want, slices.DeleteFunc(got, func(e followedEvent) bool { return gone[e.key] }))
}

type followedEvent struct {
	position uint64
	id, key  string
}

// A follower is told which events expire while it reads, and of none that it has had. At the end it keeps no memory of
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
			require.True(t, f.inGroup)
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
	require.Zero(t, f.group)

	_, err = w.l.openBlock(second)
	require.Equal(t, errGone, err)
	none := func(*blocks.Rows) error { t.Fatal("it has gone"); return nil }
	require.NoError(t, w.l.readBlock(context.Background(), second, none), "exports leave out what expires meanwhile")

	at := func(position uint64) time.Duration {
		return w.clock.now().Sub(w.l.Waits(position, 1, time.Time{})).Round(day)
	}
	require.Equal(t, 25*day, at(0), "in the block that is left")
	require.NotZero(t, w.l.Behind(0, 1, time.Time{}))
	require.Zero(t, w.l.Behind(0, 1, w.clock.now()), "all that is left was accepted before")
	require.Zero(t, w.clock.now().Sub(w.l.Waits(0, 1, w.clock.now())).Round(day))
	w.commitMore(1, 1)
	require.Zero(t, at(w.l.Stats().Packed))
	require.True(t, w.l.Waits(w.l.Applied(), 1, time.Time{}).IsZero())
}

// A log with few events is read in larger parts than one with many: what it takes to begin a part is not for each 2 MiB.
func TestFewEventsAreReadInFewParts(t *testing.T) {
	o := manual()
	o.tailBytes = 4 << 10
	w := newWorld(t, vfs.NewMem(), o)
	for i := range 400 {
		w.setEmail("u0", fmt.Sprintf("%060d@example.com", i))
	}
	parts := &counted{Source: w.l.src}
	w.l.src = parts
	size := int64(0)
	require.NoError(t, parts.Source.ReadLog(parts.FirstPosition(), math.MaxUint64, func(_ uint64, _ uint32, payload []byte) error {
		size += int64(len(payload))
		return nil
	}))
	require.Greater(t, size, 8*o.tailBytes)
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(*event.Event) error { return nil }))
	require.Less(t, parts.n, 4+size/(4*o.tailBytes))
}

// counted counts how often the log is read.
type counted struct {
	Source
	n int64
}

func (c *counted) ReadLog(from, to uint64, f func(uint64, uint32, []byte) error) error {
	c.n++
	return c.Source.ReadLog(from, to, f)
}
