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
	for size := 1; size <= MaxEntryBytes; size += 1 + size/200 {
		c := ClassFor(size)
		head := headOf(c)
		require.GreaterOrEqual(t, classSize(c), head+size)
		require.True(t, c == 0 || leastSize(c-1) < headOf(c-1)+size)
		require.Less(t, int(c), arenaClasses)
		require.GreaterOrEqual(t, blockBytes(c), int64(classSize(c)))
		require.Zero(t, classSize(c)%classStep-head%classStep)
		require.LessOrEqual(t, classes[c].blocks, pageBlocks)
	}
	require.EqualValues(t, arenaClasses-1, ClassFor(MaxEntryBytes))
	require.Equal(t, MaxEntryBytes, classSize(arenaClasses-1)-largeHead)
}

func headOf(c uint8) int {
	if c < smallClasses {
		return smallHead
	}
	return largeHead
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

func newEntries(a Arena) *entries {
	s := &entries{Arena: a}
	for i := range s.tables {
		s.tables[i] = NewTable(&s.Arena, uint8(i))
	}
	return s
}

// put sets the content of an entry, in place where it fits.
func (s *entries) put(t *testing.T, number uint64, content []byte) {
	entry := s.table(number).Find(number)
	switch {
	case entry == nil:
		_, err := s.table(number).Insert(number, len(content), len(content))
		require.NoError(t, err)
		entry = s.table(number).Find(number)
		require.Equal(t, number, s.table(number).Number(entry))
	case s.SetSize(entry, len(content)):
	default:
		require.NoError(t, s.Rehouse(entry, content, len(content), func(room, entry []byte) { copy(room, entry) }))
	}
	room, size := s.Entry(*entry)
	require.Equal(t, len(content), size)
	copy(room, content)
}

func (s *entries) drop(number uint64) {
	s.table(number).Remove(s.table(number).Find(number))
}

func (s *entries) entry(number uint64) []byte {
	room, size := s.Entry(*s.table(number).Find(number))
	return room[:size]
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
	s := newEntries(New(memory, 0))
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
	for _, size := range []int{300, 90_000, maxRun - largeHead, MaxEntryBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a := Arena{limit: 9}
			defer a.Close()
			class := ClassFor(size)
			seen := fill(t, &a, class)
			require.Greater(t, int64(len(seen)+1)*blockBytes(class), int64(4*arenaChunk))
			for off := range seen {
				a.release(off)
				break
			}
			_, err := a.alloc(class)
			require.NoError(t, err)
		})
	}
}

// Offsets of 31 bits address 64 GiB. Nothing in it is touched, so nothing is resident.
func TestArenaAddresses64GiB(t *testing.T) {
	var a Arena
	defer a.Close()
	require.EqualValues(t, (maxChunks-1)/3, len(fill(t, &a, ClassFor(3*arenaChunk-largeHead))))
}

// fill takes all blocks of a class that there are.
func fill(t *testing.T, a *Arena, class uint8) map[uint32]bool {
	t.Helper()
	seen := map[uint32]bool{}
	for {
		off, err := a.alloc(class)
		if err != nil {
			require.ErrorIs(t, err, errFull)
			return seen
		}
		require.False(t, seen[off], "%d is handed out twice", off)
		seen[off] = true
	}
}
