package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"millrace/shard/arena"
	"millrace/shard/bodies"
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

// apply does all ops of a record that are addressed to this worker's partitions. The caller holds w.mu.
func (w *worker) apply(c *commit) error {
	a := &w.applying
	w.rec = c.rec
	*a = applying{position: c.Position, rec: &w.rec, live: w.lead != nil, future: c.future}
	w.watch(c)
	stamp, gaps := c.rec.Stamp, c.rec.Gaps
	for rest := c.rec.Ops; len(rest) > 0; a.ordinal++ {
		var o op.Op
		o, rest = op.Next(rest)
		if gaps != nil {
			stamp += op.NextGap(&gaps)
		}
		p := w.e.partitions[o.Partition()]
		if w.e.owner[o.Partition()] != w || c.Position <= p.Applied {
			continue
		}
		a.dropped, a.noted, a.owner = false, 0, 0
		w.rec.Stamp = stamp + int64(a.ordinal)
		if c.messages != nil {
			a.future = c.messages[a.ordinal].Future
		}
		if err := w.applyOp(p, o); err != nil {
			return fmt.Errorf("apply position %d op %d: %w", c.Position, a.ordinal, err)
		}
		if a.dropped && isLogged(o) {
			p.Dropped.Add(books.DroppedEvent{Position: c.Position, Ordinal: a.ordinal})
		}
		if c.messages != nil {
			c.messages[a.ordinal].Applied.Store(true)
			c.messages[a.ordinal].Future.Finish()
		}
	}
	return nil
}

// isLogged says whether the event log would hold the op: an event or purchase, or attributes that a stream carries out;
// also those that a message brings.
func isLogged(o op.Op) bool {
	if o.Kind() == op.Message {
		o = op.Op(effect.MessageRecord(o.Body())[op.HeaderBytes:])
	}
	return o.Kind() == op.Event || o.Kind() == op.Purchase || o.Kind() == op.Attributes && o.Flags().Has(op.Streamed)
}

