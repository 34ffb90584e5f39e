package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The block list is an index of the rows of emails that are marked as hard bounces: a book of each partition, keyed by workspace and number. The row
// itself is what counts: an entry whose row says otherwise is not there. So the index need only be complete, which the batch that writes both sees to.

// BlockedAddress is an entry of the block list: an email that is marked as a hard bounce.
type BlockedAddress struct {
	Email  string // as the directory has it: lower-cased
	Since  int64  // Unix µs
	Actor  uint32 // number of the API key
	Source op.Source
}

// ErrCursor is returned by BlockedAddresses for a cursor that it has not made.
var ErrCursor = errors.New("not a cursor")

// BlockedAddresses lists a workspace's block list in the engine's own order: at most limit entries (at least one) behind cursor ("" for the first), and
// the cursor for those that follow, "" at the end. An address that is there from the first call to the last is listed once.
func (e *Engine) BlockedAddresses(workspace uint32, cursor string, limit int) (list []BlockedAddress, next string, err error) {
	after := uint64(0)
	if cursor != "" {
		if after, err = strconv.ParseUint(cursor, 16, 64); err != nil || len(cursor) != 16 {
			return nil, "", fmt.Errorf("%w: %q", ErrCursor, cursor)
		}
	}
	limit = max(limit, 1)
	for i := int(identity.Partition(after)); i < len(e.partitions); i++ {
		if e.partitions[i] == nil && e.log != nil {
			continue
		}
		from := max(after, uint64(i)<<56) // never a row's number itself
		for {
			numbers, more, err := e.blockedPage(workspace, uint8(i), from)
			if err != nil {
				return nil, "", err
			}
			for _, number := range numbers {
				a, ok, err := e.blockedAddress(workspace, number)
				if err != nil {
					return nil, "", err
				}
				if ok && len(list) == limit {
					return list, fmt.Sprintf("%016x", after), nil
				}
				if ok {
					list, after = append(list, a), number
				}
			}
			if !more {
				break
			}
			from = numbers[len(numbers)-1]
		}
	}
	return list, "", nil
}

// blockedAddress reads the row at number, which may have lost its mark.
func (e *Engine) blockedAddress(workspace uint32, number uint64) (a BlockedAddress, ok bool, err error) {
	l, err := e.lend(number)
	if err != nil || l.blob == nil {
		return a, false, err
	}
	defer l.back()
	if profile.Kind(l.blob) != kindRow || profile.Workspace(l.blob) != workspace {
		return a, false, nil
	}
	c, _ := profile.StateOf(l.blob, State{Kind: Bounce})
	_, key := profile.HomeID(l.blob)
	return BlockedAddress{string(key), c.Changed, c.Actor, c.Source}, c.On, nil
}

// BlockedPage are some numbers of the index behind after, in order, and whether there may be more.
func (e *Engine) BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error) {
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
	lower := appendBookKey(nil, partition, bookBlocked, uint64(workspace), after+1)
	upper := appendBookKey(nil, partition, bookBlocked, uint64(workspace)+1)
	err = e.store.scan(lower, upper, func(k, _ []byte) error {
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
		key = appendBookKey(key[:0], partition, bookBlocked, uint64(c.workspace), c.number)
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
