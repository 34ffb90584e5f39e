package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
)

// syncFS calls a function before each sync of a segment.
type syncFS struct {
	vfs.FS
	before func()
}

type syncHookFile struct {
	vfs.File
	before func()
}

func (fs syncFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return syncHookFile{f, fs.before}, nil
}

func (fs syncFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return fs.wrap(f, err)
}

func (fs syncFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	if !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return fs.wrap(f, err)
}

func (f syncHookFile) Sync() error { f.before(); return f.File.Sync() }

func (f syncHookFile) SyncData() error { f.before(); return f.File.SyncData() }

// F6: whatever write or sync fails, nothing that was not durable is acknowledged, the failure is reported once, and the
// log stays shut. What was acknowledged is there afterwards, on a disk that works again, even after a loss of power.
func TestEveryWriteFails(t *testing.T) {
	run := func(fail int64) (writes int64, err error) {
		fs := vfs.NewCrashableMem()
		var count atomic.Int64
		var failed, syncFailed atomic.Bool
		var after atomic.Int64
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFilePreallocate ||
				op.Kind == errorfs.OpRemove || op.Kind == errorfs.OpLock {
				return nil
			}
			segmentSync := op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log")
			if segmentSync && syncFailed.Load() {
				after.Add(1)
			}
			if count.Add(1) == fail {
				failed.Store(true)
				syncFailed.Store(segmentSync)
				return errorfs.ErrInjected
			}
			return nil
		})
		h, err := openHarness(errorfs.Wrap(fs, inject), func(o *Options) {
			o.MaxRecycled = -1 // errorfs does not look into a file that is written over
			o.HighWaterInterval = 100 * time.Microsecond
		})
		if err != nil {
			if !failed.Load() {
				return 0, err
			}
			if _, err := openHarness(fs.CrashClone(vfs.CrashCloneCfg{}), nil); err != nil {
				return 0, fmt.Errorf("open after a failed Open: %w", err)
			}
			return count.Load(), nil
		}
		for i := uint64(1); i <= 30; i++ {
			r := newRecord(i, 8000)
			r.Waits = i%3 == 0
			err := h.Append(r)
			if err == nil && h.waitAcked(r.Position) {
				if i%10 == 0 {
					err = h.Trim(i - 5)
				}
				if err == nil {
					continue
				}
			}
			if err != nil && !errors.Is(err, ErrFailed) {
				return 0, err
			}
			if !failed.Load() {
				return 0, fmt.Errorf("failed without a fault: %w", h.Err())
			}
			break
		}
		acked := h.ackedPosition()
		clone := fs.CrashClone(vfs.CrashCloneCfg{}) // power is lost at once
		if failed.Load() && h.Err() != nil {
			for range 3 {
				if err := h.Append(newRecord(99, 8)); !errors.Is(err, ErrFailed) || !errors.Is(err, errorfs.ErrInjected) {
					return 0, fmt.Errorf("Append after the failure: %w", err)
				}
			}
		}
		err = h.Close()
		if failed.Load() != (err != nil) {
			return 0, fmt.Errorf("Close: %w", err)
		}
		if failed.Load() && len(h.fails) != 1 {
			return 0, fmt.Errorf("OnFailure called %d times", len(h.fails))
		}
		if h.ackedPosition() != acked || h.bad != nil {
			return 0, fmt.Errorf("acknowledged %d after %d and the failure, %w", h.ackedPosition(), acked, h.bad)
		}
		if after.Load() > 0 {
			return 0, errors.New("a segment was synced after a sync had failed")
		}
		for _, fs := range []*vfs.MemFS{clone, fs} {
			again, err := openHarness(fs, nil)
			if err != nil {
				return 0, fmt.Errorf("open afterwards: %w", err)
			}
			ids, err := again.content()
			if err != nil {
				return 0, err
			}
			for p, id := range h.ids {
				if p >= again.FirstPosition() && ids[p] != id {
					return 0, fmt.Errorf("record %d is lost, the log ends at %d", p, again.LastPosition())
				}
			}
			if err := again.Close(); err != nil {
				return 0, err
			}
		}
		return count.Load(), nil
	}
	total, err := run(math.MaxInt64)
	require.NoError(t, err)
	require.Greater(t, total, int64(100))
	for k := int64(1); k <= total; k++ {
		_, err := run(k)
		require.NoError(t, err, "write %d of %d failed", k, total)
	}
}

