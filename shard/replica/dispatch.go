package replica

import (
	"fmt"
	"math/bits"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/bodies"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

// Dispatch is the OnDurable of a group's log: it takes the next records, in the order of their positions, from one
// goroutine. Records that were appended here have their Context; of others the engine keeps Data until they are
// applied, and Data must not change meanwhile. When the workers are behind, Dispatch waits, so that what is in memory
// is bounded. A record that can't be read fails the engine; one that the engine has had already is left out. After
// Close no record is taken any more: the next Open begins with the records that are not applied.
func (e *Replica) Dispatch(records []*wal.Record) {
	ready := e.ready[:0]
	defer func() {
		clear(ready[:cap(ready)])
		e.ready = ready[:0]
	}()
	had := e.dispatched()
	for i, r := range records {
		if r.Context != nil {
			ready = append(ready, r)
			continue
		}
		if r.Position <= had {
			continue
		}
		c := e.window.tryTake(len(r.Data))
		if c == nil {
			if len(ready) > 0 { // applying what is ready makes room
				e.dispatch(ready, records[i-1].Position)
				ready = ready[:0]
			}
			if c = e.window.take(len(r.Data)); c == nil {
				return
			}
		}
		if len(r.Data) < wal.HeaderBytes {
			e.fail(fmt.Errorf("position %d: %w: %d bytes", r.Position, op.ErrMalformed, len(r.Data)))
			return
		}
		if err := e.adopt(c, r.Position, r.Data[wal.HeaderBytes:]); err != nil {
			e.fail(err)
			return
		}
		e.countLogged(len(r.Data))
		ready = append(ready, &c.Record)
	}
	if len(ready) > 0 && !e.window.hasEnded() {
		e.dispatch(ready, records[len(records)-1].Position)
	}
}

// dispatch hands each record to the workers that it concerns, in order, and tells them that these were all up to
// position last. It sorts all records before the first worker gets any: the owner of a record may reuse it once it has
// been applied.
func (e *Replica) dispatch(records []*wal.Record, last uint64) {
	for _, r := range records {
		c := r.Context.(*commit)
		c.At = r.Position
		for set := c.Workers; set != 0; set &= set - 1 {
			w := e.workers[bits.TrailingZeros64(set)]
			w.sorted = append(w.sorted, &c.Commit)
		}
	}
	for _, w := range e.workers {
		if !e.opts.ownsLog || !w.takeOver(last) {
			w.enqueue(last)
		}
		clear(w.sorted)
		w.sorted = w.sorted[:0]
	}
}

// enqueue gives the worker's goroutine the commits that were sorted for it.
func (w *worker) enqueue(last uint64) {
	q := &w.queue
	q.mu.Lock()
	wake := len(q.items) == 0 && len(w.sorted) > 0 || q.waiters > 0
	q.items = append(q.items, w.sorted...)
	q.upTo = max(q.upTo, last)
	q.mu.Unlock()
	if wake {
		q.cond.Broadcast()
	}
}

// atOnceOps is how many ops the log's goroutine applies at most: while it does, nothing is written to the log.
const atOnceOps = 64

// takeOver applies the commits that were sorted for the worker in the caller's goroutine, the log's, when they are few
// and the worker has nothing else to do: this saves small requests one switch of goroutines. It returns false, with
// nothing done, when the worker's goroutine has to apply them. It never waits, neither for the store nor for a lock.
func (w *worker) takeOver(last uint64) bool {
	if ops := opsOf(w.sorted); ops == 0 || ops > atOnceOps || !w.IsComplete() || !w.claimQueue() {
		return false
	}
	if !w.TryLock() {
		w.releaseQueue(0)
		return false
	}
	if w.IsCrowded() {
		w.Unlock()
		w.releaseQueue(0)
		return false
	}
	appliedAtOnce.Add(len(w.sorted))
	if _, err := w.doLocked(w.sorted); err != nil {
		return true // Apply has ended the replica; the queue stays busy, as when the worker's goroutine fails
	}
	w.releaseQueue(last)
	return true
}

var appliedAtOnce = metrics.NewCounter("millrace_records_applied_at_once_total")

func opsOf(items []*machine.Commit) (n int) {
	for _, c := range items {
		n += c.Rec.Count
	}
	return n
}

// claimQueue makes the caller the one that applies, unless somebody is applying already or commits are queued.
func (w *worker) claimQueue() bool {
	q := &w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy || q.closed || len(q.items) > 0 {
		return false
	}
	q.busy = true
	return true
}

// releaseQueue ends what claimQueue began; everything up to position last is applied.
func (w *worker) releaseQueue(last uint64) {
	q := &w.queue
	q.mu.Lock()
	q.busy = false
	q.done, q.upTo = max(q.done, last), max(q.upTo, last)
	wake := q.waiters > 0
	q.mu.Unlock()
	if wake {
		q.cond.Broadcast()
	}
}

// dispatched is the position up to which everything has been dispatched: the first worker is told before the others.
func (e *Replica) dispatched() uint64 {
	q := &e.workers[0].queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.upTo
}

// adopt makes c the commit of a record that was not made here, or not by this process.
func (e *Replica) adopt(c *commit, position uint64, payload []byte) (err error) {
	c.Position = position
	if c.Rec, err = op.ParseRecord(payload, c.Rec.Names); err != nil {
		return fmt.Errorf("position %d: %w", position, err)
	}
	c.Workers = 0
	for rest := c.Rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		w := e.Owner(o.Partition())
		if w == nil {
			return fmt.Errorf("position %d: %w: an op for partition %d, which is not of this group",
				position, op.ErrMalformed, o.Partition())
		}
		c.Workers |= 1 << w.ID
	}
	if c.Rec.Count == 0 {
		return fmt.Errorf("position %d: %w: no ops", position, op.ErrMalformed)
	}
	c.Left.Store(int32(bits.OnesCount64(c.Workers)))
	e.observe(c.Rec.Stamp + bodies.StampsOf(&c.Rec)) // each op has a stamp of its own
	return nil
}

