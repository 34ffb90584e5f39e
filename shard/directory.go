package shard

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// The directory: rows that lead from an alias, email, phone, or an external id that a profile got later, to profile numbers. A row lies in
// the partition of its identifier and is laid out like a profile, so that it can hold an address's subscription states with the same
// editor (decisions.md D5: state is held per address too; an address without a user keeps it, and who gets the address inherits it).
//
// The row orders what happens to an address: a state that one profile sets goes to the row first, and from there, in the row's order, to
// all who share the address, the sender included. Two who set it at once end with the same state everywhere.

// changeContact is change for attribute ops that set email, phone or a subscription state.
func (w *worker) changeContact(p *partition, s *slot, o op.Op) error {
	number := s.number
	var before rowKeys
	before.read(w.entryOf(s))
	hadEmail := before.of(op.Email)

	out, verdict := w.ed.Apply(w.entryOf(s), o, w.applying.rec, &w.e.limits)
	w.judge(number, verdict)
	if verdict == profile.Ignored {
		return w.update(s, out)
	}
	var after rowKeys
	after.read(out)
	states := stateFields(o.Body())
	if email := after.of(op.Email); hadEmail != nil && email != nil && !bytes.Equal(email, hadEmail) && !states.email {
		// A new address begins as subscribed, or as what it is already known to be (reference.md 2.2).
		out = w.ed.ForgetContactState(out, op.AttrEmailSubscribe)
	}
	offer := appendStates(nil, out)
	if err := w.update(s, out); err != nil {
		return err
	}
	for _, k := range before.list {
		if !after.has(k) {
			w.tellRow(p, op.RowRemove, k.id, k.key, number, nil)
		}
	}
	for _, k := range after.list {
		if !before.has(k) {
			w.tellRow(p, op.RowAdd, k.id, k.key, number, offer)
		}
	}
	if len(states.fields) > 0 {
		for _, id := range [...]op.IDKind{op.Email, op.Phone} {
			if key := after.of(id); key != nil {
				w.tellRow(p, op.RowState, id, key, number, states.fields)
			}
		}
	}
	return nil
}

func (r *rowKeys) of(id op.IDKind) []byte {
	for _, k := range r.list {
		if k.id == id {
			return k.key
		}
	}
	return nil
}

// states are the fields of an attributes body that set subscription states.
type states struct {
	fields []byte // code, value … as they stand in the body
	email  bool   // email_subscribe is among them
}

func stateFields(body []byte) (s states) {
	for len(body) > 0 {
		code, _, rest, ok := op.NextField(body)
		if !ok {
			break
		}
		if code == op.AttrEmailSubscribe || code == op.AttrSubscriptionGroups {
			s.fields = append(s.fields, body[:len(body)-len(rest)]...)
			s.email = s.email || code == op.AttrEmailSubscribe
		}
		body = rest
	}
	return s
}

// appendStates appends the subscription states of a profile or row as attribute fields.
func appendStates(dst, blob []byte) []byte {
	if v, ok := profile.Attr(blob, op.AttrEmailSubscribe); ok {
		dst = binary.AppendUvarint(dst, op.AttrEmailSubscribe)
		dst = append(dst, v...)
	}
	var groups []byte
	profile.Groups(blob, func(id [16]byte, subscribed bool, _ int64, _ uint32) {
		groups = op.AppendBool(op.AppendString(groups, id[:]), subscribed)
	})
	if len(groups) > 0 {
		dst = binary.AppendUvarint(dst, op.AttrSubscriptionGroups)
		dst = op.AppendBlock(dst, op.Array, groups)
	}
	return dst
}

// tellRow sends a change to a directory row: number, then fields.
func (w *worker) tellRow(p *partition, kind op.Kind, id op.IDKind, key []byte, number uint64, fields []byte) {
	home := w.e.hasher.Number(w.applying.rec.Workspace, id, key)
	body := append(binary.LittleEndian.AppendUint64(nil, number), fields...)
	w.send(p, kind, op.MakeFlags(0, id), home, body, key, false)
}

