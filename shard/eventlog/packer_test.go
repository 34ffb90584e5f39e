package eventlog

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/files"
	"millrace/shard/op"
)

// Records that are not due yet are not read. Before anything was packed, a sample of them tells how many events there
// are.
func TestFirstLookIsASample(t *testing.T) {
	testsize.SkipSerial(t)
	o := manual()
	o.BlockBytes = 4 << 20
	w := newWorld(t, vfs.NewMem(), o)
	for w.e.Replica().Stats().LoggedBytes < 2*sampleBytes {
		w.commitMore(100, 100)
	}
	w.checkpoint()
	packed, err := w.l.packNext()
	require.NoError(t, err)
	require.False(t, packed)
	require.Less(t, w.l.pack.stretch.Bytes, w.e.Replica().Stats().LoggedBytes*3/4)
	require.NotZero(t, w.l.pack.eventBytes.load())
	w.l.pack.stretch.Bytes = -1
	packed, err = w.l.packNext()
	require.NoError(t, err)
	require.False(t, packed)
	require.EqualValues(t, -1, w.l.pack.stretch.Bytes, "nor is it read again")
	for w.e.Replica().Stats().LoggedBytes < 8<<20 { // events take more than half of it
		w.commitMore(100, 100)
	}
	w.checkpoint()
	packed, err = w.l.packNext()
	require.NoError(t, err)
	require.True(t, packed)
}

// reads is a Source that notes the positions from which its log is read.
type reads struct {
	Source
	from []uint64
}

func (r *reads) ReadLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	r.from = append(r.from, from)
	return r.Source.ReadLog(from, to, f)
}

// The log is read once before the replica's turn, to see whether something is due, and once to pack it.
func TestWhatIsDueIsLookedAtOnce(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(20, 20)
	w.checkpoint()
	packed, err := w.l.packNext() // from here on it is known how many events come of the log
	require.NoError(t, err)
	require.True(t, packed)
	r := &reads{Source: w.l.src}
	w.l.src = r
	first := w.l.packed + 1
	w.commitMore(20, 20)
	w.checkpoint()
	packed, err = w.l.packNext()
	require.NoError(t, err)
	require.True(t, packed)
	require.Equal(t, []uint64{first, first}, r.from)
}

// A log that begins with records without events is looked at again when there is far more of it.
func TestEventsComeLater(t *testing.T) {
	o := manual()
	o.BlockBytes, o.PackAfter = 64<<10, time.Hour
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(1, 1)
	w.checkpoint()
	_, err := w.l.packNext()
	require.NoError(t, err)
	w.l.pack.eventBytes.set(1e-9)
	for w.e.Replica().Stats().LoggedBytes < 4*o.BlockBytes {
		w.commitMore(10, 5)
	}
	w.checkpoint()
	packed, err := w.l.packNext()
	require.NoError(t, err)
	require.True(t, packed)
	w.requireExact()
}

// When there are fewer events than estimated, what was read is packed all the same, unless it is less than half a
// block.
func TestLessThanEstimatedIsPacked(t *testing.T) {
	testsize.SkipSerial(t)
	o := manual()
	o.BlockBytes, o.PackAfter = 64<<10, time.Hour
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(10, 5)
	w.checkpoint()
	w.l.pack.eventBytes.set(1e9)
	packed, err := w.l.packNext()
	require.NoError(t, err)
	require.False(t, packed, "a little")
	for w.l.pack.stretch.Size() < o.BlockBytes*5/8 {
		w.commitMore(10, 5)
		w.checkpoint()
		_, err = w.l.gather(w.l.packed+1, w.e.Replica().CheckpointedPosition(), 1<<30)
		require.NoError(t, err)
	}
	require.Less(t, w.l.pack.stretch.Size(), o.BlockBytes)
	w.l.pack.eventBytes.set(1e9)
	packed, err = w.l.packNext()
	require.NoError(t, err)
	require.True(t, packed)
	w.requireExact()
}

