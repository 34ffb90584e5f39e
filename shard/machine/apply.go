package machine

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"runtime"
	"runtime/debug"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// apply does all ops of a record that are addressed to this worker's partitions. The caller holds the lock.
func (w *Worker) apply(c *Commit) error {
	a := &w.applying
	w.rec = c.Rec
	*a = applying{position: c.At, rec: &w.rec, live: w.lead != nil, future: c.Future}
	w.watch(c)
	stamp, gaps := c.Rec.Stamp, c.Rec.Gaps
	touched := GroupOps // how many of the ops ahead are loaded
	for rest := c.Rec.Ops; len(rest) > 0; a.ordinal++ {
		var o op.Op
		here := rest
		o, rest = op.Next(rest)
		if gaps != nil {
			stamp += op.NextGap(&gaps)
		}
		p := w.m.partitions[o.Partition()]
		if w.m.owner[o.Partition()] != w || c.At <= p.Applied {
			continue
		}
		if touched == 0 {
			touched = w.touchSlots(0, here, &c.Rec)
			w.touchEntries(touched)
		}
		touched--
		a.dropped, a.noted, a.owner = false, 0, 0
		w.rec.Stamp = stamp + int64(a.ordinal)
		if c.Messages != nil {
			a.future = c.Messages[a.ordinal].Future
		}
		if err := w.applyOp(p, o); err != nil {
			return fmt.Errorf("apply position %d op %d: %w", c.At, a.ordinal, err)
		}
		if a.dropped && isLogged(o) {
			p.Dropped.Add(books.DroppedOp{Position: c.At, Ordinal: a.ordinal})
		}
		if c.Messages != nil {
			c.Messages[a.ordinal].Applied.Store(true)
			c.Messages[a.ordinal].Future.Finish()
		}
	}
	return nil
}

// applyOther is apply for a record that was not made here. A panic that its bytes cause in apply becomes an error, and
// does not end the process.
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

// watch begins to show a record, when it is new and somebody watches.
func (w *Worker) watch(c *Commit) {
	if a := &w.applying; w.m.opts.Tap != nil && a.live {
		workers := bits.OnesCount64(c.Workers)
		a.watcher = w.m.opts.Tap.Look(a.rec, (c.Rec.Count+workers-1)/max(workers, 1))
	}
}

// isLogged says whether the event log would take in the op: an event, a purchase, a deletion, or attributes that a
// stream carries out, also when a message brings them.
func isLogged(o op.Op) bool {
	if o.Kind() == op.Message {
		o = op.Op(effect.MessageRecord(o.Body())[op.HeaderBytes:])
	}
	switch o.Kind() {
	case op.Event, op.Purchase, op.Delete:
		return true
	}
	return o.Kind() == op.Attributes && o.Flags().Has(op.Streamed)
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
	case op.KeptAnswer:
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

// applyToUser finds the profile that the op is for, creates it where the contract says so, and changes it.
func (w *Worker) applyToUser(p *Partition, o op.Op) error {
	flags, rec := o.Flags(), w.applying.rec
	id := flags.ID()
	// What a message brings may be for nobody. The backup of a cluster has a moment of each group's log, not the same
	// one. So it may have a request that one group relays to another one without the user who was made there before it.
	if !(isByAddress(o) && rec == &w.carried) && w.goesUnread(p, rec.Workspace, o) {
		if kept, err := w.keepUnread(p, o); kept || err != nil {
			return err
		}
	}
	if id == op.SvcID || flags.Has(op.Resolved) {
		return w.applyToNumber(p, o)
	}
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, id, o.Key())
	switch {
	case err != nil:
		return err
	case s == nil && flags.Has(op.UpdateOnly):
		w.applying.dropped = true
		return nil
	case s == nil && id == op.ExternalID:
		return w.create(p, number, o)
	case s == nil:
		return w.createWithRow(p, number, o)
	}
	entry := w.entryOf(s)
	if profile.Kind(entry) == profile.KindUser {
		return w.change(p, s, entry, number, o)
	}
	switch m := entries.Members(entry); {
	case len(m) == 8:
		w.pass(p, o, entries.Member(m, 0))
		return nil
	case len(m) == 0 && flags.Has(op.UpdateOnly):
		w.applying.dropped = true
		return nil
	case len(m) == 0:
		return w.createWithRow(p, number, o)
	}
	// Several profiles share the address, and the choice needs their states (service.md 4.1 rule 3), which only the
	// engine as a whole has. Ordinarily shard/lookup made it before the record was logged; the row has changed
	// since.
	w.applying.dropped = true
	w.wait(p, singleOp(rec, o, o.Flags(), o.Number()))
	return nil
}

// pass hands an op that a directory row has resolved to its profile: by a message, even within the partition, so that
// the log says whose event it is.
func (w *Worker) pass(p *Partition, o op.Op, number uint64) {
	w.applying.dropped = true
	w.send(p, o.Kind(), o.Flags()|op.Resolved, number, o.Body(), o.Key(), true)
}

