package replica

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"
	"golang.org/x/sync/errgroup"

	"millrace/shard/arena"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
	"millrace/wal"
)

// commit is a record on its way through log and workers.
type commit struct {
	wal.Record
	rec      op.Record
	workers  uint64 // bit i: worker i has ops in it
	left     atomic.Int32
	future   *effect.Future
	messages []*effect.Message // of a record that the relay has sent, or of another group: one for each op
	lead     *leadership       // of a replica's own record: in which it was appended
	finished func()            // called once by the last worker; may be nil
	copied   []byte            // the record, while the log is replayed
	size     int64             // what it counts of the window
}

// worker owns some partitions and the arena that their entries lie in. Its goroutine applies what OnDurable hands over,
// in log order.
type worker struct {
	e  *Replica
	id int

	mu    sync.Mutex // guards what follows
	parts []*partition
	arena arena.Arena
	// unwritten is what the trails of parts hold until the next checkpoint, in bytes; they count to the memory budget.
	unwritten  int64
	deltas     int64       // bytes of blocks that hold deltas
	isTight    bool        // something had to be evicted: from now on, who isn't in memory isn't read without need
	apart      int64       // bytes of the numbers that parts have set apart; the budget is less by them
	known      arena.Marks // of users who are there, as far as it goes
	isAsked    bool        // whether somebody is there: then known gets its room
	noted      noted
	tables     int64 // bytes of parts' tables that are mapped; they count, too
	compaction compaction
	applied    uint64 // position up to which this worker has applied everything that concerns it
	evictAt    evictAt
	applying   applying
	rec        op.Record
	sent       []*effect.Message // by the record at hand, for the relay
	lead       effect.Lead       // while the engine leads: who carries messages; nil otherwise

	// Scratch, kept from op to op.
	ed                                   profile.Editor
	fresh, row, members, value, readBack []byte
	missing                              []missed
	folder                               entries.Folder
	absent                               []uint64 // sorted: what prefetch has not found for the records at hand

	contact contactChange

	dirty    []uint64       // numbers, of the partition that is being saved
	message  op.Builder     // of the message at hand
	limits   profile.Limits // of the last record with a limit of its own
	complete atomic.Bool    // all partitions are: nothing is to be read back

	queue    queue
	sorted   []*commit // dispatch's own
	touching [groupOps]profile.Touching
	sink     uint64 // what touching adds up, so that the compiler keeps the loads
	gone     chan struct{}
	asked    <-chan struct{} // the worker's own: of the checkpoint that it has asked for
}

// contactChange is scratch for a change of what a profile says of addresses and states.
type contactChange struct {
	before, after entries.Keys          // addresses
	set, had, now []profile.StateChange // states: those that are set, all before, all after
	what, body    []byte                // what a row is told of it
}

// queue holds commits between OnDurable and the worker.
type queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	items  []*commit
	upTo   uint64 // position of the newest record that was dispatched to anybody
	done   uint64 // up to here all is applied; it may be further while the queue is empty
	busy   bool
	closed bool
	// waiters are those of WaitApplied and drain.
	waiters int
}

func newWorker(e *Replica, id int) *worker {
	w := &worker{e: e, id: id, gone: make(chan struct{})}
	w.arena = arena.New(e.opts.MemoryBytes/int64(e.opts.Workers), e.opts.addressable)
	w.queue.cond.L = &w.queue.mu
	return w
}

// run is the worker's goroutine.
func (w *worker) run() {
	defer close(w.gone)
	var items []*commit
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

		for rest := items; len(rest) > 0; {
			n := group(rest)
			if err := w.do(rest[:n]); err != nil {
				w.e.fail(err)
				return
			}
			rest = rest[n:]
		}
		clear(items)
		w.mu.Lock()
		w.applied = max(w.applied, upTo)
		w.mu.Unlock()
	}
}

