// Package machine is the state machine of a replica: a range of partitions, with their entries, books and outboxes, and
// what each kind of op does to them.
//
// It has no log and no leadership, and no goroutine outlives a call. Who has it apply (package replica) gives each
// worker the records that concern it, in log order, carries the messages that come of them (package effect), and has
// what is dirty saved. All else reads.
//
// Invariants, besides those of package shard:
//   - A partition belongs to one worker. Whoever touches a partition, or the worker's arena, holds the worker's lock:
//     who applies takes it per record, readers and checkpoints in between. Partitions touch one another through
//     messages only (outbox.go).
//   - Apply is a pure function of a partition's state and a record (apply.go), so replay comes to the state that was
//     answered from.
//   - Hot state is a cache of the store under a memory budget. What is dirty is never evicted; what is clean can be
//     read back.
package machine

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Options say what a machine has, and how it applies.
type Options struct {
	First, Count    int // the partitions
	Workers         int
	MemoryBytes     int64 // what hot entries, the tables that find them and unwritten trails may take in memory
	Addressable     int64 // how much memory a worker can address
	MaxDeltaChanges int   // how many changes of a user who isn't in memory are kept unread; negative: none
	Limits          profile.Limits
	Groups          bodies.Groups
	Tap             Tap                          // looks on at what is applied; may be nil
	OnDocument      func(key string, doc []byte) // called for every control document, and for each that is applied
	Failed          func() error                 // nil, or why nothing goes on
	Reading         *procs.Reading               // told of reads that workers wait for; may be nil
	Logger          *slog.Logger
}

// Tap looks on while replicas that lead apply what is new (Options.Tap); replay shows it nothing. Workers call it,
// several at once and with their locks held: it must be quick, not call the engine, and keep no bytes that it is lent.
type Tap interface {
	// Look is asked once for each record by each worker that it concerns, with about how many of its objects are for
	// this one. nil: nobody looks, which must be told at next to no cost.
	Look(rec *op.Record, objects int) Watcher
}

// Watcher is shown the changes of one record. rec may be another one than Look was given: what a message brought.
type Watcher interface {
	// Applied is called for each object (Attributes, Event, Purchase) that had an effect on the user.
	Applied(rec *op.Record, o op.Op, user uint64)
	// Changed is called for each state that has another value now, of a user or of an address; id and key are the first
	// identifier of the one, or the address.
	Changed(rec *op.Record, isUser bool, number uint64, id op.IDKind, key []byte, c profile.StateChange)
}

// Machine is what workers share: the partitions, and what is of all of them. Its methods are safe for concurrent use,
// once it is loaded.
type Machine struct {
	opts       Options
	limits     profile.Limits
	store      *store.Store
	hasher     *identity.Hasher
	partitions [identity.Partitions]*Partition // nil: not held here
	owner      [identity.Partitions]*Worker    // of each partition that is held
	held       []*Partition                    // those that are, in order
	workers    []*Worker

	memory   atomic.Int64 // Options.MemoryBytes, or what SetMemoryBytes has said since
	Merges   atomic.Int64 // begun and not ended: who takes records counts those that they begin
	blocked  *xsync.MapOf[uint64, struct{}]
	anyBlock atomic.Bool

	documentsMu sync.Mutex
	documents   map[string][]byte
	unsavedDocs map[string]struct{}
	audit       books.Audit // partition 0's
}

// GroupOps is how many ops touch loads for at once: records with no more of them together are best applied in one turn.
const GroupOps = 256

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
	sent       effect.List // by the records at hand, for the leadership
	lead       effect.Lead // while the replica leads; nil otherwise

	// Scratch, kept from op to op.
	ed                                   profile.Editor
	fresh, row, members, value, readBack []byte
	missing                              []missed
	folder                               entries.Folder
	absent                               []uint64 // sorted: what prefetch has not found for the records at hand

	contact contactChange
	states  []profile.StateChange // that a message brings
	carried op.Record             // the record in a message

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

// applying is the record that a worker has in hand. Apply is a pure function of the partition's state and the record:
// no clock, no randomness, no map order; replay, and every replica, come to the same state and emit the same messages
// with the same sequences.
type applying struct {
	position uint64
	ordinal  uint32         // of the op within its record
	rec      *op.Record     // its Stamp is the op's
	live     bool           // not a replay: messages are sent
	future   *effect.Future // who waits for the op and its effects; may be nobody
	owner    uint64         // of a request with an Idempotency-Key, in a cluster: the key's home number; else 0
	dropped  bool           // the op at hand had no effect
	noted    uint32         // changes of states that the op at hand has made
	watcher  Watcher        // who looks on; nil: nobody
	user     uint64         // of the object at hand, when it was there or made
	echoes   bool           // the op at hand brings states to an address that were shown of its user
}

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

// compaction empties pages that have few blocks left into others of their class, so that other classes, or the system,
// get them: profiles that grow leave the classes that they were in. Blocks are found through their slots, a partition
// at a time; in between, readers, checkpoints and the next records have their turn.
type compaction struct {
	under bool  // pages are being emptied
	at    int   // index of the partition that is next
	above int64 // there was nothing to empty: it is tried again when more than this is taken
}

// evictAt is where evict goes on: a worker's partition, and a slot in its table.
type evictAt struct{ part, slot int }

// missed is an entry that may have to be read. When a delta of it is in memory, that may come to the store meanwhile:
// what was read is good only while the partition's turn is the same.
type missed struct {
	number  uint64
	isDelta bool
	before  *store.View
	turn    uint64
	isRead  bool
	value   []byte
}