// applyToNumber applies an op that names a profile by its number: by svc_id, or because it was resolved before it was
// logged.
func (w *Worker) applyToNumber(p *Partition, o op.Op) error {
	s, err := w.lookup(p, o.Number())
	if err != nil {
		return err
	}
	if s != nil {
		b := w.entryOf(s)
		if profile.Kind(b) == profile.KindUser && profile.Workspace(b) == w.applying.rec.Workspace &&
			w.isNamed(s, o.Flags().ID(), o.Key()) {
			return w.change(p, s, b, o.Number(), o)
		}
		if to, ok := entries.Forward(b); ok && profile.Workspace(b) == w.applying.rec.Workspace {
			w.follow(p, o, to)
			return nil
		}
	}
	// The profile has gone since, or never got the name that was promised to it. The identifier may name another
	// profile by now, or make a new one.
	w.applying.dropped = true
	flags := o.Flags()
	if flags.ID() == op.SvcID || len(o.Key()) == 0 {
		return nil
	}
	home := w.m.hasher.Number(w.applying.rec.Workspace, flags.ID(), o.Key())
	w.send(p, o.Kind(), flags&^op.Resolved, home, o.Body(), o.Key(), true)
	return nil
}

// follow sends an op that was addressed to a profile on to the one that the profile has been merged into. The other
// profile doesn't have the external id, so an op that was on its way under it comes without.
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
	if number != o.Number() { // another profile had this external id before: the event log has both under it
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
	return w.change(p, s, w.entryOf(s), number, o)
}

// createWithRow makes a profile whose first identifier has a directory row: the row, unless it exists, and the profile
// beside it.
func (w *Worker) createWithRow(p *Partition, row uint64, o op.Op) error {
	number, err := w.createBeside(p, row, o)
	if err != nil {
		return err
	}
	if err := w.addToRow(p, row, o.Flags().ID(), o.Key(), number); err != nil {
		return err
	}
	s, err := w.lookup(p, number) // inserting the row may have moved it
	if err != nil {
		return err
	}
	return w.change(p, s, w.entryOf(s), number, o)
}

// change applies a user op to the profile in s, which is blob, at number.
func (w *Worker) change(p *Partition, s *arena.Slot, blob []byte, number uint64, o op.Op) error {
	if !p.hasRoom(blob, number, len(o)) {
		entries.Overgrown.Inc()
		w.applying.dropped = true
		return nil
	}
	w.applying.user = number
	if o.Kind() == op.Attributes && o.Flags().Has(op.Contact) {
		return w.changeContact(p, s, number, o)
	}
	return w.applyIn(s, number, o)
}

// receive applies a message once: its sequence is kept next to the state that it changes.
func (w *Worker) receive(p *Partition, o op.Op) error {
	body := o.Body()
	sender, seq := body[0], binary.LittleEndian.Uint64(body[1:])
	if p.HasTaken(sender, seq) {
		w.applying.dropped = true
		if t := w.applying.future; t != nil { // only its first delivery knows its effects
			t.Spoil(effect.ErrUnknown)
		}
		return nil
	}
	p.Take(sender, seq)
	rec, err := op.ParseRecord(effect.MessageRecord(body), nil)
	if err != nil {
		return err
	}
	inner, _ := op.Next(rec.Ops)
	if inner.Kind() == op.Message {
		return fmt.Errorf("%w: a message in a message", op.ErrMalformed)
	}
	outer := w.applying.rec
	w.carried = rec
	w.applying.rec = &w.carried
	w.applying.owner = binary.LittleEndian.Uint64(body[9:])
	err = w.applyOp(p, inner)
	w.applying.rec = outer
	return err
}

// wait keeps a record until all effects of the ops before it are visible.
func (w *Worker) wait(p *Partition, record []byte) {
	p.LastDeferred++
	seq := p.LastDeferred
	p.Deferred.Add(seq, w.applying.owner, record)
	switch t := w.applying.future; {
	case t != nil && t.IsOf(w.lead):
		t.DeferTo(p.ID, seq)
	case w.lead != nil: // nobody is left who would release it
		w.lead.Keep(effect.DeferredRef{Partition: p.ID, Seq: seq})
	}
}

// resume takes a waiting record out of its book and sends its ops, which have been addressed anew, on their way.
func (w *Worker) resume(p *Partition, body []byte) error {
	seq := binary.LittleEndian.Uint64(body)
	d := p.Deferred.Remove(seq)
	if d == nil { // released before
		return nil
	}
	rec, err := op.ParseRecord(body[8:], nil)
	if err != nil {
		return err
	}
	w.applying.owner = d.Owner
	w.sendAll(p, &rec)
	return nil
}

// singleOp is a record that has one op of rec only.
func singleOp(rec *op.Record, o op.Op, flags op.Flags, number uint64) []byte {
	var b op.Builder
	b.Reset(0)
	b.MaxArray, b.Source = rec.MaxArray, rec.Source
	for _, n := range rec.Names {
		b.Name(n)
	}
	b.Append(o.Kind(), flags, number, o.Body(), o.Key())
	return b.Finish(rec.Workspace, rec.Actor, rec.Stamp)
}