// The same at the start: whatever fails while what was found is made durable, the log doesn't open. It opens when the
// disk works again.
func TestEveryWriteOfAStartFails(t *testing.T) {
	killed := vfs.NewCrashableMem()
	h := mustOpen(t, killed, nil)
	h.fill(t, 30, 8000)
	begun := killed.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, h.Close())
	open := func(fail int64) (failed bool) {
		var syncs atomic.Int64
		fs := errorfs.Wrap(begun, errorfs.InjectorFunc(func(op errorfs.Op) error {
			isSync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
			if isSync && syncs.Add(1) == fail {
				return errorfs.ErrInjected
			}
			return nil
		}))
		log, err := openHarness(fs, func(o *Options) { o.HighWaterInterval = time.Hour })
		if syncs.Load() >= fail {
			require.ErrorIs(t, err, errorfs.ErrInjected, "sync %d", fail)
			return true
		}
		syncs.Store(fail) // closing doesn't fail
		require.NoError(t, err)
		ids, err := log.content()
		require.NoError(t, err)
		require.Equal(t, h.ids, ids)
		require.NoError(t, log.Close())
		return false
	}
	k := int64(1)
	for open(k) {
		k++
	}
	require.Greater(t, k, int64(4), "there are several segments")
}

// failFS fails the syncs of the high-water mark when it is told to.
type failFS struct {
	syncFS
	fails *atomic.Bool
}

type failFile struct {
	vfs.File
	fails *atomic.Bool
}

func (fs failFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	return failFile{f, fs.fails}, err
}

func (f failFile) SyncData() error {
	if f.fails.Load() {
		return errorfs.ErrInjected
	}
	return f.File.SyncData()
}

// When the high-water mark can't be synced, nothing is acknowledged any more, not even what was on its way to the disk.
func TestHighWaterMarkCannotBeSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs, fails atomic.Bool
		goesOn := make(chan struct{})
		fs := failFS{syncFS{vfs.NewMem(), func() {
			if hangs.Load() {
				<-goesOn
			}
		}}, &fails}
		h := mustOpen(t, fs, nil)
		h.fill(t, 5, 100)
		hangs.Store(true)
		require.NoError(t, h.Append(newRecord(6, 100)))
		fails.Store(true)
		time.Sleep(2 * h.opts.StallAfter)
		synctest.Wait()
		require.ErrorIs(t, h.Err(), errorfs.ErrInjected)
		close(goesOn)
		require.ErrorIs(t, h.Close(), ErrFailed)
		require.EqualValues(t, 5, h.ackedPosition())
	})
}

// F7: when free space is below the floor, records are refused at once. When space is back, records are taken again
// without a restart.
func TestDiskFull(t *testing.T) {
	fs := vfs.NewMem()
	usage := func(available, total uint64) {
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: available, TotalBytes: total})
	}
	usage(50<<30, 100<<30)
	h := mustOpen(t, fs, func(o *Options) {
		o.MinFreeBytes, o.MinFreePercent, o.diskInterval = 0, 0, time.Millisecond // the defaults
	})
	h.fill(t, 3, 100)
	for _, low := range [][2]uint64{{1_999_999_999, 10 << 30}, {49 << 30, 1000 << 30}} {
		usage(low[0], low[1])
		require.Eventually(t, h.DiskFull, time.Minute, time.Millisecond)
		last := h.LastPosition()
		require.ErrorIs(t, h.Append(newRecord(1, 8)), ErrDiskFull)
		require.Equal(t, last, h.LastPosition())
		urgent := newRecord(last+1, 8)
		urgent.Urgent = true
		require.NoError(t, h.Append(urgent))
		last++
		require.True(t, h.waitAcked(last))
		require.NoError(t, h.Read(1, last, func(uint64, uint32, []byte) error { return nil }))
		require.NoError(t, h.Trim(last))
		usage(60<<30, 100<<30)
		require.Eventually(t, func() bool { return !h.DiskFull() }, time.Minute, time.Millisecond)
		h.fill(t, 3, 100)
	}
	require.NoError(t, h.Close())

	usage(1, 100) // the log opens on a full disk
	h = mustOpen(t, fs, func(o *Options) { o.MinFreeBytes, o.MinFreePercent = 0, 0 })
	err := h.Append(newRecord(1, 8))
	require.ErrorIs(t, err, ErrDiskFull)
	require.ErrorContains(t, err, "min-free-bytes", "gigabytes may be free: it says which setting asks for more")
	require.NoError(t, h.Close())
}