// group is how many of the commits to do together: small ones share a turn of the lock and of touch, a large one has
// its own.
func group(items []*commit) (n int) {
	ops := 0
	for n < len(items) && (n == 0 || ops+items[n].rec.Count <= groupOps) {
		ops += items[n].rec.Count
		n++
	}
	return n
}

const groupOps = 256

// do applies some records and counts them down.
func (w *worker) do(items []*commit) error {
	if err := w.prefetch(items); err != nil {
		return err
	}
	w.mu.Lock()
	isCrowded, err := w.doLocked(items)
	if err == nil && isCrowded {
		return w.makeRoom()
	}
	return err
}

// doLocked is do for a caller that holds w.mu, which it gives back. isCrowded: the worker has to make room.
func (w *worker) doLocked(items []*commit) (isCrowded bool, err error) {
	w.touch(items)
	for _, c := range items {
		if c.size == 0 {
			err = w.apply(c)
		} else {
			err = w.applyOther(c)
		}
		if err != nil {
			break
		}
		w.applied = max(w.applied, c.Position)
	}
	w.absent = w.absent[:0]
	isCrowded = w.isCrowded()
	sent, lead := w.sent, w.lead
	w.sent = nil
	w.mu.Unlock()
	if err != nil {
		return isCrowded, err
	}
	if len(sent) > 0 {
		lead.Send(sent)
	}
	for _, c := range items {
		future, finished := c.future, c.finished // c is its owner's again as soon as it is counted down
		if c.left.Add(-1) == 0 && finished != nil {
			finished()
		}
		if future != nil {
			future.Finish()
		}
	}
	return isCrowded, nil
}

// touch loads what apply will need, first all slots, then all entries, then of large ones what the ops are for, so that
// the loads overlap instead of each waiting for the one before (78 ns against 248 for each, measured).
func (w *worker) touch(items []*commit) {
	var sum uint64
	n := 0
	for _, c := range items {
		for rest := c.rec.Ops; len(rest) > 0 && n < groupOps; {
			var o op.Op
			o, rest = op.Next(rest)
			if p := o.Partition(); w.e.owner[p] == w {
				w.touching[n].Op, w.touching[n].Rec = o, &c.rec
				sum += w.e.partitions[p].Touch(o.Number())
				n++
			}
		}
	}
	if n < 4 {
		return
	}
	ops := w.touching[:n]
	for i := range ops {
		var block []byte
		var size int
		if s := w.e.partitions[ops[i].Op.Partition()].Find(ops[i].Op.Number()); s != nil && s.Number != 0 {
			block, size = w.block(s), s.Size()
		}
		sum += ops[i].Ends(block, size)
	}
	for i := range ops {
		sum += ops[i].Index()
	}
	for i := range ops {
		sum += ops[i].Field()
	}
	w.sink += sum
}

// prefetch reads back the entries that records need and that aren't resident, several at a time, so that apply finds
// them in memory and knows which the store doesn't have. Where it finds tombstones, it goes on behind them.
func (w *worker) prefetch(items []*commit) error {
	for range prefetchRounds {
		if w.complete.Load() {
			return nil
		}
		w.findMissing(items)
		if len(w.missing) < 2 { // one is as well read by lookup
			return nil
		}
		tombstones, err := w.readMissing()
		if err != nil || tombstones == 0 {
			return err
		}
	}
	return nil
}

// missed is an entry that may have to be read. When a delta of it is in memory, that may come to the store meanwhile:
// what was read is good only while the partition's turn is the same.
type missed struct {
	number  uint64
	isDelta bool
	before  *store.View
	turn    uint64
	value   []byte
}

// findMissing lists what may have to be read back.
func (w *worker) findMissing(items []*commit) {
	w.missing = w.missing[:0]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeNoted()
	for _, c := range items {
		for rest := c.rec.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			p := w.e.partitions[o.Partition()]
			if w.e.owner[o.Partition()] == w && !p.complete && o.Number() != 0 && !w.goesUnread(p, c.rec.Workspace, o) {
				w.addMissing(p, o.Number())
			}
		}
	}
	slices.SortFunc(w.missing, func(a, b missed) int { return cmp.Compare(a.number, b.number) })
	w.missing = slices.CompactFunc(w.missing, func(a, b missed) bool { return a.number == b.number })
}

