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
		var held, room atomic.Int64
		goOn := make(chan struct{})
		most, taken := 4, uint64(0)
		a := ahead{n: users, most: func() int { return most }, size: count(size)}
		a.read = func(i int) ([]User, error) {
			begun.Add(1)
			<-goOn
			return []User{{Number: uint64(i), Blob: make([]byte, size)}}, nil
		}
		a.hold = func(bytes int) error {
			if held.Add(int64(bytes)) > room.Load() && bytes > 0 {
				return replica.ErrBusy
			}
			return nil
		}
		room.Store(1000)
		go a.each(func(found []User, err error) bool {
			require.NoError(t, err)
			require.Equal(t, taken, found[0].Number)
			require.LessOrEqual(t, begun.Load(), int64(taken)+int64(max(4, most)))
			held.Add(-size)
			taken++
			return true
		})
		next := func() {
			goOn <- struct{}{} // one of them, whichever
			synctest.Wait()
			require.GreaterOrEqual(t, held.Load(), (begun.Load()-int64(taken)-1)*size) // the next may not have been counted
			require.LessOrEqual(t, held.Load(), (begun.Load()-int64(taken))*size)
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
		room.Store(held.Load() + 2*size)
		next()
		require.LessOrEqual(t, held.Load(), room.Load())
		require.Less(t, begun.Load(), int64(users))
		room.Store(1000)
		next()
		require.EqualValues(t, users, begun.Load())
		close(goOn)
		synctest.Wait()
		require.EqualValues(t, users, taken)
		require.Zero(t, held.Load())
	})
}

// Without any room there is an error, at the first profile that has more than nothing.
func TestAheadWithoutRoom(t *testing.T) {
	full := func(bytes int) error {
		if bytes > 0 {
			return replica.ErrBusy
		}
		return nil
	}
	a := ahead{n: 9, most: count(9), size: count(10), hold: full}
	a.read = func(i int) ([]User, error) { return []User{{Blob: make([]byte, i/3)}}, nil }
	taken := 0
	a.each(func(users []User, err error) bool {
		taken++
		if taken <= 3 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, replica.ErrBusy)
			require.Nil(t, users)
		}
		return true
	})
	require.Equal(t, 4, taken)
}

// What ends reading ahead, an error, a panic, or who takes the users, waits for the reads that have begun.
func TestAheadEnds(t *testing.T) {
	var reading atomic.Int64
	read := func(i int) ([]User, error) {
		reading.Add(1)
		defer reading.Add(-1)
		runtime.Gosched()
		switch i {
		case 30:
			return nil, replica.ErrFailed
		case 40:
			panic("x")
		}
		return nil, nil
	}
	a := ahead{n: 50, most: count(16), size: count(1), hold: func(int) error { return nil }, read: read}
	var last error
	taken := 0
	a.each(func(_ []User, err error) bool { taken++; last = err; return true })
	require.Equal(t, 31, taken)
	require.ErrorIs(t, last, replica.ErrFailed)
	require.Zero(t, reading.Load())
	a.each(func([]User, error) bool { taken++; return false })
	require.Equal(t, 32, taken)
	require.Zero(t, reading.Load())
	a.n, a.read = 9, func(i int) ([]User, error) { return read(i + 33) }
	require.PanicsWithValue(t, "x", func() { a.each(func([]User, error) bool { taken++; return true }) })
	require.Equal(t, 32+7, taken)
	require.Zero(t, reading.Load())
	a.n = 0
	a.each(nil)
}
