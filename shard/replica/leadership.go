package replica

import (
	"errors"
	"sync"
	"time"

	"millrace/shard/effect"
	"millrace/shard/machine"
	"millrace/shard/outgoing"
	"millrace/wal"
)

// leadership is a stretch of time in which a replica leads its group. It carries the messages of the group's outboxes.
// When it ends, whoever waits for it is told.
//
// So that no message is overtaken (package outgoing), everything in an outbox is sent in order, by Lead, before any
// worker sends by itself; and after end nothing is appended any more.
type leadership struct {
	e        *Replica
	messages *outgoing.Messages
	ended    chan struct{}
	ending   sync.Once

	appending sync.Mutex // held while a record of the engine's own is appended

	mu       sync.Mutex // guards what follows
	inFlight inFlight
	received map[*effect.Future]struct{}      // of applied messages of other groups whose effects are on their way
	kept     map[effect.DeferredRef]time.Time // deferred records that wait for their coordinators, and until when
}

// inFlight is what a leadership has taken and not yet answered. What is open when the leadership ends gets ErrUnknown,
// so a leader that hands over on purpose waits for it.
type inFlight struct {
	// requests (Take until Wait), releases and calls with messages. Messages whose effects are on their way are counted
	// by leadership.received instead
	open        int
	handingOver bool          // no requests are taken, so that the rest comes to an end
	settled     chan struct{} // during a hand-over: closed when nothing is in flight; from then on nothing is taken
}

// commit is a record on its way through log and workers.
type commit struct {
	wal.Record
	machine.Commit
	lead   *leadership // of a record of the engine's own: the leadership in which it was appended
	copied []byte      // the record's bytes, while the log is replayed
	size   int64       // what it counts in the window
}

func (l *leadership) hasEnded() bool {
	return isClosed(l.ended)
}

// end ends the leadership. It may be called again.
func (l *leadership) end() {
	l.ending.Do(func() {
		close(l.ended)
		l.appending.Lock() // a caller that was about to append has done so, or sees the end
		l.appending.Unlock()
		l.messages.End()
		var replies []func(effect.Effects, error)
		l.mu.Lock()
		for t := range l.received {
			replies = append(replies, t.Reply)
			t.Reply = nil
		}
		clear(l.received)
		l.mu.Unlock()
		for _, reply := range replies {
			reply(effect.Effects{}, ErrUnknown)
		}
	})
}

// newFuture is a future that this leadership completes.
func (l *leadership) newFuture() *effect.Future {
	t := &effect.Future{}
	t.Begin(l)
	return t
}

// waitFor returns what came of everything that a future has counted, once all of it is visible. Errors: those of
// Pending.Wait.
func (l *leadership) waitFor(t *effect.Future, end <-chan struct{}) (effect.Effects, error) {
	select {
	case <-t.Done:
		return t.Effects()
	case <-l.ended:
	case <-end:
	}
	if err := l.e.Failed(); err != nil {
		return effect.Effects{}, err
	}
	return effect.Effects{}, ErrUnknown
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

// Keep makes a deferred record of this group wait for its coordinator. When nobody asks for it, because the coordinator
// or the leader that knew of it is lost, it is released all the same.
func (l *leadership) Keep(ref effect.DeferredRef) {
	if l.e.Owner(ref.Partition) == nil {
		return
	}
	l.mu.Lock()
	l.kept[ref] = time.Now().Add(l.e.opts.Patience)
	l.mu.Unlock()
}

// Complete is called when everything that the future has counted is visible. After the end of the leadership it does
// nothing: what is applied then has effects that no future counts.
func (l *leadership) Complete(t *effect.Future) {
	if l.hasEnded() {
		return
	}
	t.EachDeferred(l.Keep)
	if !t.IsMessage {
		select {
		case t.Done <- struct{}{}:
		default:
		}
		return
	}
	l.mu.Lock()
	reply := t.Reply
	t.Reply = nil
	delete(l.received, t)
	l.inFlight.open++
	l.mu.Unlock()
	defer l.answered()
	if reply != nil {
		reply(t.Effects())
	}
}

func (e *Replica) requestTending() {
	select {
	case e.tending <- struct{}{}:
	default:
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