func (w *worker) applyOp(p *partition, o op.Op) error {
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
func (w *worker) applyToUser(p *partition, o op.Op) error {
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
func (w *worker) pass(p *partition, o op.Op, number uint64) {
	w.applying.dropped = true
	w.send(p, o.Kind(), o.Flags()|op.Resolved, number, o.Body(), o.Key(), true)
}

// applyToNumber is for ops that name a profile by its number: by svc_id, or resolved before they were logged.
func (w *worker) applyToNumber(p *partition, o op.Op) error {
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
	home := w.e.hasher.Number(w.applying.rec.Workspace, flags.ID(), o.Key())
	w.send(p, o.Kind(), flags&^op.Resolved, home, o.Body(), o.Key(), true)
	return nil
}

// follow sends an op that was addressed to a profile to the one that it has been merged into. The external id is not
// that one's: what was on its way under it comes without.
func (w *worker) follow(p *partition, o op.Op, to uint64) {
	w.applying.dropped = true
	id, key := o.Flags().ID(), o.Key()
	if id == op.ExternalID {
		id, key = op.SvcID, nil
	}
	w.send(p, o.Kind(), op.MakeFlags(o.Flags()|op.Resolved, id), to, o.Body(), key, true)
}

// create makes the profile of an external id.
func (w *worker) create(p *partition, number uint64, o op.Op) error {
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
func (w *worker) createWithRow(p *partition, row uint64, o op.Op) error {
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
func (w *worker) freeProfile(p *partition, row uint64) (uint64, error) {
	for n := w.e.hasher.Profile(row); ; n = identity.Next(n) {
		s, at, err := w.passTombstones(p, n)
		if s == nil || err != nil {
			return at, err
		}
		n = at
	}
}

// keep moves what the editor returned into the worker's own scratch.
func (w *worker) keep(b []byte) []byte {
	w.fresh = append(w.fresh[:0], b...)
	return w.fresh
}

// change applies a user op to the profile in s.
func (w *worker) change(p *partition, s *arena.Slot, o op.Op) error {
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
func (w *worker) limit() *profile.Limits {
	n := int(w.applying.rec.MaxArray)
	if n == 0 {
		return &w.e.limits
	}
	if w.limits.MaxArray != n {
		w.limits = w.e.limits
		w.limits.MaxArray = n
	}
	return &w.limits
}

// judge takes note of what the editor says about the op that it has applied.
func (w *worker) judge(number uint64, v profile.Verdict) {
	for _, u := range w.ed.Unmet {
		w.applying.future.Report(u.Ref, effect.OutOfRange+effect.Outcome(u.Why-profile.OutOfRange))
	}
	switch v {
	case profile.JustBlocked:
		w.markDummy(w.e.partitions[identity.Partition(number)], number)
	case profile.Ignored:
		w.applying.dropped = true
	}
}

// deleteUser removes a profile and leaves a tombstone, so that its number is never given again; its directory rows are
// told.
func (w *worker) deleteUser(p *partition, o op.Op) error {
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
	w.e.unblock(s.Number)
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
func (w *worker) eachRow(b []byte, f func(id op.IDKind, key []byte)) {
	var keys entries.Keys
	keys.Read(b)
	for _, k := range keys.List {
		f(k.ID, k.Key)
	}
}

// importUser replaces or creates the profile of the op's key by the one in its body (`millrace import profiles`).
func (w *worker) importUser(p *partition, o op.Op) error {
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
func (w *worker) putImported(
	p *partition, s *arena.Slot, number uint64, had []profile.StateChange, before *entries.Keys,
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

// send puts an effect on another partition into the outbox. Effects on the sender's own partition take the same road
// when the caller doesn't do them at once.
func (w *worker) send(p *partition, kind op.Kind, flags op.Flags, number uint64, body, key []byte, names bool) {
	p.LastMessage++
	p.forgetApplied()
	m := effect.NewMessage(&w.message, p.ID, p.LastMessage, w.applying.owner, w.applying.rec, kind, flags, number, body,
		key, names)
	p.outbox = append(p.outbox, m)
	if m.Token {
		p.tokens.Add(1)
	}
	if !w.applying.live {
		if t := w.applying.future; t != nil { // of a leader that is none any more: another one sends it
			t.Spoil(effect.ErrUnknown)
		}
		return
	}
	w.sent = append(w.sent, m)
	if t := w.applying.future; t != nil {
		m.Future = t
		t.Expect(1)
	}
}

// receive applies a message once: its sequence is kept next to the state it changes.
func (w *worker) receive(p *partition, o op.Op) error {
	body := o.Body()
	sender, seq := body[0], binary.LittleEndian.Uint64(body[1:])
	if p.HasTaken(sender, seq) {
		w.applying.dropped = true
		if t := w.applying.future; t != nil { // what it has caused, who came first with it knows
			t.Spoil(effect.ErrUnknown)
		}
		return nil
	}
	p.Take(sender, seq)
	rec, err := op.ParseRecord(effect.MessageRecord(body), nil)
	if err != nil {
		return err
	}
	outer := w.applying.rec
	w.applying.rec = &rec
	w.applying.owner = binary.LittleEndian.Uint64(body[9:])
	inner, _ := op.Next(rec.Ops)
	err = w.applyOp(p, inner)
	w.applying.rec = outer
	return err
}

// wait keeps a record until all effects of the ops before it are visible.
func (w *worker) wait(p *partition, record []byte) {
	p.LastDeferred++
	seq := p.LastDeferred
	p.Deferred.Add(seq, w.applying.owner, record)
	switch t := w.applying.future; {
	case t != nil && t.IsOf(w.lead):
		t.DeferTo(p.ID, seq)
	case w.lead != nil: // who would release it is gone
		w.lead.Keep(effect.DeferredRef{Partition: p.ID, Seq: seq})
	}
}

// resume takes a waiting record out and sends its ops, which have been addressed anew, on their way.
func (w *worker) resume(p *partition, body []byte) error {
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

// singleOp is a record of one op of rec.
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
