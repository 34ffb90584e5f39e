package shard

import (
	"slices"

	"millrace/shard/identity"
)

// lent is an entry in the hands of a reader, who gives it back: until then its worker stands still.
type lent struct {
	blob []byte  // nil: there is none, and nothing to give back
	w    *worker // whose mutex is held; nil when blob is a copy
}

func (l lent) back() {
	if l.w != nil {
		l.w.mu.Unlock()
	}
}

// show calls f and gives back what was lent, also when f panics.
func (l lent) show(number uint64, f func(number uint64, blob []byte)) {
	defer l.back()
	f(number, l.blob)
}

// lend lends the entry at number, which is of one of the replica's partitions.
func (e *Replica) lend(number uint64) (l lent, err error) {
	if number == 0 { // nobody's
		return lent{}, nil
	}
	p, w := e.partitions[identity.Partition(number)], e.owner[identity.Partition(number)]
	if w == nil {
		panic("BUG: a replica without its partition")
	}
	for {
		w.mu.Lock()
		if s := p.find(number); s != nil {
			s.meta |= metaRef
			return lent{w.entryOf(s), w}, nil
		}
		if p.complete || p.isDeleted(number) {
			w.mu.Unlock()
			return lent{}, nil
		}
		// Read it outside of the lock. Should it be admitted, changed and evicted meanwhile, what was read is old:
		// evicted tells.
		evicted := p.evicted
		w.mu.Unlock()
		blob, err := e.store.entry(nil, number)
		if err != nil {
			return lent{}, err
		}
		w.mu.Lock()
		resident, changed := p.find(number) != nil || p.isDeleted(number), p.evicted != evicted
		w.mu.Unlock()
		if resident || changed {
			continue
		}
		return lent{blob: blob}, nil
	}
}

// enter says whether the engine can be read from outside, and keeps it so until usable.RUnlock.
func (e *Replica) enter() bool {
	e.usable.RLock()
	if e.closing.Load() {
		e.usable.RUnlock()
		return false
	}
	return true
}

// Entry is a copy of the entry at number, which is of one of this engine's partitions. nil: there is none.
func (e *Replica) Entry(number uint64) ([]byte, error) {
	l, err := e.lend(number)
	if err != nil || l.blob == nil {
		return nil, err
	}
	defer l.back()
	return append([]byte{}, l.blob...), nil
}

// allResident says whether all entries are in this engine's memory.
func (e *Replica) allResident() bool {
	return len(e.workers) > 0 && !slices.ContainsFunc(e.workers, func(w *worker) bool { return !w.complete.Load() })
}
