package machine

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// errTooLarge: an entry would outgrow the largest block.
var errTooLarge = errors.New("entry is too large")

// applying is the record that a worker has in hand. Apply is a pure function of the partition's state and the record:
// no clock, no randomness, no map order; replay, and every replica, come to the same state and emit the same messages
// with the same sequences.
type applying struct {
	position uint64
	ordinal  uint32         // of the op within its record
	rec      *op.Record     // its Stamp is the op's
	live     bool           // not a replay: messages are sent
	future   *effect.Future // who waits for the op and its effects; may be nobody
	owner    uint64         // of a request with an Idempotency-Key, in a cluster: the key's home number; else 0
	dropped  bool           // the op at hand had no effect
	noted    uint32         // changes of states that the op at hand has made
	watcher  Watcher        // who looks on; nil: nobody
	user     uint64         // of the object at hand, when it was there or made
	echoes   bool           // the op at hand brings states to an address that were shown of its user
}

// apply does all ops of a record that are addressed to this worker's partitions. The caller holds the lock.
func (w *Worker) apply(c *Commit) error {
	a := &w.applying
	w.rec = c.Rec
	*a = applying{position: c.At, rec: &w.rec, live: w.lead != nil, future: c.Future}
	w.watch(c)
	stamp, gaps := c.Rec.Stamp, c.Rec.Gaps
	for rest := c.Rec.Ops; len(rest) > 0; a.ordinal++ {
		var o op.Op
		o, rest = op.Next(rest)
		if gaps != nil {
			stamp += op.NextGap(&gaps)
		}
		p := w.m.partitions[o.Partition()]
		if w.m.owner[o.Partition()] != w || c.At <= p.Applied {
			continue
		}
		a.dropped, a.noted, a.owner = false, 0, 0
		w.rec.Stamp = stamp + int64(a.ordinal)
		if c.Messages != nil {
			a.future = c.Messages[a.ordinal].Future
		}
		if err := w.applyOp(p, o); err != nil {
			return fmt.Errorf("apply position %d op %d: %w", c.At, a.ordinal, err)
		}
		if a.dropped && isLogged(o) {
			p.Dropped.Add(books.DroppedEvent{Position: c.At, Ordinal: a.ordinal})
		}
		if c.Messages != nil {
			c.Messages[a.ordinal].Applied.Store(true)
			c.Messages[a.ordinal].Future.Finish()
		}
	}
	return nil
}

// applyOther is apply for a record that was not made here. What its bytes make of apply is no reason to end the
// process.
func (w *Worker) applyOther(c *Commit) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			w.m.opts.Logger.Error("a record can't be applied", "position", c.At, "error", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("apply position %d op %d: %w: %w", c.At, w.applying.ordinal, op.ErrMalformed, p)
		default:
			panic(p)
		}
	}()
	return w.apply(c)
}

// isLogged says whether the event log would hold the op: an event or purchase, or attributes that a stream carries out;
// also those that a message brings.
func isLogged(o op.Op) bool {
	if o.Kind() == op.Message {
		o = op.Op(effect.MessageRecord(o.Body())[op.HeaderBytes:])
	}
	return o.Kind() == op.Event || o.Kind() == op.Purchase || o.Kind() == op.Attributes && o.Flags().Has(op.Streamed)
}

func (w *Worker) applyOp(p *Partition, o op.Op) error {
	switch o.Kind() {
	case op.Attributes, op.Event, op.Purchase:
		return w.applyObject(p, o)
	case op.Message:
		return w.receive(p, o)
	case op.Deferred:
		w.wait(p, o.Body())
		return nil
	case op.Resume:
		return w.resume(p, o.Body())
	case op.Claim:
		return w.claim(p, o)
	case op.Grant:
		return w.grant(p, o)
	case op.Unname:
		return w.unname(p, o)
	case op.Merge:
		return w.merge(p, o)
	case op.Pin:
		return w.pin(p, o)
	case op.Seal:
		return w.seal(p, o)
	case op.Absorb:
		return w.absorb(p, o)
	case op.Unpin:
		return w.unpin(p, o)
	case op.Forget:
		return w.forget(p, o)
	case op.RowMove:
		return w.moveMember(p, o)
	case op.RowAdd:
		return w.addMember(p, o)
	case op.RowRemove:
		return w.removeMember(p, o)
	case op.RowState:
		return w.setRowState(p, o)
	case op.Left:
		return w.left(p, o)
	case op.Delete:
		return w.deleteUser(p, o)
	case op.Idempotency:
		return w.keepAnswer(p, o)
	case op.Import:
		return w.importUser(p, o)
	case op.Relay:
		return w.relay(p, o)
	case op.Delivered:
		return w.forgetArrived(p, o.Body())
	case op.Sweep:
		return w.sweep(p)
	case op.Document:
		return w.putDocuments(o)
	}
	return fmt.Errorf("%w: kind %d", op.ErrMalformed, o.Kind())
}

