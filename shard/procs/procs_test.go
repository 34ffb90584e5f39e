package procs

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadsRaiseGOMAXPROCSForAWhile(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Setenv("GOMAXPROCS", "set")
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	synctest.Test(t, func(t *testing.T) {
		r := NewReading(before+3, 0)
		r.Begin()
		r.Begin()
		require.Equal(t, before+3, runtime.GOMAXPROCS(0))
		r.End()
		time.Sleep(2 * lowerAfter)
		require.Equal(t, before+3, runtime.GOMAXPROCS(0), "one reads still")
		r.End()
		time.Sleep(lowerAfter / 2)
		r.Begin()
		r.End()
		time.Sleep(lowerAfter * 3 / 4)
		require.Equal(t, before+3, runtime.GOMAXPROCS(0), "somebody has read a moment ago")
		time.Sleep(lowerAfter)
		require.Equal(t, before, runtime.GOMAXPROCS(0))
		r.Begin()
		require.Equal(t, before+3, runtime.GOMAXPROCS(0), "and again")
		r.End()
		time.Sleep(2 * lowerAfter)
		require.Equal(t, before, runtime.GOMAXPROCS(0))
	})
}

func TestReadsNeverLowerGOMAXPROCS(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	for _, r := range []*Reading{nil, NewReading(0, 0), NewReading(1, 0), NewReading(before, 0)} {
		r.Begin()
		require.Equal(t, before, runtime.GOMAXPROCS(0))
		r.End()
		require.Equal(t, before, runtime.GOMAXPROCS(0))
	}
}

// So many entries are read at once as take the bytes that there are for them, if they are like those before.
func TestEntriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 1 << 20
		r := NewReading(0, room)
		require.Equal(t, 8, r.AtOnce())
		goOn := make(chan int)
		var reading atomic.Int64
		read := func() {
			r.BeginEntry()
			reading.Add(1)
			bytes := <-goOn
			reading.Add(-1)
			r.EndEntry(bytes)
		}
		for range 1000 {
			go read()
		}
		synctest.Wait()
		require.EqualValues(t, 8, reading.Load())
		goOn <- 2 * room // one is larger than all that there is room for
		synctest.Wait()
		require.EqualValues(t, 7, reading.Load())
		require.Equal(t, 1, r.AtOnce())
		for range 7 {
			goOn <- 2 * room
		}
		synctest.Wait()
		require.EqualValues(t, 1, reading.Load(), "one always is read")
		for range 300 {
			goOn <- 100
			synctest.Wait()
			require.EqualValues(t, r.AtOnce(), reading.Load())
		}
		require.Equal(t, maxEntries, r.AtOnce())
		goOn <- room / 10
		synctest.Wait()
		require.Equal(t, 10, r.AtOnce())
		for range 1000 - 8 - 300 - 1 {
			goOn <- 0
		}
		synctest.Wait()
		require.Zero(t, reading.Load())
		require.Equal(t, maxEntries, r.AtOnce())
	})
	require.Equal(t, maxEntries, (*Reading)(nil).AtOnce())
}
