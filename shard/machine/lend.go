package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Lent is an entry that is lent to a reader, who gives it back: until then its worker stands still.
type Lent struct {
	Blob []byte  // nil: there is no entry, and nothing to give back
	w    *Worker // its mutex is held; nil when Blob is a copy
}

// Back gives the entry back.
func (l Lent) Back() {
	if l.w != nil {
		l.w.Unlock()
	}
}

// Show calls f and gives the entry back, also when f panics.
func (l Lent) Show(number uint64, f func(number uint64, blob []byte)) {
	defer l.Back()
	f(number, l.Blob)
}

// Use is what an entry is lent for.
type Use bool

const (
	// ToRead: an entry that comes from the store is a copy.
	ToRead Use = false
	// ToChange: the caller is about to send an op to the entry, or to where the row leads. An entry that comes from the
	// store stays in memory, as far as there is room, and is read only once.
	ToChange Use = true
)

// Lend lends the entry at number, which must be in one of the replica's partitions.
func (m *Machine) Lend(number uint64, use Use) (l Lent, err error) {
	if number == 0 { // no entry's
		return Lent{}, nil
	}
	p, w := m.partitions[identity.Partition(number)], m.owner[identity.Partition(number)]
	if w == nil {
		panic("BUG: a replica without its partition")
	}
	for {
		w.Lock()
		s := p.Find(number)
		if s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta {
			*s |= arena.Referenced
			return Lent{w.entryOf(s), w}, nil
		}
		if s == nil && (p.complete || p.isDeleted(number)) {
			w.Unlock()
			return Lent{}, nil
		}
		x := w.seek(p, s, number)
		w.Unlock()
		l, again, err := w.lendSought(p, x, use)
		if err != nil || !again {
			return l, err
		}
	}
}

// Touch loads those of the entries at numbers that are in memory, first all slots, then all entries, so that the loads
// overlap: for a caller that is about to look at each of them.
func (m *Machine) Touch(numbers []uint64) {
	for _, w := range m.workers {
		w.Lock()
		w.touchAll(numbers)
		w.Unlock()
	}
}

// Resident calls f with those of the entries at numbers that are in memory, and with their indexes in numbers, in the
// order of the workers, whose locks it takes once each: for a caller that would otherwise lend one after the other. It
// leaves the others to Lend. The bytes are lent for the call, in which f must not call the engine.
func (m *Machine) Resident(numbers []uint64, f func(i int, blob []byte)) {
	for _, w := range m.workers {
		w.resident(numbers, f)
	}
}

func (w *Worker) resident(numbers []uint64, f func(i int, blob []byte)) {
	w.Lock()
	defer w.Unlock()
	w.touchAll(numbers)
	for i, number := range numbers {
		if s := w.slotOf(number); s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta {
			*s |= arena.Referenced
			f(i, w.entryOf(s))
		}
	}
}

// slotOf is the slot of an entry that belongs to the worker and is in memory. Number 0 is no entry's.
func (w *Worker) slotOf(number uint64) *arena.Slot {
	if at := identity.Partition(number); number != 0 && w.m.owner[at] == w {
		return w.m.partitions[at].Find(number)
	}
	return nil
}

// touchAll loads those of the entries that belong to the worker. The caller holds the lock.
func (w *Worker) touchAll(numbers []uint64) {
	for _, number := range numbers {
		if at := identity.Partition(number); w.m.owner[at] == w {
			w.sink += uint64(w.m.partitions[at].Touch(number))
		}
	}
	for _, number := range numbers {
		if at := identity.Partition(number); w.m.owner[at] == w {
			if s := w.m.partitions[at].Guess(number); s != 0 {
				room, size := w.arena.Span(s)
				w.sink += profile.TouchFront(room[:size])
			}
		}
	}
}

// sought is an entry that isn't resident, as it was when a reader looked for it.
type sought struct {
	number uint64
	delta  []byte      // the delta of it in memory; nil: there is none
	before *store.View // the store without what is being saved, to be read with the delta
	// evicted tells whether the entry was perhaps admitted, changed and evicted meanwhile: then what was read is old.
	// turn tells whether changes were written meanwhile, which may then be in both places.
	evicted, turn uint64
}

// seek begins to read an entry; s has its delta, if there is one. The caller holds the lock.
func (w *Worker) seek(p *Partition, s *arena.Slot, number uint64) sought {
	x := sought{number: number, evicted: p.evicted, turn: p.turn}
	if s != nil {
		x.delta, x.before = bytes.Clone(w.entryOf(s)), p.view
	}
	return x
}

// isOld says whether what was read meanwhile may not fit what was in memory. The caller holds the lock.
func (w *Worker) isOld(p *Partition, x *sought) bool {
	if p.isDeleted(x.number) || p.evicted != x.evicted {
		return true
	}
	if x.delta == nil {
		return p.Find(x.number) != nil
	}
	return x.before == nil && p.turn != x.turn
}

// mayStay says whether what was read of an entry that isn't in memory may become resident: the store still has that,
// since the partition wasn't saved meanwhile, and there is room for it. The caller holds the lock.
func (w *Worker) mayStay(p *Partition, x *sought, value []byte) bool {
	return p.turn == x.turn && w.Used()+int64(len(value)) <= w.budget()
}

