package arena

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

func TestClasses(t *testing.T) {
	for size := 1; size <= MaxBlockBytes; size += 1 + size/200 {
		c := ClassFor(size)
		require.GreaterOrEqual(t, classSize(c), size)
		require.True(t, c == 0 || leastSize(c-1) < size)
		require.Less(t, int(c), arenaClasses)
		require.GreaterOrEqual(t, BlockBytes(c), int64(classSize(c)))
		require.Zero(t, classSize(c)%classStep)
		require.LessOrEqual(t, classes[c].blocks, pageBlocks)
	}
	require.Equal(t, MaxBlockBytes, classSize(arenaClasses-1))
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

// entries is what a worker is to an arena: tables with blocks of the arena.
type entries struct {
	Arena
	tables [4]Table
}

func (s *entries) table(number uint64) *Table { return &s.tables[number>>56] }

// put sets the content of an entry, in a block of another class when the entry has a block already.
func (s *entries) put(t *testing.T, number uint64, content []byte) {
	entry := s.table(number).Find(number)
	if entry == nil {
		var err error
		entry, err = s.table(number).Insert(number)
		require.NoError(t, err)
	} else {
		s.Release(entry.Off(), entry.Class())
	}
	class := ClassFor(len(content))
	off, err := s.Alloc(class)
	require.NoError(t, err)
	entry.SetOff(off)
	entry.SetSize(len(content), class)
	copy(s.Block(off, class), content)
}

func (s *entries) drop(number uint64) {
	entry := s.table(number).Find(number)
	s.Release(entry.Off(), entry.Class())
	s.table(number).Remove(entry)
}

func (s *entries) entry(number uint64) []byte {
	entry := s.table(number).Find(number)
	return s.Block(entry.Off(), entry.Class())[:entry.Size()]
}

func (s *entries) check(t *testing.T) {
	t.Helper()
	var tables []*Table
	for i := range s.tables {
		tables = append(tables, &s.tables[i])
	}
	require.NoError(t, s.Arena.Check(tables...))
}

// compact empties sparse pages and returns how much it has moved.
func (s *entries) compact(t *testing.T) (moved int64) {
	if !s.Choose(64 * pageBytes) {
		return 0
	}
	for i := range s.tables {
		n, err := s.Empty(&s.tables[i])
		require.NoError(t, err)
		moved += n
	}
	return moved
}

// Random entries come, grow, shrink, go and are moved. Each is what a map says that it has to be.
func TestArenaModel(t *testing.T) {
	r := testseed.Rand(t)
	const memory = 4 << 20
	s := &entries{Arena: New(memory, 0)}
	defer s.Close()
	want := map[uint64][]byte{}
	var numbers []uint64
	steps := testsize.Of(200_000, 15_000, 10000)
	phase := min(steps/15, 1000)
	content := func(step int) []byte {
		n := 1 + r.IntN(50<<(step/phase%7)) // what is usual changes, so that pages of other classes become sparse
		switch r.IntN(2000) {
		case 0, 1:
			n = 1 + r.IntN(maxRun/4)
		case 2:
			n = maxRun + r.IntN(maxRun)
		}
		return bytes.Repeat([]byte{byte(r.Uint32())}, n)
	}
	drop := func(i int) {
		s.drop(numbers[i])
		delete(want, numbers[i])
		numbers[i] = numbers[len(numbers)-1]
		numbers = numbers[:len(numbers)-1]
	}
	var moved int64
	for step := range steps {
		number := uint64(r.IntN(4))<<56 | uint64(step+1)
		switch x := r.IntN(10); {
		case x < 6 || len(numbers) == 0:
			numbers = append(numbers, number)
		case x < 8:
			number = numbers[r.IntN(len(numbers))]
		default:
			number = 0
			drop(r.IntN(len(numbers)))
		}
		if number != 0 {
			want[number] = content(step)
			s.put(t, number, want[number])
		}
		for s.Used > memory*7/8 {
			drop(r.IntN(len(numbers)))
		}
		if s.Resident() > memory {
			if s.GiveBack(0); s.Resident() > memory {
				moved += s.compact(t)
			}
		}
		if step%500 == 0 {
			s.check(t)
		}
	}
	for number, blob := range want {
		require.True(t, bytes.Equal(blob, s.entry(number)), "%x", number)
	}
	s.check(t)
	require.NotZero(t, moved, "nothing was moved")
	for len(numbers) > 0 {
		drop(0)
	}
	s.GiveBack(0)
	s.check(t)
	require.Zero(t, s.Resident())
}

// An allocation beyond what offsets can address is an error, and blocks that were handed out stay what they were.
func TestArenaIsFull(t *testing.T) {
	for _, size := range []int{300, 90_000, maxRun, MaxBlockBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a := Arena{limit: 9}
			defer a.Close()
			class := ClassFor(size)
			seen := fill(t, &a, class)
			require.Greater(t, int64(len(seen)+1)*BlockBytes(class), int64(4*arenaChunk))
			for off := range seen {
				a.Release(off, class)
				break
			}
			_, err := a.Alloc(class)
			require.NoError(t, err)
		})
	}
}

// Offsets of 31 bits address 64 GiB. Nothing in it is touched, so nothing is resident.
func TestArenaAddresses64GiB(t *testing.T) {
	var a Arena
	defer a.Close()
	require.EqualValues(t, (maxChunks-1)/3, len(fill(t, &a, ClassFor(MaxBlockBytes))))
}

// fill takes all blocks of a class that there are.
func fill(t *testing.T, a *Arena, class uint8) map[uint32]bool {
	t.Helper()
	seen := map[uint32]bool{}
	for {
		off, err := a.Alloc(class)
		if err != nil {
			require.ErrorIs(t, err, errFull)
			return seen
		}
		require.False(t, seen[off], "%d is handed out twice", off)
		seen[off] = true
	}
}
