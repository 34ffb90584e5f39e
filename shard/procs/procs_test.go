package procs

import (
	"runtime"
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
		r := NewReading(before + 3)
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
	for _, r := range []*Reading{nil, {}, NewReading(1), NewReading(before)} {
		r.Begin()
		require.Equal(t, before, runtime.GOMAXPROCS(0))
		r.End()
		require.Equal(t, before, runtime.GOMAXPROCS(0))
	}
}
