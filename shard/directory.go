package shard

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The directory: rows that lead from an alias, email, phone, or an external id that a profile got later, to profile
// numbers. A row lies in the partition of its identifier and is laid out like a profile, so that it can hold an
// address's subscription states with the same editor. It alone has them: who shares the address reads them there
// (joint.go), and nobody is told. An address without a user keeps them.

// changeContact is change for attribute ops that set email, phone or a subscription state. A state is what the user has
// said himself, and goes to the addresses that he has behind it, too.
func (w *worker) changeContact(p *partition, s *arena.Slot, o op.Op) error {
	number, set := s.Number, statesSet(o.Body(), w.applying.rec)
	email, phone := profile.Addresses(w.entryOf(s))
	if len(set) == 0 && sameAddresses(email, phone, o.Body()) { // clients track the same values again and again
		return w.applyIn(s, o)
	}
	var before, after rowKeys
	before.addresses(email, phone) // a body names nobody's alias and no other external id
	had := statesOf(w.entryOf(s))
	out, verdict := w.ed.Apply(w.entryOf(s), o, w.applying.rec, w.limit())
	w.judge(number, verdict)
	if verdict == profile.Ignored {
		return w.update(s, out)
	}
	after.addresses(profile.Addresses(out))
	out = w.moveAddresses(p, number, out, &before, &after, w.applying.rec.Stamp)
	left := before.of(op.Email) != nil && !bytes.Equal(before.of(op.Email), after.of(op.Email))
	if left && !sets(set, State{Kind: EmailState}) { // reference.md 2.2
		out = w.ed.ForgetState(out, State{Kind: EmailState})
	}
	w.noteAll(p, number, had, out)
	if err := w.update(s, out); err != nil {
		return err
	}
	w.tellRows(p, number, &before, &after)
	for _, id := range addresses {
		if changes := forAddress(set, id); len(changes) > 0 && after.of(id) != nil {
			w.tellRow(p, op.RowState, 0, id, after.of(id), number, appendStates(nil, changes))
		}
	}
	return nil
}

// addresses are the kinds of identifiers that hold states.
var addresses = [...]op.IDKind{op.Email, op.Phone}

// moveAddresses notes in a profile since when it has an address that it did not have before, and which one it leaves.
func (w *worker) moveAddresses(p *partition, number uint64, out []byte, before, after *rowKeys, at int64) []byte {
	for _, id := range addresses {
		old, now := before.of(id), after.of(id)
		if bytes.Equal(old, now) {
			continue
		}
		if old != nil {
			w.noteStay(p, number, Stay{ID: id, Key: old, Since: profile.Joined(out, id), Until: at})
			out = w.ed.AddLeave(out, id, at)
		}
		since := at
		if now == nil {
			since = 0
		}
		out = w.ed.SetJoined(out, id, since)
	}
	return out
}

// tellRows tells the directory which identifiers a profile has no more, and which it has now. Of an address that it
// leaves it wants to know what held for it there.
func (w *worker) tellRows(p *partition, number uint64, before, after *rowKeys) {
	for _, k := range before.list {
		if !after.has(k) {
			var until []byte
			if k.id == op.Email || k.id == op.Phone {
				until = binary.LittleEndian.AppendUint64(nil, uint64(w.applying.rec.Stamp))
			}
			w.tellRow(p, op.RowRemove, 0, k.id, k.key, number, until)
		}
	}
	for _, k := range after.list {
		if !before.has(k) {
			w.tellRow(p, op.RowAdd, 0, k.id, k.key, number, nil)
		}
	}
}

func (r *rowKeys) of(id op.IDKind) []byte {
	for _, k := range r.list {
		if k.id == id {
			return k.key
		}
	}
	return nil
}

// tellRow sends a change to a directory row: the profile's number, then what is said.
func (w *worker) tellRow(p *partition, kind op.Kind, flags op.Flags, id op.IDKind, key []byte, number uint64, what []byte) {
	home := w.e.hasher.Number(w.applying.rec.Workspace, id, key)
	body := append(binary.LittleEndian.AppendUint64(nil, number), what...)
	w.send(p, kind, op.MakeFlags(flags, id), home, body, key, false)
}

// addMember: a profile has got this address.
func (w *worker) addMember(p *partition, o op.Op) error {
	id := o.Flags().ID()
	s, row, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser {
		return nil // an external id that has a profile of its own by now
	}
	return w.addToRow(p, row, id, o.Key(), binary.LittleEndian.Uint64(o.Body()))
}