var folders = sync.Pool{New: func() any { return new(entries.Folder) }}

// lendSought reads an entry without the lock. again: it has to be looked for anew.
func (w *Worker) lendSought(p *Partition, x sought, use Use) (l Lent, again bool, err error) {
	value, err := w.readSought(&x)
	if errors.Is(err, store.ErrViewClosed) {
		return Lent{}, true, w.m.opts.Failed()
	} else if err != nil {
		return Lent{}, false, err
	}
	return w.lendRead(p, &x, value, use)
}

func (w *Worker) readSought(x *sought) (value []byte, err error) {
	w.m.opts.Reading.BeginEntry()
	defer func() { w.m.opts.Reading.EndEntry(len(value)) }()
	return w.m.store.Entry(x.before, nil, x.number)
}

// lendRead lends an entry of which value has been read.
func (w *Worker) lendRead(p *Partition, x *sought, value []byte, use Use) (l Lent, again bool, err error) {
	asStored := x.delta == nil && (value == nil || profile.Kind(value) != entries.KindMixed)
	w.Lock()
	if w.isOld(p, x) {
		w.Unlock()
		return Lent{}, true, nil
	}
	if use == ToChange && asStored && value != nil && w.mayStay(p, x, value) {
		if s, err := w.admit(p, x.number, value); err == nil { // else the op reads it once more
			readBacks.Inc()
			return Lent{w.entryOf(s), w}, false, nil
		}
	}
	w.Unlock()
	if asStored {
		return Lent{Blob: value}, false, nil
	}
	f := folders.Get().(*entries.Folder)
	defer folders.Put(f)
	if err = f.Begin(value, &w.m.limits); err == nil {
		err = f.Add(x.delta)
	}
	if err != nil {
		return Lent{}, false, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	if len(f.Strays) > 0 {
		return Lent{}, true, w.settleAt(x.number)
	}
	return Lent{Blob: bytes.Clone(f.Entry)}, false, nil
}

// settleAt settles what a reader has found at a number.
func (w *Worker) settleAt(number uint64) error {
	w.Lock()
	defer w.Unlock()
	_, err := w.lookup(w.m.partitions[identity.Partition(number)], number)
	return err
}

// Entry is a copy of the entry at number, which must be in one of this engine's partitions. nil: there is none.
func (m *Machine) Entry(number uint64) ([]byte, error) {
	l, err := m.Lend(number, ToRead)
	if err != nil || l.Blob == nil {
		return nil, err
	}
	defer l.Back()
	return append([]byte{}, l.Blob...), nil
}

// AllResident says whether all entries are in this engine's memory.
func (m *Machine) AllResident() bool {
	return len(m.workers) > 0 && !slices.ContainsFunc(m.workers, func(w *Worker) bool { return !w.complete.Load() })
}

// Numbers are those of a partition's entries behind after, in order, at most so many of them: users, rows, tombstones,
// and all other kinds. An entry that comes or goes meanwhile may be among them.
func (m *Machine) Numbers(partition uint8, after uint64, most int) (numbers []uint64, err error) {
	numbers, complete := m.owner[partition].residentNumbers(m.partitions[partition])
	numbers = slices.DeleteFunc(numbers, func(number uint64) bool { return number <= after })
	if !complete {
		if numbers, err = m.storedNumbers(numbers, partition, after, most); err != nil {
			return nil, err
		}
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	return numbers[:min(len(numbers), most)], nil
}

// residentNumbers are the numbers of all entries of a partition that are in memory, in any order, and whether these are
// all. Each of them is read where it lies, so it lets others have the lock in between.
func (w *Worker) residentNumbers(p *Partition) (numbers []uint64, complete bool) {
	w.Lock()
	defer w.Unlock()
	slots := len(p.Slots)
	for from := 0; from < slots; from += maxLooks {
		if from > 0 {
			w.Unlock()
			w.Lock()
		}
		if len(p.Slots) != slots { // all have moved: from the beginning
			numbers, slots, from = numbers[:0], len(p.Slots), 0
		}
		numbers = p.AppendNumbers(numbers, from, min(from+maxLooks, slots))
	}
	return numbers, p.complete
}

// storedNumbers appends the numbers of entries in the store: the lowest, as many as wanted.
func (m *Machine) storedNumbers(numbers []uint64, partition uint8, after uint64, most int) ([]uint64, error) {
	first := max(after, uint64(partition)<<56) + 1 // books are before it
	if identity.Partition(first) != partition {
		return numbers, nil
	}
	_, upper := store.Bounds(partition)
	stored := 0
	err := m.store.Scan(store.AppendEntryKey(nil, first), upper, func(k, _ []byte) error {
		if len(k) != store.EntryKeyBytes {
			return nil
		}
		numbers = append(numbers, binary.BigEndian.Uint64(k[1:]))
		if stored++; stored == most {
			return store.ErrEnough
		}
		return nil
	})
	if err != nil && stored < most {
		return nil, err
	}
	return numbers, nil
}
