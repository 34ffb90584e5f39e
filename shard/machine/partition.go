package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Partition is a deterministic state machine over its own range of keys. It belongs to one worker: whoever touches it
// holds the worker's lock.
type Partition struct {
	arena.Table
	books.Books
	complete bool   // all entries are resident: a miss means absent
	saving   bool   // a checkpoint is writing what was dirty: nothing may be evicted
	evicted  uint64 // how many times something was
	// while saving, the store without what is being written: deltas are in memory until that is over
	view *store.View
	turn uint64 // how many times saving has changed

	deleted  map[uint64]struct{} // erased entries that the store still has
	deleting map[uint64]struct{} // the same, while a checkpoint deletes them
	// in order of seq; applied ones leave from the front, and now and then from between others
	Outbox      []*effect.Message
	first, last uint8            // the machine's partitions
	tokens      *atomic.Int64    // the machine's count of merges: here those in the outbox and those that wait
	sent        []uint64         // stored outbox rows to delete
	held        map[uint64]*held // profiles that are merged into, or wait until they are; see hold.go
	heldNew     bool
}

// isDeleted says whether number was erased since the store was last written.
func (p *Partition) isDeleted(number uint64) bool {
	_, now := p.deleted[number]
	_, before := p.deleting[number]
	return now || before
}

// entryOf is the entry in s: its length is what is used, its capacity what its block holds besides an index's books.
func (w *Worker) entryOf(s *arena.Slot) []byte {
	block := w.block(s)
	return block[:s.Size():profile.Usable(block)]
}

// block is the block of an entry: the entry, what is unused, and the index of a large profile (profile.ApplyIn).
func (w *Worker) block(s *arena.Slot) []byte { return w.arena.Block(s.Off, s.Class()) }

