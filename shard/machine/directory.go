package machine

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The directory: rows that lead from an alias, email, phone, or an external id that a profile got later, to profile
// numbers. A row lies in the partition of its identifier and is laid out like a profile, so that it can hold an
// address's subscription states with the same editor. Only the row has these: users who share the address read them
// there (shard/lookup/candidate.go), and none of them is told of a change. An address without a user keeps its states.

// changeContact is change for attribute ops that set email, phone or a subscription state. Such a state is one that the
// user has said, and it also goes to the addresses that the user has after the op.
func (w *Worker) changeContact(p *Partition, s *arena.Slot, number uint64, o op.Op) error {
	w.contact.set = bodies.AppendStatesSet(w.contact.set[:0], o.Body(), w.applying.rec)
	set := w.contact.set
	email, phone := profile.Addresses(w.entryOf(s))
	if len(set) == 0 && entries.SameAddresses(email, phone, o.Body()) { // clients track the same values again and again
		return w.applyIn(s, number, o)
	}
	before, after := &w.contact.before, &w.contact.after
	before.Reset()
	before.AddAddresses(email, phone) // a body has no alias and no other external id
	w.contact.had = profile.AppendStates(w.contact.had[:0], w.entryOf(s))
	out, verdict := w.ed.Apply(w.open(s), o, w.applying.rec, w.limit())
	w.judge(number, verdict)
	if verdict == profile.Ignored {
		return w.close(s, out)
	}
	after.Reset()
	after.AddAddresses(profile.Addresses(out))
	out = w.moveAddresses(p, number, out, before, after, w.applying.rec.Stamp)
	left := before.Of(op.Email) != nil && !bytes.Equal(before.Of(op.Email), after.Of(op.Email))
	if left && !bodies.Sets(set, profile.State{Kind: profile.StateEmail}) { // reference.md 2.2
		out = w.ed.ForgetState(out, profile.State{Kind: profile.StateEmail})
	}
	w.noteAll(p, number, w.contact.had, out)
	if err := w.close(s, out); err != nil {
		return err
	}
	w.tellRows(p, number, before, after)
	for _, id := range entries.Addresses {
		if key := after.Of(id); key != nil {
			if w.contact.what = bodies.AppendStatesFor(w.contact.what[:0], set, id); len(w.contact.what) > 0 {
				w.tellRow(p, op.RowState, w.echo(set, id), id, key, number, w.contact.what)
			}
		}
	}
	return nil
}

// echo is op.Echo when each of the given states that concern addresses of a kind differs from the one that the profile
// had, else 0.
func (w *Worker) echo(set []profile.StateChange, id op.IDKind) op.Flags {
	had := profile.IndexStates(w.contact.had)
	for _, c := range set {
		if !c.ForAddress(id) || c.Kind == profile.StateBounce || c.Kind == profile.StateSpam {
			continue
		}
		was := had.Find(c.State)
		if was != nil && was.Same(c.State) || was == nil && !differs(profile.StateChange{}, false, c.State) {
			return 0
		}
	}
	return op.Echo
}

