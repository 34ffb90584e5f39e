package machine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// isDeleted says whether number was erased since the store was last written.
func (p *Partition) isDeleted(number uint64) bool {
	_, now := p.deleted[number]
	_, before := p.deleting[number]
	return now || before
}

// entryOf is the entry in s: its length is what is used, its capacity what its block holds besides the index's books.
func (w *Worker) entryOf(s *arena.Slot) []byte {
	block, size := w.arena.Entry(*s)
	return block[:size:profile.Usable(block)]
}

// block is the block of an entry: the entry, unused room, and the index of a large profile (Editor.Open).
func (w *Worker) block(s *arena.Slot) []byte {
	block, _ := w.arena.Entry(*s)
	return block
}

// size is how many bytes an entry has.
func (w *Worker) size(s *arena.Slot) int {
	_, size := w.arena.Entry(*s)
	return size
}

// lookup finds an entry by number, and reads it back from the store when it may be there. nil: there is no entry.
func (w *Worker) lookup(p *Partition, number uint64) (*arena.Slot, error) {
	if number == 0 { // no entry's
		return nil, nil
	}
	s := p.Find(number)
	if s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta {
		*s |= arena.Referenced
		return s, nil
	}
	if s == nil {
		if p.complete || p.isDeleted(number) {
			return nil, nil
		}
		if _, absent := slices.BinarySearch(w.absent, number); absent {
			return nil, nil
		}
	}
	value, err := w.m.store.Entry(p.view, w.readBack[:0], number)
	if err != nil || value == nil && s == nil {
		return nil, err
	}
	w.readBack = value[:0]
	readBacks.Inc()
	return w.admit(p, number, value)
}

// findHome walks from an identifier's home number to the entry that carries the identifier: a profile or a directory
// row. If there is none, s is nil and free is the number where it would go.
func (w *Worker) findHome(
	p *Partition, home uint64, workspace uint32, id op.IDKind, key []byte,
) (s *arena.Slot, free uint64, err error) {
	if s = p.Find(home); s != nil { // as nearly always: the entry is looked at once
		entry := w.entryOf(s)
		if profile.Kind(entry) != entries.KindDelta && entries.IsOf(entry, workspace, id, key) {
			*s |= arena.Referenced
			return s, home, nil
		}
	}
	for n := home; ; n = identity.Next(n) {
		if s, n, err = w.passTombstones(p, n); s == nil || err != nil {
			return nil, n, err
		}
		if entries.IsOf(w.entryOf(s), workspace, id, key) {
			return s, n, nil
		}
	}
}

// passTombstones goes from n on to the first number that has no tombstone, and returns the entry there, if there is
// one.
func (w *Worker) passTombstones(p *Partition, n uint64) (s *arena.Slot, at uint64, err error) {
	for at = n; ; {
		if s, err = w.lookup(p, at); err != nil {
			return nil, at, err
		}
		if s == nil || profile.Kind(w.entryOf(s)) != entries.KindTombstone {
			break
		}
		at = entries.Behind(w.entryOf(s), at)
	}
	if at == n {
		return s, at, nil
	}
	return s, at, w.shorten(p, n, at)
}

// shorten makes the tombstone at n remember that there are only tombstones before to. Slots stay where they are.
func (w *Worker) shorten(p *Partition, n, to uint64) error {
	s := p.Find(n)
	tombstone := w.entryOf(s)
	if entries.Behind(tombstone, n) == to {
		return nil
	}
	return w.update(s, entries.AppendShortened(nil, tombstone, to))
}

// admit makes what the store has at a number resident, as it is there; nil when the only thing there is a delta in
// memory. Folded with a delta, the entry differs from the store.
func (w *Worker) admit(p *Partition, number uint64, value []byte) (*arena.Slot, error) {
	s := p.Find(number)
	if s != nil || profile.Kind(value) == entries.KindMixed {
		return w.read(p, s, number, value)
	}
	s, err := w.insert(p, number, value)
	if err == nil {
		*s &^= arena.Dirty
		p.evictable = true
	}
	return s, err
}

// read makes the entry at number resident: value is what the store has, nil for nothing; s has the delta in memory, nil
// for none.
func (w *Worker) read(p *Partition, s *arena.Slot, number uint64, value []byte) (*arena.Slot, error) {
	f := &w.folder
	if err := f.Begin(value, &w.m.limits); err != nil {
		return nil, err
	}
	var err error
	if s == nil {
		s, err = w.insert(p, number, f.Entry)
	} else if err = f.Add(w.entryOf(s)); err == nil {
		err = w.replaceDelta(s, f.Entry)
	}
	if err != nil {
		return nil, err
	}
	if f.Created {
		profilesCreated.Inc()
	}
	strays := bytes.Clone(f.Strays)
	w.consider(p, number, f.Entry)
	if len(strays) > 0 {
		if err := w.settle(p, number, strays); err != nil {
			w.m.opts.Fail(err) // some of the changes may be nowhere by now
			return nil, err
		}
		s = p.Find(number)
	}
	return s, nil
}

