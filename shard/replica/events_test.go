package replica

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/books"
)

// What ops have made is read a bounded number of rows at a time, in order, each row once, whole records, whether it is
// in memory, in the store or in both; a record that has more rows than the bound comes whole, too.
func TestNotedIsBounded(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	const rows, wide, last = 6 * maxNoted, 3 * maxNoted, 2000
	r := rand.New(rand.NewPCG(1, 2))
	in := make(map[uint64]int, last)
	records := make([]uint64, rows)
	for i := range records {
		records[i] = 1 + uint64(i)*(last-1)/rows
	}
	for i, position := range records {
		p := e.Partition(uint8(r.IntN(256)))
		if i < wide {
			position = 1
		}
		in[position]++
		e.Owner(p.ID).Lock()
		p.Trail.AddIdentify(books.Place{Position: position, Index: uint64(i)}, uint64(p.ID)<<56|1, 1, nil)
		e.Owner(p.ID).Unlock()
		if i == rows/3 {
			require.NoError(t, e.Checkpoint())
		}
		if i == 2*rows/3 {
			inBoth(t, e.Replica)
		}
	}
	before := books.Noted{}
	for from := uint64(1); from <= last; {
		all, through, err := e.Noted(from, last)
		require.NoError(t, err)
		require.GreaterOrEqual(t, through, from)
		if through > 1 {
			require.LessOrEqual(t, len(all), maxNoted+2*rows/last)
		}
		for _, n := range all {
			require.True(t, n.Position > before.Position || n.Position == before.Position && n.Index > before.Index)
			require.True(t, n.Position >= from && n.Position <= through)
			in[n.Position]--
			before = n
		}
		from = through + 1
	}
	for position, left := range in {
		require.Zero(t, left, "record %d", position)
	}
}

// inBoth writes what is in memory to the store, and leaves it in memory.
func inBoth(t *testing.T, e *Replica) {
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	for _, p := range e.Held() {
		e.Owner(p.ID).Lock()
		require.NoError(t, p.Books.Save(batch))
		e.Owner(p.ID).Unlock()
	}
	require.NoError(t, batch.Commit(pebble.NoSync))
}

// However often something was packed since the last checkpoint, a read of the store takes as much memory. The checkpoint
// then deletes what readers of the log were told of what is packed, and only that.
func TestNotePackedOften(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	const packs = 100
	p := e.Partition(7)
	e.Owner(p.ID).Lock()
	for position := range uint64(packs + 1) {
		p.Trail.AddIdentify(books.Place{Position: 1 + position}, uint64(p.ID)<<56|1, 1, nil)
	}
	e.Owner(p.ID).Unlock()
	require.NoError(t, e.Checkpoint())
	for position := range uint64(packs) {
		require.NoError(t, e.NotePacked(1+position, true))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := e.store.Entry(nil, nil, uint64(p.ID)<<56|2)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))

	noted := func() int {
		all, _, err := e.Noted(1, packs+1)
		require.NoError(t, err)
		return len(all)
	}
	require.Equal(t, packs+1, noted())
	require.NoError(t, e.Checkpoint())
	require.Equal(t, 1, noted())
}

// What a crash has kept a checkpoint from deleting, the first one after the next start deletes.
func TestForgetAfterCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	p := e.Partition(7)
	e.Owner(p.ID).Lock()
	for position := range uint64(3) {
		p.Trail.AddIdentify(books.Place{Position: 1 + position}, uint64(p.ID)<<56|1, 1, nil)
	}
	e.Owner(p.ID).Unlock()
	require.NoError(t, e.Checkpoint())
	require.NoError(t, e.NotePacked(2, true))
	require.NoError(t, e.store.Flush())

	e = openTest(t, testOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
	require.NoError(t, e.Checkpoint())
	all, _, err := e.Noted(1, 3)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.EqualValues(t, 3, all[0].Position)
}

// What readers of the log are told is known while a checkpoint is under way, whose disk may hang.
func TestReadDuringCheckpoint(t *testing.T) {
	var hangs atomic.Bool
	hung, release := make(chan struct{}, 100), make(chan struct{})
	e := openTest(t, testOptions(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(o errorfs.Op) error {
		if hangs.Load() && o.Kind == errorfs.OpCreate && strings.HasSuffix(o.Path, ".sst") {
			hung <- struct{}{}
			<-release
		}
		return nil
	}))))
	p := e.Partition(7)
	add := func(position uint64) {
		e.Owner(p.ID).Lock()
		defer e.Owner(p.ID).Unlock()
		p.Dropped.Add(books.DroppedOp{Position: position})
		p.Trail.AddIdentify(books.Place{Position: position}, uint64(p.ID)<<56|1, 1, nil)
	}
	requireAll := func(want ...uint64) {
		var droppedOps []books.DroppedOp
		var all []books.Noted
		var through uint64
		var err, err2 error
		testengine.Within(t, time.Minute, "what readers are told", func() {
			droppedOps, err = e.Dropped(1, 3)
			all, through, err2 = e.Noted(1, 3)
		})
		require.NoError(t, errors.Join(err, err2))
		require.EqualValues(t, 3, through)
		var dropped, noted []uint64
		for _, o := range droppedOps {
			dropped = append(dropped, o.Position)
		}
		for _, n := range all {
			noted = append(noted, n.Position)
		}
		require.Equal(t, want, dropped)
		require.Equal(t, want, noted)
	}
	end := sync.OnceFunc(func() { hangs.Store(false); close(release) })
	t.Cleanup(end)
	add(1)
	hangs.Store(true)
	done := make(chan error, 1)
	go func() { done <- e.Checkpoint() }()
	<-hung
	requireAll(1)
	add(3)
	requireAll(1, 3)
	end()
	require.NoError(t, <-done)
	requireAll(1, 3)
	inBoth(t, e.Replica)
	requireAll(1, 3)
	require.NoError(t, e.Checkpoint())
	requireAll(1, 3)
}
