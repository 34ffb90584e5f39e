// Package machine is the state machine of a replica: a range of partitions, with their entries, books and outboxes, and
// what each kind of op does to them.
//
// It has no goroutine of its own, no log and no leadership. Who has it apply (package replica) gives each worker the
// records that concern it, in log order, carries the messages that come of them (package effect), and has what is dirty
// saved. All else reads.
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
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
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
	Logger          *slog.Logger
}

// Machine is what workers share: the partitions, and what is of all of them.
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

// Load reads what the store has: the control documents, the books of all partitions, and, when they fit the memory,
// all entries.
func (m *Machine) Load(s *store.Store) error {
	m.store, m.hasher = s, identity.NewHasher(s.Secret)
	if err := m.store.Documents(func(key string, doc []byte) {
		m.documents[key] = doc
		m.opts.OnDocument(key, doc)
	}); err != nil {
		return err
	}
	return errors.Join(m.loadPartitions(), m.audit.Load(m.store))
}

// loadPartitions reads the books of all partitions and, when the store fits the memory budget, all entries.
func (m *Machine) loadPartitions() error {
	// Blocks are compressed on disk: about half of what they hold.
	fits := m.store.Size()*3 < m.opts.MemoryBytes
	errs := make([]error, len(m.workers))
	var wg sync.WaitGroup
	for i, w := range m.workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for _, p := range w.parts {
				if errs[i] = w.loadPartition(p, fits); errs[i] != nil {
					return
				}
			}
		}()
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Worker) loadPartition(p *Partition, whole bool) error {
	p.complete = whole
	var load func(number uint64, value []byte) error
	var mixed []uint64
	if whole {
		load = func(number uint64, value []byte) error {
			if w.Used() > w.budget()*7/8 {
				p.complete = false
				return nil
			}
			if profile.Kind(value) == entries.KindMixed {
				mixed = append(mixed, number)
				return nil
			}
			if len(value) < profile.HeaderBytes {
				return fmt.Errorf("%w: entry of %d bytes", store.ErrStore, len(value))
			}
			if profile.Kind(value) == profile.KindUser && profile.Blocked(value) {
				w.m.block(number)
			}
			_, err := w.admit(p, number, value)
			return err
		}
	}
	if err := p.load(w.m.store, load); err != nil {
		return err
	}
	w.apart += p.Apart.Bytes()
	for _, number := range p.Apart.TakeDummies() {
		w.m.block(number)
	}
	return w.loadMixed(p, mixed)
}

// loadMixed makes mixed values resident, once all else is that is to be.
func (w *Worker) loadMixed(p *Partition, numbers []uint64) error {
	complete := p.complete
	p.complete = false // they aren't there yet
	for _, number := range numbers {
		if _, err := w.lookup(p, number); err != nil {
			return err
		}
	}
	p.complete = complete
	return nil
}

// Free gives back the memory of all workers. Nothing is read or applied any more.
func (m *Machine) Free() {
	for _, w := range m.workers {
		w.free()
	}
}

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

// Stats is what an operator watches of what the machine has. Bytes are bytes.
type Stats struct {
	Entries          int    // resident: profiles, directory rows, tombstones, kept answers
	EntryBytes       int64  // their blocks
	EntryMemoryBytes int64  // what the memory takes that the blocks lie in, free ones included
	TableBytes       int64  // the tables that find them
	Outbox           int    // messages that are not known to be applied
	OutboxKept       int    // messages in outboxes, those that are known to be applied included
	Sent             uint64 // messages that there ever were
	Deferred         int    // records that wait for earlier ones
	MergesWaiting    int    // merges of users that have begun and not ended
	Held             int    // users who are being merged, or wait for one who is
	ReservedBytes    int64  // room that is kept in profiles for who is on the way to them
}

// Stats takes each worker's lock in turn; once a second is often enough.
func (m *Machine) Stats() (s Stats) {
	for _, w := range m.workers {
		w.Lock()
		s.EntryBytes += w.arena.Used
		s.EntryMemoryBytes += w.arena.Resident()
		for _, p := range w.parts {
			p.forgetApplied()
			s.Entries += p.Count
			s.TableBytes += p.Bytes()
			for _, row := range p.Outbox {
				if !row.Applied.Load() {
					s.Outbox++
				}
			}
			s.OutboxKept += len(p.Outbox)
			s.Sent += p.LastMessage
			s.Deferred += p.Deferred.Len()
			s.Held += len(p.held)
			for _, h := range p.held {
				s.ReservedBytes += h.room
			}
		}
		w.Unlock()
	}
	s.MergesWaiting = int(m.Merges.Load())
	return s
}