// moveAddresses notes in a profile since when it has an address that is new to it, and which one it leaves.
func (w *Worker) moveAddresses(p *Partition, number uint64, out []byte, before, after *entries.Keys, at int64) []byte {
	for _, id := range entries.Addresses {
		old, now := before.Of(id), after.Of(id)
		if bytes.Equal(old, now) {
			continue
		}
		if old != nil {
			w.noteStay(p, number, books.Stay{ID: id, Key: old, Since: profile.Joined(out, id), Until: at})
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

// tellRows tells the directory which identifiers a profile no longer has, and which are new to it. The row of an
// address that it leaves is asked for what held for the profile there.
func (w *Worker) tellRows(p *Partition, number uint64, before, after *entries.Keys) {
	for _, k := range before.List {
		if !after.Has(k) {
			var until []byte
			if k.ID == op.Email || k.ID == op.Phone {
				until = binary.LittleEndian.AppendUint64(nil, uint64(w.applying.rec.Stamp))
			}
			w.tellRow(p, op.RowRemove, 0, k.ID, k.Key, number, until)
		}
	}
	for _, k := range after.List {
		if !before.Has(k) {
			w.tellRow(p, op.RowAdd, 0, k.ID, k.Key, number, nil)
		}
	}
}

// tellRow sends a change to a directory row: the profile's number, then what.
func (w *Worker) tellRow(
	p *Partition, kind op.Kind, flags op.Flags, id op.IDKind, key []byte, number uint64, what []byte,
) {
	home := w.m.hasher.Number(w.applying.rec.Workspace, id, key)
	w.contact.body = append(binary.LittleEndian.AppendUint64(w.contact.body[:0], number), what...)
	w.send(p, kind, op.MakeFlags(flags, id), home, w.contact.body, key, false)
}

// moveRow tells the row of a name that it leads to another profile now.
func (w *Worker) moveRow(p *Partition, id op.IDKind, key []byte, from, to uint64) {
	home := w.m.hasher.Number(w.applying.rec.Workspace, id, key)
	body := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, from), to)
	w.send(p, op.RowMove, op.MakeFlags(0, id), home, body, key, false)
}

// addMember adds a profile that has got this address to the address's row.
func (w *Worker) addMember(p *Partition, o op.Op) error {
	id := o.Flags().ID()
	s, row, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser {
		return nil // an external id that has its own profile by now
	}
	return w.addToRow(p, row, id, o.Key(), binary.LittleEndian.Uint64(o.Body()))
}

// addToRow adds a profile's number to the row at number row, and makes the row when there is none.
func (w *Worker) addToRow(p *Partition, row uint64, id op.IDKind, key []byte, number uint64) error {
	rec := w.applying.rec
	s, err := w.lookup(p, row)
	if err != nil {
		return err
	}
	if s == nil {
		if id == op.ExternalID { // or its ops would be kept unread for a user who is elsewhere
			w.setApart(p, w.m.hasher.Number(rec.Workspace, id, key), books.ApartElsewhere)
		}
		w.row = profile.AppendHeader(w.row[:0], entries.KindRow, id, key, rec.Workspace, rec.Stamp)
		if s, err = w.insert(p, row, w.row); err != nil {
			return err
		}
	}
	m := entries.Members(w.entryOf(s))
	switch {
	case memberAt(m, number) >= 0: // imported anew
	case len(m)/8 >= maxMembers:
		entries.Overgrown.Inc()
	default:
		if err := w.setMembers(s, binary.LittleEndian.AppendUint64(append(w.members[:0], m...), number)); err != nil {
			return err
		}
	}
	b := w.entryOf(s)
	profile.SetUpdated(b, max(profile.Updated(b), w.rec.Stamp)) // when the last user came, by that profile's stamp
	return w.update(s, b)
}

// memberAt is which member of a row a profile is, -1 for none.
func memberAt(m []byte, number uint64) int {
	for i := range len(m) / 8 {
		if entries.Member(m, i) == number {
			return i
		}
	}
	return -1
}

// maxMembers bounds how many profiles share one address. Later ones keep the address but are not found by it.
const maxMembers = 100_000

func (w *Worker) setMembers(s *arena.Slot, m []byte) error {
	w.members = m
	w.value = op.AppendString(w.value[:0], m)
	return w.update(s, w.ed.SetAttr(w.entryOf(s), entries.AttrMembers, op.Value(w.value)))
}

// removeMember takes a profile that has lost this address, or is gone, out of the address's row. A row without profiles
// and states is erased. A profile that has left and still exists is told the states of the address.
func (w *Worker) removeMember(p *Partition, o op.Op) error {
	s, _, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, o.Flags().ID(), o.Key())
	if err != nil {
		return err
	}
	number, until := binary.LittleEndian.Uint64(o.Body()), o.Body()[8:]
	if len(until) > 0 {
		var states []profile.StateChange
		if s != nil {
			states = bodies.StatesOf(w.entryOf(s))
		}
		w.send(p, op.Left, op.MakeFlags(0, o.Flags().ID()), number,
			bodies.AppendStates(bytes.Clone(until), states), nil, false)
	}
	if s == nil || profile.Kind(w.entryOf(s)) != entries.KindRow {
		return nil
	}
	m := append(w.members[:0], entries.Members(w.entryOf(s))...)
	if i := memberAt(m, number); i >= 0 {
		m = append(m[:8*i], m[8*i+8:]...)
	}
	if len(m) == 0 && !profile.HasStates(w.entryOf(s)) {
		return w.erase(p, s)
	}
	return w.setMembers(s, m)
}

// left tells a profile the states of an address that it has left. One that was merged meanwhile has nothing to keep
// (decisions.md D5).
func (w *Worker) left(p *Partition, o op.Op) error {
	if len(o.Body()) < 8 {
		return op.ErrMalformed
	}
	s, isUser, err := w.entryAt(p, o.Number())
	if err != nil || !isUser {
		return err
	}
	had := bodies.StatesOf(w.entryOf(s))
	until := int64(binary.LittleEndian.Uint64(o.Body()))
	w.states = bodies.ParseStates(w.states[:0], o.Body()[8:])
	out := w.ed.Settle(w.entryOf(s), o.Flags().ID(), until, w.states)
	w.noteAll(p, p.Number(s), had, out)
	return w.update(s, out)
}

// setRowState sets states of this address, on behalf of a profile that has it or of the address itself. States that an
// import offers are taken only when the address has none of the kind, and the profile is the only one there.
func (w *Worker) setRowState(p *Partition, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	s, row, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	number := binary.LittleEndian.Uint64(o.Body())
	w.states = bodies.ParseStates(w.states[:0], o.Body()[8:])
	changes := w.states
	if o.Flags().Has(op.Offer) {
		if s == nil || !isAlone(w.entryOf(s), number) {
			return nil
		}
		changes = bodies.Missing(w.entryOf(s), changes)
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
	err = w.setStates(p, s, changes, number)
	w.applying.echoes = false
	return err
}

// freeProfile is a free number for a profile beside the directory row with number row.
func (w *Worker) freeProfile(p *Partition, row uint64) (uint64, error) {
	for n := w.m.hasher.Profile(row); ; n = identity.Next(n) {
		s, at, err := w.passTombstones(p, n)
		if s == nil || err != nil {
			return at, err
		}
		n = at
	}
}

// createBeside makes the profile of an identifier beside its row, which is going to lead to the profile.
func (w *Worker) createBeside(p *Partition, row uint64, o op.Op) (number uint64, err error) {
	rec, id := w.applying.rec, o.Flags().ID()
	if number, err = w.freeProfile(p, row); err != nil {
		return 0, err
	}
	w.fresh = profile.New(w.fresh[:0], rec.Workspace, id, o.Key(), rec.Stamp)
	// Only this op is in the log under the identifier; later ones are resolved.
	w.keep(w.ed.SetBorn(w.fresh, w.place()))
	if id == op.Email || id == op.Phone {
		w.keep(w.ed.SetJoined(w.fresh, id, rec.Stamp))
	}
	if _, err := w.insert(p, number, w.fresh); err != nil {
		return 0, err
	}
	profilesCreated.Inc()
	return number, nil
}
