package lookup

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Trail is the trail of a user's states, oldest first: what the user has said, what became of the user's addresses
// while the user has had them, and both for the profiles that were merged into the user. It is empty when there is no
// such user.
func (r *Reader) Trail(workspace uint32, number uint64) (all []books.StateChange, err error) {
	var numbers []uint64
	var stays []books.Stay
	err = r.viewUser(workspace, number, func(number uint64, blob []byte) {
		numbers = append(numbers, number)
		profile.Merged(blob, func(number, _ uint64) { numbers = append(numbers, number) })
		var keys entries.Keys
		keys.AddAddresses(profile.Addresses(blob))
		for _, id := range entries.Addresses {
			if key := keys.Of(id); key != nil {
				stays = append(stays,
					books.Stay{ID: id, Key: key, Since: profile.Joined(blob, id), Until: math.MaxInt64})
			}
		}
	})
	for i := 0; i < len(numbers) && err == nil; i++ {
		var own books.History
		own, err = r.trailOf(numbers[i])
		all, stays = append(all, own.Changes...), append(stays, own.Stays...)
	}
	for i := 0; i < len(stays) && err == nil; i++ {
		var changes []books.StateChange
		changes, err = r.AddressTrail(workspace, stays[i].ID, stays[i].Key)
		for _, change := range changes {
			if change.Changed > stays[i].Since && change.Changed <= stays[i].Until {
				all = append(all, change)
			}
		}
	}
	return oneEach(all), err
}

// oneEach sorts changes by when they were applied. A change that has reached both a user and the user's address, or an
// address in two stays, is listed once.
func oneEach(all []books.StateChange) (each []books.StateChange) {
	slices.SortStableFunc(all, func(a, b books.StateChange) int { return cmp.Compare(a.Applied, b.Applied) })
	seen := map[books.StateChange]bool{}
	for _, c := range all {
		same := c
		same.Applied, same.Channel = 0, 0
		if !seen[same] {
			seen[same] = true
			each = append(each, c)
		}
	}
	return each
}

// AddressTrail is the trail of an address's states, op.Email or op.Phone, oldest first.
func (r *Reader) AddressTrail(workspace uint32, id op.IDKind, key []byte) ([]books.StateChange, error) {
	key = entries.AppendKey(nil, id, key)
	number, l, err := r.lendHome(r.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || l.Blob == nil {
		return nil, err
	}
	isRow := profile.Kind(l.Blob) == entries.KindRow
	l.Back()
	if !isRow {
		return nil, nil
	}
	trail, err := r.trailOf(number)
	return trail.Changes, err
}

// trailOf is TrailOf for an entry on any node.
func (r *Reader) trailOf(number uint64) (books.History, error) {
	if local := r.nodes.Local(identity.Partition(number)); local != nil && local.Enter() {
		defer local.Leave()
		return local.TrailOf(number)
	}
	return r.nodes.TrailOf(number)
}

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
// behind cursor ("" for the first), and the cursor for the entries that follow, "" at the end. An address that is on
// the list from the first call to the last is listed once.
func (r *Reader) BlockedAddresses(
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
			numbers, more, err := r.blockedPage(workspace, uint8(i), from)
			if err != nil {
				return nil, "", err
			}
			for _, number := range numbers {
				a, ok, err := r.blockedAddress(workspace, number)
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

// blockedAddress reads the row at number, which may no longer be marked as a hard bounce.
func (r *Reader) blockedAddress(workspace uint32, number uint64) (a BlockedAddress, ok bool, err error) {
	l, err := r.lend(number)
	if err != nil || l.Blob == nil {
		return a, false, err
	}
	defer l.Back()
	if profile.Kind(l.Blob) != entries.KindRow || profile.Workspace(l.Blob) != workspace {
		return a, false, nil
	}
	s, _ := profile.StateOf(l.Blob, profile.State{Kind: profile.StateBounce})
	_, key := profile.HomeID(l.Blob)
	return BlockedAddress{string(key), s.Changed, s.Actor, s.Source}, s.On, nil
}

// blockedPage is BlockedPage for a partition on any node.
func (r *Reader) blockedPage(
	workspace uint32, partition uint8, after uint64,
) (numbers []uint64, more bool, err error) {
	if local := r.nodes.Local(partition); local != nil && local.Enter() {
		defer local.Leave()
		return local.BlockedPage(workspace, partition, after)
	}
	return r.nodes.BlockedPage(workspace, partition, after)
}
