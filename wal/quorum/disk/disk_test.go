package disk

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// All who have joined are told once when writes begin to take too long, and once when none does any more.
func TestLateWritesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Disk
		told := make(chan bool, 10)
		leave := d.Join(func() { told <- d.Hangs() })
		one, two, patient := d.Watch(time.Second), d.Watch(time.Second), d.Watch(-1)
		for range 2 { // a timer that is set again is as good as a new one
			one.Begin()
			patient.Begin()
			time.Sleep(time.Second - 1)
			require.False(t, d.Hangs())
			require.Equal(t, time.Second-1, one.Taken())
			two.Begin()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.True(t, <-told)
			one.End()
			synctest.Wait()
			require.Empty(t, told, "another write still takes too long")
			two.End()
			synctest.Wait()
			require.False(t, <-told)
			require.Zero(t, one.Taken())
			time.Sleep(time.Hour)
			require.Equal(t, time.Hour+3*time.Second-1, patient.Taken())
			require.False(t, d.Hangs(), "it has no timeout")
			patient.End()
		}
		leave()
		one.Begin()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.True(t, d.Hangs())
		require.Empty(t, told)
		one.End()
	})
}

// However many logs ask, the disk is looked at and tried only so often.
func TestDiskIsLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Disk
		looks, unknown := uint64(0), errors.New("no disk")
		look := func() (free, total uint64, err error) { looks++; return looks, 10, unknown }
		for i := range uint64(3) {
			for range 5 {
				free, total, err := d.Space(time.Second, look)
				require.Equal(t, []uint64{i + 1, 10}, []uint64{free, total})
				require.ErrorIs(t, err, unknown)
			}
			require.True(t, d.WantsTry(time.Second))
			require.False(t, d.WantsTry(time.Second))
			time.Sleep(time.Second + 1)
		}
	})
}
