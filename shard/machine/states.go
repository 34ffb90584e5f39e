package machine

import (
	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// setStates makes those changes of an address that are later than what it has, for the user at number from, or for the
// address itself: 0.
func (w *Worker) setStates(p *Partition, s *arena.Slot, changes []profile.StateChange, from uint64) error {
	if most := w.size(s) + len(changes)*groupSlack + stateSlack; len(changes) >= manyStates &&
		most <= arena.MaxEntryBytes {
		return w.setManyStates(p, s, changes, from)
	}
	for _, c := range changes {
		b := w.entryOf(s)
		now, known := profile.StateOf(b, c.State)
		if known && !c.Later(now) {
			continue
		}
		if len(b)+stateSlack > arena.MaxEntryBytes {
			entries.Overgrown.Inc()
			continue
		}
		news := differs(now, known, c.State) || newlyHolds(b, now, from)
		if err := w.update(s, w.ed.SetState(b, c)); err != nil {
			return err
		}
		w.noteState(p, p.Number(s), now, c, news)
	}
	return nil
}

// setManyStates is setStates with one pass over the entry, for which there is room.
func (w *Worker) setManyStates(p *Partition, s *arena.Slot, changes []profile.StateChange, from uint64) error {
	b := w.entryOf(s)
	has, later := profile.IndexStates(bodies.StatesOf(b)), changes[:0]
	for _, c := range changes {
		was, known := profile.StateChange{State: profile.State{Kind: c.Kind, Group: c.Group}}, false
		if now := has.Find(c.State); now == nil {
			has.Add(c)
		} else if was, known = *now, true; c.Later(was) {
			*now = c
		} else {
			continue
		}
		later = append(later, c)
		w.noteState(p, p.Number(s), was, c, differs(was, known, c.State) || newlyHolds(b, was, from))
	}
	return w.update(s, w.ed.SetStates(b, later))
}

// noteState notes a change of the state of an address, which was that; news says whether the trail tells of it.
func (w *Worker) noteState(p *Partition, number uint64, was, c profile.StateChange, news bool) {
	if news {
		w.note(p, number, c)
	}
	w.unwritten += p.Suppressed.Move(w.applying.rec.Workspace, number, was, c)
}

// newlyHolds says whether a state that an address hears again may hold for somebody for whom it didn't: for a user
// other than from, when the last user has come since it was heard (profile.Joint). Marks hold for whoever has the
// address.
func newlyHolds(row []byte, heard profile.StateChange, from uint64) bool {
	isMark := heard.Kind == profile.StateBounce || heard.Kind == profile.StateSpam
	return !isMark && heard.Changed <= profile.Updated(row) && len(entries.Members(row)) > 0 && !isAlone(row, from)
}

// isAlone says whether a profile is the only one that a row leads to.
func isAlone(row []byte, number uint64) bool {
	m := entries.Members(row)
	return len(m) == 8 && entries.Member(m, 0) == number
}

const (
	stateSlack = 1 << 10 // more bytes than one state adds to an entry
	groupSlack = 64      // more bytes than each of many states does, since only groups are many
	manyStates = 16      // from so many changes on, one pass over the entry costs less than one for each
)

// TrailOf reads the trail of the entry at number.
func (m *Machine) TrailOf(number uint64) (books.History, error) {
	p, w := m.partitions[identity.Partition(number)], m.owner[identity.Partition(number)]
	w.Lock()
	pending := p.Trail.Pending(number)
	w.Unlock()
	return books.HistoryOf(m.store, number, pending)
}

// nextNote is the place of the next entry that the op at hand makes.
func (w *Worker) nextNote() books.Place {
	a := &w.applying
	a.noted++
	return books.Place{Position: a.position, Index: uint64(a.ordinal)<<32 | uint64(a.noted-1)}
}

// noteMerge tells readers of the log that a user was merged into the one at number; noteIdentify, that the user at
// number has got an external id.
func (w *Worker) noteMerge(p *Partition, number, gone uint64, externalID []byte) {
	w.unwritten += p.Trail.AddMerge(w.nextNote(), number, w.rec.Stamp, gone, externalID)
}

func (w *Worker) noteIdentify(p *Partition, number uint64, externalID []byte) {
	w.unwritten += p.Trail.AddIdentify(w.nextNote(), number, w.rec.Stamp, externalID)
}

// note adds a change of a state of the entry at number to the trail.
func (w *Worker) note(p *Partition, number uint64, c profile.StateChange) {
	w.unwritten += p.Trail.AddChange(w.nextNote(), number, c, w.rec.Stamp)
	trailEntries.Inc()
	if w.applying.watcher != nil {
		w.showChange(p, number, c)
	}
}

// noteStay notes that the profile at number has left an address.
func (w *Worker) noteStay(p *Partition, number uint64, s books.Stay) {
	w.unwritten += p.Trail.AddStay(w.nextNote(), number, s)
}

// noteAll adds to the trail how the states of the entry at number have changed: before are the old ones, blob has the
// new.
func (w *Worker) noteAll(p *Partition, number uint64, before []profile.StateChange, blob []byte) {
	rec := w.applying.rec
	w.contact.now = profile.AppendStates(w.contact.now[:0], blob)
	after, old := profile.IndexStates(w.contact.now), profile.IndexStates(before)
	for _, was := range before {
		// The state was left behind with an address.
		if after.Next(was.State) == nil && differs(was, true, profile.State{Kind: was.Kind}) {
			w.note(p, number, profile.StateChange{
				State: profile.State{Kind: was.Kind, Group: was.Group}, Changed: rec.Stamp, Actor: rec.Actor,
				Source: rec.Source,
			})
		}
	}
	for _, c := range after.List() {
		was, known := profile.StateChange{}, false
		if had := old.Next(c.State); had != nil {
			was, known = *had, true
		}
		if differs(was, known, c.State) {
			w.note(p, number, c)
		}
	}
}

// differs says whether a state that was known, or unknown, has another value now. To have no mark or no email state is
// the same as unknown; not to be in a group isn't.
func differs(was profile.StateChange, known bool, now profile.State) bool {
	return !was.Same(now) || !known && now.Kind == profile.StateGroup
}

// forgetMerged has the trails erased of the profiles that were merged into one that is gone for good.
func (w *Worker) forgetMerged(p *Partition, blob []byte) {
	profile.Merged(blob, func(number, _ uint64) {
		w.send(p, op.Forget, op.MakeFlags(0, op.SvcID), number, nil, nil, false)
	})
}

func (w *Worker) forget(p *Partition, o op.Op) error {
	if _, isUser, err := w.entryAt(p, o.Number()); err != nil || isUser {
		return err
	}
	p.Trail.Erase(o.Number())
	return nil
}

// SuppressedPage is a page of a partition's suppression list, and where the rest begins; see books.SuppressedPage.
func (m *Machine) SuppressedPage(
	partition uint8, q books.SuppressedQuery,
) (page []books.Suppression, next books.Suppression, err error) {
	p, w := m.partitions[partition], m.owner[partition]
	w.Lock()
	pending := p.Suppressed.Pending(q)
	w.Unlock()
	return books.SuppressedPage(m.store, partition, q, pending)
}

// showChange shows a change of a state of the entry at number.
func (w *Worker) showChange(p *Partition, number uint64, c profile.StateChange) {
	a := &w.applying
	s := p.Find(number)
	if a.echoes || s == nil {
		return
	}
	b := w.entryOf(s)
	id, key := profile.HomeID(b)
	a.watcher.Changed(a.rec, profile.Kind(b) == profile.KindUser, number, id, key, c)
}
