package shard

// compaction empties pages that have few blocks left into others of their class, so that other classes, or the system,
// get them: profiles that grow leave the classes that they were in. Blocks are found through their slots, a partition
// at a time; in between, readers, checkpoints and the next records have their turn.
type compaction struct {
	under bool  // pages are being emptied
	at    int   // index of the partition that is next
	above int64 // there was nothing to empty: it is tried again when more than this is taken
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
	n, err := w.arena.Empty(&w.parts[c.at].Table)
	if moved.Add(int(n)); err != nil {
		return false, err
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
	c.under, c.at, c.above = w.arena.Choose(over+w.budget()/64), 0, 0
	if !c.under {
		c.above = w.resident() + w.budget()/64
	}
}

// giveBack gives back pages that nobody has, as far as more than the budget is taken.
func (w *worker) giveBack() {
	if over := w.resident() - w.budget(); over > 0 {
		w.arena.GiveBack(max(w.arena.Idle-over, 0))
	}
}

// spareBytes is about what the pages take in which each class has its free blocks.
const spareBytes = 1 << 20
