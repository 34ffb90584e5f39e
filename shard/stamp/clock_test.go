package stamp

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// brokenClock is a system's clock that can jump, and a steady clock beside it.
type brokenClock struct {
	system time.Time
	steady time.Duration
	slept  time.Duration
}

func (b *brokenClock) pass(d time.Duration) { b.system, b.steady = b.system.Add(d), b.steady+d }
func (b *brokenClock) jump(d time.Duration) { b.system = b.system.Add(d) }

func TestClockJumps(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &brokenClock{system: begin}
	c := &Clock{Now: func() time.Time { return b.system }, MaxOffset: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Steady: func() time.Duration { return b.steady }, slept: func() time.Duration { return b.slept }}
	at := func() time.Duration { return time.UnixMicro(c.Next(1)).Sub(begin).Truncate(time.Second) }
	require.Zero(t, at())

	b.jump(20 * 365 * 24 * time.Hour)
	b.pass(5 * time.Second)
	require.Equal(t, 5*time.Second, at(), "a large jump is not followed")
	b.jump(-20 * 365 * 24 * time.Hour)
	b.pass(5 * time.Second)
	require.Equal(t, 10*time.Second, at())

	b.jump(50 * time.Second)
	require.Equal(t, 60*time.Second, at(), "a small one is")
	b.pass(2 * anchorLife)
	require.Equal(t, 180*time.Second, at())
	b.jump(50 * time.Second)
	require.Equal(t, 230*time.Second, at(), "and the next one, too, once the clock was believed anew")

	b.jump(-time.Hour)
	require.Equal(t, 230*time.Second, at(), "stamps never go back")
	b.jump(time.Hour)
	require.Equal(t, 230*time.Second, at(), "and a clock that is right again is believed")
	b.pass(time.Hour)
	require.Equal(t, 230*time.Second+time.Hour, at())

	b.jump(8 * time.Hour)
	b.slept += 8 * time.Hour
	require.Equal(t, 230*time.Second+9*time.Hour, at(), "a machine that was suspended has the right time again")
	b.jump(8 * time.Hour)
	require.Equal(t, 230*time.Second+9*time.Hour, at(), "but was not suspended twice")
}

// While stamps stand still because the clock was put back, what has them goes on aging, and the log says so.
func TestClockPutBack(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var log bytes.Buffer
	b := &brokenClock{system: begin}
	c := &Clock{Now: func() time.Time { return b.system }, MaxOffset: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Steady: func() time.Duration { return b.steady }, slept: func() time.Duration { return b.slept }}
	age := func(stamp int64) time.Duration {
		return c.Aging().Sub(time.UnixMicro(stamp)).Truncate(time.Second)
	}
	first := c.Next(1)
	b.pass(10 * time.Second)
	require.Equal(t, 10*time.Second, age(first))
	require.Equal(t, begin.Add(10*time.Second).UnixMicro(), c.Next(1))
	require.Empty(t, log.String())

	b.jump(-time.Hour)
	require.Equal(t, 10*time.Second, age(first))
	b.pass(30 * time.Minute)
	second := c.Next(1)
	require.Equal(t, begin.Add(10*time.Second).UnixMicro()+2, second, "stamps stand still")
	require.Equal(t, 30*time.Minute+10*time.Second, age(first))
	require.Equal(t, b.system, c.Time())
	require.Contains(t, log.String(), "is behind the newest change; stamps stand still until it has caught up")
	require.Contains(t, log.String(), "by=30m0.000001s permitted=1m0s")
	require.ErrorIs(t, c.Check(), ErrClock)
	c.Next(1)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "once a minute")

	b.pass(30 * time.Minute)
	log.Reset()
	b.pass(time.Second)
	require.Equal(t, b.system, c.Aging(), "it has caught up")
	require.Equal(t, b.system.UnixMicro(), c.Next(1))
	require.Empty(t, log.String())
	require.NoError(t, c.Check())
}

// The same with the steady clock that is a part of what time.Now returns.
func TestClockPutBackBesideGosSteadyClock(t *testing.T) {
	now, back := time.Now(), time.Duration(0)
	c := &Clock{Logger: slog.New(slog.DiscardHandler), slept: func() time.Duration { return 0 }, Now: func() time.Time {
		at := now
		*(*uint64)(unsafe.Pointer(&at)) -= uint64(back/time.Second) << 30 // where time.Time has its seconds
		return at
	}}
	stamp := c.Next(1)
	back = time.Hour
	require.Equal(t, time.UnixMicro(stamp).Add(-time.Hour), time.UnixMicro(c.Time().UnixMicro()))
	now = now.Add(30 * time.Minute)
	require.Equal(t, 30*time.Minute, time.UnixMicro(c.Aging().UnixMicro()).Sub(time.UnixMicro(stamp)))
	now = now.Add(30*time.Minute + time.Second)
	require.Equal(t, time.Second, time.UnixMicro(c.Aging().UnixMicro()).Sub(time.UnixMicro(stamp)))
}

func TestClockAccepts(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &Clock{Now: func() time.Time { return now }, MaxOffset: time.Minute}
	require.NoError(t, c.Accept(now.Add(time.Minute).UnixMicro()))
	require.NoError(t, c.Check())
	require.NoError(t, c.Accept(now.Add(2*time.Minute).UnixMicro()))
	require.Equal(t, now.Add(2*time.Minute).UnixMicro(), c.Last())
	require.ErrorIs(t, c.Accept(now.Add(2*time.Minute+time.Second).UnixMicro()), ErrClock)
	require.Equal(t, now.Add(2*time.Minute).UnixMicro(), c.Last(), "nothing was taken in")
	require.NoError(t, c.Accept(0))
	require.ErrorIs(t, c.Check(), ErrClock)
	c.Shared = true
	require.NoError(t, c.Check(), "a node of a cluster can start with what it has taken")
	var log bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c.Next(1)
	require.Empty(t, log.String(), "a restart is not refused")
	c.Observe(now.Add(2*time.Minute + time.Second).UnixMicro())
	require.ErrorIs(t, c.Check(), ErrClock)
	c.Next(1)
	require.Contains(t, log.String(), "a restart is refused before")
	require.Contains(t, log.String(), "permitted=2m0s")
}
