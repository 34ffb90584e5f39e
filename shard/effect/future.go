package effect

import (
	"sync"
	"sync/atomic"
)

// Lead is a leadership of a replica, as far as apply knows it.
type Lead interface {
	// Complete is told that all that a future has counted is visible.
	Complete(t *Future)
	// Keep is told of a deferred record that nobody of this leadership waits for.
	Keep(ref DeferredRef)
}

// Future counts what a request has caused and nobody has applied yet: one for each worker that its record concerns, one
// for each message on its way. At zero it is visible everywhere, apart from what was deferred; then whoever waits in
// its leadership is told, and sees to the rest.
type Future struct {
	lead Lead // in which it was made

	pending  atomic.Int32
	Done     chan struct{} // of capacity 1, so that the last worker never waits
	mu       sync.Mutex    // guards what follows
	err      error         // ErrUnknown when something that is waited for was lost from sight
	deferred []DeferredRef
	reported []ReportedOutcome

	// The leadership's own.
	IsMessage bool
	Reply     func(x Effects, e error) // of a message: its Done, until it was called
}

// Begin makes a future of a record, whose owner may have used it before, one of a leadership.
func (t *Future) Begin(l Lead) {
	if t.Done == nil {
		t.Done = make(chan struct{}, 1)
	}
	t.lead, t.err, t.deferred, t.reported = l, nil, t.deferred[:0], t.reported[:0]
}

// IsOf says whether the future was made in this leadership.
func (t *Future) IsOf(l Lead) bool { return t.lead == l }

// Expect counts n more that somebody is to finish.
func (t *Future) Expect(n int32) { t.pending.Add(n) }

// DeferTo says that a record, which the request has caused, waits in a partition.
func (t *Future) DeferTo(partition uint8, seq uint64) {
	t.mu.Lock()
	t.deferred = append(t.deferred, DeferredRef{partition, seq})
	t.mu.Unlock()
}

// Report says what became of an element. In replay, and of a request that is older than the process, nobody wants to
// know.
func (t *Future) Report(ref uint16, o Outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.reported = append(t.reported, ReportedOutcome{ref, o})
	t.mu.Unlock()
}

// Spoil says that something that is waited for was lost from sight.
func (t *Future) Spoil(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// add takes over what has come of an effect.
func (t *Future) add(x Effects) {
	t.mu.Lock()
	t.reported = append(t.reported, x.Outcomes...)
	for _, number := range x.Deferred {
		t.deferred = append(t.deferred, RefOf(number))
	}
	t.mu.Unlock()
}

// EachDeferred calls f for the records that wait.
func (t *Future) EachDeferred(f func(DeferredRef)) {
	t.mu.Lock()
	for _, ref := range t.deferred {
		f(ref)
	}
	t.mu.Unlock()
}

// Effects are what has come of all that the future has counted.
func (t *Future) Effects() (x Effects, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return Effects{}, t.err
	}
	x.Outcomes = t.reported
	for _, ref := range t.deferred {
		x.Deferred = append(x.Deferred, ref.Number())
	}
	return x, nil
}

// Lose takes n off that nobody will finish: what becomes of them is unknown here.
func (t *Future) Lose(n int32) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.err = ErrUnknown
	t.deferred = t.deferred[:0]
	t.mu.Unlock()
	t.pending.Add(1 - n)
	t.Finish()
}

// Finish takes one off; the last one wakes who waits. A nil future is that of an effect that nobody waits for.
func (t *Future) Finish() {
	if t != nil && t.pending.Add(-1) == 0 {
		t.lead.Complete(t)
	}
}

// ExpectReply is the Done of a message that the future counts: the first call is what counts.
func (t *Future) ExpectReply() func(Effects, error) {
	var called atomic.Bool
	return func(x Effects, err error) {
		if called.Swap(true) {
			return
		}
		if err != nil {
			t.Spoil(err)
		} else {
			t.add(x)
		}
		t.Finish()
	}
}
