package arena

import (
	"cmp"
	"slices"
)

// Choose marks pages to be emptied, those with the least to move first, until they come to want bytes, and says whether
// there are any. The blocks in them fit in the other pages of their class.
func (a *Arena) Choose(want int64) bool {
	sparse := a.sparsePages()
	slices.SortFunc(sparse, func(i, j uint32) int {
		p, q := a.page(i), a.page(j)
		return cmp.Compare(int(p.live)*classes[a.class[j]].blocks, int(q.live)*classes[a.class[i]].blocks)
	})
	n := 0
	for n < len(sparse) && want > 0 {
		a.unlist(sparse[n])
		a.page(sparse[n]).leaving = true
		want -= pageBytes
		n++
	}
	return n > 0
}

// sparsePages are, for each class, as many pages with a free block as its blocks could do without: those with the
// fewest blocks.
func (a *Arena) sparsePages() (sparse []uint32) {
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
func (a *Arena) isLeaving(off uint32) bool {
	x := &a.chunks[off/chunkBlocks]
	return x.kind == paged && x.pages[off%chunkBlocks/pageBlocks].leaving
}

// Empty moves the blocks of a table that are in pages to be emptied, and returns how many bytes it has moved.
func (a *Arena) Empty(t *Table) (moved int64, err error) {
	for i := range t.Slots {
		s := &t.Slots[i]
		if *s == 0 || !a.isLeaving(s.off()) {
			continue
		}
		moved += a.Bytes(*s)
		if err := a.Move(s); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// Move moves the entry in s to another block of its class.
func (a *Arena) Move(s *Slot) error {
	from := s.off()
	to, err := a.alloc(a.class[from/pageBlocks])
	if err != nil {
		return err
	}
	copy(a.block(to), a.block(from))
	a.release(from)
	s.setOff(to)
	return nil
}
