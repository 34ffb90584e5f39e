package machine

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
)

// Commit is a record as workers apply it.
type Commit struct {
	At       uint64 // its position
	Rec      op.Record
	IsOther  bool   // it was not made here, or not by this process
	Workers  uint64 // bit i: worker i has ops in it
	Left     atomic.Int32
	Future   *effect.Future
	Messages []*effect.Message // of a record that the relay has sent, or of another group: one for each op
	Finished func()            // called once by the last worker; may be nil
}

// Worker owns some partitions and the arena that their entries lie in. Who has it apply records does so in log order.
type Worker struct {
	m  *Machine
	ID int // its index among the machine's

	sync.Mutex // guards what follows
	parts      []*Partition
	arena      arena.Arena
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
	Applied    uint64 // position up to which this worker has applied everything that concerns it
	evictAt    evictAt
	applying   applying
	rec        op.Record
	sent       []*effect.Message // by the record at hand, for the relay
	lead       effect.Lead       // while the replica leads; nil otherwise

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

	touching [GroupOps]profile.Touching
	sink     uint64 // what touching adds up, so that the compiler keeps the loads
}

// contactChange is scratch for a change of what a profile says of addresses and states.
type contactChange struct {
	before, after entries.Keys          // addresses
	set, had, now []profile.StateChange // states: those that are set, all before, all after
	what, body    []byte                // what a row is told of it
}

func newWorker(m *Machine, id int) *Worker {
	w := &Worker{m: m, ID: id}
	w.arena = arena.New(m.opts.MemoryBytes/int64(m.opts.Workers), m.opts.Addressable)
	return w
}

// Begin says that the partitions are loaded, and that all up to a position is applied.
func (w *Worker) Begin(applied uint64) {
	w.Applied = applied
	w.complete.Store(!slices.ContainsFunc(w.parts, func(p *Partition) bool { return !p.complete }))
}

// Parts are the partitions that the worker owns.
func (w *Worker) Parts() []*Partition { return w.parts }

// IsComplete says whether all entries are resident: nothing is to be read back.
func (w *Worker) IsComplete() bool { return w.complete.Load() }

// SetLead says that the replica leads from now on; nil: that it doesn't. The caller holds the lock.
func (w *Worker) SetLead(l effect.Lead) { w.lead = l }

// TakeSent are the messages of what was applied since. The caller holds the lock.
func (w *Worker) TakeSent() (sent []*effect.Message) {
	sent, w.sent = w.sent, nil
	return sent
}

// GroupOps is how many ops touch loads for at once: records with no more of them together are best applied in one turn.
const GroupOps = 256

// Apply applies records, in order, those of one turn. The caller holds the lock, and has called Prefetch for them.
func (w *Worker) Apply(items []*Commit) (err error) {
	w.touch(items)
	for _, c := range items {
		if !c.IsOther {
			err = w.apply(c)
		} else {
			err = w.applyOther(c)
		}
		if err != nil {
			break
		}
		w.Applied = max(w.Applied, c.At)
	}
	w.absent = w.absent[:0]
	return err
}

// touch loads what apply will need, first all slots, then all entries, then of large ones what the ops are for, so that
// the loads overlap instead of each waiting for the one before (78 ns against 248 for each, measured).
func (w *Worker) touch(items []*Commit) {
	var sum uint64
	n := 0
	for _, c := range items {
		for rest := c.Rec.Ops; len(rest) > 0 && n < GroupOps; {
			var o op.Op
			o, rest = op.Next(rest)
			if p := o.Partition(); w.m.owner[p] == w {
				w.touching[n].Op, w.touching[n].Rec = o, &c.Rec
				sum += w.m.partitions[p].Touch(o.Number())
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
		if s := w.m.partitions[ops[i].Op.Partition()].Find(ops[i].Op.Number()); s != nil && s.Number != 0 {
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

// Prefetch reads back the entries that records need and that aren't resident, several at a time, so that apply finds
// them in memory and knows which the store doesn't have. Where it finds tombstones, it goes on behind them.
func (w *Worker) Prefetch(items []*Commit) error {
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
func (w *Worker) findMissing(items []*Commit) {
	w.missing = w.missing[:0]
	w.Lock()
	defer w.Unlock()
	w.takeNoted()
	for _, c := range items {
		for rest := c.Rec.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			p := w.m.partitions[o.Partition()]
			if w.m.owner[o.Partition()] == w && !p.complete && o.Number() != 0 && !w.goesUnread(p, c.Rec.Workspace, o) {
				w.addMissing(p, o.Number())
			}
		}
	}
	slices.SortFunc(w.missing, func(a, b missed) int { return cmp.Compare(a.number, b.number) })
	w.missing = slices.CompactFunc(w.missing, func(a, b missed) bool { return a.number == b.number })
}

// addMissing lists a number, or where the tombstones lead that are there, unless it is known what the store has of it.
func (w *Worker) addMissing(p *Partition, number uint64) {
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
func (w *Worker) readMissing() (tombstones int, err error) {
	var reading errgroup.Group
	readers := min(maxReaders, (len(w.missing)+7)/8)
	for r := range readers {
		reading.Go(func() (err error) {
			for i := r; i < len(w.missing) && err == nil; i += readers {
				m := &w.missing[i]
				if m.value, err = w.m.store.Entry(m.before, nil, m.number); errors.Is(err, store.ErrViewClosed) {
					m.turn, err = m.turn-1, nil // it has changed, too
				}
			}
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return 0, err
	}
	w.Lock()
	defer w.Unlock()
	for i := range w.missing {
		m := &w.missing[i]
		p := w.m.partitions[m.number>>56]
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

func (w *Worker) free() {
	w.Lock() // a reader of another engine may have an entry in hand
	defer w.Unlock()
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