// applyToUser finds the profile that the op is for, creates it where the contract says so, and changes it.
func (w *Worker) applyToUser(p *Partition, o op.Op) error {
	flags, rec := o.Flags(), w.applying.rec
	id := flags.ID()
	if id == op.SvcID || flags.Has(op.Resolved) {
		return w.applyToNumber(p, o)
	}
	if w.goesUnread(p, rec.Workspace, o) {
		if kept, err := w.keepUnread(p, o); kept || err != nil {
			return err
		}
	}
	s, free, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	switch {
	case err != nil:
		return err
	case s == nil && flags.Has(op.UpdateOnly):
		w.applying.dropped = true
		return nil
	case s == nil && id == op.ExternalID:
		return w.create(p, free, o)
	case s == nil:
		return w.createWithRow(p, free, o)
	case profile.Kind(w.entryOf(s)) == profile.KindUser:
		return w.change(p, s, o)
	}
	switch m := entries.Members(w.entryOf(s)); {
	case len(m) == 8:
		w.pass(p, o, entries.Member(m, 0))
		return nil
	case len(m) == 0 && flags.Has(op.UpdateOnly):
		w.applying.dropped = true
		return nil
	case len(m) == 0:
		return w.createWithRow(p, s.Number, o)
	}
	// Several profiles share the address, and the choice needs their states (service.md 4.1 rule 3), which only the
	// server as a whole has. Ordinarily resolve.go made it before the record was logged; the row has changed since.
	w.applying.dropped = true
	w.wait(p, singleOp(rec, o, o.Flags(), o.Number()))
	return nil
}

// pass hands an op that a directory row has resolved to its profile: by a message also within the partition, so that
// the log says whose event it is.
func (w *Worker) pass(p *Partition, o op.Op, number uint64) {
	w.applying.dropped = true
	w.send(p, o.Kind(), o.Flags()|op.Resolved, number, o.Body(), o.Key(), true)
}

// applyToNumber is for ops that name a profile by its number: by svc_id, or resolved before they were logged.
func (w *Worker) applyToNumber(p *Partition, o op.Op) error {
	s, err := w.lookup(p, o.Number())
	if err != nil {
		return err
	}
	if s != nil {
		b := w.entryOf(s)
		if profile.Kind(b) == profile.KindUser && profile.Workspace(b) == w.applying.rec.Workspace &&
			entries.IsNamed(b, o.Flags().ID(), o.Key()) {
			return w.change(p, s, o)
		}
		if to, ok := entries.Forward(b); ok && profile.Workspace(b) == w.applying.rec.Workspace {
			w.follow(p, o, to)
			return nil
		}
	}
	// The profile is gone since, or never got the name that was promised to it. An identifier may name another one by
	// now, or make a new one.
	w.applying.dropped = true
	flags := o.Flags()
	if flags.ID() == op.SvcID || len(o.Key()) == 0 {
		return nil
	}
	home := w.m.hasher.Number(w.applying.rec.Workspace, flags.ID(), o.Key())
	w.send(p, o.Kind(), flags&^op.Resolved, home, o.Body(), o.Key(), true)
	return nil
}

// follow sends an op that was addressed to a profile to the one that it has been merged into. The external id is not
// that one's: what was on its way under it comes without.
func (w *Worker) follow(p *Partition, o op.Op, to uint64) {
	w.applying.dropped = true
	id, key := o.Flags().ID(), o.Key()
	if id == op.ExternalID {
		id, key = op.SvcID, nil
	}
	w.send(p, o.Kind(), op.MakeFlags(o.Flags()|op.Resolved, id), to, o.Body(), key, true)
}

// create makes the profile of an external id.
func (w *Worker) create(p *Partition, number uint64, o op.Op) error {
	rec := w.applying.rec
	w.fresh = profile.New(w.fresh[:0], rec.Workspace, o.Flags().ID(), o.Key(), rec.Stamp)
	if number != o.Number() { // another one had this external id before: the event log has both under it
		w.keep(w.ed.SetBorn(w.fresh, w.place()))
		w.setApart(p, o.Number(), books.ApartElsewhere)
	}
	plain := o.Kind() != op.Attributes || !o.Flags().Has(op.Contact)
	if plain { // the op goes into the scratch, so that the profile gets its place once, with its size
		out, verdict := w.ed.Apply(w.fresh, o, rec, w.limit())
		w.judge(number, verdict)
		w.keep(out)
	}
	s, err := w.insert(p, number, w.fresh)
	if err != nil {
		return err
	}
	profilesCreated.Inc()
	w.applying.user = number
	if plain {
		return nil
	}
	return w.change(p, s, o)
}

