package eventlog

import (
	"context"
	"slices"

	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/stretch"
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
func (l *Log) findDeletions(ctx context.Context, to uint64) error {
	select {
	case l.scan <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.scan }()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.tail.RLock()
		l.mu.Lock()
		from := max(l.scanned, l.packed) + 1
		l.mu.Unlock()
		if from > to {
			l.tail.RUnlock()
			return nil
		}
		found, last, _, err := l.readDeletions(from, to)
		l.tail.RUnlock()
		if err != nil {
			return err
		}
		l.learn(found, last)
	}
}

// readDeletions finds the deletions in a part of the log that the engine has applied, up to the position last: to, or
// less when there is much.
func (l *Log) readDeletions(from, to uint64) (found []*erased.Run, last uint64, seen volume, err error) {
	var k stretch.Skimmer
	last = from - 1
	err = l.readLog(from, to, func(position uint64, _ uint32, payload []byte) error {
		if err := k.AddRecord(position, payload); err != nil {
			return err
		}
		if last = position; k.Bytes > maxStretchFactor*l.opts.tailBytes { // of which few are in memory
			return errEnough
		}
		return nil
	})
	if err == nil {
		last = to // no records follow up to there
	}
	if err = enough(err); err != nil {
		return nil, 0, seen, err
	}
	if found = k.Deletions.All(); len(found) > 0 {
		dropped, err := l.src.Dropped(from, last)
		if err != nil {
			return nil, 0, seen, err
		}
		found = erased.Without(found, dropped)
	}
	return found, last, volume{k.Bytes, k.Events}, nil
}
