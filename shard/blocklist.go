package shard

import "millrace/shard/books"

// BlockedPage are some numbers of a partition's block list behind after, in order, and whether there may be more.
func (e *Replica) BlockedPage(
	workspace uint32, partition uint8, after uint64,
) (numbers []uint64, more bool, err error) {
	if after == ^uint64(0) {
		return nil, false, nil
	}
	p, w := e.partitions[partition], e.owner[partition]
	w.mu.Lock()
	pending := p.Blocked.Pending(workspace, after)
	w.mu.Unlock()
	return books.BlockedPage(e.store, partition, workspace, after, pending)
}
