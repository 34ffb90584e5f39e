package ratelimit

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"3000/3s": "3000/3s", "20000/1m": "20000/1m", "250000/h": "250000/1h", "5000/d": "5000/24h", "5000/day": "5000/24h", "10/min": "10/1m", "10/2min": "10/2m", "1/100ms": "1/100ms", "7/90s": "7/90s",
		"7/1h30m": "7/90m", " 7 / 1s ": "7/1s", "2/2hour": "2/2h",
	} {
		l, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, l.String(), text)
	}
	for _, text := range []string{"", "3000", "/3s", "0/1s", "-1/1s", "1.5/1s", "1/0s", "1/50ms", "1/32d", "1/", "1/x", "1/1.5ms", "9999999999/1s", "1/xd", "1/1s/1s"} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
}

func TestOverrides(t *testing.T) {
	l, err := ParseLimits(false, map[string]string{"users.track": "5/1s", "users.merge": "7/2m"})
	require.NoError(t, err)
	require.Equal(t, "5/1s", l[UsersTrack].String())
	require.Zero(t, l[UsersTrack].Burst)
	require.Equal(t, "7/2m", l[UsersMerge].String())
	require.Equal(t, "250000/1h", l[EmailStatus].String())

	l, err = ParseLimits(true, map[string]string{"users.track": "100/1h", "users.track.burst": "3/1s"})
	require.NoError(t, err)
	require.Equal(t, Limit{100, time.Hour, 3, time.Second}, l[UsersTrack])

	_, err = ParseLimits(false, map[string]string{"users.trak": "1/1s"})
	require.ErrorContains(t, err, "users.trak")
	require.NotContains(t, err.Error(), "scim", "no workspace can have it")
	_, err = ParseLimits(false, map[string]string{"scim.provisioning": "1/1s"})
	require.ErrorContains(t, err, "the company's")
	_, err = ParseLimits(false, map[string]string{"": "1/1s"})
	require.Error(t, err)
	for b := None + 1; b < bucketCount; b++ {
		require.NotZero(t, Defaults(false)[b].Requests, b)
		require.Equal(t, b, named(b.String()))
	}
}

// A story: requests of a window of 3 s that takes 2, with the clock in ms.
func TestWindow(t *testing.T) {
	limit := Limit{Requests: 2, Window: 3 * time.Second}
	var w Window
	for i, step := range []struct {
		now       int64
		ok        bool
		remaining uint32
		reset     int64
	}{
		{9_000, true, 1, 12},
		{10_000, true, 0, 12},
		{11_999, false, 0, 12},
		{12_000, true, 1, 15}, // on the boundary
		{11_990, true, 0, 15}, // read the clock before the boundary, came after
		{12_100, false, 0, 15},
		{3_612_000, true, 1, 3615}, // an hour forward
		{3_612_001, true, 0, 3615},
		{12_200, true, 1, 15}, // and back: not blocked
		{12_300, true, 0, 15},
		{9_500, true, 1, 12}, // back by one window
		{9_600, true, 0, 12},
		{9_700, false, 0, 12},
	} {
		before := w.Peek(limit, step.now)
		s, ok := w.Take(limit, step.now)
		require.Equal(t, step.ok, ok, "step %d", i)
		require.Equal(t, State{Limit: 2, Remaining: step.remaining, ResetMillis: step.reset * 1000}, s, "step %d", i)
		if ok {
			require.Equal(t, s.Remaining+1, before.Remaining, "step %d", i)
		} else {
			require.Zero(t, before.Remaining)
		}
		require.LessOrEqual(t, s.RetryAfterSeconds(step.now), int64(4))
	}
}

// F11: whatever the clock does, who is refused is told to wait no longer than a window, and is served after it.
func TestClockJumps(t *testing.T) {
	limit := Limit{Requests: 1, Window: time.Hour}
	for _, jump := range []int64{-1, -49, -51, -3_600_000, -3_599_999, -7_200_000, 3_600_000, 7_200_001} {
		var w Window
		now := int64(1_800_000_000_000)
		_, ok := w.Take(limit, now)
		require.True(t, ok)
		now += jump
		if s, ok := w.Take(limit, now); !ok {
			require.LessOrEqual(t, s.ResetMillis, now+limit.Window.Milliseconds()+lateMillis, jump)
			_, ok = w.Take(limit, s.ResetMillis)
			require.True(t, ok, jump)
		}
	}
}

func TestBurst(t *testing.T) {
	limit := Limit{Requests: 5, Window: time.Hour, Burst: 2, BurstWindow: time.Second}
	var w Window
	for second := int64(0); second < 2; second++ {
		for range 2 {
			s, ok := w.Take(limit, second*1000)
			require.True(t, ok)
			require.Equal(t, uint32(5), s.Limit)
		}
		s, ok := w.Take(limit, second*1000)
		require.False(t, ok)
		require.Equal(t, State{Limit: 2, ResetMillis: second*1000 + 1000, Burst: true}, s)
	}
	_, ok := w.Take(limit, 2000)
	require.True(t, ok)
	s, ok := w.Take(limit, 2000)
	require.False(t, ok)
	require.Equal(t, State{Limit: 5, ResetMillis: 3_600_000}, s)
}

func TestConcurrentTakes(t *testing.T) {
	limit := Limit{Requests: 1000, Window: time.Second}
	var w Window
	var now, admitted atomic.Int64
	now.Store(1000)
	for window := range int64(3) {
		admitted.Store(0)
		now.Store((window + 1) * 1000)
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for range 500 {
					if _, ok := w.Take(limit, now.Load()); ok {
						admitted.Add(1)
					}
				}
			})
		}
		group.Wait()
		require.Equal(t, int64(1000), admitted.Load())
	}
}
