package shard

import (
	"bytes"
	"encoding/binary"
	"slices"

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
	if w.applying.rec.Source == op.SourceTrack && unchanged(w.entryOf(s), o.Body()) {
		out, verdict := w.ed.Apply(w.entryOf(s), o, w.applying.rec, w.limit())
		w.judge(number, verdict)
		return w.update(s, out)
	}
	var before rowKeys
	before.read(w.entryOf(s))
	hadEmail, had := before.of(op.Email), statesOf(w.entryOf(s))

	out, verdict := w.ed.Apply(w.entryOf(s), o, w.applying.rec, w.limit())
	w.judge(number, verdict)
	if verdict == profile.Ignored {
		return w.update(s, out)
	}
	var after rowKeys
	after.read(out)
	set := statesSet(o.Body(), w.applying.rec)
	out = w.leaveAddress(out, hadEmail, after.of(op.Email), set)
	offer := statesOf(out)
	w.noteAll(p, number, had, out)
	if err := w.update(s, out); err != nil {
		return err
	}
	for _, k := range before.list {
		if !after.has(k) {
			w.tellRow(p, op.RowRemove, k.id, k.key, number, nil)
		}
	}
	// First what the op says of states: it is newer than what an address that it gives knows, which the profile is about to take over.
	for _, id := range [...]op.IDKind{op.Email, op.Phone} {
		if changes := forAddress(set, id); len(changes) > 0 && after.of(id) != nil {
			w.tellRow(p, op.RowState, id, after.of(id), number, changes)
		}
	}
	for _, k := range after.list {
		if !before.has(k) {
			w.tellRow(p, op.RowAdd, k.id, k.key, number, forAddress(offer, k.id))
		}
	}
	return nil
}

// unchanged says whether all that an attributes body says of addresses and states is so already: clients track the same values again and again,
// and no directory row need hear of it. Should another state of the same address be on its way, shareState notices. Who sets a state by another
// endpoint is not answered like that: what it finds may be another's that is still on its way to those who share the address, and it goes behind.
func unchanged(blob, body []byte) bool {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			return false
		}
		body = rest
		switch code {
		case op.AttrEmail, op.AttrPhone, op.AttrEmailSubscribe:
			now, has := profile.Attr(blob, code)
			if has != (v.Tag() != op.Null) || has && !bytes.Equal(now, v) {
				return false
			}
		case op.AttrHardBounce, op.AttrSpam:
			mark := profile.State{Kind: profile.StateBounce}
			if code == op.AttrSpam {
				mark.Kind = profile.StateSpam
			}
			if now, known := profile.StateOf(blob, mark); !known || now.On != (v.Tag() == op.True) {
				return false
			}
		case op.AttrSubscriptionGroups:
			same := true
			whole := eachGroup(v.Bytes(), func(s profile.State) {
				now, known := profile.StateOf(blob, s)
				same = same && known && now.On == s.On && (s.Channel == 0 || s.Channel == now.Channel)
			})
			if !same || !whole {
				return false
			}
		}
	}
	return true
}

// leaveAddress takes from a profile what belonged to the email that it has had, unless the op at hand says it anew: another address begins as
// subscribed, or as what it is already known to be (reference.md 2.2), and marks are the address's own.
func (w *worker) leaveAddress(out, had, has []byte, set []stateChange) []byte {
	for _, s := range [...]profile.State{{Kind: profile.StateEmail}, {Kind: profile.StateBounce}, {Kind: profile.StateSpam}} {
		mark := isMark(s.Kind)
		left := had != nil && has != nil && !bytes.Equal(had, has) && !sets(set, s)
		if left || mark && has == nil {
			out = w.ed.ForgetState(out, s)
		}
	}
	return out
}

func (r *rowKeys) of(id op.IDKind) []byte {
	for _, k := range r.list {
		if k.id == id {
			return k.key
		}
	}
	return nil
}

// tellRow sends a change to a directory row: the profile's number, then states.
func (w *worker) tellRow(p *partition, kind op.Kind, id op.IDKind, key []byte, number uint64, changes []stateChange) {
	home := w.e.hasher.Number(w.applying.rec.Workspace, id, key)
	body := appendStates(binary.LittleEndian.AppendUint64(nil, number), changes)
	w.send(p, kind, op.MakeFlags(0, id), home, body, key, false)
}

