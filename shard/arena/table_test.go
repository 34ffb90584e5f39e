package arena

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// alike are numbers that are hard to tell apart: few places, few values of what a slot has of them, few of what a head
// has. So tags collide, and runs of slots cross one another and the end of the table.
func alike(r *rand.Rand) uint64 {
	places := [...]uint64{0, 1, 2, 3, 62, 63, 64, 1<<tagBits - 2, 1<<tagBits - 1}
	return 7<<partitionBits | uint64(r.IntN(40))*0x6_357913%(1<<32)<<tagBits | places[r.IntN(len(places))]
}

// checkTable checks that a table finds exactly the entries of a map, and knows their numbers.
func checkTable(t *testing.T, p *Table, want map[uint64]byte) {
	t.Helper()
	require.Equal(t, len(want), p.Count)
	seen := 0
	for i := range p.Slots {
		s := &p.Slots[i]
		if *s == 0 {
			continue
		}
		seen++
		number := p.Number(s)
		mark, ok := want[number]
		require.True(t, ok, "%x", number)
		require.Same(t, s, p.Find(number))
		room, size := p.arena.Entry(*s)
		require.Equal(t, 20+int(mark), size)
		require.Equal(t, mark, room[0])
	}
	require.Equal(t, len(want), seen)
}

// step inserts, removes or changes an entry.
func step(t *testing.T, p *Table, want map[uint64]byte, number uint64, mark byte) {
	put := func(s *Slot) {
		room, _ := p.arena.Entry(*s)
		room[0] = mark
		want[number] = mark
	}
	s, n := p.Find(number), 20+int(mark)
	_, is := want[number]
	require.Equal(t, is, s != nil, "%x", number)
	switch {
	case s == nil:
		s, err := p.Insert(number, n, n)
		require.NoError(t, err)
		put(s)
	case mark%2 == 0:
		p.Remove(s)
		delete(want, number)
		require.Nil(t, p.Find(number))
	default:
		require.NoError(t, p.arena.Rehouse(s, make([]byte, n), n, func(room, entry []byte) { copy(room, entry) }))
		put(s)
	}
}

// TestTableModel: a table that grows and shrinks, of numbers that are hard to tell apart, is what a map is.
func TestTableModel(t *testing.T) {
	r := testseed.Rand(t)
	a := New(minHuge, 0)
	defer a.Close()
	p := NewTable(&a, 7)
	defer p.Close()
	want := map[uint64]byte{}
	var crowd []uint64 // numbers that have nothing in common, so that the table grows off the Go heap
	most := testsize.Of(40_000, 12_000, 9000)
	for len(crowd) < most {
		number := 7<<partitionBits | r.Uint64()&(1<<partitionBits-1)
		if _, ok := want[number]; !ok {
			step(t, &p, want, number, byte(r.IntN(200)))
			crowd = append(crowd, number)
		}
		step(t, &p, want, alike(r), byte(r.IntN(256)))
		if len(crowd)%(most/8) == 0 {
			checkTable(t, &p, want)
		}
	}
	require.Positive(t, p.Mapped())
	for i, number := range crowd {
		p.Remove(p.Find(number))
		delete(want, number)
		step(t, &p, want, alike(r), byte(r.IntN(256)))
		require.NoError(t, p.Shrink())
		if i%(most/8) == 0 {
			checkTable(t, &p, want)
		}
	}
	checkTable(t, &p, want)
	require.NoError(t, a.Check(&p))
}