// replaceDelta puts the entry that a delta in memory was folded into in its place. After an error the delta is still
// there.
func (w *Worker) replaceDelta(s *arena.Slot, entry []byte) error {
	delta := w.arena.Bytes(*s)
	if err := w.rehouse(s, entry, profile.Room(entry, 0), profile.Put); err != nil {
		return err
	}
	w.deltas -= delta
	*s |= arena.Referenced
	return nil
}

// consider takes note of a profile that may have become large, or a dummy user, while it was not read.
func (w *Worker) consider(p *Partition, number uint64, entry []byte) {
	if len(entry) > entries.LargeBytes {
		w.setApart(p, number, books.ApartLarge)
	}
	if profile.Kind(entry) == profile.KindUser && profile.Blocked(entry) {
		w.markDummy(p, number)
	}
}

// dropDelta takes a delta out of memory.
func (w *Worker) dropDelta(p *Partition, s *arena.Slot) {
	w.deltas -= w.arena.Bytes(*s)
	p.Remove(s)
}

// settle gives changes to their users when something else lies at the home number of the users' external ids, which was
// not known when the changes were kept: their 64-bit hashes are the same. The changes go where apply would have sent
// them: to the next number that is the user's, or free.
func (w *Worker) settle(p *Partition, home uint64, strays []byte) error {
	w.setApart(p, home, books.ApartElsewhere)
	for len(strays) > 0 {
		d, rest, err := entries.NextDelta(strays)
		if err != nil {
			return err
		}
		strays = rest
		id, key := profile.HomeID(d)
		s, free, err := w.findHome(p, home, profile.Workspace(d), id, key)
		if err != nil {
			return err
		}
		var entry []byte
		if s != nil {
			if entry = w.entryOf(s); !d.IsFor(entry) {
				return fmt.Errorf("%w: changes of nobody at %016x", store.ErrStore, home)
			}
		}
		f := &w.folder
		if err = f.Begin(entry, &w.m.limits); err == nil {
			err = f.AddAll(d, true)
		}
		if err != nil {
			return err
		}
		if s != nil {
			err = w.update(s, f.Entry)
		} else {
			profilesCreated.Inc()
			_, err = w.insert(p, free, f.Entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entryAt is the entry with this number if it is in the record's workspace, and whether it is a profile.
func (w *Worker) entryAt(p *Partition, number uint64) (s *arena.Slot, isUser bool, err error) {
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

// insert makes a new entry. blob is copied.
func (w *Worker) insert(p *Partition, number uint64, blob []byte) (*arena.Slot, error) {
	if len(blob) > arena.MaxEntryBytes {
		return nil, errTooLarge
	}
	w.tables -= p.Mapped()
	s, err := p.Insert(number, len(blob), min(profile.Room(blob, 0), arena.MaxEntryBytes))
	w.tables += p.Mapped()
	if err != nil {
		return nil, err
	}
	*s |= arena.Dirty | arena.Referenced
	profile.Put(w.block(s), blob)
	delete(p.deleted, number)
	delete(p.deleting, number)
	return s, nil
}

// update replaces an entry by blob, which is either the entry changed in place or a copy elsewhere.
func (w *Worker) update(s *arena.Slot, blob []byte) error {
	old := w.entryOf(s)
	if cap(blob) == cap(old) && &blob[:1][0] == &old[:1][0] && w.arena.SetSize(s, len(blob)) {
		*s |= arena.Dirty
		profile.Unindex(w.block(s))
		return nil
	}
	return w.rehouse(s, blob, profile.Room(blob, len(blob)/growth), profile.Put)
}

// applyIn changes the profile in s, which is at number, by a user op.
func (w *Worker) applyIn(s *arena.Slot, number uint64, o op.Op) error {
	out, verdict := w.ed.Apply(w.open(s), o, w.applying.rec, w.limit())
	w.judge(number, verdict)
	return w.close(s, out)
}

// open takes the profile in s in hand for the editor's verbs, which use and keep its index.
func (w *Worker) open(s *arena.Slot) []byte { return w.ed.Open(w.arena.Entry(*s)) }

// close ends what open began: out is what the profile has become.
func (w *Worker) close(s *arena.Slot, out []byte) error {
	if !w.ed.Close(w.block(s), out) {
		return w.rehouse(s, out, w.ed.Room(out, len(out)/growth), w.ed.Move)
	}
	if !w.arena.SetSize(s, len(out)) { // it has become much smaller
		return w.rehouse(s, out, profile.Room(out, len(out)/growth), profile.Put)
	}
	*s |= arena.Dirty
	return nil
}

// isNamed is profile.IsNamed of the profile in s, by its index.
func (w *Worker) isNamed(s *arena.Slot, id op.IDKind, key []byte) bool {
	blob := w.open(s)
	named := w.ed.IsNamed(blob, id, key)
	w.ed.Close(w.block(s), blob)
	return named
}

// growth: an entry that has grown will grow again. A quarter of extra room saves most of the moves.
const growth = 4

// rehouse puts blob in the place of an entry, in another block with so much room. An entry that has outgrown the
// largest block keeps its old state; the counter Overgrown tells.
func (w *Worker) rehouse(s *arena.Slot, blob []byte, room int, put func(block, blob []byte)) error {
	*s |= arena.Dirty
	if len(blob) > arena.MaxEntryBytes {
		entries.Overgrown.Inc()
		return nil
	}
	return w.arena.Rehouse(s, blob, min(room, arena.MaxEntryBytes), put)
}

// erase removes an entry for good. An entry that lies behind it because its own place was taken must stay in reach of
// findHome: then a tombstone fills the gap.
func (w *Worker) erase(p *Partition, s *arena.Slot) error {
	number := p.Number(s)
	behind, err := w.lookup(p, identity.Next(number))
	if err != nil {
		return err
	}
	if s = p.Find(number); behind != nil { // reading back may have moved the slot
		w.fresh = entries.AppendTombstone(w.fresh[:0], w.applying.rec.Workspace, w.applying.rec.Stamp)
		w.setApart(p, number, books.ApartElsewhere)
		return w.update(s, w.fresh)
	}
	p.Remove(s)
	if p.deleted == nil {
		p.deleted = make(map[uint64]struct{})
	}
	p.deleted[number] = struct{}{}
	return nil
}

// evict makes room: it drops entries that the store has as they are and that were not used since evict last came by. It
// goes on from where it was, and looks at so many slots at most; ended says whether it has come to the end of a
// partition, whose table is halved then when it is sparse. What is dirty is looked at once, not each time: see
// Partition.evictable.
func (w *Worker) evict(most int) (freed int64, ended bool, err error) {
	p := w.parts[w.evictAt.part%len(w.parts)]
	i := w.evictAt.slot
	p.evictable = p.evictable && (i > 0 || p.saving)
	for looks := 0; i < len(p.Slots) && !p.saving; looks++ {
		if looks == most {
			w.evictAt.slot = i
			return freed, false, nil
		}
		s := &p.Slots[i]
		if *s == 0 || *s&arena.Dirty != 0 {
			i++
			continue
		}
		if *s&arena.Referenced != 0 {
			*s &^= arena.Referenced
			p.evictable = true
			i++
			continue
		}
		w.knowEvicted(p, s)
		freed += w.arena.Bytes(*s)
		p.Remove(s) // may move another entry here: look again
		p.complete = false
		w.complete.Store(false)
		p.evicted++
	}
	w.evictAt = evictAt{part: w.evictAt.part + 1}
	if p.saving {
		return freed, true, nil
	}
	before := p.Mapped()
	if err := p.Shrink(); err != nil {
		return freed, true, err
	}
	w.tables += p.Mapped() - before
	return freed + before - p.Mapped(), true, nil
}

// knowEvicted notes a user who is about to leave the memory.
func (w *Worker) knowEvicted(p *Partition, s *arena.Slot) {
	if w.known.Bytes() == 0 {
		return
	}
	b := w.entryOf(s)
	if id, key := profile.HomeID(b); id == op.ExternalID && profile.Kind(b) == profile.KindUser {
		w.know(p.Number(s), profile.Workspace(b), key)
	}
}

// maxLooks is how many slots are looked at in one hold of a worker's mutex, for which readers wait.
const maxLooks = 4096

// errTooLarge is returned for an entry that would outgrow the largest block.
var errTooLarge = errors.New("entry is too large")

// place is the place of the op at hand in the log.
func (w *Worker) place() profile.Place {
	return profile.Place{Position: w.applying.position, Ordinal: w.applying.ordinal}
}

// keep copies what the editor returned into the worker's own scratch.
func (w *Worker) keep(b []byte) { w.fresh = append(w.fresh[:0], b...) }

// limit is the bounds of a profile for the record at hand.
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

// judge notes what the editor says about the op that it has applied.
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
