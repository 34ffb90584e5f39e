package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/wal/durable"
)

// F2: power is lost under 8 writers, and anything between none and all of what was not synced is on disk. Every
// acknowledged record must be there, in order and unchanged, and must still be there after a second loss shortly after
// the first recovery.
func TestPowerLoss(t *testing.T) {
	clones := testsize.Of(1000, 150, 40)
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := vfs.NewCrashableMem()
	slow := syncFS{fs, func() { time.Sleep(300 * time.Microsecond) }}    // so that there is something to lose
	segmentBytes := []int64{64 << 10, marginBytes + 40_000}[rng.IntN(2)] // without and with zeros ahead
	h := mustOpen(t, slow, func(o *Options) {
		o.HighWaterInterval, o.MaxRecycled, o.SegmentBytes = 5*time.Millisecond, 2, segmentBytes
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range uint64(8) {
		wg.Go(func() { h.write(t, w<<32, rand.New(rand.NewPCG(seed, w+1)), stop) })
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if p := h.DurablePosition(); p > 150 {
					if err := h.Trim(p - 150); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	var torn, i int
	for ; i < clones || torn <= clones/10 && i < 5*clones; i++ { // how many are torn depends on how busy the machine is
		h.waitAcked(uint64(i) * 3)
		acked := h.ackedPosition()
		percent := rng.IntN(101)
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		tornBefore := tornRecordsTotal.Get()
		if err := h.checkClone(clone, acked, rng); err != nil {
			t.Errorf("seed %d, clone %d, %d %% of unsynced data, %d acknowledged: %v", seed, i, percent, acked, err)
			break
		}
		if tornRecordsTotal.Get() > tornBefore {
			torn++
		}
	}
	close(stop)
	wg.Wait()
	require.NoError(t, h.bad)
	require.NoError(t, h.Close())
	t.Logf("%d records in segments of %d, %d of %d clones had a torn tail", h.LastPosition(), segmentBytes, torn, i)
	require.Greater(t, torn, clones/10, "the test no longer makes torn tails")
}

// write appends until stop is closed and waits for some of its records, as clients do.
func (h *harness) write(t *testing.T, id uint64, rng *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		id++
		size := 8 + rng.IntN(300)
		if rng.IntN(10) == 0 {
			size = 8 + rng.IntN(6000)
		}
		r := newRecord(id, size)
		r.Waits = rng.IntN(2) == 0
		acked := make(chan struct{})
		r.Context = acked
		if err := h.Append(r); err != nil {
			t.Error(err)
			return
		}
		if rng.IntN(4) > 0 {
			<-acked
		}
	}
}

// checkClone opens what a loss of power has left, compares it with what h has acknowledged by then, appends, loses
// power again, and repeats.
func (h *harness) checkClone(fs *vfs.MemFS, acked uint64, rng *rand.Rand) error {
	known := func(position uint64) (uint64, bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		id, ok := h.ids[position]
		return id, ok && position <= acked
	}
	for range 2 {
		c, err := openHarness(fs, nil)
		if err != nil {
			return err
		}
		ids, err := c.content()
		if err != nil {
			return err
		}
		if c.LastPosition() < acked {
			return fmt.Errorf("the log ends at %d", c.LastPosition())
		}
		for position, id := range ids {
			if want, ok := known(position); ok && want != id {
				return fmt.Errorf("position %d holds id %d instead of %d", position, id, want)
			}
		}
		mine := map[uint64]uint64{}
		for range rng.IntN(4) {
			r := newRecord(1<<60+rng.Uint64N(1<<50), 8+rng.IntN(2000))
			r.Waits = rng.IntN(2) == 0
			if err := c.Append(r); err != nil {
				return err
			}
			if !c.waitAcked(r.Position) {
				return errors.New("not acknowledged")
			}
			mine[r.Position] = c.ids[r.Position]
			acked = r.Position
		}
		for position, id := range ids { // replayed records count from now on
			mine[position] = id
		}
		acked = c.LastPosition()
		known = func(position uint64) (uint64, bool) { id, ok := mine[position]; return id, ok }
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// A record that begins in the last 11 to 18 bytes of a block begins in one page and ends in the next. When only the next
// one gets to the disk, zeros are in its place, which Pebble's reader skips as if no chunk fitted there. That is a torn
// tail like any other, unless something says that the record was durable.
func TestLostPageAtTheEndOfABlock(t *testing.T) {
	for room := chunkHeaderBytes; room < 20; room++ {
		fs := vfs.NewMem()
		var h *harness
		var before image
		h = mustOpen(t, syncFS{fs, func() {
			if before != nil {
				return
			}
			before = takeImage(t, fs) // with the first record; the others are the next group
			for id := range uint64(3) {
				require.NoError(t, h.Append(newRecord(id, 100)))
			}
		}}, nil)
		h.fill(t, 1, blockBytes-room-chunkHeaderBytes-HeaderBytes)
		require.True(t, h.waitAcked(4))
		name := before.segments()[0]
		lost := func() image {
			m := takeImage(t, fs)
			copy(m[name][blockBytes-pageBytes:blockBytes], before[name][blockBytes-pageBytes:])
			return m
		}
		old := oldHighWater(h, 1)
		ids, err := lost().with(highWaterName, old).open()
		require.NoError(t, err, "%d bytes", room)
		require.Len(t, ids, 1, "%d bytes", room)
		_, err = lost().open()
		require.ErrorIs(t, err, ErrCorrupt, "the high-water mark says that the records were durable")
		h.fill(t, 1, 100)
		_, err = lost().with(highWaterName, old).open()
		require.ErrorIs(t, err, ErrCorrupt, "the last record says so")
		require.NoError(t, h.Close())
	}
}

// killedFS lets a second process in, as after a kill, since its locks don't hold.
type killedFS struct{ vfs.FS }

func (killedFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// A kill leaves records in the page cache that were never synced. The next process takes them for part of the log, so
// it must sync them before it acknowledges others behind them. Otherwise a loss of power would tear a hole.
func TestKillThenPowerLoss(t *testing.T) {
	fs := vfs.NewCrashableMem()
	gate := make(chan struct{})
	var hang atomic.Bool
	h := mustOpen(t, syncFS{fs, func() {
		if hang.Load() {
			<-gate
		}
	}}, nil)
	h.fill(t, 3, 100)
	hang.Store(true)
	for id := range uint64(5) {
		require.NoError(t, h.Append(newRecord(id, 100)))
	}
	path := h.segments[0].path
	require.Eventually(t, func() bool {
		f, err := fs.Open(path)
		require.NoError(t, err)
		defer f.Close()
		data, err := io.ReadAll(f)
		return err == nil && len(bytes.TrimRight(data, "\x00")) > 500
	}, 10*time.Second, time.Millisecond, "written, not synced")

	again := mustOpen(t, killedFS{fs}, nil)
	survived := again.LastPosition()
	require.Greater(t, survived, uint64(3))
	again.fill(t, 1, 100)
	lost := fs.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, again.Close())
	third := mustOpen(t, lost, nil)
	require.Equal(t, survived+1, third.LastPosition())
	_, err := third.content()
	require.NoError(t, err)
	require.NoError(t, third.Close())
	close(gate)
	_ = h.Close()
}

// Trim and Close write the high-water mark and sync it, whatever HighWaterInterval says.
func TestHighWaterMarkIsSynced(t *testing.T) {
	fs := vfs.NewCrashableMem()
	change := func(o *Options) { o.HighWaterInterval = time.Hour }
	h := mustOpen(t, fs, change)
	h.fill(t, 1, 70_000) // a segment
	require.Eventually(t, func() bool {
		require.NoError(t, h.Trim(2)) // once it is closed
		return h.FirstPosition() == 2
	}, 10*time.Second, time.Millisecond)
	h.fill(t, 2, 100) // written over the first
	lost := fs.CrashClone(vfs.CrashCloneCfg{})
	third := mustOpen(t, lost, change)
	require.EqualValues(t, 2, third.FirstPosition())
	require.EqualValues(t, 3, third.LastPosition())
	require.NoError(t, third.Close())

	require.NoError(t, h.Close())
	w, err := openHighWater(fs.CrashClone(vfs.CrashCloneCfg{}), testDir)
	require.NoError(t, err)
	require.EqualValues(t, 3, w.state.acked)
	b, err := fs.CrashClone(vfs.CrashCloneCfg{}).UnsafeGetFileDataBuffer(fs.PathJoin(testDir, highWaterName))
	require.NoError(t, err)
	for slot := range durable.SlotCount {
		state, _, ok := durable.ReadSlot(b[slot*durable.SlotSpacing:], highWaterMagic, highWaterBytes)
		require.True(t, ok)
		require.EqualValues(t, 3, decodeHighWater(state).acked)
	}
}
