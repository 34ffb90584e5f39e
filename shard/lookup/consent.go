package lookup

import (
	"cmp"
	"math"
	"slices"

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
