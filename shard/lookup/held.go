package lookup

import (
	"sync"

	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The state that holds for a user is joined when it is read: the profile has what the user has said, the rows of the
// user's addresses have what these have heard (decisions.md D5, profile.Joint). Profile and rows may lie in different
// partitions, on different nodes, so a reader never holds two of them at once.

// HeldStates calls f with what HeldState returns for each of the identifiers, in their order. On a node that is alone,
// the entries that are in memory are looked at together, first the profiles, then the rows of their addresses: waiting
// for each entry, and for the lock of each, takes twice as long.
func (r *Reader) HeldStates(
	workspace uint32, list []Identifier, s profile.State, f func(held profile.StateChange, ok bool),
) error {
	h := holdings.Get().(*holding)
	defer h.release()
	h.lookAhead(r, workspace, list, s)
	for i, id := range list {
		held, ok, err := h.held(r, workspace, i, id, s)
		if err != nil {
			return err
		}
		f(held, ok)
	}
	return nil
}

// holding is what HeldStates has seen.
type holding struct {
	all     []holder
	keys    [][]byte // canonical: of the identifier, then of the address that counts; empty: none does
	memory  []byte   // backs keys
	numbers []uint64 // scratch
}

// holder is what was seen for one identifier.
type holder struct {
	step    holderStep
	own     profile.StateChange // the profile's state
	said    bool                // own is set
	joined  int64               // since when the profile has had the address
	address profile.StateChange // the row's state
	heard   bool                // address is set
}

// holderStep is how much has been seen.
type holderStep uint8

const (
	unseen      holderStep = iota
	seenProfile            // but not the row of its address
	seenRow                // the row of the identifier, or of the profile's address
)

var holdings = sync.Pool{New: func() any { return new(holding) }}

func (h *holding) release() {
	clear(h.all)
	clear(h.keys)
	h.all, h.keys, h.memory, h.numbers = h.all[:0], h.keys[:0], h.memory[:0], h.numbers[:0]
	holdings.Put(h)
}

// lookAhead looks at what is in memory of a node that is alone.
func (h *holding) lookAhead(r *Reader, workspace uint32, list []Identifier, s profile.State) {
	if r.sole == nil || !r.sole.Enter() {
		return
	}
	defer r.sole.Leave()
	h.lookAtProfiles(r, workspace, list, s)
	h.lookAtRows(r, workspace, s)
}

// lookAtProfiles looks at the profiles that external ids lead to, and at the rows of identifiers that are addresses.
func (h *holding) lookAtProfiles(c *Reader, workspace uint32, list []Identifier, s profile.State) {
	for _, id := range list {
		key := id.Key
		if id.ID == op.Email {
			start := len(h.memory)
			h.memory = op.AppendEmailKey(h.memory, id.Key)
			key = h.memory[start:]
		}
		number := uint64(0) // not looked for
		if id.ID == op.ExternalID || isAddress(id.ID) {
			number = c.hasher.Number(workspace, id.ID, key)
		}
		h.all, h.keys, h.numbers = append(h.all, holder{}), append(h.keys, key), append(h.numbers, number)
	}
	c.sole.Resident(h.numbers, func(i int, blob []byte) {
		id := list[i].ID
		switch {
		case !entries.IsOf(blob, workspace, id, h.keys[i]):
		case id == op.ExternalID && profile.Kind(blob) == profile.KindUser:
			start := len(h.memory)
			h.memory = h.all[i].seeProfile(blob, s, h.memory)
			h.keys[i] = h.memory[start:]
		case id != op.ExternalID && profile.Kind(blob) == entries.KindRow:
			h.all[i].seeRow(blob, s)
		}
	})
}

// seeProfile notes what a profile has of a state, and appends the key of the address that counts to keys.
func (x *holder) seeProfile(blob []byte, s profile.State, keys []byte) []byte {
	id, code := addressOf(s)
	x.step, x.joined = seenProfile, profile.Joined(blob, id)
	x.own, x.said = profile.StateOf(blob, s)
	if address, has := profile.Attr(blob, code); has {
		keys = entries.AppendKey(keys, id, address.Bytes())
	}
	return keys
}

func (x *holder) seeRow(blob []byte, s profile.State) {
	x.step = seenRow
	x.address, x.heard = profile.StateOf(blob, s)
}

// lookAtRows looks at the rows of the addresses of the profiles that were seen.
func (h *holding) lookAtRows(c *Reader, workspace uint32, s profile.State) {
	id, _ := addressOf(s)
	for i := range h.all {
		h.numbers[i] = 0
		if h.all[i].step == seenProfile && len(h.keys[i]) > 0 {
			h.numbers[i] = c.hasher.Number(workspace, id, h.keys[i])
		}
	}
	c.sole.Resident(h.numbers, func(i int, blob []byte) {
		if profile.Kind(blob) == entries.KindRow && entries.IsOf(blob, workspace, id, h.keys[i]) {
			h.all[i].seeRow(blob, s)
		}
	})
}

// held is HeldState of the identifier at i, from what was seen, or by looking.
func (h *holding) held(
	c *Reader, workspace uint32, i int, id Identifier, s profile.State,
) (held profile.StateChange, ok bool, err error) {
	switch {
	case len(h.all) == 0 || h.all[i].step == unseen:
		return c.HeldState(workspace, id.ID, id.Key, s)
	case id.ID != op.ExternalID:
		return h.all[i].address, h.all[i].heard, nil
	default:
		return c.heldBy(workspace, &h.all[i], h.keys[i], s)
	}
}

// addressOf is the kind of the address that counts for a state, and the attribute that holds it.
func addressOf(s profile.State) (id op.IDKind, code uint32) {
	if s.ForAddress(op.Email) {
		return op.Email, op.AttrEmail
	}
	return op.Phone, op.AttrPhone
}

// HeldState is the state of the same thing as s that holds for what an identifier names; ok is false when it was never
// set. For an email or phone it is the address's state, otherwise the state that holds for the user. A group's channel
// says which of the user's addresses counts. For op.SvcID, key is the svc_id as text.
func (r *Reader) HeldState(
	workspace uint32, id op.IDKind, key []byte, s profile.State,
) (held profile.StateChange, ok bool, err error) {
	var canonical [maxStackKey]byte
	switch id {
	case op.Email:
		return r.addressState(workspace, id, op.AppendEmailKey(canonical[:0], key), s)
	case op.Phone:
		return r.addressState(workspace, id, key, s)
	case op.ExternalID: // in nearly all cases the profile itself
		_, l, err := r.lendHome(r.hasher.Number(workspace, id, key), workspace, id, key)
		if err != nil || l.Blob == nil {
			return held, false, err
		}
		if profile.Kind(l.Blob) == profile.KindUser {
			var x holder
			address := x.seeProfile(l.Blob, s, canonical[:0])
			l.Back()
			return r.heldBy(workspace, &x, address, s)
		}
		l.Back()
	}
	var x holder
	var address []byte
	err = r.View(workspace, id, key, func(_ uint64, blob []byte) { address = x.seeProfile(blob, s, nil) })
	if err != nil || x.step == unseen {
		return held, false, err
	}
	return r.heldBy(workspace, &x, address, s)
}

// heldBy is HeldState of a user whose profile was seen. key is the canonical key of the user's address that counts;
// empty: none does. The row of this address is looked up unless it was seen, too.
func (r *Reader) heldBy(
	workspace uint32, x *holder, key []byte, s profile.State,
) (held profile.StateChange, ok bool, err error) {
	if x.step == seenProfile && len(key) > 0 {
		id, _ := addressOf(s)
		if x.address, x.heard, err = r.addressState(workspace, id, key, s); err != nil {
			return held, false, err
		}
	}
	if !x.heard {
		return x.own, x.said, nil
	}
	return profile.Joint(x.own, x.said, x.address, x.joined), true, nil
}

// addressState is the state of an address; key is canonical.
func (r *Reader) addressState(
	workspace uint32, id op.IDKind, key []byte, s profile.State,
) (held profile.StateChange, ok bool, err error) {
	_, l, err := r.lendHome(r.hasher.Number(workspace, id, key), workspace, id, key)
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
