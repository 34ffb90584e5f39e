package eventlog

import (
	"encoding/binary"
	"fmt"

	"millrace/shard/op"
)

// deletion is a Delete op of the log: events before it that carry one of its numbers are gone.
type deletion struct {
	position  uint64
	ordinal   uint32
	workspace uint32
	accepted  int64 // Unix µs
	// numbers are the profile's and, as far as the op names them, the home numbers of its identifiers, under which the log may know
	// events that came before the profile had a number.
	numbers []uint64
}

// newDeletion reads a Delete op; ok is false for one that found nobody when it was made.
func newDeletion(position uint64, ordinal uint32, rec *op.Record, o op.Op) (d deletion, ok bool) {
	d = deletion{position: position, ordinal: ordinal, workspace: rec.Workspace, accepted: rec.Stamp}
	add := func(n uint64) {
		if n != 0 && len(d.numbers) < maxNumbers {
			d.numbers = append(d.numbers, n)
		}
	}
	body := o.Body()
	for rest := body; len(rest) >= 8; rest = rest[8:] {
		add(binary.LittleEndian.Uint64(rest))
	}
	if len(body) >= 8 && len(d.numbers) == 0 {
		return d, false
	}
	add(o.Number())
	return d, len(d.numbers) > 0
}

const maxNumbers = 1 << 10

// deletedSet answers which events are gone. It is never changed.
type deletedSet struct {
	until map[deletedKey]place
}

type deletedKey struct {
	workspace uint32
	number    uint64
}

// place is a place in the log.
type place struct {
	position uint64
	ordinal  uint32
}

func newDeletedSet(ledger []deletion) *deletedSet {
	s := &deletedSet{}
	if len(ledger) > 0 {
		s.until = make(map[deletedKey]place, 2*len(ledger))
	}
	for i := range ledger {
		d := &ledger[i]
		for _, n := range d.numbers {
			k := deletedKey{d.workspace, n}
			if p := s.until[k]; before(p.position, p.ordinal, d.position, d.ordinal) {
				s.until[k] = place{d.position, d.ordinal}
			}
		}
	}
	return s
}

// covers says whether an event is gone.
func (s *deletedSet) covers(r *row) bool {
	if len(s.until) == 0 {
		return false
	}
	p, ok := s.until[deletedKey{r.workspace, r.number}]
	return ok && before(r.position, r.ordinal, p.position, p.ordinal)
}

// mayTouch says whether an event of this user at or after a position could be gone.
func (s *deletedSet) mayTouch(workspace uint32, number, first uint64) bool {
	p, ok := s.until[deletedKey{workspace, number}]
	return ok && p.position >= first
}

// learn adds the deletions of a part of the log that ends at last; those that are known already are skipped. The caller holds mu.
func (l *Log) learn(found []deletion, last uint64) {
	n := len(l.ledger)
	for _, d := range found {
		if d.position > l.scanned {
			l.ledger = append(l.ledger, d)
		}
	}
	l.scanned = max(l.scanned, last)
	if len(l.ledger) > n {
		l.deleted.Store(newDeletedSet(l.ledger))
	}
}

// findDeletions reads the unpacked tail as far as it has not been looked through, for the deletions in it.
func (l *Log) findDeletions(to uint64) error {
	l.scan.Lock()
	defer l.scan.Unlock()
	for {
		l.tail.RLock()
		l.mu.Lock()
		from := max(l.scanned, l.packed) + 1
		l.mu.Unlock()
		if from > to {
			l.tail.RUnlock()
			return nil
		}
		found, last, err := l.readDeletions(from, to)
		l.tail.RUnlock()
		if err == nil && last < from {
			err = fmt.Errorf("the log has nothing at %d to %d", from, to)
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.learn(found, last)
		l.mu.Unlock()
	}
}

func (l *Log) readDeletions(from, to uint64) (found []deletion, last uint64, err error) {
	var names, innerNames op.Names
	size := int64(0)
	last = from - 1
	err = l.src.ReadLog(from, to, func(position uint64, _ uint32, payload []byte) error {
		rec, err := op.ParseRecord(payload, names)
		if err != nil {
			return err
		}
		names = rec.Names
		stamp := rec.Stamp
		ordinal := uint32(0)
		for rest := rec.Ops; len(rest) > 0; ordinal++ {
			var o op.Op
			o, rest = op.Next(rest)
			of := &rec
			rec.Stamp = stamp + int64(ordinal)
			if o.Kind() == op.Message {
				inner, innerOp, err := message(o, innerNames)
				if err != nil {
					return err
				}
				innerNames, o, of = inner.Names, innerOp, &inner
			}
			if o.Kind() == op.Delete {
				if d, ok := newDeletion(position, ordinal, of, o); ok {
					found = append(found, d)
				}
			}
		}
		last = position
		if size += int64(len(payload)); size > l.opts.tailBytes {
			return errEnough
		}
		return nil
	})
	return found, last, enough(err)
}
