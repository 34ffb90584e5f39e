package shard

import (
	"slices"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What the trail of consent has: see package books.
type (
	StateChange = books.StateChange
	Stay        = books.Stay
	Trail       = books.History
)

// TrailOf reads the trail of the entry at number.
func (e *Replica) TrailOf(number uint64) (Trail, error) {
	p, w := e.partitions[identity.Partition(number)], e.owner[identity.Partition(number)]
	w.mu.Lock()
	pending := p.Trail.Pending(number)
	w.mu.Unlock()
	return books.HistoryOf(e.store, number, pending)
}

// nextNote is the place of the next entry that the op at hand makes.
func (w *worker) nextNote() books.Place {
	a := &w.applying
	a.noted++
	return books.Place{Position: a.position, Index: uint64(a.ordinal)<<32 | uint64(a.noted-1)}
}

// noteMerge tells readers of the log that a user has come to the one at number, noteIdentify that this one has got an
// external id.
func (w *worker) noteMerge(p *partition, number, gone uint64, externalID []byte) {
	w.unwritten += p.Trail.AddMerge(w.nextNote(), number, w.rec.Stamp, gone, externalID)
}

func (w *worker) noteIdentify(p *partition, number uint64, externalID []byte) {
	w.unwritten += p.Trail.AddIdentify(w.nextNote(), number, w.rec.Stamp, externalID)
}

// note adds a change of a state of the entry at number to the trail.
func (w *worker) note(p *partition, number uint64, c profile.StateChange) {
	w.unwritten += p.Trail.AddChange(w.nextNote(), number, c, w.rec.Stamp)
	trailEntries.Inc()
	if w.applying.watcher != nil {
		w.showChange(p, number, c)
	}
}

// noteStay adds that the profile at number has left an address.
func (w *worker) noteStay(p *partition, number uint64, s Stay) {
	w.unwritten += p.Trail.AddStay(w.nextNote(), number, s)
}

// noteAll adds what has become of the states of the entry at number, which were before, to the trail.
func (w *worker) noteAll(p *partition, number uint64, before []profile.StateChange, blob []byte) {
	rec := w.applying.rec
	w.contact.now = profile.AppendStates(w.contact.now[:0], blob)
	after := w.contact.now
	for _, was := range before {
		if !bodies.Sets(after, was.State) && differs(was, true, State{Kind: was.Kind}) { // it was left behind with an address
			w.note(p, number, profile.StateChange{
				State: State{Kind: was.Kind, Group: was.Group}, Changed: rec.Stamp, Actor: rec.Actor, Source: rec.Source,
			})
		}
	}
	for _, c := range after {
		i := slices.IndexFunc(before, func(was profile.StateChange) bool { return was.Is(c.State) })
		was := profile.StateChange{}
		if i >= 0 {
			was = before[i]
		}
		if differs(was, i >= 0, c.State) {
			w.note(p, number, c)
		}
	}
}

// differs says whether a state that was known, or was not, has another value now. To have no mark and no email state is
// the same as not to know; not to be in a group isn't.
func differs(was profile.StateChange, known bool, now State) bool {
	return !was.Same(now) || !known && now.Kind == GroupState
}

// forgetMerged has the trails erased of profiles that were merged into one that is gone for good.
func (w *worker) forgetMerged(p *partition, blob []byte) {
	profile.Merged(blob, func(number, _ uint64) {
		w.send(p, op.Forget, op.MakeFlags(0, op.SvcID), number, nil, nil, false)
	})
}

func (w *worker) forget(p *partition, o op.Op) error {
	if _, isUser, err := w.entryAt(p, o.Number()); err != nil || isUser {
		return err
	}
	p.Trail.Erase(o.Number())
	return nil
}
