package machine

import (
	"math/bits"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Tap looks on while replicas that lead apply what is new (Options.Tap); replay shows it nothing. Workers call it,
// several at once and with their locks held: it must be quick, not call the engine, and keep no bytes that it is lent.
type Tap interface {
	// Look is asked once for each record by each worker that it concerns, with about how many of its objects are for
	// this one. nil: nobody looks, which must be told at next to no cost.
	Look(rec *op.Record, objects int) Watcher
}

// Watcher is shown the changes of one record. rec may be another one than Look was given: what a message brought.
type Watcher interface {
	// Applied is called for each object (Attributes, Event, Purchase) that had an effect on the user.
	Applied(rec *op.Record, o op.Op, user uint64)
	// Changed is called for each state that has another value now, of a user or of an address; id and key are the first
	// identifier of the one, or the address.
	Changed(rec *op.Record, isUser bool, number uint64, id op.IDKind, key []byte, c profile.StateChange)
}

// watch begins to show a record, when it is new and somebody looks.
func (w *Worker) watch(c *Commit) {
	if a := &w.applying; w.m.opts.Tap != nil && a.live {
		workers := bits.OnesCount64(c.Workers)
		a.watcher = w.m.opts.Tap.Look(a.rec, (c.Rec.Count+workers-1)/max(workers, 1))
	}
}

// applyObject applies an object of a request, and shows it.
func (w *Worker) applyObject(p *Partition, o op.Op) error {
	a := &w.applying
	a.user = 0
	err := w.applyToUser(p, o)
	if a.watcher != nil && a.user != 0 && !a.dropped && err == nil {
		a.watcher.Applied(a.rec, o, a.user)
	}
	return err
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