// F8, F9: the disk hangs. The records that wait are bounded in number and in bytes, more are refused at once, and the
// stall shows. When the disk is back, everything taken is acknowledged.
func TestStalledDisk(t *testing.T) {
	for name, c := range map[string]struct{ records, bytes, size, want int }{
		"records": {20, 64 << 20, 100, 20},
		"bytes":   {1000, 1 << 20, 100_000 - HeaderBytes, 10},
	} {
		t.Run(name, func(t *testing.T) {
			var gate sync.RWMutex
			fs := syncFS{vfs.NewMem(), func() { gate.RLock(); gate.RUnlock() }} //nolint:staticcheck // a gate
			h := mustOpen(t, fs, func(o *Options) {
				o.MaxPendingRecords, o.MaxPendingBytes = c.records, int64(c.bytes)
				o.StallAfter = 20 * time.Millisecond
			})
			h.fill(t, 5, 100)
			require.False(t, h.Stalled())
			gate.Lock()
			taken := 0
			for err := error(nil); ; taken++ {
				if err = h.Append(newRecord(uint64(taken), c.size)); err != nil {
					require.ErrorIs(t, err, ErrBusy)
					break
				}
			}
			require.Equal(t, c.want, taken)
			require.Eventually(t, h.Stalled, time.Minute, time.Millisecond)
			require.ErrorIs(t, h.Append(newRecord(9, c.size)), ErrBusy)
			require.EqualValues(t, 5, h.ackedPosition())
			require.EqualValues(t, 5, h.DurablePosition())
			require.EqualValues(t, 5+taken, h.LastPosition())
			gate.Unlock()
			require.True(t, h.waitAcked(uint64(5+taken)))
			h.fill(t, 5, 100)
			require.Eventually(t, func() bool { return !h.Stalled() }, time.Minute, time.Millisecond)
			require.NoError(t, h.Close())
			require.NoError(t, h.bad)
		})
	}
}

// markFS calls a function before each sync of a segment or of the high-water mark.
type markFS struct{ syncFS }

func (fs markFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return fs.wrap(fs.FS.OpenReadWrite(name, c, o...))
}

// A disk that hangs shows although nothing is to be written, and so does that it is back.
func TestStalledDiskOfAnIdleLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		goesOn := make(chan struct{})
		fs := markFS{syncFS{vfs.NewMem(), func() {
			if hangs.Load() {
				<-goesOn
			}
		}}}
		var said testlog.Buffer
		h := mustOpen(t, fs, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
		h.fill(t, 5, 100)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.False(t, h.Stalled())
		hangs.Store(true)
		time.Sleep(2*h.opts.StallAfter + 2*h.opts.HighWaterInterval)
		synctest.Wait()
		require.True(t, h.Stalled())
		require.Equal(t, 1, strings.Count(said.String(), "the disk does not answer"))
		hangs.Store(false)
		close(goesOn)
		synctest.Wait()
		require.False(t, h.Stalled())
		require.Equal(t, 1, strings.Count(said.String(), "the disk answers again"))
		h.fill(t, 5, 100)
		require.NoError(t, h.Close())
		require.NoError(t, h.bad)
	})
}

