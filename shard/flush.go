package shard

import (
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"millrace/shard/identity"
)

// In a cluster a kept answer says that what it is the answer to is in the log of its key's group. From there it goes
// to other groups by messages, which may cause others; a part may be deferred. Whoever sent the request may be gone,
// or have been told that nothing is known; so who gets the answer sees to it that all has arrived.

// settleOwner returns when all effects are visible of the request that an answer is kept of under the key with this
// home number.
func (e *Engine) settleOwner(owner uint64) error {
	mesh := e.opts.Group.Mesh
	for pause, end := time.Millisecond, time.Now().Add(maxSettleTime); time.Now().Before(end); {
		waiting, err := e.flushAll(owner)
		if err != nil || len(waiting) == 0 {
			return err
		}
		for _, ref := range waiting {
			if _, err = mesh.Release(ref); err != nil && !errors.Is(err, ErrUnknown) {
				return err
			}
		}
		if err != nil { // somebody else is at it
			time.Sleep(pause)
			pause = min(2*pause, maxDeliveryPause)
		}
	}
	return ErrBusy
}

const maxSettleTime = 3 * time.Second

// flushAll has everything that is under way anywhere come so many messages further, which is more than one causes in a
// row, and says what waits of the owner then.
func (e *Engine) flushAll(owner uint64) (waiting []uint64, err error) {
	mesh := e.opts.Group.Mesh
	for range flushRounds {
		var all [identity.Partitions][]uint64 // by the groups' first partitions
		var asking errgroup.Group
		last := -1
		for p := range all { // those of a group are next to one another
			if g := mesh.GroupOf(uint8(p)); g != last {
				last = g
				asking.Go(func() (err error) {
					all[p], err = mesh.Flush(uint8(p), owner)
					return err
				})
			}
		}
		if err := asking.Wait(); err != nil {
			return nil, err
		}
		waiting = waiting[:0]
		for _, refs := range all {
			waiting = append(waiting, refs...)
		}
	}
	return waiting, nil
}

// flushRounds is how often all groups are flushed. An op goes to its user, whose addresses are told, who may tell him;
// it may come by a row, or follow a user who was merged on the way.
const flushRounds = 6

// Flush returns when all messages have been applied that this group had under way at the call, but those of merges, which
// may wait for one another, and when no stray waits that did. waiting are references to the deferred records of an owner.
// Only the leader flushes, behind a fence of its own. Errors: ErrNotLeader; ErrBusy when end was closed before.
func (e *Engine) Flush(owner uint64, end <-chan struct{}) (waiting []uint64, err error) {
	l := e.lead.Load()
	if l == nil {
		return nil, ErrNotLeader
	}
	var under []*message
	var strays []deferredRef
	for _, p := range e.held {
		w := e.owner[p.id]
		w.mu.Lock()
		for _, m := range p.outbox {
			if !m.token && !m.applied.Load() {
				under = append(under, m)
			}
		}
		for _, d := range p.deferred {
			switch ref := (deferredRef{p.id, d.seq}); d.owner {
			case owner:
				waiting = append(waiting, ref.number())
			case stray:
				strays = append(strays, ref)
			}
		}
		w.mu.Unlock()
	}
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
