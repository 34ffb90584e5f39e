package arena

import (
	"fmt"
	"math/bits"
)

// Check recounts what the arena has in its books, from all tables that have blocks in it. It is for tests.
func (a *Arena) Check(tables ...*Table) error {
	used, held, live := a.countBlocks(tables)
	var idle int64
	for at := range a.chunks {
		if a.chunks[at].kind != paged {
			continue
		}
		idle += int64(bits.OnesCount64(a.free[at]&a.warm[at])) * pageBytes
		held += int64(chunkPages-bits.OnesCount64(a.free[at])) * pageBytes
		for i := range a.chunks[at].pages {
			n := uint32(at*chunkPages + i)
			if live[n] != int(a.page(n).live) {
				return fmt.Errorf("page %d has %d blocks, and its book says %d", n, live[n], a.page(n).live)
			}
		}
	}
	if used != a.Used || held != a.Held || idle != a.Idle {
		return fmt.Errorf("%d bytes used, %d held and %d idle, and the books say %d, %d and %d", used,
			held, idle, a.Used, a.Held, a.Idle)
	}
	return a.checkLists()
}

// countBlocks counts the blocks of tables: the bytes of all, the bytes of those that have their own mapping, and how
// many blocks each page has.
func (a *Arena) countBlocks(tables []*Table) (used, whole int64, live map[uint32]int) {
	live = map[uint32]int{}
	for _, t := range tables {
		for i := range t.Slots {
			s := t.Slots[i]
			if s == 0 {
				continue
			}
			page := s.off() / pageBlocks
			used += a.Bytes(s)
			if classSize(a.class[page]) > maxRun {
				whole += a.Bytes(s)
			} else {
				live[page]++
			}
		}
	}
	return used, whole, live
}

// checkLists checks that the lists of pages with a free block have only such pages.
func (a *Arena) checkLists() error {
	for c := range a.open {
		for i, before := a.open[c], uint32(0); i != 0; i, before = a.page(i).next, i {
			p := a.page(i)
			isOne := int(a.class[i]) == c && p.prev == before && !p.leaving
			if !isOne || p.live == 0 || int(p.live) >= classes[c].blocks {
				return fmt.Errorf("page %d in the list of class %d: %+v", i, c, *p)
			}
		}
	}
	return nil
}
