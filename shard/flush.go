package shard

import (
	"slices"
	"time"
)

// Flush returns when all messages have been applied that this group had under way at the call, but those of merges,
// which may wait for one another, and when no stray waits that did. waiting are references to the deferred records of
// an owner. Only the leader flushes, behind a fence of its own. Errors: ErrNotLeader; ErrBusy when end was closed
// before.
func (e *Replica) Flush(owner uint64, end <-chan struct{}) (waiting []uint64, err error) {
	l := e.lead.Load()
	if l == nil {
		return nil, ErrNotLeader
	}
	under, deferred := e.inFlight()
	var strays []deferredRef
	for ref, of := range deferred {
		switch of {
		case owner:
			waiting = append(waiting, ref.number())
		case stray:
			strays = append(strays, ref)
		}
	}
	slices.Sort(waiting)
	for _, m := range under {
		if err := l.awaits(m.applied.Load, end); err != nil {
			return nil, err
		}
	}
	for _, ref := range strays { // whoever it is that waits for it releases it, or the leader does
		if err := l.awaits(func() bool { return e.deferredAt(ref) == nil }, end); err != nil {
			return nil, err
		}
	}
	return waiting, nil
}

// underWay are the messages that nobody is known to have applied, but those of merges, and the deferred records with
// their owners.
func (e *Replica) inFlight() (messages []*message, owners map[deferredRef]uint64) {
	owners = make(map[deferredRef]uint64)
	for _, p := range e.held {
		w := e.owner[p.id]
		w.mu.Lock()
		for _, m := range p.outbox {
			if !m.token && !m.applied.Load() {
				messages = append(messages, m)
			}
		}
		for _, d := range p.deferred {
			owners[deferredRef{p.id, d.seq}] = d.owner
		}
		w.mu.Unlock()
	}
	return messages, owners
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
