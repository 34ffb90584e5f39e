package replica

import (
	"errors"
	"time"
)

// ErrHandingOver is returned by HandOver when another hand-over is under way.
var ErrHandingOver = errors.New("shard: the leadership is being handed over already")

// HandOver says that another node is to lead the group soon. From now on Take refuses requests, which go to the next
// leader. HandOver returns when everything that was taken is answered, and nothing is taken any more; or after timeout,
// and then the replica still takes what others need to come to an end. resume undoes the hand-over, when no other node
// leads the group after all. Error: ErrHandingOver.
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

// Flush returns when all messages have been applied that this group had under way at the call, except those of merges,
// which may wait for one another. waiting are references to the deferred records of an owner (applying.owner); for
// owner 0 there are none. Only the leader flushes, behind a barrier of its own. Errors: ErrNotLeader; ErrBusy when end
// was closed first.
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

// awaits returns when isDone says so. Errors: those of Flush.
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