// When the committer has nothing to do, a record for which its owner waits is made durable by the goroutine that
// appends it, and otherwise by the committer. Records that come meanwhile, and Close, are left to the committer.
func TestWaitingRecords(t *testing.T) {
	var gate sync.RWMutex
	fs := syncFS{vfs.NewMem(), func() { gate.RLock(); gate.RUnlock() }} //nolint:staticcheck // a gate
	h := mustOpen(t, fs, nil)
	waiting := func(id uint64) *Record {
		r := newRecord(id, 100)
		r.Waits = true
		return r
	}
	rests := func() bool {
		h.Log.mu.Lock()
		defer h.Log.mu.Unlock()
		return h.idle
	}
	atRest := func() { require.Eventually(t, rests, time.Minute, time.Millisecond) }
	atDisk := func() {
		require.Eventually(t, func() bool { return h.ioStart.Load() != 0 }, time.Minute, time.Millisecond)
	}
	for id := range uint64(3) {
		atRest()
		require.NoError(t, h.Append(waiting(id)))
		require.EqualValues(t, id+1, h.ackedPosition(), "when Append returns it is durable")
		require.True(t, rests(), "and nobody was woken")
	}

	gate.Lock()
	require.NoError(t, h.Append(newRecord(3, 100))) // the committer's
	atDisk()
	require.NoError(t, h.Append(waiting(4)), "which doesn't wait for the committer")
	require.EqualValues(t, 3, h.ackedPosition())
	gate.Unlock()
	require.True(t, h.waitAcked(5))
	atRest()

	gate.Lock()
	var all sync.WaitGroup
	all.Go(func() { require.NoError(t, h.Append(waiting(5))) })
	atDisk()
	for id := range uint64(100) { // with none of which the committer begins
		r := newRecord(6+id, 100)
		r.Waits = id%2 == 0
		require.NoError(t, h.Append(r))
	}
	require.EqualValues(t, 5, h.ackedPosition())
	gate.Unlock()
	all.Wait()
	require.True(t, h.waitAcked(106))
	atRest()

	gate.Lock()
	all.Go(func() { require.NoError(t, h.Append(waiting(106))) })
	atDisk()
	require.NoError(t, h.Append(newRecord(107, 100)))
	all.Go(func() { require.NoError(t, h.Close()) })
	require.Eventually(t, func() bool { return errors.Is(h.Append(waiting(0)), ErrClosed) }, time.Minute, time.Millisecond)
	gate.Unlock()
	all.Wait()
	require.Equal(t, h.LastPosition(), h.ackedPosition())
	require.NoError(t, h.bad)
}

// F22: Close drains the log. What was taken is acknowledged and there.
func TestCloseDrains(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, syncFS{fs, func() { time.Sleep(time.Millisecond) }}, nil)
	var taken atomic.Uint64
	var wg sync.WaitGroup
	for w := range uint64(8) {
		wg.Go(func() {
			for {
				r := newRecord(w<<32, 500)
				r.Waits = w%2 == 0
				err := h.Append(r)
				if errors.Is(err, ErrClosed) {
					return
				} else if err == nil {
					taken.Add(1)
				} else if !errors.Is(err, ErrBusy) {
					t.Error(err)
					return
				}
			}
		})
	}
	h.waitAcked(2000)
	require.NoError(t, h.Close())
	wg.Wait()
	require.Equal(t, taken.Load(), h.ackedPosition())
	h = mustOpen(t, fs, nil)
	require.Equal(t, taken.Load(), h.LastPosition())
	require.NoError(t, h.Close())
}

// A file system that allocates nothing ahead of a write, or has no room for that much, still takes the log.
func TestPreallocationFails(t *testing.T) {
	var failed atomic.Int64
	fs := vfs.NewCrashableMem()
	h := mustOpen(t, errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFilePreallocate {
			return nil
		}
		failed.Add(1)
		return errorfs.ErrInjected
	})), nil)
	h.fill(t, 100, 3000)
	require.NotZero(t, failed.Load())
	again := mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}), nil)
	require.EqualValues(t, 100, again.LastPosition())
	require.NoError(t, again.Close())
	require.NoError(t, h.Close())
}

// allocFS notes how far files are allocated.
type allocFS struct {
	vfs.FS
	mu   sync.Mutex
	ends map[string]int64
}

type allocFile struct {
	vfs.File
	fs   *allocFS
	name string
}

func (fs *allocFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return &allocFile{f, fs, name}, err
}

func (f *allocFile) Preallocate(offset, length int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.ends[f.name] = max(f.fs.ends[f.name], offset+length)
	return f.File.Preallocate(offset, length)
}

// A full segment has nothing allocated behind its end. Its last group goes beyond SegmentBytes, which is no reason to
// allocate more ahead.
func TestPreallocationEnds(t *testing.T) {
	const size = 100 << 10
	fs := &allocFS{FS: vfs.NewMem(), ends: map[string]int64{}}
	h := mustOpen(t, fs, func(o *Options) { o.SegmentBytes, o.MaxRecycled = size, -1 })
	for range 30 {
		h.fill(t, 1, 30_000)
	}
	require.NoError(t, h.Close())
	require.Greater(t, len(fs.ends), 4)
	for name, end := range fs.ends {
		info, err := fs.Stat(name)
		require.NoError(t, err)
		require.GreaterOrEqual(t, end, int64(size))
		require.LessOrEqual(t, end, max(size, info.Size()), name)
	}
}
