package api

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeadlinesAreSetSeldomAndSlightlyLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline
		var set []time.Duration // from now, as they were set
		ask := func(in time.Duration) {
			require.NoError(t, d.ask(time.Now().Add(in), func(at time.Time) error {
				set = append(set, time.Until(at))
				return nil
			}))
		}
		for range 100 { // one second
			ask(10 * time.Second)
			time.Sleep(10 * time.Millisecond)
		}
		require.Equal(t, []time.Duration{11 * time.Second}, set)
		time.Sleep(time.Millisecond)
		ask(10 * time.Second)
		require.Equal(t, []time.Duration{11 * time.Second, 11 * time.Second}, set)

		set = nil
		ask(80 * time.Millisecond) // an earlier one
		ask(time.Minute)           // a later one
		ask(-time.Second)          // one that has passed
		require.Equal(t, []time.Duration{90 * time.Millisecond, time.Minute + time.Second, -time.Second}, set)
	})
}

func TestAbsenceOfADeadlineIsSetOnce(t *testing.T) {
	var d deadline
	var set []time.Time
	apply := func(at time.Time) error { set = append(set, at); return nil }
	require.NoError(t, d.ask(time.Time{}, apply))
	require.Empty(t, set)
	require.NoError(t, d.ask(time.Now().Add(time.Hour), apply))
	require.NoError(t, d.ask(time.Time{}, apply))
	require.NoError(t, d.ask(time.Time{}, apply))
	require.Len(t, set, 2)
	require.Zero(t, set[1])
}
