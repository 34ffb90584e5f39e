package machine

import (
	"bytes"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// importUser replaces or creates the profile of the op's key by the one in its body (`millrace import profiles`).
func (w *Worker) importUser(p *Partition, o op.Op) error {
	rec, flags := w.applying.rec, o.Flags()
	number := o.Number()
	s, err := w.lookup(p, number)
	if err == nil && !flags.Has(op.Resolved) {
		s, number, err = w.findHome(p, number, rec.Workspace, flags.ID(), o.Key())
	}
	if err != nil {
		return err
	}
	if s != nil && flags.Has(op.Resolved) {
		if to, ok := entries.Forward(w.entryOf(s)); ok {
			w.send(p, op.Import, flags, to, o.Body(), o.Key(), false)
			return nil
		}
	}
	if s != nil && profile.Kind(w.entryOf(s)) == entries.KindRow {
		if m := entries.Members(w.entryOf(s)); len(m) > 0 {
			w.send(p, op.Import, flags|op.Resolved, entries.Member(m, 0), o.Body(), o.Key(), false)
			return nil
		}
	}
	w.fresh = append(w.fresh[:0], o.Body()...)
	var before entries.Keys
	var had []profile.StateChange
	switch {
	case s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser:
		before.Read(w.entryOf(s))
		had = bodies.StatesOf(w.entryOf(s))
		w.keep(w.ed.Reimport(w.fresh, w.entryOf(s)))
	case flags.Has(op.Resolved):
		return nil // gone meanwhile
	default:
		if flags.ID() != op.ExternalID {
			if number, err = w.freeProfile(p, number); err != nil {
				return err
			}
		}
		if number != o.Number() {
			w.keep(w.ed.SetBorn(w.fresh, w.place()))
			w.setApart(p, o.Number(), books.ApartElsewhere)
		}
		s = nil
	}
	return w.putImported(p, s, number, had, &before)
}

// putImported puts the profile in w.fresh at a number, in the place of the one in s, if there is one, which had these
// states and rows. It is there as if it had got its addresses now: what they have of states and the profile says
// otherwise stays theirs, and the marks of its email it only offers.
func (w *Worker) putImported(
	p *Partition, s *arena.Slot, number uint64, had []profile.StateChange, before *entries.Keys,
) (err error) {
	states, stamp := bodies.StatesOf(w.fresh), w.applying.rec.Stamp
	var after entries.Keys
	after.Read(w.fresh)
	for _, id := range entries.Addresses {
		if old := before.Of(id); old != nil && !bytes.Equal(old, after.Of(id)) {
			w.noteStay(p, number, books.Stay{ID: id, Key: old, Since: profile.Joined(w.entryOf(s), id), Until: stamp})
		}
		if after.Of(id) != nil {
			w.keep(w.ed.SetJoined(w.fresh, id, stamp))
		}
	}
	w.keep(w.ed.ForgetState(w.fresh, profile.State{Kind: profile.StateBounce}))
	w.noteAll(p, number, had, w.fresh)
	if s != nil {
		err = w.update(s, w.fresh)
	} else if _, err = w.insert(p, number, w.fresh); err == nil {
		profilesCreated.Inc()
	}
	if err != nil {
		return err
	}
	for _, k := range before.List {
		if !after.Has(k) {
			w.tellRow(p, op.RowRemove, 0, k.ID, k.Key, number, nil)
		}
	}
	for _, k := range after.List {
		if !before.Has(k) {
			w.tellRow(p, op.RowAdd, 0, k.ID, k.Key, number, nil)
		}
		if w.contact.what = bodies.AppendStatesFor(w.contact.what[:0], states, k.ID); len(w.contact.what) > 0 {
			w.tellRow(p, op.RowState, op.Offer, k.ID, k.Key, number, w.contact.what)
		}
	}
	return nil
}
