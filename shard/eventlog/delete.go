package eventlog

import (
	"fmt"
	"slices"

	"millrace/shard/eventlog/erased"
	"millrace/shard/op"
)

// learn adds the deletions of a part of the log that ends at last. Some of them may be known already.
func (l *Log) learn(found []*erased.Run, last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.deleted.Load()
	tail := s.Tail
	for _, r := range found {
		if r.Last > l.scanned {
			tail = erased.Add(tail, r, maxTailRun)
		}
	}
	if !slices.Equal(tail, s.Tail) {
		l.deleted.Store(&erased.Set{Packed: s.Packed, Tail: tail})
	}
	l.scanned = max(l.scanned, last)
}

// maxTailRun bounds what packing has to copy of the deletions that are not packed.
const maxTailRun = 1 << 20

// learnPacked replaces the deletions that are packed, which may have been known as those of the tail. The caller holds
// mu.
func (l *Log) learnPacked(runs []*erased.Run, packed uint64) {
	s := l.deleted.Load()
	tail := erased.After(s.Tail, packed)
	l.opts.Share.count(erased.Bytes(runs) - erased.Bytes(s.Packed))
	if !slices.Equal(runs, s.Packed) || !slices.Equal(tail, s.Tail) { // readers look anew at what has changed
		l.deleted.Store(&erased.Set{Packed: runs, Tail: tail})
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
		found, _, last, err := l.readDeletions(from, to)
		l.tail.RUnlock()
		if err != nil {
			return err
		}
		l.learn(found.All(), last)
	}
}

// readDeletions finds the deletions in the log, up to the position last: to, or less when there is much.
func (l *Log) readDeletions(from, to uint64) (found erased.Collector, read volume, last uint64, err error) {
	var names, innerNames op.Names
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
			switch o.Kind() {
			case op.Event, op.Purchase:
				read.events += rowBytes(o)
			case op.Delete:
				if _, err := found.Add(position, ordinal, of, o); err != nil {
					return fmt.Errorf("position %d op %d: %w", position, ordinal, err)
				}
			}
		}
		last = position
		if read.records += int64(len(payload)); read.records > l.opts.tailBytes {
			return errEnough
		}
		return nil
	})
	if err == nil {
		last = to // no records follow up to there
	}
	return found, read, last, enough(err)
}
