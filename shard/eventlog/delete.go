package eventlog

import (
	"fmt"
	"slices"

	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// deletion is a Delete op of the log: the events that it names are gone.
type deletion struct {
	position  uint64
	ordinal   uint32
	workspace uint32
	accepted  int64 // Unix µs
	// erased are the erased of the profile and of all that were merged into it. Their ends are set: where the op sets
	// none, at the deletion itself.
	erased []bodies.Erased
}

// newDeletion reads a Delete op; ok is false for an op that found nobody when it was made.
func newDeletion(position uint64, ordinal uint32, rec *op.Record, o op.Op) (d deletion, ok bool, err error) {
	d = deletion{position: position, ordinal: ordinal, workspace: rec.Workspace, accepted: rec.Stamp}
	end := profile.Place{Position: position, Ordinal: ordinal}
	err = bodies.EachErased(o.Body(), func(x bodies.Erased) {
		if x.Until == (profile.Place{}) {
			x.Until = end
		}
		d.erased = append(d.erased, x)
	})
	return d, len(d.erased) > 0, err
}

// deletedSet says which events are gone. It is never changed.
type deletedSet struct {
	erased map[deletedKey][]bodies.Erased
}

type deletedKey struct {
	workspace uint32
	number    uint64
}

func newDeletedSet(ledger []deletion) *deletedSet {
	s := &deletedSet{}
	if len(ledger) > 0 {
		s.erased = make(map[deletedKey][]bodies.Erased, 2*len(ledger))
	}
	for i := range ledger {
		d := &ledger[i]
		for _, x := range d.erased {
			k := deletedKey{d.workspace, x.Number}
			s.erased[k] = append(s.erased[k], x)
		}
	}
	return s
}

// covers reports whether an event is gone.
func (s *deletedSet) covers(r *blocks.Row) bool {
	if len(s.erased) == 0 || r.Kind == op.Delete {
		return false
	}
	by := bodies.ByIdentifier
	if r.Resolved {
		by = bodies.ByProfile
	}
	for _, x := range s.erased[deletedKey{r.Workspace, r.Number}] {
		if x.By == by && !before(r.Position, r.Ordinal, x.Since.Position, x.Since.Ordinal) &&
			before(r.Position, r.Ordinal, x.Until.Position, x.Until.Ordinal) {
			return true
		}
	}
	return false
}

// mayTouch reports whether an event of this user at or after a position could be gone.
func (s *deletedSet) mayTouch(workspace uint32, number, first uint64) bool {
	return slices.ContainsFunc(s.erased[deletedKey{workspace, number}],
		func(x bodies.Erased) bool { return x.Until.Position >= first })
}

// learn adds the deletions of a part of the log that ends at last, skipping those that are already known. The caller
// holds mu.
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

// findDeletions reads the part of the unpacked tail that has not been looked through, to find the deletions in it.
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
				d, ok, err := newDeletion(position, ordinal, of, o)
				if err != nil {
					return fmt.Errorf("position %d op %d: %w", position, ordinal, err)
				}
				if ok {
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
	if err == nil {
		last = to // no records follow up to there
	}
	return found, last, enough(err)
}
