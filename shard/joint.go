package shard

import (
	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What holds for a user is joined when it is read: his profile has what he has said himself, the rows of his addresses
// what they have heard (decisions.md D5, profile.Joint). Profile and rows may lie in different partitions, on different
// nodes: a reader never has two of them in hand.

// HeldState is the state that holds for what an identifier names, of the same thing as s, and ok is false when it was
// never set: for an email or phone what the address has, else what holds for the user. A group's channel says which of
// the user's addresses counts. For op.SvcID key is the svc_id as text.
func (c *Coordinator) HeldState(
	workspace uint32, id op.IDKind, key []byte, s State,
) (held profile.StateChange, ok bool, err error) {
	var canonical [maxStackKey]byte
	switch id {
	case op.Email:
		return c.addressState(workspace, id, op.AppendEmailKey(canonical[:0], key), s)
	case op.Phone:
		return c.addressState(workspace, id, key, s)
	case op.ExternalID: // in nearly all cases the profile itself
		_, l, err := c.lendHome(c.hasher.Number(workspace, id, key), workspace, id, key)
		if err != nil || l.Blob == nil {
			return held, false, err
		}
		if profile.Kind(l.Blob) == profile.KindUser {
			return c.heldBy(workspace, l, s)
		}
		l.Back()
	}
	var user []byte
	err = c.View(workspace, id, key, func(_ uint64, blob []byte) { user = append([]byte{}, blob...) })
	if err != nil || user == nil {
		return held, false, err
	}
	return c.heldBy(workspace, Lent{Blob: user}, s)
}

// heldBy is HeldState of a profile in hand, which it gives back.
func (c *Coordinator) heldBy(workspace uint32, user Lent, s State) (held profile.StateChange, ok bool, err error) {
	own, said := profile.StateOf(user.Blob, s)
	id, code := op.Email, uint32(op.AttrEmail)
	if !s.ForAddress(op.Email) {
		id, code = op.Phone, op.AttrPhone
	}
	joined := profile.Joined(user.Blob, id)
	var canonical [maxStackKey]byte
	key := canonical[:0]
	if address, has := profile.Attr(user.Blob, code); has {
		key = entries.AppendKey(key, id, address.Bytes())
	}
	user.Back()
	if len(key) == 0 {
		return own, said, nil
	}
	address, known, err := c.addressState(workspace, id, key, s)
	if err != nil || !known {
		return own, said, err
	}
	return profile.Joint(own, said, address, joined), true, nil
}

// addressState is the state of an address; key is canonical.
func (c *Coordinator) addressState(
	workspace uint32, id op.IDKind, key []byte, s State,
) (held profile.StateChange, ok bool, err error) {
	_, l, err := c.lendHome(c.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || l.Blob == nil {
		return held, false, err
	}
	defer l.Back()
	if profile.Kind(l.Blob) != entries.KindRow {
		return held, false, nil
	}
	held, ok = profile.StateOf(l.Blob, s)
	return held, ok, nil
}

// join gives the copies of profiles what holds for them by their addresses.
func (c *Coordinator) join(workspace uint32, users []User) error {
	var ed profile.Editor
	for i := range users {
		u := &users[i]
		var keys entries.Keys
		keys.AddAddresses(profile.Addresses(u.Blob))
		for _, id := range entries.Addresses {
			key := keys.Of(id)
			if key == nil {
				continue
			}
			var states []profile.StateChange
			if err := c.ViewAddress(workspace, id, key, func(row []byte) { states = bodies.StatesOf(row) }); err != nil {
				return err
			}
			if len(states) > 0 {
				u.Blob = append([]byte{}, ed.Join(u.Blob, id, states)...)
			}
		}
	}
	return nil
}
