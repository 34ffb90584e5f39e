package shard

import (
	"bytes"
	"slices"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Clients track the same values again and again. A state that says what the user has said already, and what his address
// has heard since the last one came there, changes nothing for anybody; but only the address's row knows, and telling
// it costs a message. So it is looked up before the record is made, when all the request's ops before it leave user and
// address alone, and what changes nothing is taken out: the state is set when it is looked up, to what it is. Who sets
// a state by another endpoint than /users/track has it set, with a time of its own.

// touched is what the ops of a batch before the one at hand may change.
type touched struct {
	users, rows []uint64
}

// leaveOutUnchanged takes the states out of the batch's ops that change nothing.
func (b *Batch) leaveOutUnchanged() error {
	if b.Source != op.SourceTrack || b.addressed || !slices.ContainsFunc(b.contacts, func(start int) bool {
		o, _ := op.Next(b.Buf[start:])
		return setsStates(o.Body())
	}) {
		return nil
	}
	b.survey()
	var before touched
	for _, start := range b.contacts {
		o, _ := op.Next(b.Buf[start:])
		user, known, err := b.surelyFor(o)
		if err != nil || !known { // it may be for anybody whom the ops behind it are for
			return err
		}
		same := false
		if user != 0 && !slices.Contains(before.users, user) {
			if same, known, err = b.isUnchanged(o, user, &before); err != nil || !known {
				return err
			}
		}
		if same {
			blankStates(o)
			continue
		}
		if user != 0 { // nobody else names who is made
			before.users = append(before.users, user)
		}
		for _, f := range b.routing.fields {
			if f.start == start && f.at >= 0 {
				before.rows = append(before.rows, f.row)
			}
		}
	}
	return nil
}

// surelyFor is the number of the user whom an op is for, whatever the ops before it do; 0: one who is made. It is not
// known of an address.
func (b *Batch) surelyFor(o op.Op) (user uint64, known bool, err error) {
	if id := o.Flags().ID(); id == op.Email || id == op.Phone || !b.engine.isHere(o.Number()) {
		return 0, false, nil
	}
	user, err = b.target(o)
	return user, err == nil && (user == 0 || b.engine.isHere(user)), err
}

// isUnchanged says whether an op changes neither addresses nor states of anybody. Else the rows of the addresses that
// the user has are touched. Of the number of somebody who was merged it is not known whom the op is for.
func (b *Batch) isUnchanged(o op.Op, user uint64, before *touched) (same, known bool, err error) {
	e, said := b.engine, statesSet(o.Body(), &op.Record{})
	var keys rowKeys
	err = e.view(user, func(blob []byte) {
		if known = profile.Kind(blob) == profile.KindUser; !known {
			return
		}
		keys.read(blob)
		same = sameAddresses(blob, o.Body())
		for _, c := range said {
			own, has := profile.StateOf(blob, c.State)
			same = same && has && own.Same(c.State) && own.Channel == c.Channel
		}
	})
	for _, id := range addresses {
		key, changes := keys.of(id), forAddress(said, id)
		if key == nil || err != nil {
			continue
		}
		home := e.hasher.Number(b.workspace, id, key)
		if same && len(changes) > 0 {
			if same = !slices.Contains(before.rows, home) && e.isHere(home); same {
				same, err = e.haveHeard(b.workspace, id, key, changes)
			}
		}
		if !same {
			before.rows = append(before.rows, home)
		}
	}
	return same && err == nil, known, err
}

// haveHeard says whether all who share an address have heard these states of it last, and since they came.
func (e *Engine) haveHeard(workspace uint32, id op.IDKind, key []byte, states []stateChange) (all bool, err error) {
	err = e.ViewAddress(workspace, id, key, func(row []byte) {
		joined := profile.Updated(row)
		all = !slices.ContainsFunc(states, func(c stateChange) bool {
			heard, known := profile.StateOf(row, c.State)
			return !known || !heard.Same(c.State) || heard.Changed <= joined
		})
	})
	return all, err
}

// isHere says whether an entry can be read without asking another node.
func (e *Engine) isHere(number uint64) bool {
	p := identity.Partition(number)
	return e.owner[p] != nil || e.opts.Group != nil && e.opts.Group.Mesh.Local(p) != nil
}

// sameAddresses says whether an attributes body gives a profile no other email or phone than it has.
func sameAddresses(blob, body []byte) bool {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			return false
		}
		if body = rest; code != op.AttrEmail && code != op.AttrPhone {
			continue
		}
		now, has := profile.Attr(blob, code)
		if has != (v.Tag() != op.Null) || has && !bytes.Equal(now, v) {
			return false
		}
	}
	return true
}

// blankStates makes fields that apply passes by of the states in the body of an op.
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
	for len(body) > 0 {
		code, _, rest, ok := op.NextField(body)
		if !ok {
			return false
		}
		switch code {
		case op.AttrEmailSubscribe, op.AttrSubscriptionGroups, op.AttrHardBounce, op.AttrSpam:
			return true
		}
		body = rest
	}
	return false
}
