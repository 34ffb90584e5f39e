package shard

import (
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// The block list is an index of the rows of emails that are marked as hard bounces: a book of each partition, keyed by
// workspace and number. The row itself is what counts: an entry whose row says otherwise is not there. So the index
// need only be complete, which the batch that writes both sees to.

// BlockedPage are some numbers of the index behind after, in order, and whether there may be more.
func (e *Replica) BlockedPage(
	workspace uint32, partition uint8, after uint64,
) (numbers []uint64, more bool, err error) {
	if after == ^uint64(0) {
		return nil, false, nil
	}
	// First what is pending, which is let go when it is in the store.
	p, w := e.partitions[partition], e.owner[partition]
	w.mu.Lock()
	for _, c := range p.blocked.changes {
		if c.workspace == workspace && c.number > after {
			numbers = append(numbers, c.number)
		}
	}
	w.mu.Unlock()
	pending := len(numbers)
	lower := store.AppendBookKey(nil, partition, store.BookBlocked, uint64(workspace), after+1)
	upper := store.AppendBookKey(nil, partition, store.BookBlocked, uint64(workspace)+1)
	err = e.store.Scan(lower, upper, func(k, _ []byte) error {
		if len(k) != 26 {
			return nil
		}
		numbers = append(numbers, binary.BigEndian.Uint64(k[18:]))
		if len(numbers)-pending == blockedPageNumbers {
			more = true
			return errEnough
		}
		return nil
	})
	if err != nil && !more {
		return nil, false, err
	}
	last := ^uint64(0)
	if more {
		last = numbers[len(numbers)-1]
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	i, found := slices.BinarySearch(numbers, last)
	if found {
		i++
	}
	return numbers[:i], more, nil
}

const blockedPageNumbers = 64

// blockIndex is what a partition has to write of it.
type blockIndex struct {
	changes []blockChange
	saving  int // so many of them are in a batch on its way to the store
}

type blockChange struct {
	number    uint64 // of the row
	workspace uint32
	on        bool
}

func (x *blockIndex) save(partition uint8, batch *pebble.Batch) error {
	var key []byte
	for _, c := range x.changes {
		key = store.AppendBookKey(key[:0], partition, store.BookBlocked, uint64(c.workspace), c.number)
		write := func() error { return batch.Delete(key, nil) }
		if c.on {
			write = func() error { return batch.Set(key, nil, nil) }
		}
		if err := write(); err != nil {
			return err
		}
	}
	x.saving = len(x.changes)
	return nil
}

func (x *blockIndex) saved() {
	if x.saving > 0 {
		x.changes, x.saving = append([]blockChange(nil), x.changes[x.saving:]...), 0
	}
}
