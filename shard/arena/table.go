package arena

import (
	"unsafe"
)

// Table finds the hot entries of one partition by number: open addressing over slots that hold no pointers. It belongs
// to one worker; the bytes of its entries are in that worker's arena.
type Table struct {
	Slots []Slot
	raw   []byte // memory of Slots, when mapped off the heap
	Count int
}

// Slot says where an entry is. An empty slot has number 0. Meta has 31 bits of offset, 24 of length, 7 of size class,
// and the flags Dirty and Referenced.
type Slot struct {
	Number uint64
	Meta   uint64
}

const (
	Dirty      = 1 << 62 // differs from the store
	Referenced = 1 << 63 // used since the evictor last came by

	sizeBits  = 24
	classBits = 7
	sizeAt    = offsetBits
	classAt   = sizeAt + sizeBits
)

// Off is the offset of its block.
func (s *Slot) Off() uint32 { return uint32(s.Meta & (1<<offsetBits - 1)) }

// SetOff sets the offset of its block.
func (s *Slot) SetOff(off uint32) { s.Meta = s.Meta&^(1<<offsetBits-1) | uint64(off) }

// Size is how many bytes the entry has.
func (s *Slot) Size() int { return int(s.Meta >> sizeAt & (1<<sizeBits - 1)) }

// Class is the size class of its block.
func (s *Slot) Class() uint8 { return uint8(s.Meta >> classAt & (1<<classBits - 1)) }

// SetSize sets how many bytes the entry has, and the class of its block.
func (s *Slot) SetSize(n int, class uint8) {
	s.Meta = s.Meta&(Dirty|Referenced|1<<offsetBits-1) | uint64(n)<<sizeAt | uint64(class)<<classAt
}

const (
	minSlots      = 64
	slotBytes     = int(unsafe.Sizeof(Slot{}))
	offHeapBytes  = 64 << 10 // smaller tables live on the Go heap, which never scans them either
	maxLoadEights = 6        // grow beyond 6/8 full
	sparseSlots   = 6        // shrink when only one of so many is taken
)

// Find is the slot of number, nil when it isn't resident.
func (t *Table) Find(number uint64) *Slot {
	if len(t.Slots) == 0 {
		return nil
	}
	mask := uint32(len(t.Slots) - 1)
	for i := uint32(number) & mask; ; i = (i + 1) & mask {
		s := &t.Slots[i]
		if s.Number == number {
			return s
		}
		if s.Number == 0 {
			return nil
		}
	}
}

// Touch reads the slot where the search for number begins; a caller that first touches many numbers lets the loads
// overlap.
func (t *Table) Touch(number uint64) uint64 {
	if len(t.Slots) == 0 {
		return 0
	}
	return t.Slots[uint32(number)&uint32(len(t.Slots)-1)].Number
}

// Insert adds a slot for number, which must not have one. Slots move: earlier pointers to slots become invalid.
func (t *Table) Insert(number uint64) (*Slot, error) {
	if (t.Count+1)*8 > len(t.Slots)*maxLoadEights {
		if err := t.resize(max(minSlots, 2*len(t.Slots))); err != nil {
			return nil, err
		}
	}
	t.Count++
	s := t.place(number)
	s.Number = number
	return s, nil
}

func (t *Table) place(number uint64) *Slot {
	mask := uint32(len(t.Slots) - 1)
	i := uint32(number) & mask
	for t.Slots[i].Number != 0 {
		i = (i + 1) & mask
	}
	return &t.Slots[i]
}

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
	for i := range old {
		if old[i].Number != 0 {
			*t.place(old[i].Number) = old[i]
		}
	}
	if oldRaw != nil {
		freeOffHeap(oldRaw)
	}
	return nil
}

// Remove empties s and closes the gap behind it, so that no look-up needs tombstones.
func (t *Table) Remove(s *Slot) {
	mask := uint32(len(t.Slots) - 1)
	gap := uint32((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&t.Slots[0]))) / uintptr(slotBytes))
	t.Count--
	for i := gap; ; {
		i = (i + 1) & mask
		n := &t.Slots[i]
		if n.Number == 0 {
			break
		}
		if home := uint32(n.Number) & mask; (i-home)&mask >= (i-gap)&mask {
			t.Slots[gap] = *n
			gap = i
		}
	}
	t.Slots[gap] = Slot{}
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
