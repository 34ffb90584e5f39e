package machine

import (
	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A change that needs nothing of a profile doesn't read it. Once the state is larger than the memory, an op for a user
// who is not in memory is kept as a change in the user's delta (package entries). Checkpoints write deltas as operands,
// together with how far the partition has applied the log, so that none is written twice. The store folds them into
// profiles when it compacts or is read. A worker folds them when an op needs the profile, which is then in memory.
//
// A change that is kept unread has the same effect as if the profile had been read: needsProfile and goesUnread list
// the ops for which that would not hold.

// needsProfile says whether the effect of an op, or its answer, depends on the profile, or reaches beyond it.
func needsProfile(o op.Op) bool {
	flags := o.Flags()
	switch o.Kind() {
	case op.Attributes, op.Event, op.Purchase:
	default: // names, merges, states, deletes: they answer, or send messages, by what the profile has
		return true
	}
	switch {
	case flags.Has(op.Contact): // what was there before decides what rows are told and what goes into the trail
		return true
	case isByAddress(o): // a row has or had the user, who is there unless the number is set apart
	// An alias may be promised to a user who doesn't get it; a svc_id may be nobody's, and makes no profile.
	case flags.ID() != op.ExternalID:
		return true
	case flags.Has(op.Resolved): // the profile says whether it still has the name
		return true
	case o.Kind() == op.Attributes && op.HasOperators(o.Body()): // their outcomes are answered
		return true
	}
	return len(o) > entries.MaxDeltaBytes/2 // and ops with more names than entries.AppendChange takes
}

// isByAddress says whether an op is for a user who was found by an email or a phone. A user who has left the address
// since gets the op nevertheless.
func isByAddress(o op.Op) bool {
	id := o.Flags().ID()
	return o.Flags().Has(op.Resolved) && (id == op.Email || id == op.Phone)
}

// deltaName is the identifier that the delta of an op has: an external id, or none for an op by address.
func deltaName(o op.Op) (op.IDKind, []byte) {
	if isByAddress(o) {
		return op.NoID, nil
	}
	return op.ExternalID, o.Key()
}

// goesUnread says whether an op of a workspace is to be kept as a change of a user who isn't in memory. The caller
// holds the lock.
func (w *Worker) goesUnread(p *Partition, workspace uint32, o op.Op) bool {
	if p.complete || !w.isTight || w.m.opts.MaxDeltaChanges < 0 || needsProfile(o) {
		return false
	}
	number := o.Number()
	if s := p.Find(number); s != nil {
		b := w.entryOf(s)
		id, key := deltaName(o)
		// a user with many changes is read
		return profile.Kind(b) == entries.KindDelta && entries.Delta(b).Changes() < w.m.opts.MaxDeltaChanges &&
			len(b)+len(o) <= entries.MaxDeltaBytes && entries.IsOf(b, workspace, id, key)
	}
	switch {
	case p.Apart.Has(number): // a row may lie there, which sends the op on; or the profile may be near a limit
		return false
	case p.isDeleted(number): // the store still has what was erased
		return false
	case p.held[number] != nil: // the profile keeps room for those that are merged into it
		return false
	// Without a profile it has no effect, and the event log must know. A user who was found by an address is there.
	case o.Flags().Has(op.UpdateOnly) && !isByAddress(o):
		return w.isKnown(workspace, o)
	}
	return true
}

// keepUnread keeps an op unread; false: the profile has to be read after all.
func (w *Worker) keepUnread(p *Partition, o op.Op) (kept bool, err error) {
	rec, before := w.applying.rec, w.arena.Used
	w.applying.user = o.Number()
	defer func() { w.deltas += w.arena.Used - before }()
	s := p.Find(o.Number())
	if s == nil {
		id, key := deltaName(o)
		w.fresh = entries.AppendDelta(w.fresh[:0], rec.Workspace, id, key)
		if w.fresh, kept = entries.AppendChange(w.fresh, o, rec, w.place()); kept {
			entries.Delta(w.fresh).SetSize(1)
			_, err = w.insert(p, o.Number(), w.fresh)
			if id == op.ExternalID {
				w.know(o.Number(), rec.Workspace, key) // the op makes the user, if there is none
			}
			changesUnread.Inc()
		}
		return kept, err
	}
	if w.fresh, kept = entries.AppendChange(w.fresh[:0], o, rec, w.place()); !kept {
		return false, nil
	}
	b := w.entryOf(s)
	changes := entries.Delta(b).Changes() + 1
	if len(b)+len(w.fresh) > cap(b) {
		w.row = append(w.row[:0], b...)
		b = w.row
	}
	b = append(b, w.fresh...)
	entries.Delta(b).SetSize(changes)
	changesUnread.Inc()
	return true, w.update(s, b)
}

// takeNoted sets the numbers apart that the store has noted. The caller holds the lock.
func (w *Worker) takeNoted() {
	for _, number := range w.noted.take() {
		w.setApart(w.m.partitions[identity.Partition(number)], number, books.ApartLarge)
	}
}

var changesUnread = metrics.NewCounter("millrace_changes_unread_total")
