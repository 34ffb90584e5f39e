package shard

import (
	"encoding/binary"
	"fmt"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A merge takes a profile (gone) into another one (keep), each in its own partition. It is one token that travels, a
// message in an outbox or an entry of a waiting list (hold.go), so that it happens once or not at all, whatever crashes
// in between:
//
//	Merge   to gone    asks keep to stay where it is
//	Pin     to keep    keep is pinned: it doesn't leave for anybody else, and keeps room, until gone has come, or doesn't come
//	Seal    to gone    gone leaves: its entry becomes a tombstone that leads to keep, all it has goes along
//	Absorb  to keep    keep takes it in, tells the directory, and is pinned by one less
//	Unpin   to keep    gone can't come: it was merged elsewhere or deleted
//
// Profiles that are pinned and should leave themselves make those wait who want to leave with them. Waiting with a pin
// in hand goes from smaller to larger numbers only: the other way round, the pin is given back and the merge begins
// anew when the profile is free. So no cycle of merges stands still, and the one with the smallest number always goes
// on.
//
// What reaches a tombstone that leads on (an op by svc_id or by a look-up that is older, a name that was granted)
// follows it, behind all that the profile had sent before it left.

// merging is the body of Merge, Pin, Seal, Absorb and Unpin; the key is the external id that an identify wants, empty
// for /users/merge.
//
//	other u64 | mode u8 | reference u16 | room u32 | profile, of an Absorb …
type merging struct {
	other uint64 // gone or keep: whichever the op is not addressed to
	mode  profile.MergeMode
	ref   uint16 // of the outcome, of an identify
	room  uint32 // bytes that keep has set apart for gone
}

const mergingHeader = 8 + 1 + 2 + 4

func (m *merging) append(dst []byte) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, m.other), byte(m.mode))
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(dst, m.ref), m.room)
}

func parseMerging(b []byte) (m merging, rest []byte, err error) {
	if len(b) < mergingHeader {
		return m, nil, fmt.Errorf("%w: merge of %d bytes", op.ErrMalformed, len(b))
	}
	return merging{
		other: binary.LittleEndian.Uint64(b), mode: profile.MergeMode(b[8]),
		ref: binary.LittleEndian.Uint16(b[9:]), room: binary.LittleEndian.Uint32(b[11:]),
	}, b[mergingHeader:], nil
}

// isToken says whether an op is a merge on its way. An Unpin is not: it only cleans up.
func isToken(k op.Kind) bool {
	return k == op.Merge || k == op.Pin || k == op.Seal || k == op.Absorb
}

// ended: the token is no more.
func (w *worker) ended(m *merging, outcome Outcome, counter *metrics.Counter) {
	if counter != nil {
		counter.Inc()
	}
	w.applying.future.report(m.ref, outcome) // nobody waits for /users/merge: there is no future
}

// sendMerge sends the token on.
func (w *worker) sendMerge(p *partition, kind op.Kind, number uint64, m merging, key []byte) {
	w.send(p, kind, op.MakeFlags(0, op.SvcID), number, m.append(nil), key, false)
}

// mergeInto begins the merge of an identify: holder has the external id.
func (w *worker) mergeInto(p *partition, o op.Op, c claim, holder uint64) {
	w.sendMerge(p, op.Merge, c.profile, merging{other: holder, mode: c.mode, ref: c.ref}, o.Key())
}

// claimAgain: the external id that an identify wants is not with the profile any more that had it. Its row knows who is
// next.
func (w *worker) claimAgain(p *partition, o op.Op, m *merging, gone uint64) {
	c := claim{profile: gone, kind: claimIdentify, mode: m.mode, ref: m.ref}
	home := w.e.hasher.Number(w.applying.rec.Workspace, op.ExternalID, o.Key())
	w.send(p, op.Claim, op.MakeFlags(0, op.ExternalID), home, c.append(nil), o.Key(), false)
}

// entryAt is the entry with this number if it is of the record's workspace, and whether it is a profile.
func (w *worker) entryAt(p *partition, number uint64) (s *arena.Slot, isUser bool, err error) {
	s, err = w.lookup(p, number)
	if s == nil || err != nil {
		return nil, false, err
	}
	b := w.entryOf(s)
	if profile.Workspace(b) != w.applying.rec.Workspace {
		return nil, false, nil
	}
	return s, profile.Kind(b) == profile.KindUser, nil
}

// forwardOf is where the profile in s has gone, 0 when it has not.
func (w *worker) forwardOf(s *arena.Slot) uint64 {
	if s == nil {
		return 0
	}
	to, _ := entries.Forward(w.entryOf(s))
	return to
}

