package effect

import (
	"sync"
	"sync/atomic"
)

// Lead is a leadership of a replica, as far as apply knows it.
type Lead interface {
	// Complete is told that everything that a future has counted is visible.
	Complete(t *Future)
	// Keep is told of a deferred record for which no future of this leadership waits.
	Keep(ref DeferredRef)
}

// Future counts what a request has caused and nobody has applied yet: one for each worker that its record concerns, one
// for each message on its way. At zero everything is visible everywhere, except what was deferred; then whoever waits
// in its leadership is told, and releases the rest.
type Future struct {
	lead Lead // the leadership in which it was made

	pending  atomic.Int32
	Done     chan struct{} // of capacity 1, so that the last worker never waits
	mu       sync.Mutex    // guards what follows
	err      error         // ErrUnknown when something that is waited for was lost from sight
	deferred []DeferredRef
	reported []ReportedOutcome

	// Used by the leadership only.
	IsMessage bool
	Reply     func(x Effects, e error) // for a message: its Done, until it was called
}

// Begin begins a future of a record in a leadership. The owner of the record may have used the future before.
func (t *Future) Begin(l Lead) {
	if t.Done == nil {
		t.Done = make(chan struct{}, 1)
	}
	t.lead, t.err, t.deferred, t.reported = l, nil, t.deferred[:0], t.reported[:0]
}

// IsOf says whether the future was made in this leadership.
func (t *Future) IsOf(l Lead) bool { return t.lead == l }

// Expect counts n more, each of which is to be finished by a call of Finish.
func (t *Future) Expect(n int32) { t.pending.Add(n) }

// DeferTo says that a record that the request has caused waits in a partition.
func (t *Future) DeferTo(partition uint8, seq uint64) {
	t.mu.Lock()
	t.deferred = append(t.deferred, DeferredRef{partition, seq})
	t.mu.Unlock()
}

// Report reports the outcome of an element. The future is nil in replay, and for a request that is older than the
// process: then nobody wants to know.
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

// add adds what came of an effect.
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

// Effects are what came of everything that the future has counted.
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

// Lose takes off n that nobody will finish: what becomes of them is unknown here.
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

// Finish takes one off; the last one wakes whoever waits. A nil future stands for an effect that nobody waits for.
func (t *Future) Finish() {
	if t != nil && t.pending.Add(-1) == 0 {
		t.lead.Complete(t)
	}
}

// ExpectReply returns the Done of a message that the future counts. Only its first call counts.
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
