package shard

import (
	"cmp"
	"math"
	"slices"

	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Trail is the trail of a user's states, oldest first: what he has said himself, what became of his addresses while he
// has had them, and both of profiles that were merged into him. Nobody has none.
func (c *Coordinator) Trail(workspace uint32, number uint64) (all []StateChange, err error) {
	var numbers []uint64
	var stays []Stay
	err = c.viewUser(workspace, number, func(number uint64, blob []byte) {
		numbers = append(numbers, number)
		profile.Merged(blob, func(number, _ uint64) { numbers = append(numbers, number) })
		var keys entries.Keys
		keys.AddAddresses(profile.Addresses(blob))
		for _, id := range entries.Addresses {
			if key := keys.Of(id); key != nil {
				stays = append(stays, Stay{ID: id, Key: key, Since: profile.Joined(blob, id), Until: math.MaxInt64})
			}
		}
	})
	for i := 0; i < len(numbers) && err == nil; i++ {
		var own Trail
		own, err = c.trailOf(numbers[i])
		all, stays = append(all, own.Changes...), append(stays, own.Stays...)
	}
	for i := 0; i < len(stays) && err == nil; i++ {
		var changes []StateChange
		changes, err = c.AddressTrail(workspace, stays[i].ID, stays[i].Key)
		for _, change := range changes {
			if change.Changed > stays[i].Since && change.Changed <= stays[i].Until {
				all = append(all, change)
			}
		}
	}
	return oneEach(all), err
}

// oneEach sorts changes by when they were applied. One that has reached a user and his address, or an address in two
// stays, is one.
func oneEach(all []StateChange) (each []StateChange) {
	slices.SortStableFunc(all, func(a, b StateChange) int { return cmp.Compare(a.Applied, b.Applied) })
	seen := map[StateChange]bool{}
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
func (c *Coordinator) AddressTrail(workspace uint32, id op.IDKind, key []byte) ([]StateChange, error) {
	key = entries.AppendKey(nil, id, key)
	number, l, err := c.lendHome(c.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || l.Blob == nil {
		return nil, err
	}
	isRow := profile.Kind(l.Blob) == entries.KindRow
	l.Back()
	if !isRow {
		return nil, nil
	}
	trail, err := c.trailOf(number)
	return trail.Changes, err
}

// trailOf is TrailOf wherever the entry is.
func (c *Coordinator) trailOf(number uint64) (Trail, error) {
	if r := c.nodes.Local(identity.Partition(number)); r != nil && r.Enter() {
		defer r.Leave()
		return r.TrailOf(number)
	}
	return c.nodes.TrailOf(number)
}
