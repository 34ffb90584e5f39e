package replica

import (
	"github.com/VictoriaMetrics/metrics"
)

// What a worker has in memory is bounded: entries, in their blocks, what its tables map, and what its trails hold until
// the next checkpoint. Beyond its budget the worker evicts, then empties pages that have become sparse.
// What is dirty stays; when that is too much, the worker waits for a checkpoint, and the door refuses what can't be
// taken (MaxInflightBytes).

// share is what the worker may have in memory.
func (w *worker) share() int64 { return w.e.memory.Load() / int64(len(w.e.workers)) }

// budget is the worker's share without what is set apart for good, and who is known to be there; but that leaves half.
// The caller holds w.mu.
func (w *worker) budget() int64 { return w.share() - min(w.apart+w.known.Bytes(), w.share()/2) }

// used is what has to be in memory as long as nothing is evicted. The caller holds w.mu.
func (w *worker) used() int64 { return w.arena.Used + w.tables + w.unwritten }

// resident is what takes memory. The caller holds w.mu.
func (w *worker) resident() int64 { return w.arena.Resident() + w.tables + w.unwritten }

// excess is how much should be evicted. A sixteenth of it is left for free blocks; an eighth when they take more than
// that.
func (w *worker) excess() int64 {
	budget, used := w.budget(), w.used()
	if w.arena.Held+w.tables+w.unwritten > budget+spareBytes {
		return max(used-budget*7/8, 0)
	}
	if over := used - budget*15/16; over > 0 {
		return over + budget/64
	}
	return 0
}

// isCrowded says whether there is something for makeRoom to do. The caller holds w.mu.
func (w *worker) isCrowded() bool {
	return w.excess() > 0 || w.compaction.under || w.isWide() || w.deltas > w.deltaShare()
}

// deltaShare is how much of the memory changes that go unread may take: then a checkpoint is asked for, rather than
// entries evicted.
func (w *worker) deltaShare() int64 { return w.budget() / 2 }

// isWide says whether pages take too much, and something may come of looking for sparse ones. The caller holds w.mu.
func (w *worker) isWide() bool { return w.resident() > max(w.budget()+spareBytes, w.compaction.above) }

// makeRoom brings the worker within its budget again. A compaction that has begun it leaves to the next calls, unless
// much more than that is taken.
func (w *worker) makeRoom() error {
	for {
		t, err := w.trim()
		if err != nil {
			return err
		}
		if t.over <= 0 && t.isHeavy {
			w.askForCheckpoint()
		}
		if t.over > 0 {
			done := w.e.requestCheckpoint()
			if t.isFull {
				select {
				case <-done:
					continue
				case <-w.e.stop: // Close writes the last checkpoint itself, when this worker is idle
					return nil
				case <-w.e.failure.failed:
					return nil
				}
			}
		}
		if !t.isMoving || !t.isUrgent {
			return nil
		}
	}
}

// askForCheckpoint asks for one, unless the last one that was asked for is to come still.
func (w *worker) askForCheckpoint() {
	if w.asked == nil || isClosed(w.asked) {
		w.asked = w.e.requestCheckpoint()
	}
}

// trimAll brings all workers within their budgets, as far as what is clean allows.
func (e *Replica) trimAll() error {
	for _, w := range e.workers {
		for more := true; more; {
			t, err := w.trim()
			if err != nil {
				return err
			}
			more = t.isMoving
		}
	}
	return nil
}

// trimmed is what a trim has come to.
type trimmed struct {
	over     int64 // what should have been evicted besides
	isFull   bool  // so much is dirty that nothing more is to be applied
	isMoving bool  // a compaction is under way
	isUrgent bool  // it should be
	isHeavy  bool  // deltas take more than their share
}

// trim evicts, and does a step of a compaction.
func (w *worker) trim() (t trimmed, err error) {
	if t.over, err = w.evictExcess(); err != nil {
		return t, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.isMoving, err = w.compact()
	far := w.budget() * 9 / 8
	t.isHeavy = w.deltas > w.deltaShare()
	t.isFull, t.isUrgent = w.used() > far, w.resident() > far+spareBytes
	return t, err
}

// evictExcess evicts what should be, a bit in each hold of the mutex, and says what is left: it has gone over all
// partitions twice then.
func (w *worker) evictExcess() (over int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.makeKnown(); err != nil {
		return 0, err
	}
	over = w.excess()
	w.isTight = w.isTight || over > 0
	for turns := 2 * len(w.parts); over > 0 && turns > 0; {
		freed, ended, err := w.evict(maxLooks)
		evictions.Add(int(freed))
		if err != nil {
			return over, err
		}
		if over -= freed; freed > 0 {
			w.compaction.above = 0
		}
		if ended {
			turns--
		}
		w.mu.Unlock() // for readers
		w.mu.Lock()
	}
	return over, nil
}

// MemoryBytes is what Options.MemoryBytes or SetMemoryBytes has said last.
func (e *Replica) MemoryBytes() int64 { return e.memory.Load() }

// SetMemoryBytes makes Options.MemoryBytes another one: in a cluster replicas come and go, and share what the node has.
func (e *Replica) SetMemoryBytes(n int64) {
	before := e.memory.Swap(n)
	if before == n {
		return
	}
	for _, w := range e.workers {
		w.mu.Lock()
		w.isTight = w.isTight && n <= before
		w.mu.Unlock()
	}
	if err := e.trimAll(); err != nil {
		e.fail(err)
	}
}

var moved = metrics.NewCounter("millrace_moved_bytes_total")

// compaction empties pages that have few blocks left into others of their class, so that other classes, or the system,
// get them: profiles that grow leave the classes that they were in. Blocks are found through their slots, a partition
// at a time; in between, readers, checkpoints and the next records have their turn.
type compaction struct {
	under bool  // pages are being emptied
	at    int   // index of the partition that is next
	above int64 // there was nothing to empty: it is tried again when more than this is taken
}

// compact does a step, when pages take too much, and says whether more are to come. The caller holds w.mu.
func (w *worker) compact() (more bool, err error) {
	c := &w.compaction
	if !c.under && w.isWide() {
		w.beginCompaction()
	}
	if !c.under {
		return false, nil
	}
	n, err := w.arena.Empty(&w.parts[c.at].Table)
	if moved.Add(int(n)); err != nil {
		return false, err
	}
	if c.at++; c.at == len(w.parts) {
		c.under = false
		w.giveBack()
	}
	return c.under, nil
}

// beginCompaction chooses the pages to be emptied, unless giving back what nobody has is enough.
func (w *worker) beginCompaction() {
	c := &w.compaction
	w.giveBack()
	over := w.resident() - w.budget()
	if over <= spareBytes {
		return
	}
	c.under, c.at, c.above = w.arena.Choose(over+w.budget()/64), 0, 0
	if !c.under {
		c.above = w.resident() + w.budget()/64
	}
}

// giveBack gives back pages that nobody has, as far as more than the budget is taken.
func (w *worker) giveBack() {
	if over := w.resident() - w.budget(); over > 0 {
		w.arena.GiveBack(max(w.arena.Idle-over, 0))
	}
}

// spareBytes is about what the pages take in which each class has its free blocks.
const spareBytes = 1 << 20