// Lost is the OnLost of a group's log: records that were appended here may or may not be in the log, now that
// leadership is lost. Whoever waits for them gets ErrUnknown.
func (e *Replica) Lost(records []*wal.Record) {
	for _, r := range records {
		c := r.Context.(*commit)
		c.lead.end()
		if c.Left.Swap(0) > 0 && c.Finished != nil {
			c.Finished()
		}
		c.Future.Lose(int32(bits.OnesCount64(c.Workers)))
	}
}

// Advance says that all records up to a position have been dispatched: the log has none between the last dispatched one
// and that position. So the engine counts the log as applied up to there once it has applied the dispatched records.
func (e *Replica) Advance(position uint64) {
	for last := e.advanced.Load(); last < position &&
		!e.advanced.CompareAndSwap(last, position); last = e.advanced.Load() {
	}
	for _, w := range e.workers {
		q := &w.queue
		q.mu.Lock()
		q.upTo = max(q.upTo, position)
		wake := q.waiters > 0
		q.mu.Unlock()
		if wake {
			q.cond.Broadcast()
		}
	}
}

// WaitApplied returns nil when everything up to a position is applied, and so visible to reads. It waits until records,
// or Advance, come that far. Errors: ErrFailed, ErrClosed.
func (e *Replica) WaitApplied(position uint64) error {
	for _, w := range e.workers {
		if err := w.waitApplied(position); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) waitApplied(position uint64) error {
	q := &w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters++
	defer func() { q.waiters-- }()
	for q.done < position && (q.upTo < position || len(q.items) > 0 || q.busy) {
		if err := w.e.Failed(); err != nil {
			return err
		}
		if q.closed || w.e.closing.Load() {
			return ErrClosed
		}
		q.cond.Wait()
	}
	if len(q.items) == 0 && !q.busy {
		q.done = max(q.done, q.upTo)
	}
	return nil
}

// tryTake is take without waiting: it returns nil also when there is no room.
func (v *window) tryTake(size int) *commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hasRoom(size) {
		return nil
	}
	return v.next(size)
}
