package shard

import (
	"errors"
	"time"
)

// debts are what a leadership has taken and not answered. What is open when it ends gets ErrUnknown, so who hands over
// on purpose pays first.
type debts struct {
	open     int           // requests (Take until Wait), releases and calls with letters; letters whose effects are on their way are counted by leadership.letters
	yielding bool          // no requests are taken, so that the rest comes to an end
	paid     chan struct{} // while it yields: closed when nothing is owed; from then on nothing is taken
}

// errYielding: one at a time.
var errYielding = errors.New("shard: the leadership is being handed over already")

// Yield says that another node is to lead the group soon: from now on Take refuses requests, which go to whoever leads
// next. It returns when all that was taken is answered, and takes nothing any more; or after timeout, and goes on with
// what others need to come to an end. resume undoes it, when the group is not led by another node after all. An error:
// somebody else has it yield.
func (e *Replica) Yield(timeout time.Duration) (resume func(), err error) {
	l := e.lead.Load()
	if l == nil {
		return func() {}, nil
	}
	l.mu.Lock()
	if l.debts.yielding {
		l.mu.Unlock()
		return nil, errYielding
	}
	paid := make(chan struct{})
	l.debts.yielding, l.debts.paid = true, paid
	l.settle()
	l.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-paid:
	case <-timer.C:
	case <-l.ended:
	}
	return func() {
		l.mu.Lock()
		l.debts.yielding, l.debts.paid = false, nil
		l.mu.Unlock()
	}, nil
}

// takes says whether something may be taken, and counts it until answered.
func (l *leadership) takes(request bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := &l.debts; l.hasEnded() || d.yielding && (request || isClosed(d.paid)) {
		return false
	}
	l.debts.open++
	return true
}

func (l *leadership) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.debts.open--
	l.settle()
}

// settle wakes who yields when nothing is owed. The caller holds mu.
func (l *leadership) settle() {
	if d := &l.debts; d.yielding && d.open == 0 && len(l.letters) == 0 && !isClosed(d.paid) {
		close(d.paid)
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