// merge: the profile at this number is to leave.
func (w *worker) merge(p *partition, o op.Op) error {
	m, _, err := parseMerging(o.Body())
	if err != nil {
		return err
	}
	gone, identify := o.Number(), len(o.Key()) > 0
	if future := w.applying.future; !identify && future != nil { // nobody waits for it
		w.applying.future = nil
		defer func() { w.applying.future = future }()
	}
	s, isUser, err := w.entryAt(p, gone)
	if err != nil {
		return err
	}
	to := w.forwardOf(s)
	switch {
	case to != 0 && identify:
		w.sendMerge(p, op.Merge, to, m, o.Key())
	case gone == m.other:
		w.ended(&m, Done, mergesIdle)
	case !isUser:
		w.ended(&m, Nobody, mergesIdle)
	case identify && profile.Identified(w.entryOf(s)):
		w.ended(&m, Identified, mergesIdle)
	case p.isPinned(gone):
		w.park(p, op.Merge, gone, m, o.Key())
	default:
		w.askFor(p, s, m, o.Key())
	}
	return nil
}

// askFor sends the Pin for the profile in s.
func (w *worker) askFor(p *partition, s *arena.Slot, m merging, key []byte) {
	keep := m.other
	m.other, m.room = s.Number, uint32(s.Size()+s.Size()/4+mergeSlack)
	w.sendMerge(p, op.Pin, keep, m, key)
}

// mergeSlack is by how much, besides a quarter, a profile may grow between Pin and Seal. If it grows more, the merge
// begins anew.
const mergeSlack = 1 << 10

// mergeSpare is how much those who are on their way together leave of an entry, for what the profile gets besides.
const mergeSpare = 1 << 20

// pin: the profile at this number is to take another one in.
func (w *worker) pin(p *partition, o op.Op) error {
	m, _, err := parseMerging(o.Body())
	if err != nil {
		return err
	}
	keep, gone, identify := o.Number(), m.other, len(o.Key()) > 0
	s, isUser, err := w.entryAt(p, keep)
	if err != nil {
		return err
	}
	to := w.forwardOf(s)
	switch {
	case identify && !(isUser && profile.HasExternalID(w.entryOf(s), o.Key())):
		w.claimAgain(p, o, &m, gone)
	case to == gone && to != 0:
		w.ended(&m, Done, mergesIdle)
	case to != 0:
		w.sendMerge(p, op.Pin, to, m, o.Key())
	case !isUser:
		w.ended(&m, Nobody, mergesIdle)
	case s.Size()+int(m.room)+entries.ProfileSlack > arena.MaxBlockBytes:
		if w.applying.live {
			w.e.opts.Logger.Warn("a merge of two profiles that are too large together has no effect", "gone_bytes", m.room, "keep_bytes", s.Size())
		}
		w.ended(&m, Taken, mergesTooLarge)
	case p.waits(keep), p.isPinned(keep) && s.Size()+p.reserved(keep)+int(m.room)+mergeSpare > arena.MaxBlockBytes:
		w.park(p, op.Pin, keep, m, o.Key())
	default:
		p.hold(keep, int(m.room))
		m.other = keep
		w.sendMerge(p, op.Seal, gone, m, o.Key())
	}
	return nil
}

// seal: the profile at this number leaves for the one that is pinned for it, if it still can.
func (w *worker) seal(p *partition, o op.Op) error {
	m, _, err := parseMerging(o.Body())
	if err != nil {
		return err
	}
	gone, keep, identify := o.Number(), m.other, len(o.Key()) > 0
	s, isUser, err := w.entryAt(p, gone)
	if err != nil {
		return err
	}
	pinned := p.isPinned(gone)
	if isUser && pinned && gone < keep {
		w.park(p, op.Seal, gone, m, o.Key())
		return nil
	}
	if isUser && !pinned && s.Size() <= int(m.room) && !(identify && profile.Identified(w.entryOf(s))) {
		return w.depart(p, s, m, o.Key())
	}
	w.sendMerge(p, op.Unpin, keep, merging{other: gone, room: m.room}, nil)
	switch to := w.forwardOf(s); {
	case to != 0 && identify:
		w.sendMerge(p, op.Merge, to, m, o.Key())
	case !isUser:
		w.ended(&m, Nobody, mergesIdle)
	case identify && profile.Identified(w.entryOf(s)):
		w.ended(&m, Identified, mergesIdle)
	case pinned:
		w.park(p, op.Merge, gone, m, o.Key())
	default: // it has grown
		w.askFor(p, s, m, o.Key())
	}
	return nil
}

// depart makes the profile in s a tombstone that leads to keep, where all that it has goes. keep tells the directory,
// all but the external ids: those are free from now on.
func (w *worker) depart(p *partition, s *arena.Slot, m merging, key []byte) error {
	blob, rec, gone, keep := w.entryOf(s), w.applying.rec, s.Number, m.other
	var keys rowKeys
	keys.read(blob)
	for _, k := range keys.list {
		if k.id == op.ExternalID {
			w.tellRow(p, op.RowRemove, 0, k.id, k.key, gone, nil)
		}
	}
	for _, id := range addresses {
		if key := keys.of(id); key != nil {
			w.noteStay(p, gone, Stay{ID: id, Key: key, Since: profile.Joined(blob, id), Until: w.rec.Stamp})
		}
	}
	w.fresh = append(w.fresh[:0], blob...)
	w.keep(w.ed.AddFormer(w.fresh, w.formerOf(blob, gone)))
	m.other = gone
	w.send(p, op.Absorb, op.MakeFlags(0, op.SvcID), keep, append(m.append(nil), w.fresh...), key, false)
	w.fresh = entries.AppendForward(w.fresh[:0], rec.Workspace, rec.Stamp, keep)
	w.e.unblock(gone)
	w.setApart(p, gone, apartElsewhere)
	return w.update(s, w.fresh)
}

