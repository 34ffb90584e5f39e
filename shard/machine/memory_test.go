package machine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// bareWorker is a worker of some partitions without an engine around it.
func bareWorker(t *testing.T, partitions int, memory int64) *Worker {
	m := New(Options{Count: partitions, Workers: 1, MemoryBytes: memory})
	t.Cleanup(m.Free)
	return m.workers[0]
}

// checkArena compares the arena's counts with a new count of its blocks.
func checkArena(t *testing.T, w *Worker) {
	t.Helper()
	var tables []*arena.Table
	for _, p := range w.parts {
		tables = append(tables, &p.Table)
	}
	require.NoError(t, w.arena.Check(tables...))
}

// Entries that grow in step leave one size class after the other. The memory that they leave is used again, and beyond
// the budget it is given back.
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
			most = max(most, w.Resident())
		}
	}
	require.Greater(t, w.Used(), int64(memory/2))
	require.LessOrEqual(t, most, int64(memory+2*spareBytes))
	checkArena(t, w)
}

// Entries that are moved while others read, write checkpoints and evict stay what they are.
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
			testengine.AddAttributes(b, op.ExternalID, fmt.Sprint("user-", r.IntN(users)), 0, testengine.LongField(1+r.IntN(1500)))
		}
		require.NoError(t, b.Commit())
		b.Release()
	}
	close(stop)
	<-gone
	require.NoError(t, e.Failed())
	for _, w := range e.workers {
		w.Lock()
		checkArena(t, w)
		w.Unlock()
	}
}

// TestShrunkEntries: an entry that has become much smaller in place gets a smaller block, in which its content is what
// it was.
func TestShrunkEntries(t *testing.T) {
	w := bareWorker(t, 1, 1<<30)
	p := w.parts[0]
	for _, n := range []int{100, 200, 500, 600, 5000, 100_000} {
		row := profile.AppendHeader(nil, entries.KindRow, op.Email, bytes.Repeat([]byte{'a'}, n), 3, 1)
		for _, shrink := range []func(s *arena.Slot, n int) error{
			func(s *arena.Slot, n int) error { return w.update(s, w.entryOf(s)[:n]) },
			func(s *arena.Slot, n int) error { return w.close(s, w.open(s)[:n]) },
		} {
			for m := len(row); m > 30; m -= 1 + m/7 {
				s, err := w.insert(p, uint64(m), row)
				require.NoError(t, err)
				require.NoError(t, shrink(s, m))
				require.True(t, bytes.Equal(row[:m], w.entryOf(s)), "%d of %d", m, n)
				require.Equal(t, uint64(m), p.Number(s))
				if room := len(w.block(s)); len(row) <= 512 {
					require.LessOrEqual(t, room, m+127)
				}
				p.Remove(s)
			}
		}
	}
	require.Zero(t, w.arena.Used)
	checkArena(t, w)
}

// TestOvergrown: an entry that would get larger than MaxEntryBytes keeps what it has, whether it was read back, which
// gives it little room, or has grown in its block.
func TestOvergrown(t *testing.T) {
	w := bareWorker(t, 1, 1<<30)
	p := w.parts[0]
	row := profile.AppendHeader(nil, entries.KindRow, op.Email, []byte("a"), 3, 1)
	members := func(n int) op.Value { return op.AppendString(nil, bytes.Repeat([]byte{1}, n)) }
	set := func(s *arena.Slot, n int) {
		require.NoError(t, w.update(s, w.ed.SetAttr(w.entryOf(s), entries.AttrMembers, members(n))))
	}
	s, err := w.insert(p, 7, row)
	require.NoError(t, err)
	set(s, 11<<20)
	kept := bytes.Clone(w.entryOf(s))
	for range 2 {
		set(s, arena.MaxEntryBytes)
		require.True(t, bytes.Equal(kept, w.entryOf(s)), "%d bytes", w.size(s))
		p.Remove(s)
		s, err = w.admit(p, 7, kept)
		require.NoError(t, err)
	}
}
