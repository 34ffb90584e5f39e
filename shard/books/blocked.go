package books

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Blocked is the block list: an index of the rows of emails that are marked as hard bounces, by workspace and number.
// What counts is the row itself: an entry whose row is not marked is ignored. So the index only has to be complete,
// which it is because one batch writes both.
type Blocked struct{ pending[blockChange] }

type blockChange struct {
	number    uint64 // of the row
	workspace uint32
	on        bool
}

// Set puts the email of a row on the list, or takes it off.
func (x *Blocked) Set(workspace uint32, number uint64, on bool) {
	x.added = append(x.added, blockChange{number, workspace, on})
}

// Pending are the numbers of a workspace behind after that no checkpoint has written, in any order.
func (x *Blocked) Pending(workspace uint32, after uint64) (numbers []uint64) {
	for _, c := range x.added {
		if c.workspace == workspace && c.number > after {
			numbers = append(numbers, c.number)
		}
	}
	return numbers
}

// BlockedPageNumbers is how many numbers from the store a page has.
const BlockedPageNumbers = 64

// BlockedPage is the next page of a partition's list: numbers behind after, in order, including those that were
// Pending, and whether there may be more.
func BlockedPage(
	s *store.Store, partition uint8, workspace uint32, after uint64, pending []uint64,
) (numbers []uint64, more bool, err error) {
	numbers = slices.Clone(pending)
	lower := store.AppendBookKey(nil, partition, store.BookBlocked, uint64(workspace), after+1)
	upper := store.AppendBookKey(nil, partition, store.BookBlocked, uint64(workspace)+1)
	err = s.Scan(lower, upper, func(k, _ []byte) error {
		if len(k) != 26 {
			return nil
		}
		numbers = append(numbers, binary.BigEndian.Uint64(k[18:]))
		if len(numbers)-len(pending) == BlockedPageNumbers {
			return store.ErrEnough
		}
		return nil
	})
	if more = errors.Is(err, store.ErrEnough); err != nil && !more {
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

func (x *Blocked) save(partition uint8, batch *pebble.Batch) error {
	var key []byte
	return x.saveEach(func(c blockChange) error {
		key = store.AppendBookKey(key[:0], partition, store.BookBlocked, uint64(c.workspace), c.number)
		if c.on {
			return batch.Set(key, nil, nil)
		}
		return batch.Delete(key, nil)
	})
}