// share sends states of an address to a profile that has it.
func (w *worker) share(p *partition, o op.Op, number uint64, changes []stateChange, force bool) {
	flags := op.MakeFlags(0, o.Flags().ID())
	if force {
		flags |= op.Force
	}
	w.send(p, op.ShareState, flags, number, appendStates(nil, changes), o.Key(), false)
}

// addMember: a profile has got this address. What the address has goes to the profile. The profile's own states come as an offer: the
// address takes those that it has nothing of, and then all who share it have them.
func (w *worker) addMember(p *partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	number, offer := binary.LittleEndian.Uint64(o.Body()), parseStates(o.Body()[8:])
	s, row, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser {
		return nil // an external id that has a profile of its own by now
	}
	if s != nil {
		if known := statesOf(w.entryOf(s)); len(known) > 0 {
			w.share(p, o, number, known, true)
		}
	}
	if err := w.addToRow(p, row, id, o.Key(), number); err != nil {
		return err
	}
	if s, err = w.lookup(p, row); err != nil {
		return err
	}
	taken, err := w.setStates(s, missing(w.entryOf(s), offer), false)
	if err != nil {
		return err
	}
	return w.tellMembers(p, o, s, taken)
}

// tellMembers sends states to all who share the address in row s.
func (w *worker) tellMembers(p *partition, o op.Op, s *slot, changes []stateChange) error {
	if len(changes) == 0 {
		return nil
	}
	m := members(w.entryOf(s))
	for i := 0; i < len(m)/8; i++ {
		w.share(p, o, member(m, i), changes, false)
	}
	return nil
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
	if len(m) == 0 && !profile.HasStates(w.entryOf(s)) {
		return w.erase(p, s)
	}
	return w.setMembers(s, m)
}

// setRowState: states were set for this address, by a profile that has it or for the address itself. All who share it are told.
func (w *worker) setRowState(p *partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
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
	number, changes := binary.LittleEndian.Uint64(o.Body()), parseStates(o.Body()[8:])
	for i := range changes {
		if c := &changes[i]; c.Changed == 0 { // from a request
			c.Changed, c.Actor, c.Source = rec.Stamp, rec.Actor, rec.Source
		}
	}
	if number != 0 {
		if later := overtaken(w.entryOf(s), changes); len(later) > 0 { // the sender had not heard of it when it spoke
			w.share(p, o, number, later, false)
		}
	}
	late := newer(w.entryOf(s), changes)
	made, err := w.setStates(s, changes, false)
	if err != nil {
		return err
	}
	// What the address has from a later change may still be on its way to those who share it: who comes too late is answered behind it.
	return w.tellMembers(p, o, s, append(made, late...))
}

// shareState: states of an address reach a profile, which may have left the address meanwhile.
func (w *worker) shareState(p *partition, o op.Op) error {
	s, err := w.lookup(p, o.Number())
	if s == nil || err != nil {
		return err
	}
	if to, ok := forward(w.entryOf(s)); ok { // who it has been merged into may have the address by now
		w.send(p, op.ShareState, o.Flags(), to, o.Body(), o.Key(), false)
		return nil
	}
	if profile.Kind(w.entryOf(s)) != profile.KindUser {
		return nil
	}
	var keys rowKeys
	keys.read(w.entryOf(s))
	if !keys.has(rowKey{o.Flags().ID(), o.Key()}) {
		return nil
	}
	changes, force := parseStates(o.Body()), o.Flags().Has(op.Force)
	if !force {
		// What the profile has said later, the row may not know: it wasn't news when it was said. Now it is.
		if later := overtaken(w.entryOf(s), changes); len(later) > 0 {
			w.tellRow(p, op.RowState, o.Flags().ID(), o.Key(), s.number, later)
		}
	}
	_, err = w.setStates(s, changes, force)
	return err
}

// newer are the states of an entry that were changed later than changes say.
func newer(blob []byte, changes []stateChange) (later []stateChange) {
	for _, c := range changes {
		if own, known := profile.StateOf(blob, c.State); known && own.Later(c) {
			if own.Channel == 0 {
				own.Channel = c.Channel
			}
			later = append(later, own)
		}
	}
	return later
}

// overtaken are those of newer that differ from what changes say.
func overtaken(blob []byte, changes []stateChange) []stateChange {
	return slices.DeleteFunc(newer(blob, changes), func(own stateChange) bool {
		return slices.ContainsFunc(changes, func(c stateChange) bool { return own.Is(c.State) && own.Same(c.State) })
	})
}
