package shard

import (
	"errors"
	"fmt"
	"strconv"

	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// BlockedAddress is an entry of the block list: an email that is marked as a hard bounce.
type BlockedAddress struct {
	Email  string // as the directory has it: lower-cased
	Since  int64  // Unix µs
	Actor  uint32 // number of the API key
	Source op.Source
}

// ErrCursor is returned by BlockedAddresses for a cursor that it has not made.
var ErrCursor = errors.New("not a cursor")

// BlockedAddresses lists a workspace's block list in the engine's own order: at most limit entries (at least one)
// behind cursor ("" for the first), and the cursor for those that follow, "" at the end. An address that is there from
// the first call to the last is listed once.
func (c *Coordinator) BlockedAddresses(
	workspace uint32, cursor string, limit int,
) (list []BlockedAddress, next string, err error) {
	after := uint64(0)
	if cursor != "" {
		if after, err = strconv.ParseUint(cursor, 16, 64); err != nil || len(cursor) != 16 {
			return nil, "", fmt.Errorf("%w: %q", ErrCursor, cursor)
		}
	}
	limit = max(limit, 1)
	for i := int(identity.Partition(after)); i < identity.Partitions; i++ {
		from := max(after, uint64(i)<<56) // never a row's number itself
		for {
			numbers, more, err := c.blockedPage(workspace, uint8(i), from)
			if err != nil {
				return nil, "", err
			}
			for _, number := range numbers {
				a, ok, err := c.blockedAddress(workspace, number)
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
func (c *Coordinator) blockedAddress(workspace uint32, number uint64) (a BlockedAddress, ok bool, err error) {
	l, err := c.lend(number)
	if err != nil || l.Blob == nil {
		return a, false, err
	}
	defer l.Back()
	if profile.Kind(l.Blob) != entries.KindRow || profile.Workspace(l.Blob) != workspace {
		return a, false, nil
	}
	s, _ := profile.StateOf(l.Blob, State{Kind: Bounce})
	_, key := profile.HomeID(l.Blob)
	return BlockedAddress{string(key), s.Changed, s.Actor, s.Source}, s.On, nil
}

// blockedPage is BlockedPage wherever the partition is.
func (c *Coordinator) blockedPage(
	workspace uint32, partition uint8, after uint64,
) (numbers []uint64, more bool, err error) {
	if r := c.nodes.Local(partition); r != nil && r.Enter() {
		defer r.Leave()
		return r.BlockedPage(workspace, partition, after)
	}
	return c.nodes.BlockedPage(workspace, partition, after)
}
