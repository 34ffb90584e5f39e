package shard

import (
	"encoding/binary"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Subscription states are held by profiles and by the directory rows of addresses (decisions.md D5), and travel between them as lists of
// stateChange. Each state is a register that the latest change wins, by the stamp of the op that made it: in whatever order messages
// arrive, all who share an address end with the same state. One exception: who gets an address takes over what the address has, however
// old, because consent belongs to the address (force).
type stateChange struct {
	code    byte     // stateEmail or stateGroup
	group   [16]byte // of a stateGroup
	state   string   // of a stateEmail: opted_in, subscribed, unsubscribed; empty: removed
	on      bool     // of a stateGroup: subscribed
	channel byte     // of a stateGroup: see op.ChannelEmail
	changed int64    // Unix µs
	actor   uint32
}

const (
	stateEmail = 1
	stateGroup = 2
)

// appendStates encodes changes: code, then for an email length and state, for a group id, on and channel; changed, actor.
func appendStates(dst []byte, changes []stateChange) []byte {
	for _, c := range changes {
		dst = append(dst, c.code)
		if c.code == stateEmail {
			dst = append(append(dst, byte(len(c.state))), c.state...)
		} else {
			on := byte(0)
			if c.on {
				on = 1
			}
			dst = append(append(dst, c.group[:]...), on, c.channel)
		}
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.changed))
		dst = binary.LittleEndian.AppendUint32(dst, c.actor)
	}
	return dst
}

func parseStates(b []byte) (changes []stateChange) {
	for len(b) > 0 {
		c := stateChange{code: b[0]}
		if c.code == stateEmail {
			n := int(b[1])
			c.state, b = string(b[2:2+n]), b[2+n:]
		} else {
			c.group, c.on, c.channel, b = [16]byte(b[1:17]), b[17] == 1, b[18], b[19:]
		}
		c.changed, c.actor = int64(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:])
		changes = append(changes, c)
		b = b[12:]
	}
	return changes
}

// statesSet are the changes that an attributes body makes itself.
func statesSet(body []byte, rec *op.Record) (changes []stateChange) {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			break
		}
		body = rest
		switch {
		case code == op.AttrEmailSubscribe && v.Tag() == op.String:
			changes = append(changes, stateChange{code: stateEmail, state: string(v.Bytes()), changed: rec.Stamp, actor: rec.Actor})
		case code == op.AttrEmailSubscribe && v.Tag() == op.Null:
			changes = append(changes, stateChange{code: stateEmail, changed: rec.Stamp, actor: rec.Actor})
		case code == op.AttrSubscriptionGroups && v.Tag() == op.Array:
			for list := v.Bytes(); len(list) > 0; {
				id, after, ok := op.NextValue(list)
				if !ok || id.Tag() != op.String || len(id.Bytes()) < 16 {
					break
				}
				on, after, ok := op.NextValue(after)
				if !ok {
					break
				}
				c := stateChange{code: stateGroup, group: [16]byte(id.Bytes()), on: on.Tag() == op.True, changed: rec.Stamp, actor: rec.Actor}
				if b := id.Bytes(); len(b) > 16 {
					c.channel = b[16]
				}
				changes = append(changes, c)
				list = after
			}
		}
	}
	return changes
}

// statesOf are the states that a profile or row has.
func statesOf(blob []byte) (changes []stateChange) {
	if state, changed, actor, ok := profile.ContactState(blob, op.AttrEmailSubscribe); ok {
		changes = append(changes, stateChange{code: stateEmail, state: string(state), changed: changed, actor: actor})
	}
	profile.Groups(blob, func(id [16]byte, on bool, changed int64, actor uint32) {
		changes = append(changes, stateChange{code: stateGroup, group: id, on: on, changed: changed, actor: actor})
	})
	return changes
}

// forAddress keeps the changes that concern addresses of a kind: an email has the email state and email groups, a phone the other groups.
func forAddress(changes []stateChange, id op.IDKind) (kept []stateChange) {
	for _, c := range changes {
		email := c.code == stateEmail || c.channel == op.ChannelEmail
		if email == (id == op.Email) || c.code == stateGroup && c.channel == 0 {
			kept = append(kept, c)
		}
	}
	return kept
}

// setStates makes changes on a profile or row, those that are newer than what it has, or all with force, and returns the ones it made.
func (w *worker) setStates(s *slot, changes []stateChange, force bool) (made []stateChange, err error) {
	for _, c := range changes {
		b := w.entryOf(s)
		var last int64
		var known bool
		if c.code == stateEmail {
			_, last, _, known = profile.ContactState(b, op.AttrEmailSubscribe)
		} else {
			_, last, _, known = profile.GroupState(b, c.group)
		}
		if known && last >= c.changed && !force {
			continue
		}
		if c.code == stateEmail {
			b = w.ed.SetContactState(b, op.AttrEmailSubscribe, []byte(c.state), c.changed, c.actor)
		} else {
			b = w.ed.SetGroupState(b, c.group, c.on, c.changed, c.actor)
		}
		if err := w.update(s, b); err != nil {
			return made, err
		}
		made = append(made, c)
	}
	return made, nil
}

// missing are the changes of states that blob has nothing of.
func missing(blob []byte, changes []stateChange) (fresh []stateChange) {
	for _, c := range changes {
		known := false
		if c.code == stateEmail {
			_, _, _, known = profile.ContactState(blob, op.AttrEmailSubscribe)
		} else {
			_, _, _, known = profile.GroupState(blob, c.group)
		}
		if !known {
			fresh = append(fresh, c)
		}
	}
	return fresh
}
