package shard

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"millrace/shard/replica"
)

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
		a := ahead[[]User]{n: users, most: func() int { return most }, size: count(size), hold: room.Hold}
		a.read = func(i int, hold func(int) error) ([]User, error) {
			begun.Add(1)
			<-goOn
			return []User{{Number: uint64(i)}}, hold(size)
		}
		go a.each(func(found []User, err error) bool {
			require.NoError(t, err)
			require.Equal(t, taken, found[0].Number)
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
	a := ahead[[]User]{n: 9, most: count(9), size: count(10), hold: room.Hold}
	a.read = func(i int, hold func(int) error) ([]User, error) {
		if i < 3 {
			return nil, nil
		}
		return nil, hold(i / 6)
	}
	taken, failed := 0, 0
	take := func(_ []User, err error) bool {
		taken++
		if err != nil {
			require.ErrorIs(t, err, replica.ErrBusy)
			failed++
		}
		return true
	}
	a.each(take)
	require.Equal(t, []int{7, 1}, []int{taken, failed})
	require.Zero(t, room.taken.Load())
	room.limit.Store(1000)
	a.each(take)
	require.Equal(t, []int{7 + 9, 1}, []int{taken, failed})
	require.Zero(t, room.taken.Load())
}

// What ends reading ahead, an error, a panic, or who takes the users, waits for the reads that have begun.
func TestAheadEnds(t *testing.T) {
	var reading atomic.Int64
	read := func(i int, hold func(int) error) ([]User, error) {
		reading.Add(1)
		defer reading.Add(-1)
		require.NoError(t, hold(2))
		runtime.Gosched()
		switch i {
		case 30:
			return nil, replica.ErrFailed
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
	a := ahead[[]User]{n: 50, most: count(16), size: count(1), hold: room.Hold, read: read}
	var last error
	taken := 0
	a.each(func(_ []User, err error) bool { taken++; last = err; return true })
	require.Equal(t, 31, taken)
	require.ErrorIs(t, last, replica.ErrFailed)
	ended()
	a.each(func([]User, error) bool { taken++; return false })
	require.Equal(t, 32, taken)
	ended()
	a.n, a.read = 9, func(i int, hold func(int) error) ([]User, error) { return read(i+33, hold) }
	require.PanicsWithValue(t, "x", func() { a.each(func([]User, error) bool { taken++; return true }) })
	require.Equal(t, 32+7, taken)
	ended()
	a.n = 0
	a.each(nil)
}
