package shard

import (
	"sync"
	"sync/atomic"
)

// future counts what a request has caused and nobody has applied yet: one for each worker that its record concerns, one
// for each message on its way. At zero it is visible everywhere, apart from what was deferred; then whoever waits in
// its leadership is told, and sees to the rest.
type future struct {
	lead *leadership // in which it was made

	pending  atomic.Int32
	done     chan struct{} // of capacity 1, so that the last worker never waits
	mu       sync.Mutex    // guards what follows
	err      error         // ErrUnknown when something that is waited for was lost from sight
	deferred []deferredRef
	reported []ReportedOutcome

	isMessage bool
	reply     func(x Effects, e error) // of a message: its Done, until it was called
}

// begin makes a future of a record, whose owner may have used it before, one of a leadership.
func (t *future) begin(l *leadership) {
	if t.done == nil {
		t.done = make(chan struct{}, 1)
	}
	t.lead, t.err, t.deferred, t.reported = l, nil, t.deferred[:0], t.reported[:0]
}

func (t *future) deferTo(partition uint8, seq uint64) {
	t.mu.Lock()
	t.deferred = append(t.deferred, deferredRef{partition, seq})
	t.mu.Unlock()
}

// report says what became of an element. In replay, and of a request that is older than the process, nobody wants to
// know.
func (t *future) report(ref uint16, o Outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.reported = append(t.reported, ReportedOutcome{ref, o})
	t.mu.Unlock()
}

// spoil says that something that is waited for was lost from sight.
func (t *future) spoil(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// add takes over what has come of an effect.
func (t *future) add(x Effects) {
	t.mu.Lock()
	t.reported = append(t.reported, x.Outcomes...)
	for _, number := range x.Deferred {
		t.deferred = append(t.deferred, refOf(number))
	}
	t.mu.Unlock()
}

// effects are what has come of all that the future has counted.
func (t *future) effects() (x Effects, err error) {
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
func (t *future) lose(n int32) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.err = ErrUnknown
	t.deferred = t.deferred[:0]
	t.mu.Unlock()
	t.pending.Add(1 - n)
	t.finish()
}

// finish takes one off; the last one wakes who waits. A nil future is that of an effect that nobody waits for.
func (t *future) finish() {
	if t != nil && t.pending.Add(-1) == 0 {
		t.lead.complete(t)
	}
}