// TestNumbersPartByPart: whoever reads the numbers of a table in parts gets all that are there meanwhile, each once,
// although other entries come and go between the parts and move them.
func TestNumbersPartByPart(t *testing.T) {
	r := testseed.Rand(t)
	a := New(minHuge, 0)
	defer a.Close()
	for range testsize.Of(2000, 200, 50) {
		p := NewTable(&a, 7)
		want := map[uint64]byte{}
		others := map[uint64]byte{}
		all := map[uint64]byte{}
		for i := range 150 {
			number := alike(r)
			if _, is := all[number]; is {
				continue
			}
			step(t, &p, all, number, 1)
			if i%3 == 0 {
				want[number] = 0
			} else {
				others[number] = 0
			}
		}
		slots, size := len(p.Slots), 1+r.IntN(9)
		var numbers []uint64
		for from := 0; from < slots; from += size {
			numbers = p.AppendNumbers(numbers, from, min(from+size, slots))
			for number := range others {
				if _, is := all[number]; r.IntN(3) > 0 || !is && p.Count > 130 {
					continue
				}
				step(t, &p, all, number, 2)
			}
		}
		require.Len(t, p.Slots, slots)
		for number := range want {
			n := 0
			for _, x := range numbers {
				if x == number {
					n++
				}
			}
			require.Equal(t, 1, n, "%x", number)
		}
		p.Close()
	}
}

// TestTagsCollide: numbers of which the slots say the same are told apart by the heads of their blocks, also once one of
// them has gone; Guess, which reads no block, says that one of them is there.
func TestTagsCollide(t *testing.T) {
	var a Arena
	defer a.Close()
	p := NewTable(&a, 255)
	const tag = 12345
	number := func(rest uint64) uint64 { return 255<<partitionBits | rest<<tagBits | tag }
	for rest := range uint64(40) {
		s, err := p.Insert(number(rest), 50, 50)
		require.NoError(t, err)
		require.EqualValues(t, tag, s.tag())
	}
	for gone := range uint64(40) {
		p.Remove(p.Find(number(gone)))
		for rest := range uint64(42) {
			s := p.Find(number(rest))
			require.Equal(t, rest > gone && rest < 40, s != nil, "%d", rest)
			if s != nil {
				require.Equal(t, number(rest), p.Number(s))
				require.EqualValues(t, tag, p.Guess(number(rest)).tag())
			}
		}
	}
	require.Zero(t, p.Guess(number(1)))
	require.Zero(t, p.Count)
}

// TestSizes: an entry has the size that it was given last, in blocks of all classes; the flags and the number stay what
// they are.
func TestSizes(t *testing.T) {
	var a Arena
	defer a.Close()
	p := NewTable(&a, 3)
	const number = 3<<partitionBits | 0xfedcba98765432
	_, err := p.Insert(number, 1, 1)
	require.NoError(t, err)
	s := p.Find(number)
	*s |= Dirty
	for size := 1; size <= MaxEntryBytes; size += 1 + size/40 {
		require.NoError(t, a.Rehouse(s, make([]byte, size), size, func(room, entry []byte) {}))
		room, n := a.Entry(*s)
		require.Equal(t, size, n)
		require.GreaterOrEqual(t, len(room), size)
		for _, n := range []int{len(room), max(len(room)-maxUnused, 0), size} {
			require.True(t, a.SetSize(s, n))
			_, got := a.Entry(*s)
			require.Equal(t, n, got)
		}
		require.False(t, a.SetSize(s, len(room)+1))
		if size <= finest && len(room) > maxUnused {
			require.False(t, a.SetSize(s, len(room)-maxUnused-1))
		}
		_, n = a.Entry(*s)
		require.Equal(t, size, n)
		_, span := a.Span(*s)
		require.GreaterOrEqual(t, span, size)
		require.LessOrEqual(t, span, min(size+size/32, len(room)))
		require.Same(t, s, p.Find(number))
		require.EqualValues(t, number, p.Number(s))
		require.Equal(t, Dirty, *s&(Dirty|Referenced))
	}
}

// FuzzTable: whatever entries come and go, a table is what a map is.
func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 9})
	f.Add(slices.Repeat([]byte{63, 0, 0, 0, 0, 0, 0, 5, 63, 0, 0, 128, 0, 0, 0, 4}, 40))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a Arena
		defer a.Close()
		p := NewTable(&a, 7)
		defer p.Close()
		want := map[uint64]byte{}
		for ; len(data) >= 8; data = data[8:] {
			x := binary.LittleEndian.Uint64(data)
			step(t, &p, want, 7<<partitionBits|x&(1<<partitionBits-1), byte(x>>partitionBits))
		}
		checkTable(t, &p, want)
		require.NoError(t, a.Check(&p))
	})
}