// addMember: a profile has got this address. Its states come as an offer, which the row takes where it has none of its own; what the row
// has goes back to the profile.
func (w *worker) addMember(p *partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	number, offer := binary.LittleEndian.Uint64(o.Body()), o.Body()[8:]
	s, row, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser {
		return nil // an external id that has a profile of its own by now
	}
	var known []byte
	if s != nil {
		known = appendStates(nil, w.entryOf(s))
	}
	if err := w.addToRow(p, row, id, o.Key(), number); err != nil {
		return err
	}
	if id != op.Email && id != op.Phone {
		return nil
	}
	if len(known) > 0 {
		w.send(p, op.ShareState, op.MakeFlags(0, op.SvcID), number, known, nil, false)
	}
	if s, err = w.lookup(p, row); err != nil {
		return err
	}
	// The offer first, what was known on top of it: the row's own states win.
	if err := w.setStates(s, offer); err != nil {
		return err
	}
	return w.setStates(s, known)
}

// addToRow adds a profile's number to the row at number row, making the row when it isn't there.
func (w *worker) addToRow(p *partition, row uint64, id op.IDKind, key []byte, number uint64) error {
	rec := w.applying.rec
	s, err := w.lookup(p, row)
	if err != nil {
		return err
	}
	if s == nil {
		w.row = profile.AppendHeader(w.row[:0], kindRow, id, key, rec.Workspace, rec.Stamp)
		if s, err = w.insert(p, row, w.row); err != nil {
			return err
		}
	}
	m := members(w.entryOf(s))
	for i := 0; i < len(m)/8; i++ {
		if member(m, i) == number {
			return nil
		}
	}
	if len(m)/8 >= maxMembers {
		overgrown.Inc()
		return nil
	}
	m = binary.LittleEndian.AppendUint64(append(w.members[:0], m...), number)
	return w.setMembers(s, m)
}

// maxMembers bounds how many profiles share one address; later ones keep the address but are not found by it.
const maxMembers = 100_000

func (w *worker) setMembers(s *slot, m []byte) error {
	w.members = m
	w.value = op.AppendString(w.value[:0], m)
	return w.update(s, w.ed.SetAttr(w.entryOf(s), attrMembers, op.Value(w.value)))
}

// removeMember: a profile has lost this address or is gone. A row without profiles and states goes too.
func (w *worker) removeMember(p *partition, o op.Op) error {
	s, _, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, o.Flags().ID(), o.Key())
	if s == nil || err != nil {
		return err
	}
	number := binary.LittleEndian.Uint64(o.Body())
	if profile.Kind(w.entryOf(s)) != kindRow {
		return nil
	}
	m := append(w.members[:0], members(w.entryOf(s))...)
	for i := 0; i < len(m)/8; i++ {
		if member(m, i) == number {
			m = append(m[:8*i], m[8*i+8:]...)
			break
		}
	}
	if len(m) == 0 && len(appendStates(nil, w.entryOf(s))) == 0 {
		return w.erase(p, s)
	}
	return w.setMembers(s, m)
}

// setRowState: a state was set for this address, by a profile that has it or for the address itself. The row tells all who share it.
func (w *worker) setRowState(p *partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	fields := o.Body()[8:]
	s, row, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	if s == nil {
		w.row = profile.AppendHeader(w.row[:0], kindRow, id, o.Key(), rec.Workspace, rec.Stamp)
		if s, err = w.insert(p, row, w.row); err != nil {
			return err
		}
	}
	if err := w.setStates(s, fields); err != nil {
		return err
	}
	m := members(w.entryOf(s))
	for i := 0; i < len(m)/8; i++ {
		w.send(p, op.ShareState, op.MakeFlags(0, op.SvcID), member(m, i), fields, nil, false)
	}
	return nil
}

// setStates sets states on a row or profile without telling anybody.
func (w *worker) setStates(s *slot, fields []byte) error {
	if len(fields) == 0 {
		return nil
	}
	rec := w.applying.rec
	w.synthetic.Reset(0)
	w.synthetic.Append(op.Attributes, 0, s.number, fields, nil)
	o := op.Op(w.synthetic.Buf[op.HeaderBytes:])
	updated := profile.Updated(w.entryOf(s))
	out, _ := w.ed.Apply(w.entryOf(s), o, rec, &w.e.limits)
	profile.SetUpdated(out, updated) // what others set for the address doesn't make this profile the most recently updated one
	return w.update(s, out)
}

// shareState: the state of an address reaches a profile that has it.
func (w *worker) shareState(p *partition, o op.Op) error {
	s, err := w.lookup(p, o.Number())
	if s == nil || err != nil || profile.Kind(w.entryOf(s)) != profile.KindUser {
		return err
	}
	return w.setStates(s, o.Body())
}