// addMissing lists a number, or where the tombstones lead that are there, unless it is known what the store has of it.
func (w *worker) addMissing(p *partition, number uint64) {
	for range prefetchRounds {
		s := p.Find(number)
		if s == nil {
			if _, isAbsent := slices.BinarySearch(w.absent, number); !isAbsent && !p.isDeleted(number) {
				w.missing = append(w.missing, missed{number: number})
			}
			return
		}
		switch profile.Kind(w.entryOf(s)) {
		case entries.KindDelta:
			w.missing = append(w.missing, missed{number: number, isDelta: true, before: p.view, turn: p.turn})
			return
		case entries.KindTombstone:
			number = entries.Behind(w.entryOf(s), number)
		default:
			return
		}
	}
}

// readMissing reads back what is listed, and says how many tombstones were among it.
func (w *worker) readMissing() (tombstones int, err error) {
	var reading errgroup.Group
	readers := min(maxReaders, (len(w.missing)+7)/8)
	for r := range readers {
		reading.Go(func() (err error) {
			for i := r; i < len(w.missing) && err == nil; i += readers {
				m := &w.missing[i]
				if m.value, err = w.e.store.Entry(m.before, nil, m.number); errors.Is(err, store.ErrViewClosed) {
					m.turn, err = m.turn-1, nil // it has changed, too
				}
			}
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.missing {
		m := &w.missing[i]
		p := w.e.partitions[m.number>>56]
		s := p.Find(m.number)
		switch {
		case m.isDelta && p.turn != m.turn, s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta, s == nil &&
			p.isDeleted(m.number):
			continue // lookup reads it, if need be
		case s == nil && m.value == nil:
			w.absent = append(w.absent, m.number)
			continue
		}
		readBacks.Inc()
		if m.value != nil && profile.Kind(m.value) == entries.KindTombstone {
			tombstones++
		}
		if _, err := w.admit(p, m.number, m.value); err != nil {
			return tombstones, err
		}
		m.value = nil
	}
	slices.Sort(w.absent)
	return tombstones, nil
}

// prefetchRounds is how many tombstones behind one another are read ahead; more are between an identifier and its user
// only when others have the numbers in between.
const prefetchRounds = 3

// maxReaders is how many reads of one worker the disk gets at once.
const maxReaders = 8

// catchUp counts records that concern other workers only as applied: without it, a worker that gets nothing to do would
// hold the log. What WaitApplied has said is applied counts also while the worker has something to do. The caller holds
// w.mu.
func (w *worker) catchUp() {
	q := &w.queue
	q.mu.Lock()
	if len(q.items) == 0 && !q.busy {
		w.applied = max(w.applied, q.upTo)
	}
	w.applied = max(w.applied, q.done)
	q.mu.Unlock()
}

// drain waits until the queue is empty and applied.
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
	w.mu.Lock()
	w.applied = max(w.applied, upTo)
	w.mu.Unlock()
}

// retire ends the goroutine.
func (w *worker) retire() {
	w.queue.mu.Lock()
	w.queue.closed = true
	w.queue.cond.Broadcast()
	w.queue.mu.Unlock()
	<-w.gone
}

func (w *worker) free() {
	w.mu.Lock() // a reader of another engine may have an entry in hand
	defer w.mu.Unlock()
	for _, p := range w.parts {
		p.Close()
	}
	w.arena.Close()
	w.known.Close()
}

var (
	profilesCreated = metrics.NewCounter("millrace_profiles_created_total")
	profilesDeleted = metrics.NewCounter("millrace_profiles_deleted_total")
	readBacks       = metrics.NewCounter("millrace_entries_read_back_total")
	evictions       = metrics.NewCounter("millrace_evicted_bytes_total")
	trailEntries    = metrics.NewCounter("millrace_state_changes_total")
)
