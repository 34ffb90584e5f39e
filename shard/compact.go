package shard

import (
	"cmp"
	"slices"
)

// compaction empties pages that have few blocks left into others of their class, so that other classes, or the system,
// get them: profiles that grow leave the classes that they were in. Blocks are found through their slots, a partition
// at a time; in between, readers, checkpoints and the next records have their turn.
type compaction struct {
	under bool  // pages are being emptied
	at    int   // index of the partition that is next
	above int64 // there was nothing to empty: it is tried again when more than this is taken
}

// choose marks pages to be emptied, those with the least to move first, until they come to want bytes, and says whether
// there are any. What is in them fits in the other pages of their class.
func (a *arena) choose(want int64) bool {
	sparse := a.sparsePages()
	slices.SortFunc(sparse, func(i, j uint32) int {
		p, q := a.page(i), a.page(j)
		return cmp.Compare(int(p.live)*classes[q.class].blocks, int(q.live)*classes[p.class].blocks)
	})
	n := 0
	for n < len(sparse) && want > 0 {
		p := a.page(sparse[n])
		a.unlist(sparse[n], p)
		p.leaving = true
		want -= pageBytes
		n++
	}
	return n > 0
}

// sparsePages are, of each class, as many pages with a free block as its blocks could do without: those with the fewest
// blocks.
func (a *arena) sparsePages() (sparse []uint32) {
	for c := range a.open {
		var open []uint32
		free, blocks := 0, classes[c].blocks
		for i := a.open[c]; i != 0; i = a.page(i).next {
			open = append(open, i)
			free += blocks - int(a.page(i).live)
		}
		slices.SortFunc(open, func(i, j uint32) int { return cmp.Compare(a.page(i).live, a.page(j).live) })
		sparse = append(sparse, open[:free/blocks]...)
	}
	return sparse
}

// isLeaving says whether the block at off is to be moved.
func (a *arena) isLeaving(off uint32) bool {
	x := &a.chunks[off/chunkUnits]
	return x.kind == paged && x.pages[off%chunkUnits/pageUnits].leaving
}

// move moves the entry in s to another block of its class.
func (w *worker) move(s *slot) error {
	off, err := w.arena.alloc(s.class())
	if err != nil {
		return err
	}
	copy(w.arena.at(off), w.block(s))
	w.arena.release(s.off, s.class())
	s.off = off
	return nil
}

// compact does a step, when pages take too much, and says whether more are to come. The caller holds w.mu.
func (w *worker) compact() (more bool, err error) {
	c := &w.compaction
	if !c.under && w.isWide() {
		w.beginCompaction()
	}
	if !c.under {
		return false, nil
	}
	p := w.parts[c.at]
	for i := range p.slots {
		s := &p.slots[i]
		if s.number == 0 || !w.arena.isLeaving(s.off) {
			continue
		}
		moved.Add(int(blockBytes(s.class())))
		if err := w.move(s); err != nil {
			return false, err
		}
	}
	if c.at++; c.at == len(w.parts) {
		c.under = false
		w.giveBack()
	}
	return c.under, nil
}

// beginCompaction chooses the pages to be emptied, unless giving back what nobody has is enough.
func (w *worker) beginCompaction() {
	c := &w.compaction
	w.giveBack()
	over := w.resident() - w.budget()
	if over <= spareBytes {
		return
	}
	c.under, c.at, c.above = w.arena.choose(over+w.budget()/64), 0, 0
	if !c.under {
		c.above = w.resident() + w.budget()/64
	}
}

// giveBack gives back pages that nobody has, as far as more than the budget is taken.
func (w *worker) giveBack() {
	if over := w.resident() - w.budget(); over > 0 {
		w.arena.giveBack(max(w.arena.idle-over, 0))
	}
}

// spareBytes is about what the pages take in which each class has its free blocks.
const spareBytes = 1 << 20