// lookup finds an entry by number, reading it back from the store when it may be there. nil: there is none.
func (w *Worker) lookup(p *Partition, number uint64) (*arena.Slot, error) {
	if number == 0 { // nobody's; of the table it is an empty slot's
		return nil, nil
	}
	s := p.Find(number)
	if s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta {
		s.Meta |= arena.Referenced
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

// admit makes what the store has at a number resident, as it is there; nil when there is a delta in memory alone. With
// the delta, it differs from the store.
func (w *Worker) admit(p *Partition, number uint64, value []byte) (*arena.Slot, error) {
	s := p.Find(number)
	if s != nil || profile.Kind(value) == entries.KindMixed {
		return w.read(p, s, number, value)
	}
	s, err := w.insert(p, number, value)
	if err == nil {
		s.Meta &^= arena.Dirty
	}
	return s, err
}

// insert makes a new entry. blob is copied.
func (w *Worker) insert(p *Partition, number uint64, blob []byte) (*arena.Slot, error) {
	if len(blob) > arena.MaxBlockBytes {
		return nil, errTooLarge
	}
	w.tables -= p.Mapped()
	s, err := p.Table.Insert(number)
	w.tables += p.Mapped()
	if err != nil {
		return nil, err
	}
	class := arena.ClassFor(min(profile.Room(blob, 0), arena.MaxBlockBytes))
	off, err := w.arena.Alloc(class)
	if err != nil {
		p.Remove(s)
		return nil, err
	}
	s.Off, s.Meta = off, arena.Dirty|arena.Referenced
	s.SetSize(len(blob), class)
	profile.Put(w.block(s), blob)
	delete(p.deleted, number)
	delete(p.deleting, number)
	return s, nil
}

// update replaces an entry by blob, which is either the entry changed in place or a copy elsewhere.
func (w *Worker) update(s *arena.Slot, blob []byte) error {
	old := w.entryOf(s)
	if cap(blob) == cap(old) && &blob[:1][0] == &old[:1][0] {
		s.Meta |= arena.Dirty
		s.SetSize(len(blob), s.Class())
		profile.Unindex(w.block(s))
		return nil
	}
	return w.rehouse(s, blob, profile.Room(blob, len(blob)/growth), profile.Put)
}

// applyIn changes the profile in s by a user op.
func (w *Worker) applyIn(s *arena.Slot, o op.Op) error {
	out, inPlace, verdict := w.ed.ApplyIn(w.block(s), s.Size(), o, w.applying.rec, w.limit())
	w.judge(s.Number, verdict)
	if !inPlace {
		return w.rehouse(s, out, w.ed.Room(out, len(out)/growth), w.ed.Move)
	}
	s.Meta |= arena.Dirty
	s.SetSize(len(out), s.Class())
	return nil
}

// growth: what has grown will grow again: a quarter of room spares most of the moves.
const growth = 4

// rehouse puts blob in the place of an entry, into another block with so much room. What has outgrown the largest block
// keeps its old state; the counter tells.
func (w *Worker) rehouse(s *arena.Slot, blob []byte, room int, put func(block, blob []byte)) error {
	s.Meta |= arena.Dirty
	if len(blob) > arena.MaxBlockBytes {
		entries.Overgrown.Inc()
		return nil
	}
	class := arena.ClassFor(min(room, arena.MaxBlockBytes))
	off, err := w.arena.Alloc(class)
	if err != nil {
		return err
	}
	put(w.arena.Block(off, class), blob)
	w.arena.Release(s.Off, s.Class()) // blob may lie there
	s.Off = off
	s.SetSize(len(blob), class)
	return nil
}

// erase removes an entry for good. An entry that stands behind it because its own place was taken must stay in reach of
// findHome: then a tombstone fills the gap.
func (w *Worker) erase(p *Partition, s *arena.Slot) error {
	number := s.Number
	behind, err := w.lookup(p, identity.Next(number))
	if err != nil {
		return err
	}
	if s = p.Find(number); behind != nil { // reading back may have moved it
		w.fresh = entries.AppendTombstone(w.fresh[:0], w.applying.rec.Workspace, w.applying.rec.Stamp)
		w.setApart(p, number, books.ApartElsewhere)
		return w.update(s, w.fresh)
	}
	w.arena.Release(s.Off, s.Class())
	p.Remove(s)
	if p.deleted == nil {
		p.deleted = make(map[uint64]struct{})
	}
	p.deleted[number] = struct{}{}
	return nil
}

// evict makes room: it drops entries that the store has as they are and nobody has used since it last came by. It goes
// on from where it was, and looks at so many slots at most; ended says whether it has come to the end of a partition.
func (w *Worker) evict(most int) (freed int64, ended bool, err error) {
	p := w.parts[w.evictAt.part%len(w.parts)]
	i := w.evictAt.slot
	for looks := 0; i < len(p.Slots) && !p.saving; looks++ {
		if looks == most {
			w.evictAt.slot = i
			return freed, false, nil
		}
		s := &p.Slots[i]
		if s.Number == 0 || s.Meta&arena.Dirty != 0 {
			i++
			continue
		}
		if s.Meta&arena.Referenced != 0 {
			s.Meta &^= arena.Referenced
			i++
			continue
		}
		w.knowEvicted(s)
		freed += arena.BlockBytes(s.Class())
		w.arena.Release(s.Off, s.Class())
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

// evictAt is where evict goes on: a worker's partition, and a slot in its table.
type evictAt struct{ part, slot int }

// maxLooks is how many slots are looked at in one hold of a worker's mutex: readers wait meanwhile.
const maxLooks = 4096

// Save writes what is dirty of a partition into batch and takes it for clean; of partition 0 the control documents and
// the audit log, too. Until Saved is called, nothing of the partition is evicted: what the batch holds can't be read
// back yet. before is the store without the batch. The caller holds the lock.
func (w *Worker) Save(p *Partition, batch *pebble.Batch, before *store.View) error {
	err := w.save(p, batch, before)
	if p.ID == 0 && err == nil {
		err = errors.Join(w.m.saveDocuments(batch), w.m.audit.Save(batch))
	}
	return err
}

func (w *Worker) save(p *Partition, batch *pebble.Batch, before *store.View) error {
	p.Applied = max(p.Applied, w.Applied)
	w.takeNoted()
	if err := p.saveBooks(batch); err != nil {
		return err
	}
	w.dirty = w.dirty[:0]
	for i := range p.Slots {
		if s := &p.Slots[i]; s.Number != 0 && s.Meta&arena.Dirty != 0 {
			w.dirty = append(w.dirty, s.Number)
		}
	}
	slices.Sort(w.dirty)
	var key [9]byte
	for _, number := range w.dirty {
		s := p.Find(number)
		entry, write := w.entryOf(s), batch.Set
		if profile.Kind(entry) == entries.KindDelta {
			write = batch.Merge
		} else if len(entry) > entries.LargeBytes {
			w.setApart(p, number, books.ApartLarge)
		}
		if err := write(store.AppendEntryKey(key[:0], number), entry, nil); err != nil {
			return err
		}
		if d := entries.Delta(entry); profile.Kind(entry) == entries.KindDelta {
			d.SetSaving(d.Changes(), len(d))
		}
		s.Meta &^= arena.Dirty
	}
	for number := range p.deleted { // order doesn't matter: the keys differ
		if err := batch.Delete(store.AppendEntryKey(key[:0], number), nil); err != nil {
			return err
		}
	}
	p.deleting, p.deleted = p.deleted, nil
	p.saving, p.view = true, before
	p.turn++
	return nil
}

// Saved: the batch that Save has filled is in the store. The caller holds the lock.
func (w *Worker) Saved(p *Partition) error {
	err := w.saved(p)
	if p.ID == 0 {
		w.m.audit.Saved()
	}
	return err
}

func (w *Worker) saved(p *Partition) error {
	p.saving, p.view, p.deleting = false, nil, nil
	p.turn++
	w.unwritten -= p.Saved()
	return w.forgetDeltas(p)
}

// forgetDeltas lets go of the changes that are in the store by now.
func (w *Worker) forgetDeltas(p *Partition) error {
	for i := 0; i < len(p.Slots); {
		s := &p.Slots[i]
		if s.Number == 0 || profile.Kind(w.entryOf(s)) != entries.KindDelta ||
			entries.Delta(w.entryOf(s)).Saving() == 0 {
			i++
			continue
		}
		if d := entries.Delta(w.entryOf(s)); d.SavedUpTo() < len(d) {
			s.SetSize(len(d.Saved()), s.Class())
			i++
			continue
		}
		w.dropDelta(p, s) // may move another entry here: look again
	}
	before := p.Mapped()
	err := p.Shrink()
	w.tables += p.Mapped() - before
	return err
}

func (p *Partition) saveBooks(batch *pebble.Batch) error {
	set := func(key, v []byte) error { return batch.Set(key, v, nil) }
	p.forgetApplied()
	for _, seq := range p.sent {
		if err := batch.Delete(store.AppendBookKey(nil, p.ID, store.BookOutbox, seq), nil); err != nil {
			return err
		}
	}
	for _, m := range p.Outbox {
		if m.Stored {
			continue
		}
		if err := set(store.AppendBookKey(nil, p.ID, store.BookOutbox, m.Seq), m.Body); err != nil {
			return err
		}
		m.Stored = true
	}
	p.sent = p.sent[:0]
	if p.heldNew {
		p.heldNew = false
		if err := set(store.AppendBookKey(nil, p.ID, store.BookMerges), p.encodeHeld()); err != nil {
			return err
		}
	}
	return p.Save(batch)
}

// load reads a whole partition: the books that are held in memory always, its entries when entry is given.
func (p *Partition) load(s *store.Store, entry func(number uint64, blob []byte) error) error {
	lower, upper := store.Bounds(p.ID)
	if err := s.Scan(lower, store.AppendBookKey(nil, p.ID, store.BookLazy), p.loadBook); err != nil || entry == nil {
		return err
	}
	return s.Scan(store.AppendEntryKey(nil, uint64(p.ID)<<56|1), upper, func(k, v []byte) error {
		return entry(binary.BigEndian.Uint64(k[1:]), v)
	})
}

func (p *Partition) loadBook(k, v []byte) error {
	switch kind, ids := k[9], k[10:]; {
	case kind == store.BookOutbox && len(ids) == 8:
		m, err := effect.ParseMessage(bytes.Clone(v))
		if err != nil {
			return err
		}
		m.Stored = true
		p.Outbox = append(p.Outbox, m)
		if m.Token {
			p.tokens.Add(1)
		}
	case kind == store.BookMerges:
		return p.decodeHeld(v)
	default:
		_, err := p.Load(kind, ids, v)
		return err
	}
	return nil
}
