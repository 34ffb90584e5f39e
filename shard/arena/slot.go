package arena

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Slot leads to an entry. It says where the entry's block is, how much of the block is unused, and has as much of the
// entry's number as fits; an empty slot is 0. The block begins with a head, which has the rest of the number:
//
//	slot                  Referenced 1 bit | Dirty 1 bit | unused bytes of the block 7 bits | number, lowest 24 bits |
//	                      offset of the block 31 bits
//	head of small blocks  number, next 32 bits
//	     of large ones    number, next 32 bits | size of the entry 32 bits
//
// The highest 8 bits of the number are the partition, which the table knows. So 8 bytes in the table are enough to pass
// over almost all slots of other numbers, and the head lies beside the front of the entry, which whoever finds the
// entry reads next. Of large blocks the slot has the unused bytes in steps, rounded down: enough to load what a block
// has in use before the block is looked at (Span).
type Slot uint64

const (
	Dirty      Slot = 1 << 62 // differs from the store
	Referenced Slot = 1 << 63 // used since the evictor last came by

	tagBits       = 24 // of the number, in the slot
	unusedBits    = 7
	tagAt         = offsetBits
	unusedAt      = tagAt + tagBits
	offsetMask    = 1<<offsetBits - 1
	tagMask       = 1<<tagBits - 1
	maxUnused     = 1<<unusedBits - 1
	partitionBits = 56 // below the partition
)

func (s Slot) off() uint32      { return uint32(s & offsetMask) }
func (s Slot) tag() uint32      { return uint32(s>>tagAt) & tagMask }
func (s Slot) unused() int      { return int(s >> unusedAt & maxUnused) }
func (s *Slot) setOff(o uint32) { *s = *s&^offsetMask | Slot(o) }

// tagOf is what slots have of a number, restOf what heads have.
func tagOf(number uint64) uint32  { return uint32(number) & tagMask }
func restOf(number uint64) uint32 { return uint32(number >> tagBits) }

func (a *Arena) rest(s Slot) uint32 { return binary.LittleEndian.Uint32(a.block(s.off())) }

// Entry is the room of an entry in its block, and how many bytes the entry takes.
func (a *Arena) Entry(s Slot) (room []byte, size int) {
	b := a.block(s.off())
	if len(b) > maxSmall {
		return b[largeHead:], int(binary.LittleEndian.Uint32(b[smallHead:]))
	}
	return b[smallHead:], len(b) - smallHead - s.unused()
}

// Span is Entry for whoever is about to load entries: it doesn't read the block, and the size may be somewhat too
// large.
func (a *Arena) Span(s Slot) (room []byte, size int) {
	b := a.block(s.off())
	if len(b) > maxSmall {
		return b[largeHead:], len(b) - largeHead - s.unused()<<unusedStep(len(b))
	}
	return b[smallHead:], len(b) - smallHead - s.unused()
}

// unusedStep is in what steps the slot has the unused bytes of a large block: as its exponent of 2.
func unusedStep(size int) int { return bits.Len(uint(size)) - unusedBits }

// SetSize sets how many bytes an entry takes, unless its block has no room for so many, or so much that the slot can't
// say it.
func (a *Arena) SetSize(s *Slot, n int) (fits bool) {
	b := a.block(s.off())
	unused := len(b) - smallHead - n
	if len(b) > maxSmall {
		if unused = (len(b) - largeHead - n) >> unusedStep(len(b)); unused >= 0 {
			binary.LittleEndian.PutUint32(b[smallHead:], uint32(n))
		}
	}
	if unused < 0 || unused > maxUnused {
		return false
	}
	*s = *s&^(maxUnused<<unusedAt) | Slot(unused)<<unusedAt
	return true
}

// set makes s the slot of an entry of n bytes in the block at off, which is new.
func (a *Arena) set(s *Slot, off, rest uint32, n int) {
	s.setOff(off)
	binary.LittleEndian.PutUint32(a.block(off), rest)
	if !a.SetSize(s, n) {
		panic(fmt.Sprintf("BUG: an entry of %d bytes in a block of %d", n, len(a.block(off))))
	}
}

// Bytes is how many bytes the block of an entry takes.
func (a *Arena) Bytes(s Slot) int64 { return blockBytes(a.class[s.off()/pageBlocks]) }

// Rehouse replaces the entry in s by another one, which put puts into a block with so much room. The other one may lie
// in the block that the entry has had.
func (a *Arena) Rehouse(s *Slot, entry []byte, room int, put func(room, entry []byte)) error {
	off, err := a.alloc(ClassFor(room))
	if err != nil {
		return err
	}
	old := s.off()
	a.set(s, off, a.rest(*s), len(entry))
	to, _ := a.Entry(*s)
	put(to, entry)
	a.release(old)
	return nil
}
