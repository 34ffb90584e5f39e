package replica

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/op"
)

// bareWorker is a worker of some partitions without an engine around it.
func bareWorker(t *testing.T, partitions int, memory int64) *worker {
	e := &Replica{opts: Options{EngineOptions: EngineOptions{MemoryBytes: memory, Workers: 1}}}
	e.memory.Store(memory)
	w := newWorker(e, 0)
	e.workers = []*worker{w}
	for i := range partitions {
		w.parts = append(w.parts, &partition{Books: books.Books{ID: uint8(i)}})
	}
	t.Cleanup(w.free)
	return w
}

// checkArena counts anew what the arena has in its books.
func checkArena(t *testing.T, w *worker) {
	t.Helper()
	var tables []*arena.Table
	for _, p := range w.parts {
		tables = append(tables, &p.Table)
	}
	require.NoError(t, w.arena.Check(tables...))
}

// Entries that grow in step leave one class after the other: what they leave is used again, and beyond the budget it is
// given back.
func TestArenaFollowsGrowth(t *testing.T) {
	const n, memory = 10_000, 24 << 20
	w := bareWorker(t, 8, memory)
	for i := range n {
		_, err := w.insert(w.parts[i%8], uint64(i+1), make([]byte, 200))
		require.NoError(t, err)
	}
	var most int64
	for size := 200; size < 1700; size += size / 4 {
		for i := range n {
			require.NoError(t, w.update(w.parts[i%8].Find(uint64(i+1)), make([]byte, size)))
			_, err := w.compact()
			require.NoError(t, err)
			most = max(most, w.resident())
		}
	}
	require.Greater(t, w.used(), int64(memory/2))
	require.LessOrEqual(t, most, int64(memory+2*spareBytes))
	checkArena(t, w)
}

func TestMemoryThatCannotBeAddressedIsRefused(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.MemoryBytes = 96<<30 + 1
	_, err := openEngine(o)
	require.ErrorContains(t, err, "MemoryBytes 103079215105: at most 103079215104 with 2 workers")
	o.Workers = 3
	openTest(t, o)
}

// Profiles of which each takes many blocks one after the other: what is in memory stays within the budget.
func TestMemoryBoundsGrowingProfiles(t *testing.T) {
	testsize.SkipSerial(t)
	const users, perRequest, memory = 6000, 200, 8 << 20
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 1, memory
	o.addressable = 4 * memory
	e := openTest(t, o)
	var most int64
	for size := 150; size < 2000; size += size / 3 {
		for i := 0; i < users; i += perRequest {
			b := e.NewBatch(1, 0)
			for u := i; u < i+perRequest; u++ {
				addAttributes(b, op.ExternalID, fmt.Sprint("user-", u), 0, longField(size))
			}
			require.NoError(t, b.Commit())
			b.Release()
			w := e.workers[0]
			w.mu.Lock()
			most = max(most, w.resident())
			w.mu.Unlock()
		}
	}
	t.Logf("budget %d KiB, most resident %d KiB", memory>>10, most>>10)
	require.LessOrEqual(t, most, int64(memory+memory/8+2*spareBytes))
	for i := range users {
		users, err := e.Find(1, op.ExternalID, []byte(fmt.Sprint("user-", i)))
		require.NoError(t, err)
		require.Len(t, users, 1)
	}
}

// longField is an attribute that takes about size bytes.
func longField(size int) []byte {
	return attrField(op.AttrFirstName, strings.Repeat("x", size))
}

// What is moved while others read, checkpoint and evict stays what it is.
func TestMovingRacesWithReaders(t *testing.T) {
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 23))
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 2, 6<<20
	e := openTest(t, o)
	stop := make(chan struct{})
	gone := make(chan struct{})
	users := testsize.Short(4000, 1000)
	go func() {
		defer close(gone)
		r := rand.New(rand.NewPCG(seed, 24))
		for {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprint("user-", r.IntN(users))
			_ = e.View(1, op.ExternalID, []byte(name), func(_ uint64, blob []byte) {
				if !bytes.Contains(blob, []byte(name)) {
					t.Errorf("%s is somebody else", name)
				}
			})
			if r.IntN(100) == 0 {
				e.SetMemoryBytes(int64(1+r.IntN(6)) << 20)
			}
			if r.IntN(500) == 0 {
				_ = e.Checkpoint()
			}
		}
	}()
	for range testsize.Short(250, 40) {
		b := e.NewBatch(1, 0)
		for range 100 {
			addAttributes(b, op.ExternalID, fmt.Sprint("user-", r.IntN(users)), 0, longField(1+r.IntN(1500)))
		}
		require.NoError(t, b.Commit())
		b.Release()
	}
	close(stop)
	<-gone
	require.NoError(t, e.Failed())
	for _, w := range e.workers {
		w.mu.Lock()
		checkArena(t, w)
		w.mu.Unlock()
	}
}
