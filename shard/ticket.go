package shard

import (
	"sync"
	"sync/atomic"
)

// ticket counts what a request has caused and nobody has applied yet: one for each worker that its record concerns, one for each message
// on its way. At zero the request is visible everywhere, unless ops of it were deferred: then those are next.
type ticket struct {
	pending  atomic.Int32
	done     chan struct{} // of capacity 1, so that the last worker never waits
	mu       sync.Mutex    // guards what follows
	err      error         // ErrUnknown when something that is waited for was lost from sight
	deferred []deferredRef
	outcomes []Outcome // by reference; see Batch.Outcome
	reported []ReportedOutcome

	// Of a replica's ticket: what is at zero goes back to where the request, or the letter, came from; nothing is released here.
	lead  *leadership              // in which it was made; nil: the engine is alone
	reply func(x Effects, e error) // of a letter: its Done, until it was called
}

func newTicket() *ticket { return &ticket{done: make(chan struct{}, 1)} }

func (t *ticket) deferTo(partition uint8, seq uint64) {
	t.mu.Lock()
	t.deferred = append(t.deferred, deferredRef{partition, seq})
	t.mu.Unlock()
}

// expect makes a reference that an outcome will be reported under. Until then it is Nobody.
func (t *ticket) expect() (ref int) {
	t.outcomes = append(t.outcomes, Nobody)
	return len(t.outcomes) - 1
}

// report says what became of an element. In replay, and of a request that is older than the process, nobody wants to know.
func (t *ticket) report(ref uint16, o Outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	switch {
	case t.lead != nil:
		t.reported = append(t.reported, ReportedOutcome{ref, o})
	case int(ref) < len(t.outcomes):
		t.outcomes[ref] = o
	}
	t.mu.Unlock()
}

// spoil says that something that is waited for was lost from sight.
func (t *ticket) spoil(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// add takes over what has come of an effect.
func (t *ticket) add(x Effects) {
	t.mu.Lock()
	t.reported = append(t.reported, x.Outcomes...)
	for _, number := range x.Deferred {
		t.deferred = append(t.deferred, refOf(number))
	}
	t.mu.Unlock()
}

// effects are what has come of all that the ticket has counted.
func (t *ticket) effects() (x Effects, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return Effects{}, t.err
	}
	x.Outcomes = t.reported
	for _, ref := range t.deferred {
		x.Deferred = append(x.Deferred, ref.number())
	}
	return x, nil
}

// lose takes n off that nobody will finish: what becomes of them is unknown here.
func (t *ticket) lose(e *Engine, n int32) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.err = ErrUnknown
	t.deferred = t.deferred[:0]
	t.mu.Unlock()
	t.pending.Add(1 - n)
	t.finish(e)
}

// finish takes one off; the last one releases deferred ops or wakes who waits. A nil ticket is that of an effect that nobody waits for.
func (t *ticket) finish(e *Engine) {
	if t == nil || t.pending.Add(-1) != 0 {
		return
	}
	if t.lead != nil {
		t.lead.complete(t)
		return
	}
	t.mu.Lock()
	var next deferredRef
	n := len(t.deferred)
	if n > 0 {
		next = t.deferred[0]
		t.deferred = append(t.deferred[:0], t.deferred[1:]...)
		t.pending.Add(1) // for the release itself
	}
	t.mu.Unlock()
	if n > 0 {
		go e.release(next, t)
		return
	}
	t.done <- struct{}{}
}
