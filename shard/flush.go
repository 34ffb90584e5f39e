package shard

import "time"

// Flush returns when all messages have been applied that this group had under way at the call, but those of merges,
// which may wait for one another. waiting are references to the deferred records of an owner (applying.owner; of 0 it
// gives none). Only the leader flushes, behind a barrier of its own. Errors: ErrNotLeader; ErrBusy when end was closed
// before.
func (e *Replica) Flush(owner uint64, end <-chan struct{}) (waiting []uint64, err error) {
	l := e.lead.Load()
	if l == nil {
		return nil, ErrNotLeader
	}
	under, waiting := e.underWay(owner)
	for _, m := range under {
		if err := l.awaits(m.applied.Load, end); err != nil {
			return nil, err
		}
	}
	return waiting, nil
}

// underWay are the messages that nobody is known to have applied, but those of merges, and what waits of an owner.
func (e *Replica) underWay(owner uint64) (messages []*message, waiting []uint64) {
	for _, p := range e.held {
		w := e.owner[p.ID]
		w.mu.Lock()
		for _, m := range p.outbox {
			if !m.token && !m.applied.Load() {
				messages = append(messages, m)
			}
		}
		for _, d := range p.Deferred.All() {
			if owner != 0 && d.Owner == owner {
				waiting = append(waiting, deferredRef{p.ID, d.Seq}.number())
			}
		}
		w.mu.Unlock()
	}
	return messages, waiting
}

// awaits returns when something is done. Errors: as those of Flush.
func (l *leadership) awaits(isDone func() bool, end <-chan struct{}) error {
	for !isDone() {
		select {
		case <-l.ended:
			return ErrNotLeader
		case <-end:
			return ErrBusy
		case <-time.After(flushPause):
		}
	}
	return nil
}

const flushPause = 200 * time.Microsecond
