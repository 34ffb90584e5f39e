package lookup

import (
	"slices"

	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Clients track the same values again and again. A state changes nothing for anybody when the user has said it already,
// and the user's address has heard it since the last user came to it. But only the address's row knows the latter, and
// telling the row costs a message. So such a state is looked up before the record is made, provided that no earlier op
// of the request touches the user or the address, and is taken out when it changes nothing: it counts as set at the
// time of the look-up, to the value that it has. A state that comes through another endpoint than /users/track is
// always set, with a time of its own.

// leaveOutUnchanged takes states that change nothing out of the batch's ops, and says whether there were any.
func (s *Ops) leaveOutUnchanged() (changed bool, err error) {
	if s.Source != op.SourceTrack || s.addressed || !slices.ContainsFunc(s.contacts, func(start int) bool {
		o, _ := op.Next(s.Buf[start:])
		return setsStates(o.Body())
	}) {
		return false, nil
	}
	before := &s.routing.before
	before.users, before.rows = before.users[:0], before.rows[:0]
	s.touchContacts()
	for _, start := range s.contacts {
		o, _ := op.Next(s.Buf[start:])
		user, same, known, err := s.isUnchanged(o, before)
		if err != nil || !known { // the op may be for the same user as any op behind it
			return changed, err
		}
		if same {
			blankStates(o)
			changed = true
			continue
		}
		if user != 0 { // no other op names a user whom this op makes
			before.users = append(before.users, user)
		}
		for _, f := range s.routing.fields {
			if f.start == start && f.at >= 0 {
				before.rows = append(before.rows, f.row)
			}
		}
	}
	return changed, nil
}

// touchContacts loads the users of the ops that isUnchanged is about to look at.
func (s *Ops) touchContacts() {
	r := &s.routing
	r.numbers = r.numbers[:0]
	for _, start := range s.contacts {
		o, _ := op.Next(s.Buf[start:])
		r.numbers = append(r.numbers, o.Number())
	}
	s.reader.touchAlone(r.numbers)
}

// isUnchanged says whether an op changes no addresses and no states. If the op changes any, its user and the rows of
// the user's addresses count as touched. user is the user whom the op is for, whatever the ops before it do; it is 0
// when the op makes the user. known is false for an op by an address, for the number of a merged user, and when the
// op's number or the profile is on another node.
func (s *Ops) isUnchanged(o op.Op, before *touched) (user uint64, same, known bool, err error) {
	e, id := s.reader, o.Flags().ID()
	if isAddress(id) || !e.isHere(o.Number()) {
		return 0, false, false, nil
	}
	user, l, err := s.lendTarget(o)
	if err != nil || l.Blob == nil {
		return 0, false, user == 0, err
	}
	if known = profile.Kind(l.Blob) == profile.KindUser; !known || slices.Contains(before.users, user) {
		l.Back()
		return user, false, known, nil
	}
	s.routing.said = bodies.AppendStatesSet(s.routing.said[:0], o.Body(), &op.Record{})
	said := s.routing.said
	email, phone := profile.Addresses(l.Blob)
	same = entries.SameAddresses(email, phone, o.Body()) &&
		!slices.ContainsFunc(said, func(c profile.StateChange) bool {
			own, has := profile.StateOf(l.Blob, c.State)
			return !has || !own.Same(c.State) || own.Channel != c.Channel
		})
	keys := &s.routing.keys
	keys.Reset()
	keys.AddAddresses(email, phone)
	l.Back()
	for _, k := range keys.List {
		home, changes := e.hasher.Number(s.workspace, k.ID, k.Key), bodies.ForAddress(said, k.ID)
		if same && len(changes) > 0 {
			if same = !slices.Contains(before.rows, home) && e.isHere(home); same {
				if same, err = e.haveHeard(s.workspace, k.ID, k.Key, changes); err != nil {
					return user, false, known, err
				}
			}
		}
		if !same {
			before.rows = append(before.rows, home)
		}
	}
	return user, same, known, nil
}

// lendTarget lends the profile that an op goes to as things stand, when the profile is on this node; number is 0 when
// the op would make a profile. The op's identifier must not be an address.
func (s *Ops) lendTarget(o op.Op) (number uint64, l replica.Lent, err error) {
	e, number := s.reader, o.Number()
	if o.Flags().ID() != op.SvcID {
		number, l, err = e.lendHomeFor(replica.ToChange, number, s.workspace, o.Flags().ID(), o.Key())
		switch {
		case err != nil || l.Blob == nil:
			return 0, l, err
		case profile.Kind(l.Blob) == profile.KindUser: // in the partition of its home number
			return number, l, nil
		}
		number = 0
		if m := entries.Members(l.Blob); len(m) > 0 {
			number = entries.Member(m, 0)
		}
		l.Back()
	}
	if e.isHere(number) {
		l, err = e.lendFor(replica.ToChange, number)
	} else {
		l = replica.Lent{}
	}
	return number, l, err
}

// haveHeard says whether an address has these states, each of them set since the last user came to the address.
func (r *Reader) haveHeard(
	workspace uint32, id op.IDKind, key []byte, states []profile.StateChange,
) (all bool, err error) {
	err = r.ViewAddress(workspace, id, key, func(row []byte) {
		joined := profile.Updated(row)
		all = !slices.ContainsFunc(states, func(s profile.StateChange) bool {
			heard, known := profile.StateOf(row, s.State)
			return !known || !heard.Same(s.State) || heard.Changed <= joined
		})
	})
	return all, err
}

// blankStates turns the states in the body of an op into fields that apply skips.
func blankStates(o op.Op) {
	for body := o.Body(); len(body) > 0; {
		code, _, rest, ok := op.NextField(body)
		if !ok {
			return
		}
		if code == op.AttrEmailSubscribe || code == op.AttrSubscriptionGroups {
			body[0] = 0
		}
		body = rest
	}
}

// setsStates says whether an attributes body sets a state.
func setsStates(body []byte) bool {
	for code := range op.Fields(body) {
		switch code {
		case op.AttrEmailSubscribe, op.AttrSubscriptionGroups, op.AttrHardBounce, op.AttrSpam:
			return true
		}
	}
	return false
}
