package shard

import (
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// What was stamped by a clock that was far ahead is refused once the clock is right, whether a checkpoint has it or the
// log alone. The way out is a larger bound.
func TestClockWasAhead(t *testing.T) {
	wrong := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, checkpointed := range []bool{true, false} {
		fs := vfs.NewCrashableMem()
		o := testOptions(fs)
		o.Now = func() time.Time { return wrong }
		e := openTest(t, o)
		commitEvent(t, e, op.ExternalID, "a", "x", 0)
		if checkpointed {
			require.NoError(t, e.Checkpoint())
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, e.Close())

		o = testOptions(crashed)
		_, err := openEngine(o)
		require.ErrorIs(t, err, ErrClock)
		require.ErrorContains(t, err, "2099-01-01T00:00:00Z")
		require.ErrorContains(t, err, "--max-clock-offset")

		o.MaxClockOffset = 100 * 365 * 24 * time.Hour
		e = openTest(t, o)
		commitEvent(t, e, op.ExternalID, "b", "x", 0)
		users, err := e.Find(1, op.ExternalID, []byte("b"))
		require.NoError(t, err)
		require.Equal(t, 2099, time.UnixMicro(profile.Updated(users[0].Blob)).UTC().Year())
		require.NoError(t, e.Close())
	}
}

// A clock that was ahead by less goes on: stamps rise from where they were.
func TestClockWasAheadByLittle(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	now := time.Now()
	o.Now = func() time.Time { return now.Add(DefaultMaxClockOffset - time.Minute) }
	e := openTest(t, o)
	commitEvent(t, e, op.ExternalID, "a", "x", 0)
	last := e.clock.Last()
	require.NoError(t, e.Close())
	o.Now = func() time.Time { return now }
	e = openTest(t, o)
	require.Greater(t, e.clock.Next(1), last)
	require.NoError(t, e.Close())
}

// brokenClock is a system's clock that can jump, beside a steady one.
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
		steady: func() time.Duration { return b.steady }, slept: func() time.Duration { return b.slept }}
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
