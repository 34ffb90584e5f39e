package procs

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errNoRoom, errFailed = errors.New("no room"), errors.New("failed")

// countedRoom counts what is held.
type countedRoom struct{ taken, limit atomic.Int64 }

func newRoom(limit int64) *countedRoom {
	r := &countedRoom{}
	r.limit.Store(limit)
	return r
}

func (r *countedRoom) hold(bytes int) error {
	if r.taken.Add(int64(bytes)) > r.limit.Load() && bytes > 0 {
		return errNoRoom
	}
	return nil
}

func count(n int) func() int { return func() int { return n } }

// Users are yielded in the order in which they were asked for, and only so many are in memory as may be read at once,
// or as there is room for: the one that is needed next always is.
func TestAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users, size = 50, 10
		var begun atomic.Int64
		goOn := make(chan struct{})
		most, taken := 4, uint64(0)
		room := newRoom(1000)
		a := Ahead[[]uint64]{Count: users, Most: func() int { return most }, Size: count(size), Hold: room.hold}
		a.Read = func(i int, hold func(int) error) ([]uint64, error) {
			begun.Add(1)
			<-goOn
			return []uint64{uint64(i)}, hold(size)
		}
		go a.Each(func(found []uint64, err error) bool {
			require.NoError(t, err)
			require.Equal(t, taken, found[0])
			require.LessOrEqual(t, begun.Load(), int64(taken)+int64(max(4, most)))
			taken++
			return true
		})
		next := func() {
			goOn <- struct{}{} // one of them, whichever
			synctest.Wait()
			require.GreaterOrEqual(t, room.taken.Load(), (begun.Load()-int64(taken)-1)*size) // the next may not have been counted
			require.LessOrEqual(t, room.taken.Load(), (begun.Load()-int64(taken))*size)
		}
		synctest.Wait()
		require.EqualValues(t, 4, begun.Load())
		for range 6 {
			next()
			require.LessOrEqual(t, begun.Load(), int64(taken)+4)
		}
		most = 0 // as good as 1
		next()
		most = 100
		room.limit.Store(room.taken.Load() + 2*size)
		next()
		require.LessOrEqual(t, room.taken.Load(), room.limit.Load())
		require.Less(t, begun.Load(), int64(users))
		room.limit.Store(1000)
		next()
		require.EqualValues(t, users, begun.Load())
		close(goOn)
		synctest.Wait()
		require.EqualValues(t, users, taken)
		require.Zero(t, room.taken.Load())
	})
}

// Without any room there is an error, at the first profile that has more than nothing. What was expected of reads that
// find less, or nobody, is given back.
func TestAheadWithoutRoom(t *testing.T) {
	room := newRoom(0)
	a := Ahead[[]uint64]{Count: 9, Most: count(9), Size: count(10), Hold: room.hold}
	a.Read = func(i int, hold func(int) error) ([]uint64, error) {
		if i < 3 {
			return nil, nil
		}
		return nil, hold(i / 6)
	}
	taken, failed := 0, 0
	take := func(_ []uint64, err error) bool {
		taken++
		if err != nil {
			require.ErrorIs(t, err, errNoRoom)
			failed++
		}
		return true
	}
	a.Each(take)
	require.Equal(t, []int{7, 1}, []int{taken, failed})
	require.Zero(t, room.taken.Load())
	room.limit.Store(1000)
	a.Each(take)
	require.Equal(t, []int{7 + 9, 1}, []int{taken, failed})
	require.Zero(t, room.taken.Load())
}

// What ends reading ahead, an error, a panic, or who takes the users, waits for the reads that have begun.
func TestAheadEnds(t *testing.T) {
	var reading atomic.Int64
	read := func(i int, hold func(int) error) ([]uint64, error) {
		reading.Add(1)
		defer reading.Add(-1)
		require.NoError(t, hold(2))
		runtime.Gosched()
		switch i {
		case 30:
			return nil, errFailed
		case 40:
			panic("x")
		}
		return nil, nil
	}
	room := newRoom(1000)
	ended := func() {
		require.Zero(t, reading.Load())
		require.Zero(t, room.taken.Load())
	}
	a := Ahead[[]uint64]{Count: 50, Most: count(16), Size: count(1), Hold: room.hold, Read: read}
	var last error
	taken := 0
	a.Each(func(_ []uint64, err error) bool { taken++; last = err; return true })
	require.Equal(t, 31, taken)
	require.ErrorIs(t, last, errFailed)
	ended()
	a.Each(func([]uint64, error) bool { taken++; return false })
	require.Equal(t, 32, taken)
	ended()
	a.Count, a.Read = 9, func(i int, hold func(int) error) ([]uint64, error) { return read(i+33, hold) }
	require.PanicsWithValue(t, "x", func() { a.Each(func([]uint64, error) bool { taken++; return true }) })
	require.Equal(t, 32+7, taken)
	ended()
	a.Count = 0
	a.Each(nil)
}

func TestEachAtOnce(t *testing.T) {
	var calls atomic.Int64
	require.NoError(t, EachAtOnce(100, func(i int) error { calls.Add(int64(i)); return nil }))
	require.EqualValues(t, 4950, calls.Load())
	require.ErrorIs(t, EachAtOnce(100, func(i int) error {
		if i == 50 {
			return errFailed
		}
		return nil
	}), errFailed)
	// After a failure nothing more begins.
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int64
		require.ErrorIs(t, EachAtOnce(10*maxEntries, func(i int) error {
			begun.Add(1)
			if i == 0 {
				return errFailed
			}
			time.Sleep(time.Second)
			return nil
		}), errFailed)
		require.LessOrEqual(t, begun.Load(), int64(maxEntries))
	})
	require.PanicsWithValue(t, "x", func() { _ = EachAtOnce(1, func(int) error { panic("x") }) })
	require.NoError(t, EachAtOnce(0, nil))
}
