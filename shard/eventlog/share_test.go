package eventlog

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// The event logs of a node that work at their own pace work one at a time. A log that works at full speed doesn't wait
// for another.
func TestLogsOfANodeWorkInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		share := NewShare()
		o := manual()
		o.Share = share
		w := newWorld(t, vfs.NewMem(), o)
		defer func() { require.NoError(t, w.e.Close()) }()
		defer func() { require.NoError(t, w.l.Close()) }()
		more := func() (before int) {
			before = w.l.Stats().Blocks
			w.commitMore(20, 9)
			w.checkpoint()
			w.clock.move(2 * time.Hour) // events that are there are due
			return before
		}
		packNext := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				packed, err := w.l.packNext()
				if err == nil && !packed {
					t.Error("nothing was packed")
				}
				done <- err
			}()
			synctest.Wait()
			return done
		}
		take(t, share)

		before := more()
		done := packNext()
		require.Equal(t, before, w.l.Stats().Blocks, "another log has the turn")
		share.give()
		require.NoError(t, <-done)
		require.Greater(t, w.l.Stats().Blocks, before)

		take(t, share)
		before = more()
		require.NoError(t, w.l.Pack())
		require.Greater(t, w.l.Stats().Blocks, before, "who packs at once doesn't wait")

		before = more()
		w.l.opts.MaxBacklogBytes = 1
		require.NoError(t, <-packNext())
		require.Greater(t, w.l.Stats().Blocks, before, "nor does a log that is behind")

		w.l.opts.MaxBacklogBytes = 1 << 30
		more()
		done = packNext()
		require.NoError(t, w.l.Close())
		require.ErrorIs(t, <-done, errClosed, "a log that waits for its turn can be closed")
		share.give()
		take(t, share) // nobody has the turn any more
	})
}

// What packing takes is there once for all logs of a node: a log that doesn't pack has none of it, and points to nothing
// of what it has packed.
func TestLogsOfANodeHaveOneMemoryToPack(t *testing.T) {
	o := manual()
	o.Share = NewShare()
	for range 2 {
		w := newWorld(t, vfs.NewMem(), o)
		w.commitMore(20, 9)
		w.checkpoint()
		w.clock.move(2 * time.Hour) // events that are there are due
		packed, err := w.l.packNext()
		require.NoError(t, err)
		require.True(t, packed)
		lent := o.Share.writer
		require.NotNil(t, lent)
		w.commitMore(20, 9)
		w.checkpoint()
		require.NoError(t, w.l.Pack())
		require.NoError(t, w.l.maintain(true))
		require.Same(t, lent, o.Share.writer, "who works at once without the turn has memory of its own")
		p := &w.l.pack
		require.True(t, p.writer == nil)
		require.Zero(t, p.stretch.Rows)
	}
	for _, r := range o.Share.rows.List[:cap(o.Share.rows.List)] {
		require.Zero(t, r)
	}
}

// A log in haste has the turn when nobody else has it.
func TestWhoIsBehindTakesAFreeTurn(t *testing.T) {
	share := NewShare()
	isBehind := func() bool { return true }
	hasTurn, err := share.take(context.Background(), isBehind)
	require.NoError(t, err)
	require.True(t, hasTurn)
	hasTurn, err = share.take(context.Background(), isBehind)
	require.NoError(t, err)
	require.False(t, hasTurn)
}

func take(t *testing.T, s *Share) {
	hasTurn, err := s.take(context.Background(), func() bool { return false })
	require.NoError(t, err)
	require.True(t, hasTurn)
}

// A log that waits for its turn waits no longer once it has too much to pack.
func TestWhoFallsBehindWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		share := NewShare()
		take(t, share)
		var isBehind atomic.Bool
		done := make(chan bool, 1)
		go func() {
			hasTurn, err := share.take(context.Background(), isBehind.Load)
			if err != nil {
				t.Error(err)
			}
			done <- hasTurn
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("it waits")
		default:
		}
		isBehind.Store(true)
		select {
		case hasTurn := <-done:
			require.False(t, hasTurn)
		case <-time.After(time.Hour):
			t.Fatal("it waits still")
		}
	})
}

// slowLog is a replica whose log takes its time.
type slowLog struct {
	Source
	took time.Duration
}

func (s *slowLog) ReadLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	time.Sleep(time.Minute)
	s.took += time.Minute
	return s.Source.ReadLog(from, to, f)
}

// The time that packing takes between two blocks is not made up for by a rest, in which as much would come together
// again.
func TestRewritingDoesNotRestForWhatWasPacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := manual()
		o.Interval = 1000 * time.Hour
		w := newWorld(t, vfs.NewMem(), o)
		defer func() { require.NoError(t, w.e.Close()) }()
		w.commitMore(60, 9)
		w.pack()
		w.deleteUser(op.ExternalID, "u7")
		w.pack()
		w.clock.move(w.l.opts.DeleteWithin * 5 / 8)
		w.commitMore(60, 9)
		w.checkpoint()
		require.NoError(t, w.l.Close())

		src := &slowLog{Source: w.e.Replica()}
		o.FS, o.Dir, o.Logger, o.MaxBacklogBytes = w.fs, "data/events", quiet(), 1
		l, err := Open(src, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		l.pack.recordBytes.set(100) // as it knows after the first stretch
		packed, begun := l.Stats().Packed, time.Now()
		require.NoError(t, l.maintain(false))
		require.Greater(t, l.Stats().Packed, packed)
		require.Zero(t, l.Stats().Deletions)
		require.Positive(t, src.took)
		require.Less(t, time.Since(begun), src.took+time.Minute)
	})
}

// A log that is behind doesn't wait for its turn to rewrite blocks, so that it can pack, unless the time of deletions is
// nearly up.
func TestWhoIsBehindWaitsToDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := manual()
		o.Interval, o.Share = 1000*time.Hour, NewShare()
		w := newWorld(t, vfs.NewMem(), o)
		defer func() { require.NoError(t, w.e.Close()) }()
		defer func() { require.NoError(t, w.l.Close()) }()
		w.commitMore(60, 9)
		w.pack()
		w.deleteUser(op.ExternalID, "u7")
		w.pack()
		w.l.opts.MaxBacklogBytes = 1
		w.commitMore(60, 9)
		take(t, o.Share)

		w.clock.move(w.l.opts.DeleteWithin * 5 / 8)
		require.NoError(t, w.l.maintain(false))
		require.Equal(t, 1, w.l.Stats().Deletions)

		w.clock.move(w.l.opts.DeleteWithin / 4)
		done := make(chan error, 1)
		go func() { done <- w.l.maintain(false) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, done, "it waits for its turn")
		o.Share.give()
		require.NoError(t, <-done)
		require.Zero(t, w.l.Stats().Deletions)
	})
}

// Whoever waits for packing, such as a backup, doesn't wait longer than they want to while blocks are being rewritten.
func TestPackToWaitsForOtherWork(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	defer func() { require.NoError(t, w.e.Close()) }()
	defer func() { require.NoError(t, w.l.Close()) }()
	w.commitMore(20, 9)
	w.checkpoint()
	w.l.work.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.ErrorIs(t, w.l.PackTo(ctx, 1), context.Canceled)
	w.l.work.Unlock()
	require.NoError(t, w.l.PackTo(t.Context(), 1))
	require.Equal(t, 1, w.l.Stats().Blocks)
}
