package replica

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/bodies"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/wal"
)

// Pending is a record that was taken into the log (Replica.Take), until Wait returns.
type Pending struct {
	engine *Replica
	commit commit
	future effect.Future
	wanted int // outcomes that the batch waits for
	// What is given back when the record is applied, or lost.
	bytes, merges int64
	latest        int64 // of the record's stamps
	inFlight      bool  // it counts as in flight
}

func (p *Pending) init(e *Replica) {
	p.engine = e
	p.commit.Context, p.commit.Future, p.commit.Finished = &p.commit, &p.future, p.applied
}

// Take puts a finished record (op.Record, lent for the call) with ops for this engine's partitions into its log. It
// gives the record another stamp when the group has had a later one. wanted is how many outcomes the batch waits for.
// Only the leader takes, and not while it hands over. Wait must follow. Errors, all of which mean that nothing was
// done: those of Log.Append.
func (e *Replica) Take(record []byte, wanted int) (*Pending, error) {
	p := &Pending{wanted: wanted}
	p.init(e)
	data := append(make([]byte, wal.HeaderBytes, wal.HeaderBytes+len(record)), record...)
	var err error
	if p.commit.Rec, err = op.ParseRecord(data[wal.HeaderBytes:], nil); err != nil {
		return nil, err
	}
	merges := 0
	if merges, p.commit.Urgent, err = e.checkTaken(&p.commit.Rec); err != nil {
		return nil, err
	}
	return p, e.take(p, data, merges)
}

// TakeOwn is Take of a record that was made here, in its own buffer behind room for the log's header. The buffer is the
// log's until Wait returns nil. p may have been used before.
func (e *Replica) TakeOwn(p *Pending, data []byte, wanted, merges int, urgent bool) (err error) {
	if p.engine == nil {
		p.init(e)
	}
	c := &p.commit
	p.wanted = wanted
	if c.Rec, err = op.ParseRecord(data[wal.HeaderBytes:], c.Rec.Names); err != nil {
		panic("BUG: made a bad record: " + err.Error())
	}
	c.Urgent, c.Waits = urgent, true
	return e.take(p, data, merges)
}

func (e *Replica) take(p *Pending, data []byte, merges int) error {
	l := e.lead.Load()
	if l == nil || !l.takes(true) {
		return ErrNotLeader
	}
	err := e.admit(l, merges, len(data))
	if err == nil {
		p.bytes, p.merges, p.inFlight = int64(len(data)), int64(merges), true
		p.stamp(data)
		p.future.Begin(l)
		p.commit.lead = l
		if err = translate(e.give(&p.commit, data)); err != nil {
			p.giveBack()
		}
	}
	if err != nil {
		p.inFlight = false
		l.answered()
	}
	return err
}

// admit reserves what a record takes until it is applied: bytes in flight, and its merges.
func (e *Replica) admit(l *leadership, merges, bytes int) error {
	if l.messages.Backlog() > e.opts.MaxInflightBytes {
		RefusedBusy.Inc()
		return ErrBusy
	}
	if err := e.reserveMerges(merges); err != nil {
		return err
	}
	err := e.reserve(bytes)
	if err != nil {
		e.Merges.Add(-int64(merges))
	}
	return err
}

// stamp makes sure that the record's stamps are later than those that the group has had.
func (p *Pending) stamp(data []byte) {
	e, rec := p.engine, &p.commit.Rec
	stamps := bodies.StampsOf(rec)
	if rec.Stamp <= e.seen.Load() {
		rec.Stamp = e.clock.Next(int(stamps))
		op.PutStamp(data[wal.HeaderBytes:], rec.Stamp)
	} else {
		e.clock.Observe(rec.Stamp + stamps)
	}
	p.latest = rec.Stamp + stamps
}

func (p *Pending) giveBack() {
	p.engine.inflight.Add(-p.bytes)
	if p.merges > 0 {
		p.engine.Merges.Add(-p.merges)
	}
}

// applied is the commit's Finished.
func (p *Pending) applied() {
	p.engine.observe(p.latest)
	p.giveBack()
}

// Wait returns when the record is applied and all its effects are visible, except what was deferred: the caller
// releases that when the other parts of the same request are visible, too. end ends the wait; nil: nothing does.
// Errors: ErrUnknown when leadership was lost meanwhile, when an effect's Message.Done has had an error, or when end
// was closed; ErrFailed.
func (p *Pending) Wait(end <-chan struct{}) (effects effect.Effects, err error) {
	if p.inFlight {
		p.inFlight = false
		defer p.commit.lead.answered()
	}
	effects, err = p.commit.lead.waitFor(&p.future, end)
	effects.Outcomes = slices.DeleteFunc(effects.Outcomes, func(o effect.ReportedOutcome) bool {
		return int(o.Ref) >= p.wanted
	})
	return effects, err
}

