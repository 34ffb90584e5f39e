package shard

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/stamp"
)

// Stamps of a clock that was far ahead are refused once the clock is right, whether a checkpoint has them or the log
// alone. The way out is a larger bound.
func TestClockWasAhead(t *testing.T) {
	wrong := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, checkpointed := range []bool{true, false} {
		fs := vfs.NewCrashableMem()
		o := testOptions(fs)
		o.Clock = &stamp.Clock{Now: func() time.Time { return wrong }}
		e := openTest(t, o)
		commitEvent(t, e, op.ExternalID, "a", "x", 0)
		if checkpointed {
			require.NoError(t, e.Checkpoint())
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, e.Close())

		o = testOptions(crashed)
		_, err := openEngine(o)
		require.ErrorIs(t, err, stamp.ErrClock)
		require.ErrorContains(t, err, "2099-01-01T00:00:00Z")
		require.ErrorContains(t, err, "--max-clock-offset")

		o.Clock = &stamp.Clock{MaxOffset: 100 * 365 * 24 * time.Hour}
		e = openTest(t, o)
		commitEvent(t, e, op.ExternalID, "b", "x", 0)
		users, err := e.Find(1, op.ExternalID, []byte("b"))
		require.NoError(t, err)
		require.Equal(t, 2099, time.UnixMicro(profile.Updated(users[0].Blob)).UTC().Year())
		require.NoError(t, e.Close())
	}
}

// When the system's clock jumps ahead, requests whose answers are kept are still known: by that clock their day is over,
// and they would be done again.
func TestAnswersOutliveAClockThatJumps(t *testing.T) {
	o, now := testOptions(vfs.NewMem()), time.Now()
	o.Clock = &stamp.Clock{Now: func() time.Time { return now }, Steady: func() time.Duration { return 0 }}
	e := openTest(t, o)
	request(t, e, func(b *Batch) { b.KeepAnswer([]byte("key"), [32]byte{}, 201, []byte("done")) })
	now = now.Add(365 * 24 * time.Hour)
	require.NoError(t, e.Sweep())
	a, ok, err := e.Answer(1, []byte("key"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "done", string(a.Body))
}

// The engine stamps by the clock that it is given, so that what else the node has can be judged by the same clock.
func TestEngineStampsByTheClockOfTheNode(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Clock = &stamp.Clock{}
	e := openTest(t, o)
	commitEvent(t, e, op.ExternalID, "a", "x", 0)
	require.Positive(t, o.Clock.Last())
	require.Same(t, o.Clock, e.Clock())
}

// When a clock was ahead by less than the bound, the engine goes on, and stamps rise from where they were.
func TestClockWasAheadByLittle(t *testing.T) {
	o := testOptions(vfs.NewMem())
	now := time.Now()
	o.Clock = &stamp.Clock{Now: func() time.Time { return now.Add(stamp.DefaultMaxClockOffset - time.Minute) }}
	e := openTest(t, o)
	commitEvent(t, e, op.ExternalID, "a", "x", 0)
	last := e.clock.Last()
	require.NoError(t, e.Close())
	o.Clock = &stamp.Clock{Now: func() time.Time { return now }}
	e = openTest(t, o)
	require.Greater(t, e.clock.Next(1), last)
	require.NoError(t, e.Close())
}
