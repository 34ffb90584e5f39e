// Package replica runs a range of partitions on one node: it appends their records to the log and applies them in log
// order. It is the lower side of the engine.
//
//	Take ─▶ Log.Append … durable ─▶ Dispatch ─▶ workers apply in log order ─▶ future, which Wait waits for
//	aside, a checkpoint: what is dirty + the applied position of its partition, in one store batch; then the log
//	is trimmed
//
// A replica leads its group, or follows, and knows no request, no other node and no coordinator: what it needs of
// them comes by its Options.
//
// Package machine defines what is applied, and how. This package has everything around that: goroutines, log,
// checkpoints and recovery; leadership, and messages on their way.
package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal"
)

// Options configure a Replica.
type Options struct {
	EngineOptions
	// First and Count are the partitions that the replica has.
	First, Count int
	// Secret is what numbers are made with in a cluster; the store must have the same. Zero: the store has a secret of
	// its own.
	Secret [32]byte
	// MayMake says that the store is made when it doesn't exist.
	MayMake bool
	// OpenLog is called when the store is open, before the log behind it is applied. The log's owner calls Dispatch,
	// Lost, Lead and Follow; the replica closes the log.
	OpenLog func(*Replica) (Log, error)
	Carrier Carrier
	// Readdress addresses the ops of a deferred record as things stand, wherever the users are whom the ops name, so
	// that they can be released (Coordinator.Readdress).
	Readdress func(record []byte) (routed []byte, err error)
	// FlushAll returns nil when everything that is under way anywhere has arrived, or an error when it can't for now
	// (Coordinator.FlushAll).
	FlushAll func() error

	// ownsLog says that the log is used by this replica only (OpenOwn). Dispatch may then apply records itself: its
	// caller has nothing more urgent to do, unlike the goroutine of a group's log.
	ownsLog bool
}

// Validate reports the first setting that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.OpenLog == nil || o.Carrier == nil || o.Readdress == nil || o.FlushAll == nil:
		return errors.New("shard: a replica needs OpenLog, Carrier, Readdress and FlushAll")
	case o.First < 0 || o.Count < 1 || o.First+o.Count > identity.Partitions:
		return fmt.Errorf("shard: a replica of %d partitions from %d on", o.Count, o.First)
	}
	return o.EngineOptions.Validate()
}

// Replica is the state of a range of partitions on one node: the records of their log, applied. It leads its group, or
// follows. It knows no request, no other node, and nothing about its callers. All methods are safe for concurrent use.
type Replica struct {
	*machine.Machine
	opts    Options
	log     Log
	store   *store.Store
	workers []*worker // those of the machine, each with its goroutine
	window  window

	clock      *stamp.Clock
	ready      []*wal.Record // scratch of Dispatch
	inflight   atomic.Int64  // bytes between Take and applied
	logged     atomic.Int64  // bytes given to the log since Open
	closing    atomic.Bool
	imaging    atomic.Bool // an Image exists
	recovering atomic.Bool
	lead       atomic.Pointer[leadership] // set between Lead and Follow
	leading    sync.Mutex                 // held by Lead and Follow
	seen       atomic.Int64               // the latest stamp of the group
	tending    chan struct{}              // asks tend for a turn
	// held for reading by readers from outside, who may come while the replica is closed
	usable sync.RWMutex
	// checkpointed: the store holds everything up to this position.
	checkpointed atomic.Uint64
	advanced     atomic.Uint64 // the last position that Advance was told

	checkpoints checkpoints
	failure     atomic.Pointer[error] // nil: it has not failed
	ending      context.Context       // ends when the replica closes, or has failed
	stop        context.CancelFunc
	background  sync.WaitGroup
}

// checkpoints writes what is dirty to the store now and then, so that replay stays short, memory can be freed and the
// log can be trimmed. It is lazy on purpose: a profile that changes a hundred times between two checkpoints is written
// once.
type checkpoints struct {
	mu      sync.Mutex
	request chan struct{}
	full    chan struct{} // signalled when there is enough log for a round
	logged  atomic.Int64  // Replica.logged before the last round
	round   chan struct{} // closed when the round that callers await has ended
	busy    sync.Mutex    // held during a round, and while the store is copied
	// up to which position the next round deletes what readers of the log were told; 0: nothing
	toForget atomic.Uint64
}

func (c *checkpoints) init() {
	c.request, c.full = make(chan struct{}, 1), make(chan struct{}, 1)
	c.round = make(chan struct{})
}

// fail makes the first error final.
func (e *Replica) fail(err error) {
	failure := fmt.Errorf("%w: %w", ErrFailed, err)
	if !e.failure.CompareAndSwap(nil, &failure) {
		return
	}
	e.stop()
	e.wakeAll()
	e.window.end()
	if l := e.lead.Load(); l != nil {
		go l.end() // in a goroutine: this may be called by the log, on which callers of Append may wait
	}
	e.opts.Logger.Error("engine failed; nothing more is acknowledged", "error", err)
	e.opts.OnFailure(failure)
}

// wakeAll has whoever waits for a worker look again at what has changed before the call.
func (e *Replica) wakeAll() {
	for _, w := range e.workers {
		w.queue.mu.Lock() // whoever waits has either seen the change, or is woken
		w.queue.cond.Broadcast()
		w.queue.mu.Unlock()
	}
}

// requestCheckpoint asks for a round and returns a channel that is closed when a round that began after the call has
// ended.
func (e *Replica) requestCheckpoint() <-chan struct{} {
	c := &e.checkpoints
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.request <- struct{}{}:
	default:
	}
	return c.round
}

// Await returns nil when done is closed, or an error when that may never happen: the replica closes or has failed.
func (e *Replica) Await(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-e.ending.Done():
		return cmp.Or(e.Failed(), ErrClosed)
	}
}

// Clock makes the stamps of this node.
func (e *Replica) Clock() *stamp.Clock { return e.clock }

// Time is the time by which what has a stamp ages; see stamp.Clock.
func (e *Replica) Time() time.Time { return e.clock.Aging() }

// Log is the log that the replica follows. Only its owner may close it, or put anything into it.
func (e *Replica) Log() Log { return e.log }

// Store has what checkpoints have written. A reader of it reads beneath the hot state; a writer damages it.
func (e *Replica) Store() *store.Store { return e.store }

// Logger is the replica's log for operators.
func (e *Replica) Logger() *slog.Logger { return e.opts.Logger }

// Failed is nil, or why the engine has failed.
func (e *Replica) Failed() error {
	if failure := e.failure.Load(); failure != nil {
		return *failure
	}
	return nil
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

// SetMemoryBytes changes Options.MemoryBytes: in a cluster replicas come and go, and share the memory of the node.
func (e *Replica) SetMemoryBytes(n int64) {
	if err := e.Machine.SetMemoryBytes(n); err != nil {
		e.fail(err)
	}
}

// Enter says whether the replica can be read from outside. If so, it stays readable until Leave.
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
