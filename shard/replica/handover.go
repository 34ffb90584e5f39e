package replica

import (
	"errors"
	"time"
)

// inFlight is what a leadership has taken and not answered. What is open when it ends gets ErrUnknown, so a leader that
// hands over on purpose waits for it.
type inFlight struct {
	// requests (Take until Wait), releases and calls with messages; those whose effects are on their way are counted by
	// leadership.received
	open        int
	handingOver bool          // no requests are taken, so that the rest comes to an end
	settled     chan struct{} // during a hand-over: closed when nothing is in flight; from then on nothing is taken
}

// ErrHandingOver is returned by HandOver when another one is under way.
var ErrHandingOver = errors.New("shard: the leadership is being handed over already")

// HandOver says that another node is to lead the group soon: from now on Take refuses requests, which go to whoever
// leads next. It returns when all that was taken is answered, and takes nothing any more; or after timeout, and goes on
// with what others need to come to an end. resume undoes it, when the group is not led by another node after all. An
// error: somebody else has it hand over.
func (e *Replica) HandOver(timeout time.Duration) (resume func(), err error) {
	l := e.lead.Load()
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	if l.inFlight.handingOver {
		l.mu.Unlock()
		return nil, ErrHandingOver
	}
	settled := make(chan struct{})
	l.inFlight.handingOver, l.inFlight.settled = true, settled
	l.settle()
	l.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	case <-l.ended:
	}
	return func() {
		l.mu.Lock()
		l.inFlight.handingOver, l.inFlight.settled = false, nil
		l.mu.Unlock()
	}, nil
}

// takes says whether something may be taken, and counts it until answered.
func (l *leadership) takes(request bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := &l.inFlight; l.hasEnded() || d.handingOver && (request || isClosed(d.settled)) {
		return false
	}
	l.inFlight.open++
	return true
}

func (l *leadership) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight.open--
	l.settle()
}

// settle wakes HandOver when nothing is in flight. The caller holds mu.
func (l *leadership) settle() {
	if d := &l.inFlight; d.handingOver && d.open == 0 && len(l.received) == 0 && !isClosed(d.settled) {
		close(d.settled)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Flush returns when all messages have been applied that this group had under way at the call, but those of merges,
// which may wait for one another. waiting are references to the deferred records of an owner (applying.owner; of 0 it
// gives none). Only the leader flushes, behind a barrier of its own. Errors: ErrNotLeader; ErrBusy when end was closed
// before.
func (e *Replica) Flush(owner uint64, end <-chan struct{}) (waiting []uint64, err error) {
	l := e.lead.Load()
	if l == nil {
		return nil, ErrNotLeader
	}
	under, waiting := e.UnderWay(owner)
	for _, m := range under {
		if err := l.awaits(m.Applied.Load, end); err != nil {
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
