// Package replica is the lower side of the engine: a range of partitions on one node, as their log says.
//
//	Take ─▶ Log.Append … durable ─▶ Dispatch ─▶ workers apply in log order ─▶ future, which who took the record waits for
//	aside, a checkpoint: what is dirty + the applied position of its partition, in one store batch; then the log is trimmed
//
// It leads its group, or follows, and knows no request, no other node and no coordinator: what it needs of them comes
// by its Options.
//
// What is applied, and how, is package machine's. This one has all that goes on around it: goroutines, log, checkpoints
// and recovery; leadership, and messages on their way.
package replica

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"millrace/shard/machine"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal"
)

const maxWorkers = 64

// Replica is the state of a range of partitions on one node: what their log says, applied. It leads, or follows. It
// knows no request, no other node, and nothing of who calls it. All methods are safe for concurrent use.
type Replica struct {
	*machine.Machine
	opts    Options
	log     Log
	store   *store.Store
	workers []*worker // of the machine's, each with its goroutine
	window  window

	clock      *stamp.Clock
	ready      []*wal.Record // Dispatch's own
	inflight   atomic.Int64  // bytes between Commit and applied
	logged     atomic.Int64  // bytes given to the log since Open
	closing    atomic.Bool
	imaging    atomic.Bool // an Image is there
	recovering atomic.Bool
	lead       atomic.Pointer[leadership] // a replica's, between Lead and Follow
	leading    sync.Mutex                 // held by Lead and Follow
	seen       atomic.Int64               // a replica's: the latest stamp of its group
	tending    chan struct{}              // asks for tend's turn
	// a replica's: held for reading by who reads from outside while it may be closed
	usable sync.RWMutex
	// checkpointed: the store holds everything up to this position.
	checkpointed atomic.Uint64
	advanced     atomic.Uint64 // what Advance has said

	checkpoints checkpoints
	failure     failure
	stop        chan struct{} // closed by Close
	background  sync.WaitGroup
}

// failure is the state of having failed: err is set before failed is closed.
type failure struct {
	once   sync.Once
	failed chan struct{}
	err    error
}

// Open opens a replica on what Options.Dir holds, and recovers: the store, then the log behind it.
func Open(o Options) (*Replica, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	e := newReplica(o)
	if err := e.open(); err != nil {
		e.abandon()
		return nil, err
	}
	return e, nil
}

func newReplica(o Options) *Replica {
	e := &Replica{
		opts: o, clock: o.Clock,
		stop: make(chan struct{}), failure: failure{failed: make(chan struct{})}, tending: make(chan struct{}, 1),
	}
	e.Machine = machine.New(machine.Options{
		First: o.First, Count: o.Count, Workers: o.Workers, MemoryBytes: o.MemoryBytes, Addressable: o.addressable,
		MaxDeltaChanges: o.MaxDeltaChanges, Limits: o.Limits, Groups: o.Carrier, Tap: o.Tap, OnDocument: o.OnDocument,
		Failed: e.Failed, Logger: o.Logger,
	})
	for i := range o.Workers {
		e.workers = append(e.workers, newWorker(e, i))
	}
	e.window.init(o.MaxInflightBytes)
	e.checkpoints.init()
	return e
}

func (e *Replica) open() (err error) {
	if err := errors.Join(CheckRestored(e.opts.FS, e.opts.Dir), e.removeImage()); err != nil {
		return err
	}
	if err := wal.MakeDir(e.opts.FS, e.opts.FS.PathJoin(e.opts.Dir, "state")); err != nil {
		return err
	}
	if err := e.openState(); err != nil {
		return err
	}
	if e.log, err = e.opts.OpenLog(e); err != nil {
		return err
	}
	return e.recover()
}

// openState opens the store, or makes it, and reads what it has.
func (e *Replica) openState() (err error) {
	secret, isOwn := e.opts.Secret, e.opts.Secret == [32]byte{}
	if isOwn {
		if _, err := rand.Read(secret[:]); err != nil {
			return err
		}
	}
	if e.store, err = store.Open(e.storeOptions(e.opts.MayMake, secret)); err != nil {
		return err
	}
	if !isOwn && e.store.Secret != secret {
		return fmt.Errorf("%w: %q is of another cluster", store.ErrStore, e.opts.Dir)
	}
	return e.loadStore()
}

func (e *Replica) storeOptions(isNew bool, secret [32]byte) store.Options {
	o := &e.opts
	return store.Options{
		FS: o.FS, Dir: o.FS.PathJoin(o.Dir, "state"), Logger: o.Logger, New: isNew, Secret: secret, Limits: &o.Limits,
		Cache: o.StoreCache, CacheBytes: o.StoreCacheBytes, MemTableBytes: o.StoreMemTableBytes, Note: e.Note,
		OnFailure: e.fail,
	}
}

