package replica

import (
	"sync"

	"millrace/shard/machine"
)

// worker is a goroutine that applies what Dispatch hands over to its worker of the machine, in log order.
type worker struct {
	*machine.Worker
	e *Replica

	lead   *leadership // carries messages while the replica leads; nil otherwise. Guarded by the lock
	queue  queue
	sorted []*machine.Commit // scratch of dispatch
	gone   chan struct{}
	asked  <-chan struct{} // used by the worker only: the checkpoint that it has asked for
}

// queue holds commits between Dispatch and the worker.
type queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	items  []*machine.Commit
	upTo   uint64 // position of the newest record that was dispatched to any worker
	done   uint64 // everything up to here is applied; it may be further while the queue is empty
	busy   bool
	closed bool
	// waiters counts those in WaitApplied and drain.
	waiters int
}

func newWorker(e *Replica, id int) *worker {
	w := &worker{Worker: e.Machine.Worker(id), e: e, gone: make(chan struct{})}
	w.queue.cond.L = &w.queue.mu
	return w
}

// run is the worker's goroutine.
func (w *worker) run() {
	defer close(w.gone)
	var items []*machine.Commit
	var upTo uint64
	for {
		q := &w.queue
		q.mu.Lock()
		q.busy = false
		q.done = max(q.done, upTo)
		q.cond.Broadcast() // for drain and waitApplied
		for len(q.items) == 0 && !q.closed {
			q.cond.Wait()
		}
		if len(q.items) == 0 {
			q.mu.Unlock()
			return
		}
		items, q.items = q.items, items[:0]
		upTo = q.upTo
		q.busy = true
		q.mu.Unlock()

		if err := w.doAll(items); err != nil {
			w.e.fail(err)
			return
		}
		clear(items)
		w.Lock()
		w.Applied = max(w.Applied, upTo)
		w.Unlock()
	}
}

// doAll applies records in turns.
func (w *worker) doAll(items []*machine.Commit) error {
	for len(items) > 0 {
		ahead := together(items, machine.AheadOps)
		if err := w.ReadAhead(items[:ahead]); err != nil {
			return err
		}
		for rest := items[:ahead]; len(rest) > 0; {
			n := together(rest, machine.GroupOps)
			if err := w.do(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		items = items[ahead:]
	}
	return nil
}

// together is how many of the commits, one at least, have no more than so many ops together. Small records share a turn
// of the lock and of touch, a large one has its own.
func together(items []*machine.Commit, most int) (n int) {
	ops := 0
	for n < len(items) && (n == 0 || ops+items[n].Rec.Count <= most) {
		ops += items[n].Rec.Count
		n++
	}
	return n
}

// do applies some records and counts them down.
func (w *worker) do(items []*machine.Commit) error {
	if err := w.Prefetch(items); err != nil {
		return err
	}
	w.Lock()
	isCrowded, err := w.doLocked(items)
	if err == nil && isCrowded {
		return w.makeRoom()
	}
	return err
}

// doLocked is do for a caller that holds the lock, which doLocked releases. isCrowded: the worker has to make room.
func (w *worker) doLocked(items []*machine.Commit) (isCrowded bool, err error) {
	err = w.Apply(items)
	isCrowded = w.IsCrowded()
	sent, lead := w.TakeSent(), w.lead
	w.Unlock()
	if err != nil {
		return isCrowded, err
	}
	if !sent.IsEmpty() {
		lead.messages.Send(sent)
	}
	for _, c := range items {
		future, finished := c.Future, c.Finished // c is its owner's again as soon as it is counted down
		if c.Left.Add(-1) == 0 && finished != nil {
			finished()
		}
		if future != nil {
			future.Finish()
		}
	}
	return isCrowded, nil
}

// makeRoom brings the worker within its budget again. A compaction that it has begun is left to the next calls, unless
// the worker takes much more memory than its budget.
func (w *worker) makeRoom() error {
	for {
		t, err := w.Trim()
		if err != nil {
			return err
		}
		if t.Over <= 0 && t.IsHeavy {
			w.askForCheckpoint()
		}
		if t.Over > 0 {
			done := w.e.requestCheckpoint()
			if t.IsFull {
				select {
				case <-done:
					continue
				case <-w.e.ending.Done(): // Close writes the last checkpoint itself, when this worker is idle
					return nil
				}
			}
		}
		if !t.IsMoving || !t.IsUrgent {
			return nil
		}
	}
}

// askForCheckpoint asks for a checkpoint, unless the last one that was asked for is still to come.
func (w *worker) askForCheckpoint() {
	if w.asked == nil || isClosed(w.asked) {
		w.asked = w.e.requestCheckpoint()
	}
}

// catchUp counts records that concern other workers only as applied: without it, a worker that gets nothing to do would
// hold the log. What WaitApplied has reported as applied counts also while the worker has something to do. The caller
// holds the lock.
func (w *worker) catchUp() {
	q := &w.queue
	q.mu.Lock()
	if len(q.items) == 0 && !q.busy {
		w.Applied = max(w.Applied, q.upTo)
	}
	w.Applied = max(w.Applied, q.done)
	q.mu.Unlock()
}

// drain waits until the queue is empty and everything from it is applied.
func (w *worker) drain() {
	q := &w.queue
	q.mu.Lock()
	q.waiters++
	for (len(q.items) > 0 || q.busy) && w.e.Failed() == nil {
		q.cond.Wait()
	}
	q.waiters--
	upTo := q.upTo
	q.mu.Unlock()
	w.Lock()
	w.Applied = max(w.Applied, upTo)
	w.Unlock()
}

// retire ends the goroutine.
func (w *worker) retire() {
	w.queue.mu.Lock()
	w.queue.closed = true
	w.queue.cond.Broadcast()
	w.queue.mu.Unlock()
	<-w.gone
}
