package machine

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// deleteUser removes a profile. The op's key is the reference of its outcome; an op that the engine itself has sent has
// no key.
func (w *Worker) deleteUser(p *Partition, o op.Op) error {
	if p.isPinned(o.Number()) {
		// Profiles on the way to this one are deleted with it. The op waits without a body: the profile changes before
		// it is removed, and may have events until then, or goes to another one.
		w.applying.dropped = true
		w.park(p, op.Delete, o.Number(), nil, o.Key())
		return nil
	}
	outcome, err := w.remove(p, o)
	if key := o.Key(); err == nil && len(key) == 2 {
		w.applying.future.Report(binary.LittleEndian.Uint16(key), outcome)
	}
	return err
}

// remove leaves a tombstone in place of a profile, so that its number is never given again, and tells its directory
// rows. Nobody: there is no profile any more, because it was deleted or merged into another one.
func (w *Worker) remove(p *Partition, o op.Op) (effect.Outcome, error) {
	s, isUser, err := w.entryAt(p, o.Number())
	if !isUser || err != nil {
		w.applying.dropped = len(o.Key()) > 0 // what the body tells the event log belongs to somebody else by now
		return effect.Nobody, err
	}
	b, rec := w.entryOf(s), w.applying.rec
	p.Trail.Erase(p.Number(s))
	w.forgetMerged(p, b)
	if !bytes.Equal(o.Body(), w.appendErased(b, p.Number(s), profile.Place{})) {
		// The profile has changed since the op was made, so a message tells the event log what to erase; also what was
		// made at this op's own place, by a merge that the deletion has waited for.
		w.applying.dropped = true
		w.eraseEvents(p, p.Number(s), w.appendErased(b, p.Number(s), w.place().Next()))
	}
	w.eraseElsewhere(p, b)
	w.m.unblock(p.Number(s))
	w.eachRow(b, func(id op.IDKind, key []byte) {
		w.tellRow(p, op.RowRemove, 0, id, key, p.Number(s), nil)
	})
	w.fresh = entries.AppendTombstone(w.fresh[:0], rec.Workspace, rec.Stamp)
	// A row of this partition may have gone, which moves slots.
	if s, err = w.lookup(p, o.Number()); err != nil || s == nil {
		return effect.Nobody, err
	}
	profilesDeleted.Inc()
	w.setApart(p, p.Number(s), books.ApartElsewhere)
	return effect.Done, w.update(s, w.fresh)
}

// eachRow calls f for every directory row that lists a profile.
func (w *Worker) eachRow(b []byte, f func(id op.IDKind, key []byte)) {
	var keys entries.Keys
	keys.Read(b)
	for _, k := range keys.List {
		f(k.ID, k.Key)
	}
}

func (w *Worker) appendErased(blob []byte, number uint64, until profile.Place) []byte {
	return bodies.AppendErased(nil, blob, number, until, w.m.hasher, w.m.opts.Groups)
}

// eraseEvents tells the event log of a deletion that is not in the log as such, by a Delete of a number where there is
// no profile.
func (w *Worker) eraseEvents(p *Partition, number uint64, body []byte) {
	w.send(p, op.Delete, op.MakeFlags(0, op.SvcID), number, body, nil, false)
}

// eraseElsewhere tells the event logs of other groups of the deletion of a profile: those that have events of its
// former profiles.
func (w *Worker) eraseElsewhere(p *Partition, blob []byte) {
	var partitions []uint8
	deletes := make(map[uint8][]byte)
	bodies.EachFormer(blob, func(x bodies.Erased) {
		if bodies.OneLog(nobodyIn(p.ID), x.Number, w.m.opts.Groups) {
			return
		}
		to := identity.Partition(x.Number)
		if deletes[to] == nil {
			partitions = append(partitions, to)
		}
		deletes[to] = x.Append(deletes[to])
	})
	for _, to := range partitions {
		w.eraseEvents(p, nobodyIn(to), deletes[to])
	}
}

// nobodyIn is a number in a partition that is never an entry's.
func nobodyIn(partition uint8) uint64 { return uint64(partition) << 56 }

// importUser replaces or creates the profile of the op's key with the one in its body (`millrace import profiles`).
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
	isUser := s != nil && profile.Kind(w.entryOf(s)) == profile.KindUser
	if isByAddress(o) && (!isUser || profile.HasName(w.entryOf(s))) {
		beside := w.m.hasher.Beside(rec.Workspace, flags.ID(), o.Key(), profile.Updated(o.Body()))
		w.send(p, op.Import, flags&^op.Resolved, beside, o.Body(), o.Key(), false)
		return nil
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
	case isUser:
		before.Read(w.entryOf(s))
		had = bodies.StatesOf(w.entryOf(s))
		w.keep(w.ed.Reimport(w.fresh, w.entryOf(s)))
	case flags.Has(op.Resolved):
		return nil // the profile has gone meanwhile
	default:
		hasRow := flags.ID() != op.ExternalID
		// An op that doesn't go to the row's number is for a place beside the row (shard.Batch.ImportBeside).
		if hasRow && o.Number() == w.m.hasher.Number(rec.Workspace, flags.ID(), o.Key()) {
			if number, err = w.freeProfile(p, number); err != nil {
				return err
			}
		}
		if hasRow || number != o.Number() {
			w.keep(w.ed.SetBorn(w.fresh, w.place()))
		}
		if number != o.Number() {
			w.setApart(p, o.Number(), books.ApartElsewhere)
		}
		s = nil
	}
	return w.putImported(p, s, number, had, &before)
}

// putImported puts the profile in w.fresh at a number, in place of the one in s, if there is one: had are the states of
// that one, before its directory keys. The new profile counts as having got its addresses now: where they have other
// states than the profile, they keep them, and the marks of its email are only offered to them.
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
	w.noteDummy(p, number, profile.Blocked(w.fresh))
	if s != nil {
		err = w.update(s, w.fresh)
	} else if _, err = w.insert(p, number, w.fresh); err == nil {
		profilesCreated.Inc()
	}
	if err != nil {
		return err
	}
	var hadKeys, hasKeys entries.KeySet
	if len(before.List) > 0 { // a new user, as most are, had none
		hadKeys, hasKeys = before.Set(), after.Set()
	}
	for _, k := range before.List {
		if !hasKeys.Has(k) {
			w.tellRow(p, op.RowRemove, 0, k.ID, k.Key, number, nil)
		}
	}
	for _, k := range after.List {
		isAddress := k.ID == op.Email || k.ID == op.Phone
		if isAddress || !hadKeys.Has(k) {
			w.tellRow(p, op.RowAdd, 0, k.ID, k.Key, number, nil)
		}
		if !isAddress {
			continue
		}
		if w.contact.what = bodies.AppendStatesFor(w.contact.what[:0], states, k.ID); len(w.contact.what) > 0 {
			w.tellRow(p, op.RowState, op.Offer, k.ID, k.Key, number, w.contact.what)
		}
	}
	return nil
}
