package machine

import (
	"github.com/VictoriaMetrics/metrics"
)

// What a worker has in memory is bounded: entries, in their blocks, what its tables map, and what its trails hold until
// the next checkpoint. Beyond its budget the worker evicts, then empties pages that have become sparse. What is dirty
// stays; when that is too much, the worker waits for a checkpoint, and the door refuses what can't be taken
// (MaxInflightBytes).

// share is how many bytes the worker may have in memory.
func (w *Worker) share() int64 { return w.m.memory.Load() / int64(len(w.m.workers)) }

// budget is the worker's share without the bytes for numbers that are set apart for good and for users who are known to
// be there; but at least half the share. The caller holds the lock.
func (w *Worker) budget() int64 { return w.share() - min(w.apart+w.known.Bytes(), w.share()/2) }

// Used is how many bytes have to be in memory as long as nothing is evicted. The caller holds the lock.
func (w *Worker) Used() int64 { return w.arena.Used + w.tables + w.unwritten }

// Resident is how many bytes of memory are taken. The caller holds the lock.
func (w *Worker) Resident() int64 { return w.arena.Resident() + w.tables + w.unwritten }

// excess is how many bytes should be evicted. A sixteenth of the budget is left for free blocks; an eighth when these
// take more than that.
func (w *Worker) excess() int64 {
	budget, used := w.budget(), w.Used()
	if w.arena.Held+w.tables+w.unwritten > budget+spareBytes {
		return max(used-budget*7/8, 0)
	}
	if over := used - budget*15/16; over > 0 {
		return over + budget/64
	}
	return 0
}

// IsCrowded says whether Trim has anything to do. The caller holds the lock.
func (w *Worker) IsCrowded() bool {
	return w.excess() > 0 || w.compaction.under || w.isWide() || w.deltas > w.deltaShare()
}

// deltaShare is how many bytes unread changes may take: beyond that a checkpoint is asked for, rather than entries
// evicted.
func (w *Worker) deltaShare() int64 { return w.budget() / 2 }

// isWide says whether pages take too much, and looking for sparse ones may help. The caller holds the lock.
func (w *Worker) isWide() bool { return w.Resident() > max(w.budget()+spareBytes, w.compaction.above) }

// TrimAll brings all workers within their budgets, as far as evicting clean entries can do that.
func (m *Machine) TrimAll() error {
	for _, w := range m.workers {
		for more := true; more; {
			t, err := w.Trim()
			if err != nil {
				return err
			}
			more = t.IsMoving
		}
	}
	return nil
}

// Trimmed is the result of a Trim.
type Trimmed struct {
	Over     int64 // bytes that should have been evicted, too
	IsFull   bool  // so much is dirty that nothing more should be applied
	IsMoving bool  // a compaction is under way
	IsUrgent bool  // a compaction should be under way
	IsHeavy  bool  // deltas take more than their share
}

// Trim evicts, and does a step of a compaction.
func (w *Worker) Trim() (t Trimmed, err error) {
	if t.Over, err = w.evictExcess(); err != nil {
		return t, err
	}
	w.Lock()
	defer w.Unlock()
	t.IsMoving, err = w.compact()
	far := w.budget() * 9 / 8
	t.IsHeavy = w.deltas > w.deltaShare()
	t.IsFull, t.IsUrgent = w.Used() > far, w.Resident() > far+spareBytes
	return t, err
}

// evictExcess evicts what should be evicted, a bit in each hold of the mutex, and returns what is left once it has gone
// over all partitions twice.
func (w *Worker) evictExcess() (over int64, err error) {
	w.Lock()
	defer w.Unlock()
	if err := w.makeKnown(); err != nil {
		return 0, err
	}
	over = w.excess()
	w.isTight = w.isTight || over > 0
	for turns := 2 * len(w.parts); over > 0 && turns > 0; {
		if p := w.parts[w.evictAt.part%len(w.parts)]; w.evictAt.slot == 0 && !p.evictable && !p.IsSparse() {
			w.evictAt.part++
			turns--
			continue
		}
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
		w.Unlock() // lets readers in
		w.Lock()
	}
	return over, nil
}

// makeKnown gives known its room, none when too many numbers are set apart. The caller holds the lock.
func (w *Worker) makeKnown() error {
	if !w.isAsked {
		return nil
	}
	room := w.share() / knownShare
	if w.apart+room > w.share()/2 {
		room = 0
	}
	return w.known.Resize(room)
}

// MemoryBytes is the last value of SetMemoryBytes, or Options.MemoryBytes.
func (m *Machine) MemoryBytes() int64 { return m.memory.Load() }

// SetMemoryBytes changes Options.MemoryBytes: in a cluster replicas come and go, and share the memory of the node.
func (m *Machine) SetMemoryBytes(n int64) error {
	before := m.memory.Swap(n)
	if before == n {
		return nil
	}
	for _, w := range m.workers {
		w.Lock()
		w.isTight = w.isTight && n <= before
		w.Unlock()
	}
	return m.TrimAll()
}

var moved = metrics.NewCounter("millrace_moved_bytes_total")

// compact does a step of a compaction, when pages take too much, and says whether more steps are to come. The caller
// holds the lock.
func (w *Worker) compact() (more bool, err error) {
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

// beginCompaction chooses the pages to be emptied, unless giving back unused pages is enough.
func (w *Worker) beginCompaction() {
	c := &w.compaction
	w.giveBack()
	over := w.Resident() - w.budget()
	if over <= spareBytes {
		return
	}
	c.under, c.at, c.above = w.arena.Choose(over+w.budget()/64), 0, 0
	if !c.under {
		c.above = w.Resident() + w.budget()/64
	}
}

// giveBack gives back unused pages, as far as more than the budget is taken.
func (w *Worker) giveBack() {
	if over := w.Resident() - w.budget(); over > 0 {
		w.arena.GiveBack(max(w.arena.Idle-over, 0))
	}
}

// spareBytes is what free blocks may take beyond the budget: each size class has a page that isn't full.
const spareBytes = 1 << 20
