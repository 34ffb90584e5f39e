// Package machine is the state machine of a replica: a range of partitions, with their entries, books and outboxes, and
// what each kind of op does to them.
//
// It has no log and no leadership, and no goroutine outlives a call. Its owner (package replica) gives each worker the
// records that concern it, in log order, carries the messages that come of them (package effect), and has what is dirty
// saved. Everybody else only reads.
//
// Invariants, besides those of package shard:
//   - A partition belongs to one worker. Whoever touches a partition, or the worker's arena, holds the worker's lock:
//     apply takes it per record, readers and checkpoints in between. Partitions touch one another through messages only
//     (outbox.go).
//   - Apply is a pure function of a partition's state and a record (apply.go), so replay comes to the state that was
//     answered from.
//   - An error in the middle of a record, or of a move of changes from one entry to another, ends the machine before
//     the worker's lock is released (Options.Fail), and nothing is saved any more: what the log has is applied anew
//     from the last checkpoint.
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

// Options say which partitions a machine has, and how it applies.
type Options struct {
	First, Count    int // the partitions
	Workers         int
	MemoryBytes     int64 // bounds hot entries, the tables that find them and unwritten books in memory
	Addressable     int64 // how much memory a worker can address, in bytes
	MaxDeltaChanges int   // how many changes of a user who isn't in memory are kept unread; negative: none
	Limits          profile.Limits
	Groups          bodies.Groups
	Tap             Tap                          // sees what is applied; may be nil
	OnDocument      func(key string, doc []byte) // called for every control document, and for each that is applied
	Failed          func() error                 // nil, or why nothing goes on
	Fail            func(error)                  // sees to it that nothing goes on; called with a worker's lock held
	Reading         *procs.Reading               // told of reads that workers wait for; may be nil
	Logger          *slog.Logger
}

// Tap sees what replicas that lead apply (Options.Tap); replay shows it nothing. Workers call it, several at once and
// with their locks held: it must be quick, must not call the engine, and must not keep bytes that it is lent.
type Tap interface {
	// Look is called once for each record by each worker that it concerns, with about how many of its objects are for
	// this worker. nil: nobody watches; that must be returned at next to no cost.
	Look(rec *op.Record, objects int) Watcher
}

// Watcher is shown the changes of one record. rec may be another record than Look was given: one that a message
// brought.
type Watcher interface {
	// Applied is called for each object (Attributes, Event, Purchase) that had an effect on the user.
	Applied(rec *op.Record, o op.Op, user uint64)
	// Changed is called for each state of a user or an address that now has another value; id and key are the user's
	// first identifier, or the address.
	Changed(rec *op.Record, isUser bool, number uint64, id op.IDKind, key []byte, c profile.StateChange)
}

// Machine is what workers share: the partitions, and what belongs to all of them. Its methods are safe for concurrent
// use, once it is loaded.
type Machine struct {
	opts       Options
	limits     profile.Limits
	store      *store.Store
	hasher     *identity.Hasher
	partitions [identity.Partitions]*Partition // nil: not held here
	owner      [identity.Partitions]*Worker    // of each partition that is held here
	held       []*Partition                    // the partitions that are held here, in order
	workers    []*Worker

	memory   atomic.Int64 // Options.MemoryBytes, or the last value of SetMemoryBytes
	Merges   atomic.Int64 // merges that have begun and not ended: whoever takes a record counts those that it begins
	blocked  *xsync.MapOf[uint64, struct{}]
	anyBlock atomic.Bool

	documentsMu sync.Mutex
	documents   map[string][]byte
	unsavedDocs map[string]struct{}
	audit       books.Audit // partition 0's
}

// GroupOps is how many ops touch loads for at once: records that have no more together are best applied in one turn.
const GroupOps = 256

// Worker owns some partitions and the arena that their entries lie in. It is given records in log order.
type Worker struct {
	m  *Machine
	ID int // its index among the machine's workers

	sync.Mutex // guards what follows
	parts      []*Partition
	arena      arena.Arena
	// unwritten is the size of what the trails and suppression lists of parts hold until the next checkpoint, in bytes;
	// it counts to the budget.
	unwritten  int64
	deltas     int64       // bytes of blocks that hold deltas
	isTight    bool        // something had to be evicted: from now on, a user not in memory is read only if needed
	apart      int64       // bytes of the numbers that parts have set apart; they reduce the budget
	known      arena.Marks // of users who are known to be there, as far as there is room
	isAsked    bool        // isKnown was called: known gets its room then
	noted      noted
	tables     int64 // bytes of parts' tables that are mapped; they count to the budget, too
	compaction compaction
	Applied    uint64 // position up to which this worker has applied everything that concerns it
	evictAt    evictAt
	applying   applying
	rec        op.Record
	sent       effect.List // messages of the records at hand, for the leadership
	lead       effect.Lead // set while the replica leads; nil otherwise

	// Scratch, kept from op to op.
	ed                                   profile.Editor
	fresh, row, members, value, readBack []byte
	missing                              []missed
	folder                               entries.Folder
	absent                               []uint64 // sorted: numbers where prefetch found nothing for these records

	contact contactChange
	states  []profile.StateChange // brought by a message
	carried op.Record             // the record in a message

	dirty    []uint64       // numbers in the partition that is being saved
	message  op.Builder     // for the message at hand
	limits   profile.Limits // of the last record with a limit of its own
	complete atomic.Bool    // all partitions are complete: nothing has to be read back

	touching [GroupOps]profile.Touching
	sink     uint64 // sum of what touching reads, so that the compiler keeps the loads
}

