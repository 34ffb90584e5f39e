package bodies

import (
	"encoding/binary"
	"slices"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Profiles and the directory rows of addresses have states (decisions.md D5), which travel between them as lists of
// changes. Each state is a register that the latest change wins, by the stamp of the op that made it, in whatever order
// messages arrive.

// AppendStates encodes changes: the kind, then for an email the length and the state, for a group its id, on and twice
// the channel, for a mark on; then changed, actor, source.
func AppendStates(dst []byte, changes []profile.StateChange) []byte {
	for _, c := range changes {
		dst = append(dst, byte(c.Kind))
		on := c.Channel << 1
		if c.On {
			on |= 1
		}
		switch c.Kind {
		case profile.StateEmail:
			dst = append(append(dst, byte(len(c.Value))), c.Value...)
		case profile.StateGroup:
			dst = append(append(dst, c.Group[:]...), on)
		default:
			dst = append(dst, on)
		}
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.Changed))
		dst = binary.LittleEndian.AppendUint32(dst, c.Actor)
		dst = append(dst, byte(c.Source))
	}
	return dst
}

// AppendStatesFor is AppendStates for the changes that concern addresses of a kind.
func AppendStatesFor(dst []byte, changes []profile.StateChange, id op.IDKind) []byte {
	for i := range changes {
		if changes[i].ForAddress(id) {
			dst = AppendStates(dst, changes[i:i+1])
		}
	}
	return dst
}

// ParseStates appends the changes that AppendStates has written to b.
func ParseStates(changes []profile.StateChange, b []byte) []profile.StateChange {
	for len(b) > 0 {
		var c profile.StateChange
		c, b = NextState(b)
		changes = append(changes, c)
	}
	return changes
}

// NextState splits the first change off b.
func NextState(b []byte) (c profile.StateChange, rest []byte) {
	c.Kind, b = profile.StateKind(b[0]), b[1:]
	switch c.Kind {
	case profile.StateEmail:
		n := 1 + int(b[0])
		c.Value, b = profile.StateName(b[1:n]), b[n:]
	case profile.StateGroup:
		c.Group, c.On, c.Channel, b = [16]byte(b), b[16]&1 != 0, b[16]>>1, b[17:]
	default:
		c.On, b = b[0] != 0, b[1:]
	}
	c.Changed, c.Actor, c.Source = int64(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:]),
		op.Source(b[12])
	return c, b[13:]
}

// AppendStatesSet appends the changes that an attributes body makes itself. Of a state that is set twice it appends the
// last change, since both have one stamp and no order.
func AppendStatesSet(changes []profile.StateChange, body []byte, rec *op.Record) []profile.StateChange {
	set := profile.IndexStates(changes)
	add := func(s profile.State) {
		set.Set(profile.StateChange{State: s, Changed: rec.Stamp, Actor: rec.Actor, Source: rec.Source})
	}
	for code, v := range op.Fields(body) {
		switch {
		case code == op.AttrEmailSubscribe && v.Tag() == op.String:
			add(profile.State{Kind: profile.StateEmail, Value: profile.StateName(v.Bytes())})
		case code == op.AttrEmailSubscribe && v.Tag() == op.Null:
			add(profile.State{Kind: profile.StateEmail})
		case code == op.AttrHardBounce:
			add(profile.State{Kind: profile.StateBounce, On: v.Tag() == op.True})
		case code == op.AttrSpam:
			add(profile.State{Kind: profile.StateSpam, On: v.Tag() == op.True})
		case code == op.AttrSubscriptionGroups && v.Tag() == op.Array:
			for id, on := range op.Groups(v.Bytes()) {
				s := profile.State{Kind: profile.StateGroup, Group: [16]byte(id), On: on}
				if len(id) > 16 {
					s.Channel = id[16]
				}
				add(s)
			}
		}
	}
	return set.List()
}

// StatesOf are the states that a profile or row has.
func StatesOf(blob []byte) []profile.StateChange { return profile.AppendStates(nil, blob) }

// ForAddress keeps the changes that concern addresses of a kind.
func ForAddress(changes []profile.StateChange, id op.IDKind) (kept []profile.StateChange) {
	for _, c := range changes {
		if c.ForAddress(id) {
			kept = append(kept, c)
		}
	}
	return kept
}

// Sets says whether one of changes is of the same thing as s.
func Sets(changes []profile.StateChange, s profile.State) bool {
	return slices.ContainsFunc(changes, func(c profile.StateChange) bool { return c.Is(s) })
}

// Missing are the changes of states that blob doesn't have.
func Missing(blob []byte, changes []profile.StateChange) (fresh []profile.StateChange) {
	has := profile.IndexStates(StatesOf(blob))
	for _, c := range changes {
		if has.Find(c.State) == nil {
			fresh = append(fresh, c)
		}
	}
	return fresh
}