// absorb: a profile comes to the one at this number.
func (w *worker) absorb(p *partition, o op.Op) error {
	m, theirs, err := parseMerging(o.Body())
	if err != nil {
		return err
	}
	keep, gone := o.Number(), m.other
	p.unhold(keep, int(m.room))
	s, isUser, err := w.entryAt(p, keep)
	if err != nil {
		return err
	}
	var rows rowKeys // those that lead to gone
	rows.read(theirs)
	if isUser {
		if err := w.takeIn(p, s, gone, theirs, rows, m.mode); err != nil {
			return err
		}
	} else { // deleted meanwhile, and the other one with it
		for _, k := range rows.list {
			if k.id != op.ExternalID {
				w.tellRow(p, op.RowRemove, 0, k.id, k.key, gone, nil)
			}
		}
		w.eraseFormers(p, gone, theirs)
		w.forgetMerged(p, theirs)
	}
	w.ended(&m, Done, mergesDone)
	return w.proceed(p, keep)
}

// eraseFormers tells the event logs that the profile gone, which is on its way, is deleted; so are those who were
// merged into it.
func (w *worker) eraseFormers(p *partition, gone uint64, blob []byte) {
	if oneLog(gone, nobodyIn(p.id), w.e.opts.Carrier) {
		w.eraseEvents(p, gone, appendFormers(nil, blob, gone, w.e.opts.Carrier))
	} else if own := appendFormers(nil, blob, nobodyIn(p.id), w.e.opts.Carrier); len(own) > 0 {
		w.eraseEvents(p, nobodyIn(p.id), own)
	}
	w.eraseElsewhere(p, blob)
}

// takeIn merges a profile into the one in s, to which the rows lead from now on, as far as it has their addresses.
func (w *worker) takeIn(p *partition, s *arena.Slot, gone uint64, theirs []byte, rows rowKeys, mode profile.MergeMode) error {
	keep, mine := s.Number, w.entryOf(s)
	var before, after rowKeys
	before.read(mine)
	out := w.ed.Merge(mine, theirs, mode, w.applying.rec.Stamp, w.limit())
	after.read(out)
	// What the addresses have heard while the merge was under way, they have heard before keep came.
	out = w.moveAddresses(p, keep, out, &before, &after, w.rec.Stamp)
	if profile.Blocked(out) {
		w.markDummy(p, keep)
	}
	if err := w.update(s, out); err != nil {
		return err
	}
	for _, k := range rows.list {
		switch k.id {
		case op.Alias:
			w.moveRow(p, k.id, k.key, gone, keep)
		case op.Email, op.Phone:
			if after.has(k) && !before.has(k) {
				w.tellRow(p, op.RowAdd, 0, k.id, k.key, keep, nil)
			}
			w.tellRow(p, op.RowRemove, 0, k.id, k.key, gone, nil)
		}
	}
	return nil
}

// unpin: a profile does not come to the one at this number.
func (w *worker) unpin(p *partition, o op.Op) error {
	m, _, err := parseMerging(o.Body())
	if err != nil {
		return err
	}
	p.unhold(o.Number(), int(m.room))
	return w.proceed(p, o.Number())
}

// proceed lets go on who waits for a profile that is pinned no more: first who leaves with it, whom the others then
// follow.
func (w *worker) proceed(p *partition, number uint64) error {
	list := p.takeWaiting(number)
	outer, future := w.applying.rec, w.applying.future
	defer func() { w.applying.rec, w.applying.future = outer, future }()
	for _, kind := range [...]op.Kind{op.Seal, op.Merge, op.Pin} {
		for _, x := range list {
			rec, err := op.ParseRecord(x.record, nil)
			if err != nil {
				return err
			}
			o, _ := op.Next(rec.Ops)
			if o.Kind() != kind {
				continue
			}
			w.applying.rec, w.applying.future = &rec, x.future
			if err := w.applyOp(p, o); err != nil {
				return err
			}
			p.tokens.Add(-1) // it has parked again, or gone on
			x.future.finish()
		}
	}
	return nil
}

// formerOf is where the log has the events of a profile that is about to leave.
func (w *worker) formerOf(blob []byte, number uint64) profile.Former {
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
	f.Home = w.e.hasher.Number(profile.Workspace(blob), id, key)
	return f
}

var (
	mergesDone     = metrics.NewCounter(`millrace_merges_total{result="merged"}`)
	mergesIdle     = metrics.NewCounter(`millrace_merges_total{result="no effect"}`)
	mergesTooLarge = metrics.NewCounter(`millrace_merges_total{result="too large"}`)
	refusedMerges  = metrics.NewCounter(`millrace_refused_total{reason="merges"}`)
)