// contactChange is scratch for a change of what a profile has of addresses and states.
type contactChange struct {
	before, after entries.Keys          // addresses
	set, had, now []profile.StateChange // states: those that are set, all before, all after
	what, body    []byte                // what a row is told
}

// applying is the record that a worker has in hand. Apply is a pure function of the partition's state and the record:
// no clock, no randomness, no map order. So replay, and every replica, come to the same state and emit the same
// messages with the same sequences.
type applying struct {
	position uint64
	ordinal  uint32         // of the op within its record
	rec      *op.Record     // its Stamp is the op's
	live     bool           // not in replay: messages are sent
	future   *effect.Future // of whoever waits for the op and its effects; may be nil
	owner    uint64         // of a request with an Idempotency-Key, in a cluster: the key's home number; else 0
	dropped  bool           // the op at hand had no effect
	noted    uint32         // how many changes of states the op at hand has noted
	watcher  Watcher        // nil: nobody watches
	user     uint64         // number of the user of the object at hand, who was there or was made
	echoes   bool           // the op at hand brings states to an address that were already shown for its user
}

// Commit is a record as workers apply it.
type Commit struct {
	At       uint64 // position of the record
	Rec      op.Record
	IsOther  bool   // the record was not made here, or not by this process
	Workers  uint64 // bit i: the record has ops for worker i
	Left     atomic.Int32
	Future   *effect.Future
	Messages []*effect.Message // of a record that the relay has sent, or that came from another group: one for each op
	Finished func()            // called once by the last worker; may be nil
}

// compaction empties pages that have few blocks left into other pages of their class, so that other classes, or the
// system, get them: profiles that grow leave the classes that they were in. Blocks are found through their slots, a
// partition at a time; in between, readers, checkpoints and the next records have their turn.
type compaction struct {
	under bool  // pages are being emptied
	at    int   // index of the next partition
	above int64 // there was nothing to empty: it is tried again when more memory than this is taken
}

// evictAt is where evict continues: a worker's partition, and a slot in its table.
type evictAt struct{ part, slot int }

// missed is an entry that may have to be read. When a delta of the entry is in memory, the delta may come to the store
// meanwhile: what was read is good only as long as the partition's turn stays the same.
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
	evicted  uint64 // how many times an entry was evicted
	// evictable: some entry may be clean. Not so once evict has seen that all are dirty, until one is read or saved.
	evictable bool
	// while saving: the store without what is being written, since deltas are in memory until that is over
	view *store.View
	turn uint64 // how many times saving has changed

	deleted  map[uint64]struct{} // erased entries that the store still has
	deleting map[uint64]struct{} // the same, while a checkpoint deletes them
	// in order of seq; applied messages leave from the front, and now and then from between others
	Outbox      []*effect.Message
	first, last uint8            // the machine's partitions
	tokens      *atomic.Int64    // the machine's count of merges; counted here: those in the outbox and those that wait
	sent        []uint64         // stored outbox rows to delete
	held        map[uint64]*held // profiles that others are being merged into, and who waits for that; see hold.go
	heldNew     bool
}

// held is what merges know of one profile (merge.go): how many others are on their way to it, and who waits until they
// have come.
type held struct {
	pins    uint32
	room    int64 // bytes set apart for profiles on the way, so that together they fit an entry
	waiting []*waiter
}

// waiter is a merge or a deletion that waits: a record of one op (Seal, Merge or Delete of this profile, or Pin), and
// the future that counts it.
type waiter struct {
	record []byte
	future *effect.Future // nil for /users/merge and after a restart
}

// New makes a machine without data: workers, and the partitions shared out among them.
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
		p.Table = arena.NewTable(&w.arena, p.ID)
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

// SetLead says that the replica leads from now on; nil: that it doesn't lead any more. The caller holds the lock.
func (w *Worker) SetLead(l effect.Lead) { w.lead = l }

// IsComplete says whether all entries are resident, so that nothing has to be read back.
func (w *Worker) IsComplete() bool { return w.complete.Load() }

// Hasher makes the numbers of this store.
func (m *Machine) Hasher() *identity.Hasher { return m.hasher }

// Worker is the worker with this index.
func (m *Machine) Worker(id int) *Worker { return m.workers[id] }

// Owner is the worker of a partition, nil when the partition is not held here.
func (m *Machine) Owner(partition uint8) *Worker { return m.owner[partition] }

// Partition is the partition with this number, nil when it is not held here.
func (m *Machine) Partition(id uint8) *Partition { return m.partitions[id] }

// Held are the partitions that are held here, in order.
func (m *Machine) Held() []*Partition { return m.held }

// Note notes that changes of the user with this number had better not go unread from now on.
func (m *Machine) Note(number uint64) {
	if w := m.owner[identity.Partition(number)]; w != nil {
		w.noted.add(number)
	}
}

func (m *Machine) block(number uint64) {
	m.blocked.Store(number, struct{}{})
	m.anyBlock.Store(true)
}

// unblock forgets a dummy user whose number is nobody's any more: the next user with the identifier is not to be
// blamed.
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

// noted has numbers that were found where no partition may be touched: by the store, in the middle of a read or a
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