// createWithRow makes a profile whose first identifier has a directory row: the row (unless it is there) and the
// profile beside it.
func (w *Worker) createWithRow(p *Partition, row uint64, o op.Op) error {
	rec, id := w.applying.rec, o.Flags().ID()
	number, err := w.freeProfile(p, row)
	if err != nil {
		return err
	}
	w.fresh = profile.New(w.fresh[:0], rec.Workspace, id, o.Key(), rec.Stamp)
	// This op alone is in the log under the identifier, the later ones are resolved.
	w.keep(w.ed.SetBorn(w.fresh, w.place()))
	if id == op.Email || id == op.Phone {
		w.keep(w.ed.SetJoined(w.fresh, id, rec.Stamp))
	}
	if _, err := w.insert(p, number, w.fresh); err != nil {
		return err
	}
	if err := w.addToRow(p, row, id, o.Key(), number); err != nil {
		return err
	}
	profilesCreated.Inc()
	s, err := w.lookup(p, number) // inserting the row may have moved it
	if err != nil {
		return err
	}
	return w.change(p, s, o)
}

// freeProfile is the number for a profile beside the directory row with number row.
func (w *Worker) freeProfile(p *Partition, row uint64) (uint64, error) {
	for n := w.m.hasher.Profile(row); ; n = identity.Next(n) {
		s, at, err := w.passTombstones(p, n)
		if s == nil || err != nil {
			return at, err
		}
		n = at
	}
}

// keep moves what the editor returned into the worker's own scratch.
func (w *Worker) keep(b []byte) []byte {
	w.fresh = append(w.fresh[:0], b...)
	return w.fresh
}

// change applies a user op to the profile in s.
func (w *Worker) change(p *Partition, s *arena.Slot, o op.Op) error {
	if !w.hasRoom(p, s, len(o)) {
		entries.Overgrown.Inc()
		w.applying.dropped = true
		return nil
	}
	w.applying.user = s.Number
	if o.Kind() == op.Attributes && o.Flags().Has(op.Contact) {
		return w.changeContact(p, s, o)
	}
	return w.applyIn(s, o)
}

// limit is what bounds a profile for the record at hand.
func (w *Worker) limit() *profile.Limits {
	n := int(w.applying.rec.MaxArray)
	if n == 0 {
		return &w.m.limits
	}
	if w.limits.MaxArray != n {
		w.limits = w.m.limits
		w.limits.MaxArray = n
	}
	return &w.limits
}

// judge takes note of what the editor says about the op that it has applied.
func (w *Worker) judge(number uint64, v profile.Verdict) {
	for _, u := range w.ed.Unmet {
		w.applying.future.Report(u.Ref, effect.OutOfRange+effect.Outcome(u.Why-profile.OutOfRange))
	}
	switch v {
	case profile.JustBlocked:
		w.markDummy(w.m.partitions[identity.Partition(number)], number)
	case profile.Ignored:
		w.applying.dropped = true
	}
}

// deleteUser removes a profile and leaves a tombstone, so that its number is never given again; its directory rows are
// told.
func (w *Worker) deleteUser(p *Partition, o op.Op) error {
	s, err := w.lookup(p, o.Number())
	if s == nil || err != nil {
		return err
	}
	b := w.entryOf(s)
	if profile.Kind(b) != profile.KindUser || profile.Workspace(b) != w.applying.rec.Workspace {
		return nil
	}
	rec := w.applying.rec
	p.Trail.Erase(s.Number)
	w.forgetMerged(p, b)
	if !bytes.Equal(o.Body(), w.appendErased(b, s.Number, profile.Place{})) {
		// It has changed since the op was made: the event log must know of more.
		w.eraseEvents(p, s.Number, w.appendErased(b, s.Number, w.place()))
	}
	w.eraseElsewhere(p, b)
	w.m.unblock(s.Number)
	w.eachRow(b, func(id op.IDKind, key []byte) {
		w.tellRow(p, op.RowRemove, 0, id, key, s.Number, nil)
	})
	w.fresh = entries.AppendTombstone(w.fresh[:0], rec.Workspace, rec.Stamp)
	// A row of this partition may have gone and moved slots.
	if s, err = w.lookup(p, o.Number()); err != nil || s == nil {
		return err
	}
	profilesDeleted.Inc()
	w.setApart(p, s.Number, books.ApartElsewhere)
	return w.update(s, w.fresh)
}

// eachRow calls f for every directory row that a profile stands in.
func (w *Worker) eachRow(b []byte, f func(id op.IDKind, key []byte)) {
	var keys entries.Keys
	keys.Read(b)
	for _, k := range keys.List {
		f(k.ID, k.Key)
	}
}
