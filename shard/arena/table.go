package arena

import (
	"math/bits"
	"unsafe"
)

// Table finds the hot entries of one partition by number: open addressing over slots that hold no pointers. It belongs
// to one worker; its entries are in that worker's arena.
type Table struct {
	Slots     []Slot
	raw       []byte // memory of Slots, when mapped off the heap
	spread    uint8  // of a table with more slots than tags, so many lowest bits of homes are 0
	Count     int
	arena     *Arena
	partition uint64 // the highest byte of all numbers
}

// NewTable makes the table of a partition, whose entries are in an arena.
func NewTable(a *Arena, partition uint8) Table {
	return Table{arena: a, partition: uint64(partition) << partitionBits}
}

const (
	minSlots      = 64
	slotBytes     = int(unsafe.Sizeof(Slot(0)))
	offHeapBytes  = 64 << 10 // smaller tables live on the Go heap, which never scans them either
	maxLoadEights = 6        // grow beyond 6/8 full
	sparseSlots   = 6        // shrink when only one of so many is taken
)

// Find is the slot of number, nil when it isn't resident.
func (t *Table) Find(number uint64) *Slot {
	if len(t.Slots) == 0 {
		return nil
	}
	mask := t.mask()
	tag, rest := tagOf(number), restOf(number)
	for i := t.home(tag); ; i = (i + 1) & mask {
		s := &t.Slots[i]
		if *s == 0 {
			return nil
		}
		if s.tag() == tag && t.arena.rest(*s) == rest {
			return s
		}
	}
}

// Touch reads the slot where the search for number begins; a caller that first touches many numbers lets the loads
// overlap.
func (t *Table) Touch(number uint64) Slot {
	if len(t.Slots) == 0 {
		return 0
	}
	return t.Slots[t.home(tagOf(number))]
}

// Guess is what the slot of number holds, as far as slots alone tell; 0 when number isn't resident. It reads no block,
// so that a caller who then loads many blocks (Arena.Span) lets these loads overlap, too. Seldom it is the slot of
// another number.
func (t *Table) Guess(number uint64) Slot {
	if len(t.Slots) == 0 {
		return 0
	}
	mask, tag := t.mask(), tagOf(number)
	for i := t.home(tag); ; i = (i + 1) & mask {
		if s := t.Slots[i]; s == 0 || s.tag() == tag {
			return s
		}
	}
}

// Number is the number of the entry in s.
func (t *Table) Number(s *Slot) uint64 {
	return t.partition | uint64(t.arena.rest(*s))<<tagBits | uint64(s.tag())
}

// AppendNumbers appends the numbers of the entries for which a search begins between slots from and to. Where that is
// changes only with the number of slots.
func (t *Table) AppendNumbers(numbers []uint64, from, to int) []uint64 {
	mask, n := t.mask(), uint32(to-from)
	for i := range uint32(len(t.Slots)) {
		s := &t.Slots[(uint32(from)+i)&mask]
		switch {
		case *s == 0 && i >= n: // the end of the run in which the last of them lie
			return numbers
		case *s != 0 && t.home(s.tag())-uint32(from) < n:
			numbers = append(numbers, t.Number(s))
		}
	}
	return numbers
}

// Insert adds an entry of n bytes for number, which must not have one, in a block with so much room. Slots move:
// earlier pointers to slots become invalid.
func (t *Table) Insert(number uint64, n, room int) (*Slot, error) {
	if (t.Count+1)*8 > len(t.Slots)*maxLoadEights {
		if err := t.resize(max(minSlots, 2*len(t.Slots))); err != nil {
			return nil, err
		}
	}
	off, err := t.arena.alloc(ClassFor(room))
	if err != nil {
		return nil, err
	}
	t.Count++
	s := t.place(Slot(tagOf(number)) << tagAt)
	t.arena.set(s, off, restOf(number), n)
	return s, nil
}

// place puts a slot in its place, behind the others there.
func (t *Table) place(s Slot) *Slot {
	mask, i := t.mask(), t.home(s.tag())
	for t.Slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.Slots[i] = s
	return &t.Slots[i]
}

func (t *Table) mask() uint32 { return uint32(len(t.Slots) - 1) }

// home is where the search for a tag begins.
func (t *Table) home(tag uint32) uint32 { return tag << t.spread & t.mask() }

// IsSparse says whether the table has become too large for what is left in it, and Shrink frees memory.
func (t *Table) IsSparse() bool { return t.raw != nil && t.Count*sparseSlots <= len(t.Slots) }

// Shrink halves a table that is sparse. Slots move.
func (t *Table) Shrink() error {
	if !t.IsSparse() {
		return nil
	}
	return t.resize(len(t.Slots) / 2)
}

// resize gives the table n slots, a power of two.
func (t *Table) resize(n int) error {
	old, oldRaw := t.Slots, t.raw
	t.raw = nil
	if size := n * slotBytes; size >= offHeapBytes {
		raw, err := offHeap(size)
		if err != nil {
			t.raw = oldRaw
			return err
		}
		populate(raw)
		t.raw = raw
		t.Slots = unsafe.Slice((*Slot)(unsafe.Pointer(unsafe.SliceData(raw))), n) // page-aligned, pointer-free
	} else {
		t.Slots = make([]Slot, n)
	}
	t.spread = uint8(max(bits.Len(uint(n-1))-tagBits, 0))
	for _, s := range old {
		if s != 0 {
			t.place(s)
		}
	}
	if oldRaw != nil {
		freeOffHeap(oldRaw)
	}
	return nil
}

// Remove takes an entry out, releases its block, and closes the gap behind its slot, so that no look-up needs
// tombstones.
func (t *Table) Remove(s *Slot) {
	t.arena.release(s.off())
	mask := t.mask()
	gap := uint32((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&t.Slots[0]))) / uintptr(slotBytes))
	t.Count--
	for i := gap; ; {
		i = (i + 1) & mask
		n := t.Slots[i]
		if n == 0 {
			break
		}
		if home := t.home(n.tag()); (i-home)&mask >= (i-gap)&mask {
			t.Slots[gap] = n
			gap = i
		}
	}
	t.Slots[gap] = 0
}

// Bytes is how many bytes the slots take.
func (t *Table) Bytes() int64 { return int64(len(t.Slots) * slotBytes) }

// Mapped is how many bytes of the table lie off the Go heap.
func (t *Table) Mapped() int64 { return int64(len(t.raw)) }

// Close frees what is mapped.
func (t *Table) Close() {
	if t.raw != nil {
		freeOffHeap(t.raw)
	}
	*t = Table{}
}