// Partition is a deterministic state machine over its own range of keys. It belongs to one worker: whoever touches it
// holds the worker's lock.
type Partition struct {
	arena.Table
	books.Books
	complete bool   // all entries are resident: a miss means absent
	saving   bool   // a checkpoint is writing what was dirty: nothing may be evicted
	evicted  uint64 // how many times something was
	// while saving, the store without what is being written: deltas are in memory until that is over
	view *store.View
	turn uint64 // how many times saving has changed

	deleted  map[uint64]struct{} // erased entries that the store still has
	deleting map[uint64]struct{} // the same, while a checkpoint deletes them
	// in order of seq; applied ones leave from the front, and now and then from between others
	Outbox      []*effect.Message
	first, last uint8            // the machine's partitions
	tokens      *atomic.Int64    // the machine's count of merges: here those in the outbox and those that wait
	sent        []uint64         // stored outbox rows to delete
	held        map[uint64]*held // profiles that are merged into, or wait until they are; see hold.go
	heldNew     bool
}

// held is what merges know of one profile (merge.go): how many are on their way to it, and who waits until they have
// come.
type held struct {
	pins    uint32
	room    int64 // bytes set apart for who is on the way, so that together they fit an entry
	waiting []*waiter
}

// waiter is a merge or a deletion that waits: a record of one op (Seal, Merge or Delete of this profile, or Pin) and
// who waits for it in turn.
type waiter struct {
	record []byte
	future *effect.Future // nil for /users/merge and after a restart
}

// New makes a machine with nothing in it: workers, and the partitions shared out among them.
func New(o Options) *Machine {
	m := &Machine{
		opts: o, limits: o.Limits, blocked: xsync.NewMapOf[uint64, struct{}](),
		documents: make(map[string][]byte), unsavedDocs: make(map[string]struct{}),
	}
	m.memory.Store(o.MemoryBytes)
	for i := range o.Workers {
		m.workers = append(m.workers, newWorker(m, i))
	}
	for i := range o.Count {
		p, w := &Partition{Books: books.Books{ID: uint8(o.First + i)}}, m.workers[i%len(m.workers)]
		p.first, p.last = uint8(o.First), uint8(o.First+o.Count-1)
		p.tokens = &m.Merges
		m.partitions[p.ID], m.owner[p.ID] = p, w
		m.held = append(m.held, p)
		w.parts = append(w.parts, p)
	}
	return m
}

func newWorker(m *Machine, id int) *Worker {
	w := &Worker{m: m, ID: id}
	w.arena = arena.New(m.opts.MemoryBytes/int64(m.opts.Workers), m.opts.Addressable)
	return w
}

// Parts are the partitions that the worker owns.
func (w *Worker) Parts() []*Partition { return w.parts }

// SetLead says that the replica leads from now on; nil: that it doesn't. The caller holds the lock.
func (w *Worker) SetLead(l effect.Lead) { w.lead = l }

// IsComplete says whether all entries are resident: nothing is to be read back.
func (w *Worker) IsComplete() bool { return w.complete.Load() }

// Hasher makes the numbers of this store.
func (m *Machine) Hasher() *identity.Hasher { return m.hasher }

// Worker is the one with this index.
func (m *Machine) Worker(id int) *Worker { return m.workers[id] }

// Owner is the worker of a partition, nil when that is not held here.
func (m *Machine) Owner(partition uint8) *Worker { return m.owner[partition] }

// Partition is a partition by its number, nil when it is not held here.
func (m *Machine) Partition(id uint8) *Partition { return m.partitions[id] }

// Held are the partitions that are held here, in order.
func (m *Machine) Held() []*Partition { return m.held }

// MergesWaiting is how many merges have begun here and not ended.
func (m *Machine) MergesWaiting() int64 { return m.Merges.Load() }

// Note: the user with this number is better read from now on.
func (m *Machine) Note(number uint64) {
	if w := m.owner[identity.Partition(number)]; w != nil {
		w.noted.add(number)
	}
}

func (m *Machine) block(number uint64) {
	m.blocked.Store(number, struct{}{})
	m.anyBlock.Store(true)
}

// unblock: the number is nobody's any more. Who comes to its identifier next is not to be blamed.
func (m *Machine) unblock(number uint64) {
	if m.anyBlock.Load() {
		m.blocked.Delete(number)
	}
}

// IsBlocked says whether the profile at number is known to be a dummy user (reference.md 1.4).
func (m *Machine) IsBlocked(number uint64) bool {
	if !m.anyBlock.Load() {
		return false
	}
	_, ok := m.blocked.Load(number)
	return ok
}

// noted are numbers that somebody has come across who has no partition in hand: the store, in the middle of a read or a
// compaction.
type noted struct {
	any     atomic.Bool
	mu      sync.Mutex
	numbers []uint64
}

func (n *noted) add(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.numbers, number) {
		n.numbers = append(n.numbers, number)
		n.any.Store(true)
	}
}

func (n *noted) take() (numbers []uint64) {
	if !n.any.Load() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	numbers, n.numbers = n.numbers, nil
	n.any.Store(false)
	return numbers
}

var (
	profilesCreated = metrics.NewCounter("millrace_profiles_created_total")
	profilesDeleted = metrics.NewCounter("millrace_profiles_deleted_total")
	readBacks       = metrics.NewCounter("millrace_entries_read_back_total")
	evictions       = metrics.NewCounter("millrace_evicted_bytes_total")
	trailEntries    = metrics.NewCounter("millrace_state_changes_total")
)