// Close ends leadership, applies what was dispatched, writes a checkpoint and closes store and log. Who comes later
// gets ErrClosed.
func (e *Replica) Close() error {
	if e.closing.Swap(true) {
		return nil
	}
	// Who waits for records that come no more may be of the engine's own, whom Close waits for.
	for _, w := range e.workers {
		w.queue.mu.Lock()
		w.queue.cond.Broadcast()
		w.queue.mu.Unlock()
	}
	e.Follow()
	if e.opts.ownsLog {
		e.endOwnLog()
	}
	close(e.stop)
	e.window.end()
	e.background.Wait()
	e.usable.Lock() // who reads has gone, who comes finds it closing
	e.usable.Unlock()
	err := e.Failed()
	if err == nil {
		e.drain()
		err = e.checkpoint()
	}
	err = errors.Join(err, e.log.Close())
	for _, w := range e.workers {
		w.retire()
	}
	return errors.Join(err, e.letGo())
}

// abandon ends what a failed Open has begun.
func (e *Replica) abandon() {
	close(e.stop)
	e.window.end()
	e.background.Wait()
	if e.recovering.Load() {
		for _, w := range e.workers {
			w.retire()
		}
	}
	if e.log != nil {
		_ = e.log.Close() // nothing was appended
	}
	_ = e.letGo()
}

// letGo gives back what open has taken. Of a dead store nothing is: a round of checkpoints may stand still in the
// middle of it.
func (e *Replica) letGo() error {
	if e.store != nil && isClosed(e.store.Dead()) {
		return nil
	}
	var err error
	e.Free()
	if e.store != nil {
		err = e.store.Close()
	}
	return err
}

// fail makes the first error final.
func (e *Replica) fail(err error) {
	e.failure.once.Do(func() {
		e.failure.err = fmt.Errorf("%w: %w", ErrFailed, err)
		close(e.failure.failed)
		for _, w := range e.workers {
			w.queue.mu.Lock() // who waits has either seen it, or is woken
			w.queue.cond.Broadcast()
			w.queue.mu.Unlock()
		}
		e.window.end()
		if l := e.lead.Load(); l != nil {
			go l.end() // the log, which may have called, is asked by who appends
		}
		e.opts.Logger.Error("engine failed; nothing more is acknowledged", "error", err)
		e.opts.OnFailure(e.failure.err)
	})
}

// Await returns when done is closed, or with an error when that may never be: the replica closes or has failed.
func (e *Replica) Await(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-e.stop:
		return ErrClosed
	case <-e.failure.failed:
		return e.Failed()
	}
}

// Clock makes the stamps of this node.
func (e *Replica) Clock() *stamp.Clock { return e.clock }

// Log is what the replica follows. Its owner alone may close it, or put anything into it.
func (e *Replica) Log() Log { return e.log }

// Store has what checkpoints have written. Who looks into it looks beneath the hot state; who writes into it damages
// it.
func (e *Replica) Store() *store.Store { return e.store }

// Logger is the replica's log for operators.
func (e *Replica) Logger() *slog.Logger { return e.opts.Logger }

// Failed is nil, or why the engine has failed.
func (e *Replica) Failed() error {
	select {
	case <-e.failure.failed:
		return e.failure.err
	default:
		return nil
	}
}

// Ready is nil when the engine serves writes, or says why it doesn't: it has failed, is closing, or its disk stalls or
// is full.
func (e *Replica) Ready() error {
	if err := e.Failed(); err != nil {
		return err
	}
	if e.closing.Load() {
		return ErrClosed
	}
	if e.log.Stalled() {
		return errors.New("the disk does not answer")
	}
	if e.log.DiskFull() {
		return ErrDiskFull
	}
	return nil
}

// now is a stamp for a record of n ops; see Clock.
func (e *Replica) now(n int) int64 { return e.clock.Next(n) }

// SetMemoryBytes makes Options.MemoryBytes another one: in a cluster replicas come and go, and share what the node has.
func (e *Replica) SetMemoryBytes(n int64) {
	if err := e.Machine.SetMemoryBytes(n); err != nil {
		e.fail(err)
	}
}

// Enter says whether the replica can be read from outside, and keeps it so until Leave.
func (e *Replica) Enter() bool {
	e.usable.RLock()
	if e.closing.Load() {
		e.usable.RUnlock()
		return false
	}
	return true
}

// Leave ends what Enter has begun.
func (e *Replica) Leave() { e.usable.RUnlock() }

// Stats is what an operator watches of the engine. Bytes are bytes, positions are those of the log.
type Stats struct {
	machine.Stats
	InflightBytes        int64 // records between Commit and applied
	LogBytes             int64
	DurablePosition      uint64
	AppliedPosition      uint64
	CheckpointedPosition uint64
	LoggedBytes          int64 // of records given to the log since Open
	UndeliveredBytes     int64 // of messages on their way to other groups
}

// Stats takes each worker's lock in turn; once a second is often enough.
func (e *Replica) Stats() (s Stats) {
	s.Stats = e.Machine.Stats()
	if l := e.lead.Load(); l != nil {
		s.UndeliveredBytes = l.backlog.Load()
	}
	s.InflightBytes, s.LogBytes, s.LoggedBytes = e.inflight.Load(), e.log.Bytes(), e.logged.Load()
	s.DurablePosition, s.AppliedPosition, s.CheckpointedPosition = e.log.DurablePosition(), e.AppliedPosition(),
		e.CheckpointedPosition()
	return s
}
