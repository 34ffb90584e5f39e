package shard

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// bareWorker is a worker of some partitions without an engine around it.
func bareWorker(t *testing.T, partitions int, memory int64) *worker {
	e := &Replica{opts: ReplicaOptions{Options: Options{MemoryBytes: memory, Workers: 1}}}
	e.memory.Store(memory)
	w := newWorker(e, 0)
	e.workers = []*worker{w}
	for i := range partitions {
		w.parts = append(w.parts, &partition{id: uint8(i)})
	}
	t.Cleanup(w.free)
	return w
}

// checkArena counts anew what the arena has in its books.
func checkArena(t *testing.T, w *worker) {
	t.Helper()
	a := &w.arena
	var used, held, idle int64
	live := map[uint32]int{}
	for _, p := range w.parts {
		for i := range p.slots {
			s := &p.slots[i]
			if s.number == 0 {
				continue
			}
			used += blockBytes(s.class())
			if classSize(s.class()) > maxRun {
				held += blockBytes(s.class())
			} else {
				live[s.off/pageUnits]++
			}
		}
	}
	for at := range a.chunks {
		if a.chunks[at].kind != paged {
			continue
		}
		idle += int64(bits.OnesCount64(a.free[at]&a.warm[at])) * pageBytes
		held += int64(chunkPages-bits.OnesCount64(a.free[at])) * pageBytes
		for i := range a.chunks[at].pages {
			n := uint32(at*chunkPages + i)
			require.Equal(t, live[n], int(a.page(n).live), "page %d", n)
		}
	}
	require.Equal(t, []int64{used, held, idle}, []int64{a.used, a.held, a.idle})
	for c := range a.open {
		for i, before := a.open[c], uint32(0); i != 0; i, before = a.page(i).next, i {
			p := a.page(i)
			isRight := int(p.class) == c && p.prev == before && !p.leaving && p.live > 0 && int(p.live) < classes[c].blocks
			require.True(t, isRight, "page %d of class %d: %+v", i, c, p)
		}
	}
}

func TestClasses(t *testing.T) {
	for size := 1; size <= maxEntryBytes; size += 1 + size/50 {
		c := classFor(size)
		require.GreaterOrEqual(t, classSize(c), size)
		require.True(t, c == 0 || classSize(c-1) < size)
		require.Less(t, int(c), arenaClasses)
		require.GreaterOrEqual(t, blockBytes(c), int64(classSize(c)))
	}
	require.Equal(t, maxEntryBytes, classSize(arenaClasses-1))
}

func TestRunOf(t *testing.T) {
	r := testseed.Rand(t)
	for range 2000 {
		set, n := r.Uint64()|r.Uint64()|r.Uint64(), 1+r.IntN(16)
		want := -1
		for i := 0; i+n <= 64 && want < 0; i++ {
			if set>>i&(1<<n-1) == 1<<n-1 {
				want = i
			}
		}
		require.Equal(t, want, runOf(set, n), "%064b %d", set, n)
	}
	require.Equal(t, 0, runOf(allPages, 64))
}

// Random entries come, grow, shrink, go and are moved; a map knows what each has to be.
func TestArenaModel(t *testing.T) {
	r := testseed.Rand(t)
	const memory = 4 << 20
	w := bareWorker(t, 4, memory)
	want := map[uint64][]byte{}
	var numbers []uint64
	content := func(step int) []byte {
		n := 1 + r.IntN(50<<(step/1000%7)) // what is usual changes, so that pages of other classes become sparse
		switch r.IntN(2000) {
		case 0, 1:
			n = 1 + r.IntN(maxRun/4)
		case 2:
			n = maxRun + r.IntN(maxRun)
		}
		fill := byte(r.Uint32())
		if fill == profile.KindUser { // the first byte is the kind, and a profile must be one
			fill = kindRow
		}
		return bytes.Repeat([]byte{fill}, n)
	}
	drop := func(i int) {
		number := numbers[i]
		p := w.parts[number>>56]
		s := p.find(number)
		w.arena.release(s.off, s.class())
		p.remove(s)
		delete(want, number)
		numbers[i] = numbers[len(numbers)-1]
		numbers = numbers[:len(numbers)-1]
	}
	moves := moved.Get()
	steps := testsize.Of(200_000, 15_000, 4_000)
	for step := 0; step < steps || moved.Get() == moves && step < 20*steps; step++ { // pages become sparse by chance
		switch x := r.IntN(10); {
		case x < 6 || len(numbers) == 0:
			number := uint64(r.IntN(4))<<56 | uint64(step+1)
			want[number] = content(step)
			_, err := w.insert(w.parts[number>>56], number, want[number])
			require.NoError(t, err)
			numbers = append(numbers, number)
		case x < 8:
			number := numbers[r.IntN(len(numbers))]
			want[number] = content(step)
			require.NoError(t, w.update(w.parts[number>>56].find(number), want[number]))
		default:
			drop(r.IntN(len(numbers)))
		}
		for w.used() > memory*7/8 {
			drop(r.IntN(len(numbers)))
		}
		if _, err := w.compact(); err != nil {
			t.Fatal(err)
		}
		if step%500 == 0 {
			checkArena(t, w)
		}
	}
	for number, blob := range want {
		require.True(t, bytes.Equal(blob, w.entryOf(w.parts[number>>56].find(number))), "%x", number)
	}
	checkArena(t, w)
	require.Greater(t, moved.Get(), moves, "nothing was moved")
	for len(numbers) > 0 {
		drop(0)
	}
	w.arena.giveBack(0)
	checkArena(t, w)
	require.Zero(t, w.arena.resident())
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
			require.NoError(t, w.update(w.parts[i%8].find(uint64(i+1)), make([]byte, size)))
			_, err := w.compact()
			require.NoError(t, err)
			most = max(most, w.resident())
		}
	}
	require.Greater(t, w.used(), int64(memory/2))
	require.LessOrEqual(t, most, int64(memory+2*spareBytes))
	checkArena(t, w)
}

// Beyond what offsets can address there is an error, and what was handed out stays what it was.
func TestArenaIsFull(t *testing.T) {
	for _, size := range []int{300, 90_000, maxRun, maxEntryBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a := arena{limit: 9}
			defer a.close()
			class, seen := classFor(size), map[uint32]bool{}
			for {
				off, err := a.alloc(class)
				if err != nil {
					require.ErrorIs(t, err, errArenaFull)
					break
				}
				require.False(t, seen[off], "%d is handed out twice", off)
				seen[off] = true
			}
			require.Greater(t, int64(len(seen)+1)*blockBytes(class), int64(4*arenaChunk))
			for off := range seen {
				a.release(off, class)
				break
			}
			_, err := a.alloc(class)
			require.NoError(t, err)
		})
	}
}

// Offsets of 32 bits address 64 GiB. Nothing of it is touched, so nothing is resident.
func TestArenaAddresses64GiB(t *testing.T) {
	var a arena
	defer a.close()
	class, seen := classFor(maxEntryBytes), map[uint32]bool{}
	for {
		off, err := a.alloc(class)
		if err != nil {
			require.ErrorIs(t, err, errArenaFull)
			break
		}
		require.False(t, seen[off], "%d is handed out twice", off)
		seen[off] = true
	}
	require.EqualValues(t, (maxChunks-1)/3, len(seen))
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
