package shard

import (
	"unsafe"
)

// table finds the hot entries of one partition by number: open addressing over slots that hold no pointers. It belongs
// to one worker; the bytes of its entries are in that worker's arena.
type table struct {
	slots []slot
	raw   []byte // what slots lies in, when mapped off the heap
	count int
}

// slot: number 0 is an empty one. meta is 24 bits of length, 6 of size class, dirty, referenced.
type slot struct {
	number uint64
	off    uint32
	meta   uint32
}

const (
	metaDirty = 1 << 30 // differs from the store
	metaRef   = 1 << 31 // used since the evictor last came by
)

func (s *slot) size() int    { return int(s.meta & 0xffffff) }
func (s *slot) class() uint8 { return uint8(s.meta >> 24 & 0x3f) }

func (s *slot) setSize(n int, class uint8) {
	s.meta = s.meta&(metaDirty|metaRef) | uint32(n) | uint32(class)<<24
}

const (
	minSlots      = 64
	slotBytes     = int(unsafe.Sizeof(slot{}))
	offHeapBytes  = 64 << 10 // smaller tables live on the Go heap, which never scans them either
	maxLoadEights = 6        // grow beyond 6/8 full
	sparseSlots   = 6        // shrink when only one of so many is taken
)

// find is the slot of number, nil when it isn't resident.
func (t *table) find(number uint64) *slot {
	if len(t.slots) == 0 {
		return nil
	}
	mask := uint32(len(t.slots) - 1)
	for i := uint32(number) & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.number == number {
			return s
		}
		if s.number == 0 {
			return nil
		}
	}
}

// touch reads the slot where number begins to look; a caller that touches many numbers first lets the loads overlap.
func (t *table) touch(number uint64) uint64 {
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[uint32(number)&uint32(len(t.slots)-1)].number
}

// insert adds a slot for number, which must not be there. Slots move: pointers from before are dead.
func (t *table) insert(number uint64) (*slot, error) {
	if (t.count+1)*8 > len(t.slots)*maxLoadEights {
		if err := t.resize(max(minSlots, 2*len(t.slots))); err != nil {
			return nil, err
		}
	}
	t.count++
	s := t.place(number)
	s.number = number
	return s, nil
}

func (t *table) place(number uint64) *slot {
	mask := uint32(len(t.slots) - 1)
	i := uint32(number) & mask
	for t.slots[i].number != 0 {
		i = (i + 1) & mask
	}
	return &t.slots[i]
}

// shrink halves a table that has become too large for what is left in it. Slots move.
func (t *table) shrink() error {
	if t.raw == nil || t.count*sparseSlots > len(t.slots) {
		return nil
	}
	return t.resize(len(t.slots) / 2)
}

// resize gives the table n slots, a power of two.
func (t *table) resize(n int) error {
	old, oldRaw := t.slots, t.raw
	t.raw = nil
	if size := n * slotBytes; size >= offHeapBytes {
		raw, err := offHeap(size)
		if err != nil {
			t.raw = oldRaw
			return err
		}
		t.raw = raw
		t.slots = unsafe.Slice((*slot)(unsafe.Pointer(unsafe.SliceData(raw))), n) // page-aligned, pointer-free
	} else {
		t.slots = make([]slot, n)
	}
	for i := range old {
		if old[i].number != 0 {
			*t.place(old[i].number) = old[i]
		}
	}
	if oldRaw != nil {
		freeOffHeap(oldRaw)
	}
	return nil
}

// remove empties s and closes the gap behind it, so that no look-up needs tombstones.
func (t *table) remove(s *slot) {
	mask := uint32(len(t.slots) - 1)
	gap := uint32((uintptr(unsafe.Pointer(s)) - uintptr(unsafe.Pointer(&t.slots[0]))) / uintptr(slotBytes))
	t.count--
	for i := gap; ; {
		i = (i + 1) & mask
		n := &t.slots[i]
		if n.number == 0 {
			break
		}
		if home := uint32(n.number) & mask; (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = *n
			gap = i
		}
	}
	t.slots[gap] = slot{}
}

func (t *table) bytes() int64 { return int64(len(t.slots) * slotBytes) }

// mapped is how many bytes of it lie off the Go heap.
func (t *table) mapped() int64 { return int64(len(t.raw)) }

func (t *table) close() {
	if t.raw != nil {
		freeOffHeap(t.raw)
	}
	*t = table{}
}