// Rows and names of a block take little more memory than BlockBytes, however small the events are, and however many
// names they have.
func TestTinyEventsTakeBoundedMemory(t *testing.T) {
	const requests, each, nameBytes = 40, 75, 200
	for _, name := range []func(n int64) string{
		func(int64) string { return "e" },
		func(n int64) string { return fmt.Sprintf("%0*d", nameBytes, n) },
	} {
		o := manual()
		o.BlockBytes, o.PackAfter = 64<<10, time.Hour
		w := newWorld(t, vfs.NewMem(), o)
		for request := range int64(requests) {
			var events []object
			for i := range int64(each) {
				events = append(events, object{kind: op.Event, id: op.ExternalID, key: "u", name: name(request*each + i),
					time: baseTime})
			}
			require.NoError(t, w.commit(events...))
		}
		w.checkpoint()
		s := &w.l.pack.stretch
		w.l.pack.pace.begin(t.Context(), 1)
		full, err := w.l.gather(1, w.e.Replica().CheckpointedPosition(), 1<<30)
		require.NoError(t, err)
		require.True(t, full)
		taken := len(s.List) * int(unsafe.Sizeof(blocks.Row{}))
		for i := uint32(0); s.Name(i) != nil; i++ {
			taken += len(s.Name(i))
		}
		require.LessOrEqual(t, taken, int(o.BlockBytes)+each*(nameBytes+200), "%d rows", len(s.List))
		require.NoError(t, w.l.Pack())
		require.EqualValues(t, requests*each, w.l.Stats().Events)
	}
}

// After a failure that ends packing, the gauges of the backlog show how it grows.
func TestBacklogGrowsAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		var broken atomic.Bool
		o := busy()
		o.FS = stepFS{mem, func(what string) error {
			if broken.Load() && what == "rename" {
				return errors.New("broken disk")
			}
			return nil
		}}
		w := newWorld(t, mem, o)
		defer func() { require.NoError(t, w.e.Close()) }()
		defer func() { require.NoError(t, w.l.Close()) }()
		broken.Store(true)
		w.commitMore(100, 20)
		w.checkpoint()
		time.Sleep(time.Second)
		require.Error(t, w.l.Stats().Failed)
		for range 2 {
			w.commitMore(100, 20)
			time.Sleep(2 * retryPause) // the worker looks again
			w.l.work.Lock()
			counted := w.l.counted.positions
			w.l.work.Unlock()
			require.EqualValues(t, w.l.Stats().BacklogPositions, counted)
		}
	})
}

// fullFS has no room for blocks while full is set.
type fullFS struct {
	vfs.FS
	full *atomic.Bool
}

func (fs fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.full.Load() && strings.Contains(name, files.BlockSuffix) {
		return nil, syscall.ENOSPC
	}
	return fs.FS.Create(name, c)
}

// A disk that is full of blocks gets room when they expire, although nothing can be packed until then.
func TestBlocksExpireWhilePackingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		var full atomic.Bool
		o := busy()
		o.FS = fullFS{mem, &full}
		w := newWorld(t, mem, o)
		defer func() { require.NoError(t, w.e.Close()) }()
		defer func() { require.NoError(t, w.l.Close()) }()
		w.commitMore(40, 9)
		w.pack()
		require.NotZero(t, w.l.Stats().Blocks)
		w.clock.move(20 * 24 * time.Hour)
		full.Store(true)
		w.acked = map[int64]bool{}
		w.commitMore(40, 9)
		w.checkpoint()
		w.clock.move(15 * 24 * time.Hour)
		time.Sleep(2 * maintainInterval)
		require.Zero(t, w.l.Stats().Blocks)
		require.NotZero(t, w.l.Stats().BacklogPositions)
		full.Store(false)
		time.Sleep(2 * retryPause)
		require.Zero(t, w.l.Stats().BacklogPositions)
		w.requireExact()
	})
}

// Packing takes more of a core the more waits, until nothing holds it back.
func TestDutyGrowsWithBacklog(t *testing.T) {
	o := Options{MaxDuty: 0.2, MaxBacklogBytes: 1000}
	for _, of := range []struct{ backlog, duty float64 }{{0, 0.2}, {750, 0.2}, {875, 0.6}, {1000, 1}, {5000, 1}} {
		require.InDelta(t, of.duty, o.duty(int64(of.backlog)), 1e-9, "%v", of.backlog)
	}
	require.True(t, o.duty(1000) == 1, "it doesn't sleep")
}
