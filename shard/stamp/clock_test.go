package stamp

import (
	"log/slog"
	"testing"
	"time"

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

func TestClockAccepts(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &Clock{Now: func() time.Time { return now }, MaxOffset: time.Minute}
	require.NoError(t, c.Accept(now.Add(time.Minute).UnixMicro()))
	require.Equal(t, now.Add(time.Minute).UnixMicro(), c.Last())
	require.ErrorIs(t, c.Accept(now.Add(time.Minute+time.Second).UnixMicro()), ErrClock)
	require.Equal(t, now.Add(time.Minute).UnixMicro(), c.Last(), "nothing was taken in")
	require.NoError(t, c.Accept(0))
	require.NoError(t, c.Check())
	c.Observe(now.Add(2 * time.Minute).UnixMicro())
	require.ErrorIs(t, c.Check(), ErrClock)
}