// addToRow adds a profile's number to the row at number row, making the row when it isn't there.
func (w *worker) addToRow(p *partition, row uint64, id op.IDKind, key []byte, number uint64) error {
	rec := w.applying.rec
	s, err := w.lookup(p, row)
	if err != nil {
		return err
	}
	if s == nil {
		if id == op.ExternalID { // or its ops would be kept for a user who is elsewhere
			w.setApart(p, w.e.hasher.Number(rec.Workspace, id, key), apartElsewhere)
		}
		w.row = profile.AppendHeader(w.row[:0], entries.KindRow, id, key, rec.Workspace, rec.Stamp)
		if s, err = w.insert(p, row, w.row); err != nil {
			return err
		}
	}
	m := entries.Members(w.entryOf(s))
	for i := 0; i < len(m)/8; i++ {
		if entries.Member(m, i) == number {
			return nil
		}
	}
	if len(m)/8 >= maxMembers {
		entries.Overgrown.Inc()
		return nil
	}
	m = binary.LittleEndian.AppendUint64(append(w.members[:0], m...), number)
	if err := w.setMembers(s, m); err != nil {
		return err
	}
	b := w.entryOf(s)
	profile.SetUpdated(b, max(profile.Updated(b), w.rec.Stamp)) // when the last one came: not before he thinks
	return nil
}

// maxMembers bounds how many profiles share one address; later ones keep the address but are not found by it.
const maxMembers = 100_000

func (w *worker) setMembers(s *arena.Slot, m []byte) error {
	w.members = m
	w.value = op.AppendString(w.value[:0], m)
	return w.update(s, w.ed.SetAttr(w.entryOf(s), entries.AttrMembers, op.Value(w.value)))
}

// removeMember: a profile has lost this address or is gone. A row without profiles and states goes too. Who left, and
// is there still, gets to know what the address has.
func (w *worker) removeMember(p *partition, o op.Op) error {
	s, _, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, o.Flags().ID(), o.Key())
	if err != nil {
		return err
	}
	number, until := binary.LittleEndian.Uint64(o.Body()), o.Body()[8:]
	if len(until) > 0 {
		var states []stateChange
		if s != nil {
			states = statesOf(w.entryOf(s))
		}
		w.send(p, op.Left, op.MakeFlags(0, o.Flags().ID()), number, appendStates(bytes.Clone(until), states), nil, false)
	}
	if s == nil || profile.Kind(w.entryOf(s)) != entries.KindRow {
		return nil
	}
	m := append(w.members[:0], entries.Members(w.entryOf(s))...)
	for i := 0; i < len(m)/8; i++ {
		if entries.Member(m, i) == number {
			m = append(m[:8*i], m[8*i+8:]...)
			break
		}
	}
	if len(m) == 0 && !profile.HasStates(w.entryOf(s)) {
		return w.erase(p, s)
	}
	return w.setMembers(s, m)
}

// left: a profile gets to know what an address has that it has left. One that was merged meanwhile has nothing to keep
// (decisions.md D5).
func (w *worker) left(p *partition, o op.Op) error {
	if len(o.Body()) < 8 {
		return op.ErrMalformed
	}
	s, isUser, err := w.entryAt(p, o.Number())
	if err != nil || !isUser {
		return err
	}
	had := statesOf(w.entryOf(s))
	until, states := int64(binary.LittleEndian.Uint64(o.Body())), parseStates(o.Body()[8:])
	out := w.ed.Settle(w.entryOf(s), o.Flags().ID(), until, states)
	w.noteAll(p, s.Number, had, out)
	return w.update(s, out)
}

// setRowState: states were set for this address, by a profile that has it or for the address itself. What an import
// offers is taken of what the address has nothing of, and of who is alone there.
func (w *worker) setRowState(p *partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	s, row, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	number, changes := binary.LittleEndian.Uint64(o.Body()), parseStates(o.Body()[8:])
	if o.Flags().Has(op.Offer) {
		if s == nil || !isAlone(w.entryOf(s), number) {
			return nil
		}
		changes = missing(w.entryOf(s), changes)
	}
	if s == nil {
		w.row = profile.AppendHeader(w.row[:0], entries.KindRow, id, o.Key(), rec.Workspace, rec.Stamp)
		if s, err = w.insert(p, row, w.row); err != nil {
			return err
		}
	}
	for i := range changes {
		if c := &changes[i]; c.Changed == 0 { // from a request
			c.Changed, c.Actor, c.Source = rec.Stamp, rec.Actor, rec.Source
		}
	}
	w.applying.echoes = number != 0
	err = w.setStates(p, s, changes)
	w.applying.echoes = false
	return err
}

// isAlone says whether a profile is the only one that a row leads to.
func isAlone(row []byte, number uint64) bool {
	m := entries.Members(row)
	return len(m) == 8 && entries.Member(m, 0) == number
}

// sameAddresses says whether an attributes body gives a profile no other email or phone than it has
// (profile.Addresses).
func sameAddresses(email, phone op.Value, body []byte) bool {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			return false
		}
		body = rest
		now := email
		switch code {
		case op.AttrEmail:
		case op.AttrPhone:
			now = phone
		default:
			continue
		}
		if now != nil && !bytes.Equal(now, v) || now == nil && v.Tag() != op.Null {
			return false
		}
	}
	return true
}
