package machine

import (
	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A merge takes a profile (gone) into another one (keep), each in its own partition. It is one token that travels, as a
// message in an outbox or an entry of a waiting list (hold.go), so that the merge happens once or not at all, whatever
// crashes in between:
//
//	Merge   to gone    asks keep to stay where it is
//	Pin     to keep    keep is pinned: it isn't deleted, doesn't leave for another profile, and keeps room, until gone
//	                   has come, or doesn't come
//	Seal    to gone    gone leaves: its entry becomes a tombstone that leads to keep; all that it has goes along
//	Absorb  to keep    keep takes gone in, tells the directory, and has one pin less
//	Unpin   to keep    gone can't come: it was merged elsewhere or deleted
//
// A profile that is pinned and should itself leave makes those wait that want to leave with it. A merge waits with its
// pin in hand only if gone has the smaller number; otherwise it gives the pin back, and begins anew when gone is free.
// So no cycle of merges stands still, and the one with the smallest number always goes on.
//
// For the choice among the users of an address, nothing has begun until Absorb, and then everything is done at once
// (entries.Departed): gone is one of them, as it left, although its entry is a tombstone.
//
// What reaches a tombstone that leads on (an op by svc_id or by an older look-up, a name that was granted) follows the
// profile, behind all that it had sent before it left.

// ended ends a merge: its token is not sent on.
func (w *Worker) ended(m *bodies.Merge, outcome effect.Outcome, counter *metrics.Counter) {
	if counter != nil {
		counter.Inc()
	}
	w.applying.future.Report(m.Ref, outcome) // /users/merge has no future, since nobody waits for it
}

// sendMerge sends the token on.
func (w *Worker) sendMerge(p *Partition, kind op.Kind, number uint64, m bodies.Merge, key []byte) {
	w.send(p, kind, op.MakeFlags(0, op.SvcID), number, m.Append(nil), key, false)
}

// mergeInto begins the merge of an identify: holder has the external id.
func (w *Worker) mergeInto(p *Partition, o op.Op, c bodies.Claim, holder uint64) {
	w.sendMerge(p, op.Merge, c.Profile, bodies.Merge{Other: holder, Mode: c.Mode, Ref: c.Ref}, o.Key())
}

// claimAgain sends the claim of an identify anew, when the profile that had the external id no longer has it: the id's
// row knows who is next.
func (w *Worker) claimAgain(p *Partition, o op.Op, m *bodies.Merge, gone uint64) {
	c := bodies.Claim{Profile: gone, Kind: bodies.ClaimIdentify, Mode: m.Mode, Ref: m.Ref}
	home := w.m.hasher.Number(w.applying.rec.Workspace, op.ExternalID, o.Key())
	w.send(p, op.Claim, op.MakeFlags(0, op.ExternalID), home, c.Append(nil), o.Key(), false)
}

// forwardOf is the number that the profile in s has gone to, 0 when it has not gone.
func (w *Worker) forwardOf(s *arena.Slot) uint64 {
	if s == nil {
		return 0
	}
	to, _ := entries.Forward(w.entryOf(s))
	return to
}

// merge begins the merge of the profile at this number, which is to leave.
func (w *Worker) merge(p *Partition, o op.Op) error {
	m, _, err := bodies.ParseMerge(o.Body())
	if err != nil {
		return err
	}
	gone, identify := o.Number(), len(o.Key()) > 0
	if future := w.applying.future; !identify && future != nil { // nobody waits for /users/merge
		w.applying.future = nil
		defer func() { w.applying.future = future }()
	}
	s, isUser, err := w.entryAt(p, gone)
	if err != nil {
		return err
	}
	w.leave(p, s, isUser, m, o)
	return nil
}

// leave has the profile at this number leave as far as it now can: by asking for the Pin, or when it is no longer
// pinned itself.
func (w *Worker) leave(p *Partition, s *arena.Slot, isUser bool, m bodies.Merge, o op.Op) {
	gone, identify := o.Number(), len(o.Key()) > 0
	switch to := w.forwardOf(s); {
	case to != 0 && identify:
		w.sendMerge(p, op.Merge, to, m, o.Key())
	case gone == m.Other:
		w.ended(&m, effect.Done, mergesIdle)
	case !isUser:
		w.ended(&m, effect.Nobody, mergesIdle)
	case identify && profile.Identified(w.entryOf(s)):
		w.ended(&m, effect.Identified, mergesIdle)
	case p.isPinned(gone):
		w.park(p, op.Merge, gone, m.Append(nil), o.Key())
	default:
		w.askFor(p, s, m, o.Key())
	}
}

// askFor sends the Pin for the profile in s.
func (w *Worker) askFor(p *Partition, s *arena.Slot, m bodies.Merge, key []byte) {
	keep := m.Other
	m.Other, m.Room = p.Number(s), uint32(w.size(s)+w.size(s)/4+mergeSlack)
	w.sendMerge(p, op.Pin, keep, m, key)
}

// mergeSlack is by how many bytes, besides a quarter of its size, a profile may grow between Pin and Seal. If it grows
// more, the merge begins anew.
const mergeSlack = 1 << 10

// mergeSpare is how many bytes of an entry the profiles on the way to it leave free together, for what it gets besides.
const mergeSpare = 1 << 20

// pin pins the profile at this number, which is to take another one in.
func (w *Worker) pin(p *Partition, o op.Op) error {
	m, _, err := bodies.ParseMerge(o.Body())
	if err != nil {
		return err
	}
	keep, gone, identify := o.Number(), m.Other, len(o.Key()) > 0
	s, isUser, err := w.entryAt(p, keep)
	if err != nil {
		return err
	}
	to := w.forwardOf(s)
	switch {
	case identify && !(isUser && w.isNamed(s, op.ExternalID, o.Key())):
		w.claimAgain(p, o, &m, gone)
	case to == gone && to != 0:
		w.ended(&m, effect.Done, mergesIdle)
	case to != 0:
		w.sendMerge(p, op.Pin, to, m, o.Key())
	case !isUser:
		w.ended(&m, effect.Nobody, mergesIdle)
	case w.size(s)+int(m.Room)+entries.ProfileSlack > arena.MaxEntryBytes:
		if w.applying.live {
			w.m.opts.Logger.Warn("a merge of two profiles that are too large together has no effect",
				"gone_bytes", m.Room, "keep_bytes", w.size(s))
		}
		w.ended(&m, effect.Taken, mergesTooLarge)
	case p.waits(keep), p.isPinned(keep) && w.size(s)+p.reserved(keep)+int(m.Room)+mergeSpare > arena.MaxEntryBytes:
		w.park(p, op.Pin, keep, m.Append(nil), o.Key())
	default:
		p.hold(keep, int(m.Room))
		m.Other = keep
		w.sendMerge(p, op.Seal, gone, m, o.Key())
	}
	return nil
}

// seal makes the profile at this number leave for the one that is pinned for it, if it still can.
func (w *Worker) seal(p *Partition, o op.Op) error {
	m, _, err := bodies.ParseMerge(o.Body())
	if err != nil {
		return err
	}
	gone, keep, identify := o.Number(), m.Other, len(o.Key()) > 0
	s, isUser, err := w.entryAt(p, gone)
	if err != nil {
		return err
	}
	pinned := p.isPinned(gone)
	if isUser && pinned && gone < keep {
		w.park(p, op.Seal, gone, m.Append(nil), o.Key())
		return nil
	}
	if isUser && !pinned && w.size(s) <= int(m.Room) && !(identify && profile.Identified(w.entryOf(s))) {
		return w.depart(p, s, m, o.Key())
	}
	w.sendMerge(p, op.Unpin, keep, bodies.Merge{Other: gone, Room: m.Room}, nil)
	w.leave(p, s, isUser, m, o) // if it asks once more, the profile has grown
	return nil
}

// depart makes the profile in s a tombstone that leads to keep, where all that the profile has goes. keep tells the
// directory about all names except the external ids, which are free from now on.
func (w *Worker) depart(p *Partition, s *arena.Slot, m bodies.Merge, key []byte) error {
	blob, rec, gone, keep := w.entryOf(s), w.applying.rec, p.Number(s), m.Other
	var keys entries.Keys
	keys.Read(blob)
	for _, k := range keys.List {
		if k.ID == op.ExternalID {
			w.tellRow(p, op.RowRemove, 0, k.ID, k.Key, gone, nil)
		}
	}
	departed := entries.Departed{Identified: profile.Identified(blob), Updated: profile.Updated(blob)}
	for i, id := range entries.Addresses {
		if key := keys.Of(id); key != nil {
			departed.Rows[i], departed.Brings[i] = w.m.hasher.Number(rec.Workspace, id, key), m.Mode.Brings(id)
			w.noteStay(p, gone, books.Stay{ID: id, Key: key, Since: profile.Joined(blob, id), Until: w.rec.Stamp})
		}
	}
	w.fresh = append(w.fresh[:0], blob...)
	w.keep(w.ed.AddFormer(w.fresh, w.formerOf(blob, gone)))
	m.Other = gone
	w.send(p, op.Absorb, op.MakeFlags(0, op.SvcID), keep, append(m.Append(nil), w.fresh...), key, false)
	w.fresh = entries.AppendForward(w.fresh[:0], rec.Workspace, &departed, keep)
	w.m.unblock(gone)
	w.setApart(p, gone, books.ApartElsewhere)
	return w.update(s, w.fresh)
}

// absorb makes the profile at this number take in the one that comes to it.
func (w *Worker) absorb(p *Partition, o op.Op) error {
	m, theirs, err := bodies.ParseMerge(o.Body())
	if err != nil {
		return err
	}
	keep, gone := o.Number(), m.Other
	p.unhold(keep, int(m.Room))
	s, isUser, err := w.entryAt(p, keep)
	if err != nil {
		return err
	}
	if !isUser {
		panic("BUG: a pinned profile is gone")
	}
	var rows entries.Keys // rows that lead to gone
	rows.Read(theirs)
	if err := w.takeIn(p, s, gone, theirs, rows, m.Mode); err != nil {
		return err
	}
	w.ended(&m, effect.Done, mergesDone)
	return w.proceed(p, keep)
}

// takeIn merges a profile into the one in s. The rows lead to that one from now on, as far as it has their addresses.
func (w *Worker) takeIn(
	p *Partition, s *arena.Slot, gone uint64, theirs []byte, rows entries.Keys, mode profile.MergeMode,
) error {
	keep, mine := p.Number(s), w.open(s)
	var before, after entries.Keys // only addresses: of the other names, keep keeps its own
	before.AddAddresses(profile.Addresses(mine))
	// As of now, not of when it was asked for: until now, choices among users of an address were made without it.
	w.fresh = append(w.fresh[:0], theirs...)
	profile.SetTaken(w.fresh, gone, w.rec.Stamp)
	out := w.ed.Merge(mine, w.fresh, mode, w.rec.Stamp, w.limit())
	after.AddAddresses(profile.Addresses(out))
	// What the addresses have heard while the merge was under way counts as heard before keep came.
	out = w.moveAddresses(p, keep, out, &before, &after, w.rec.Stamp)
	if profile.Blocked(out) {
		w.markDummy(p, keep)
	}
	w.noteMerge(p, keep, gone, profile.ExternalID(theirs))
	if err := w.close(s, out); err != nil {
		return err
	}
	for _, k := range rows.List {
		switch k.ID {
		case op.Alias:
			w.moveRow(p, k.ID, k.Key, gone, keep)
		case op.Email, op.Phone:
			if after.Has(k) && !before.Has(k) {
				w.tellRow(p, op.RowAdd, 0, k.ID, k.Key, keep, nil)
			}
			w.tellRow(p, op.RowRemove, 0, k.ID, k.Key, gone, nil)
		}
	}
	return nil
}

// unpin takes a pin off the profile at this number, to which another one does not come.
func (w *Worker) unpin(p *Partition, o op.Op) error {
	m, _, err := bodies.ParseMerge(o.Body())
	if err != nil {
		return err
	}
	p.unhold(o.Number(), int(m.Room))
	return w.proceed(p, o.Number())
}

// proceed resumes those who wait for a profile that is pinned no more: first deletions of it, then merges that leave
// with it, which the others then follow.
func (w *Worker) proceed(p *Partition, number uint64) error {
	list := p.takeWaiting(number)
	outer, future := w.applying.rec, w.applying.future
	defer func() { w.applying.rec, w.applying.future = outer, future }()
	for _, next := range [...]struct {
		kind  op.Kind
		apply func(*Worker, *Partition, op.Op) error
	}{
		{op.Delete, (*Worker).deleteUser},
		{op.Seal, (*Worker).seal},
		{op.Merge, (*Worker).merge},
		{op.Pin, (*Worker).pin},
	} {
		for _, x := range list {
			rec, err := op.ParseRecord(x.record, nil)
			if err != nil {
				return err
			}
			o, _ := op.Next(rec.Ops)
			if o.Kind() != next.kind {
				continue
			}
			w.applying.rec, w.applying.future = &rec, x.future
			if err := next.apply(w, p, o); err != nil {
				return err
			}
			p.tokens.Add(-1) // it waits again, or has gone on
			x.future.Finish()
		}
	}
	return nil
}

// formerOf says where the log has the events of a profile that is about to leave.
func (w *Worker) formerOf(blob []byte, number uint64) profile.Former {
	f := profile.Former{Number: number, Until: w.place()}
	id, key := profile.HomeID(blob)
	since, ok := profile.Born(blob)
	switch f.Since = since; {
	case id == op.NoID:
		f.Until = since
		return f
	case ok && id != op.ExternalID:
		f.Until = since.Next()
	}
	f.Home = w.m.hasher.Number(profile.Workspace(blob), id, key)
	return f
}

var (
	mergesDone     = metrics.NewCounter(`millrace_merges_total{result="merged"}`)
	mergesIdle     = metrics.NewCounter(`millrace_merges_total{result="no effect"}`)
	mergesTooLarge = metrics.NewCounter(`millrace_merges_total{result="too large"}`)
)
