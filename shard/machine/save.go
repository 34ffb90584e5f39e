package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Load reads what the store has: the control documents, the books of all partitions, and all entries when they fit the
// memory.
func (m *Machine) Load(s *store.Store) error {
	m.store, m.hasher = s, identity.NewHasher(s.Secret)
	if err := m.store.Documents(func(key string, doc []byte) {
		m.documents[key] = doc
		m.opts.OnDocument(key, doc)
	}); err != nil {
		return err
	}
	return errors.Join(m.loadPartitions(), m.audit.Load(m.store))
}

// loadPartitions reads the books of all partitions, and all entries when the store fits the memory budget.
func (m *Machine) loadPartitions() error {
	// Blocks are compressed on disk, to about half of what they hold.
	fits := m.store.Size()*3 < m.opts.MemoryBytes
	var loading errgroup.Group
	for _, w := range m.workers {
		loading.Go(func() error {
			for _, p := range w.parts {
				if err := w.loadPartition(p, fits); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return loading.Wait()
}

func (w *Worker) loadPartition(p *Partition, whole bool) error {
	p.complete = whole
	var load func(number uint64, value []byte) error
	var mixed []uint64
	if whole {
		load = func(number uint64, value []byte) error {
			if w.Used() > w.budget()*7/8 {
				p.complete = false
				return nil
			}
			if profile.Kind(value) == entries.KindMixed {
				mixed = append(mixed, number)
				return nil
			}
			if len(value) < profile.HeaderBytes {
				return fmt.Errorf("%w: entry of %d bytes", store.ErrStore, len(value))
			}
			if profile.Kind(value) == profile.KindUser && profile.Blocked(value) {
				w.m.block(number)
			}
			_, err := w.admit(p, number, value)
			return err
		}
	}
	if err := p.load(w.m.store, load); err != nil {
		return err
	}
	w.apart += p.Apart.Bytes()
	for _, number := range p.Apart.TakeDummies() {
		w.m.block(number)
	}
	return w.loadMixed(p, mixed)
}

// loadMixed makes mixed values resident, once all other entries that are to be resident are.
func (w *Worker) loadMixed(p *Partition, numbers []uint64) error {
	complete := p.complete
	p.complete = false // the mixed values aren't there yet
	for _, number := range numbers {
		if _, err := w.lookup(p, number); err != nil {
			return err
		}
	}
	p.complete = complete
	return nil
}

// Save writes what is dirty of a partition into batch and marks it as clean; for partition 0, also the control
// documents and the audit log. Until Saved is called, nothing of the partition is evicted: what the batch holds can't
// be read back yet. before is the store without the batch. The caller holds the lock. An error is final, since some of
// what is dirty counts as clean by then.
func (w *Worker) Save(p *Partition, batch *pebble.Batch, before *store.View) error {
	err := w.m.opts.Failed()
	if err == nil {
		err = w.save(p, batch, before)
	}
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
		if s := &p.Slots[i]; *s&arena.Dirty != 0 {
			w.dirty = append(w.dirty, p.Number(s))
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
		*s &^= arena.Dirty
	}
	for number := range p.deleted { // order doesn't matter: the keys differ
		if err := batch.Delete(store.AppendEntryKey(key[:0], number), nil); err != nil {
			return err
		}
	}
	p.deleting, p.deleted = p.deleted, nil
	p.saving, p.view, p.evictable = true, before, true
	p.turn++
	return nil
}

// Saved says that the batch that Save has filled is in the store. The caller holds the lock.
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

// forgetDeltas removes the changes that are in the store by now from memory.
func (w *Worker) forgetDeltas(p *Partition) error {
	for i := 0; i < len(p.Slots); {
		s := &p.Slots[i]
		if *s == 0 || profile.Kind(w.entryOf(s)) != entries.KindDelta ||
			entries.Delta(w.entryOf(s)).Saving() == 0 {
			i++
			continue
		}
		if d := entries.Delta(w.entryOf(s)); d.SavedUpTo() < len(d) {
			before := w.arena.Used
			if err := w.update(s, d.Saved()); err != nil {
				return err
			}
			w.deltas += w.arena.Used - before
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

// load reads a partition: always the books that are held in memory, and its entries when entry isn't nil.
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