// translate turns an error of the log into the engine's.
func translate(err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case errors.Is(err, wal.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// submit gives a finished record to the log. c.Future, if set, gets one count for each worker that the record concerns.
func (e *Replica) submit(c *commit, data []byte) error {
	rec, err := op.ParseRecord(data[wal.HeaderBytes:], c.Rec.Names)
	if err != nil {
		panic("BUG: made a bad record: " + err.Error())
	}
	c.Rec = rec
	return e.give(c, data)
}

// submit is Replica.submit for a record of the engine's own: none is appended when the leadership has ended, even if
// the log takes records again.
func (l *leadership) submit(c *commit, data []byte) error {
	l.appending.Lock()
	defer l.appending.Unlock()
	if l.hasEnded() {
		return ErrNotLeader
	}
	c.lead = l
	return l.e.submit(c, data)
}

// give is submit for a record that is parsed already.
func (e *Replica) give(c *commit, data []byte) error {
	c.Data, c.Count, c.Workers = data, uint32(c.Rec.Count), e.concerned(&c.Rec)
	n := int32(bits.OnesCount64(c.Workers))
	c.Left.Store(n)
	if c.Future != nil {
		c.Future.Expect(n)
	}
	if err := e.log.Append(&c.Record); err != nil {
		c.Left.Store(0)
		if c.Future != nil {
			c.Future.Expect(-n)
		}
		return err
	}
	e.countLogged(len(data))
	return nil
}

// concerned is the set of workers that a record has ops for. A large record soon has ops for all of them.
func (e *Replica) concerned(rec *op.Record) (workers uint64) {
	all := uint64(1)<<len(e.workers) - 1
	for rest := rec.Ops; len(rest) > 0 && workers != all; {
		var o op.Op
		o, rest = op.Next(rest)
		if w := e.Owner(o.Partition()); w != nil {
			workers |= 1 << w.ID
		}
	}
	return workers
}

// checkTaken returns how many merges a record begins, and whether it is urgent, or an error when it is not for this
// engine: every replica must be able to apply what is in the log.
func (e *Replica) checkTaken(rec *op.Record) (merges int, urgent bool, err error) {
	if rec.Count == 0 {
		return 0, false, fmt.Errorf("%w: no ops", op.ErrMalformed)
	}
	urgent = true
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		if e.Owner(o.Partition()) == nil {
			return 0, false, fmt.Errorf("%w: an op for partition %d, which is not of this group",
				op.ErrMalformed, o.Partition())
		}
		switch o.Kind() {
		case op.Merge:
			merges++
			urgent = false
		case op.Delete, op.Sweep:
		case op.Document: // urgent if it has only an entry of the audit log
			changes, _, err := bodies.ParseDocuments(o.Body())
			if err != nil {
				return 0, false, err
			}
			urgent = urgent && len(changes) == 0
		case op.Attributes, op.Event, op.Purchase, op.KeptAnswer, op.Deferred, op.Import, op.Claim,
			op.Unname, op.RowState, op.Relay:
			urgent = false
		default:
			return 0, false, fmt.Errorf("%w: kind %d in a request", op.ErrMalformed, o.Kind())
		}
	}
	return merges, urgent, nil
}

// observe notes that the group has had this stamp.
func (e *Replica) observe(stamp int64) {
	e.clock.Observe(stamp)
	for last := e.seen.Load(); last < stamp && !e.seen.CompareAndSwap(last, stamp); last = e.seen.Load() {
	}
}

// reserve counts n bytes as in flight, or returns ErrBusy when that would exceed the bound.
func (e *Replica) reserve(n int) error {
	if err := e.ended(); err != nil {
		return err
	}
	if e.inflight.Add(int64(n)) > e.opts.MaxInflightBytes {
		e.inflight.Add(-int64(n))
		RefusedBusy.Inc()
		return ErrBusy
	}
	return nil
}

// ended is why no change is taken any more, nil as long as the engine is neither closing nor has failed. It covers the
// store, too: the log may still take records when the store has failed.
func (e *Replica) ended() error {
	if e.closing.Load() {
		return ErrClosed
	}
	return e.Failed()
}

var (
	// RefusedBusy counts refusals because as much is in flight as may be: here, and in the coordinator.
	RefusedBusy = metrics.NewCounter(`millrace_refused_total{reason="busy"}`)
	// RefusedMerges counts refusals because too many merges wait: here, and in the coordinator.
	RefusedMerges = metrics.NewCounter(`millrace_refused_total{reason="merges"}`)
)

// reserveMerges counts n merges as begun, or returns ErrBusy when that would exceed the bound.
func (e *Replica) reserveMerges(n int) error {
	if n == 0 {
		return nil
	}
	for again := false; ; again = true {
		if e.Merges.Add(int64(n)) <= e.opts.MaxMergesWaiting {
			return nil
		}
		e.Merges.Add(-int64(n))
		if again {
			RefusedMerges.Inc()
			return ErrBusy
		}
		e.ForgetOwn() // some of the merges may have come to an end
	}
}
