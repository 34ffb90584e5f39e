package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"millrace/shard/machine"
	"millrace/shard/store"
	"millrace/wal"
)

// Open opens a replica on the data in Options.Dir. It recovers the store, and then applies the log behind it.
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

// OpenOwn opens a replica that has a log of its own on this disk, under log/ in Options.Dir. It always leads once Lead
// was called, and Close waits for what its log has taken.
func OpenOwn(o Options) (*Replica, error) {
	o.ownsLog, o.OpenLog = true, openOwnLog
	o.EnsureDefaults()
	if err := o.findLog(); err != nil {
		return nil, err
	}
	return Open(o)
}

// findLog makes the log's directory. The store may be made only if there was never a log here: a store is on disk
// before its log gets its first file.
func (o *Options) findLog() error {
	if err := o.Validate(); err != nil {
		return err
	}
	dir := o.FS.PathJoin(o.Dir, "log")
	if err := wal.MakeDir(o.FS, dir); err != nil {
		return err
	}
	names, err := o.FS.List(dir)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	o.MayMake = !slices.ContainsFunc(names, func(name string) bool { return name != "LOCK" })
	return nil
}

// openOwnLog opens the log of a replica that has one of its own.
func openOwnLog(r *Replica) (Log, error) {
	o := r.opts.Log
	o.FS, o.Dir, o.Logger = r.opts.FS, r.opts.FS.PathJoin(r.opts.Dir, "log"), r.opts.Logger
	o.OnDurable, o.OnFailure = r.Dispatch, r.fail
	if r.store.HasLog && r.opts.MayMake { // before the first checkpoint only the log has what was acknowledged
		return nil, fmt.Errorf("%w: %q has none, although there is a state store", wal.ErrMissing, o.Dir)
	}
	log, err := wal.Open(o)
	if err != nil {
		return nil, err
	}
	if err := r.noteLog(log.ID()); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	for _, name := range r.opts.Readers {
		log.Hold(name, log.FirstPosition())
	}
	return log, nil
}

// noteLog has the store remember its log. Another server's log may have records at the same positions, and their ops
// would be applied to whatever has their numbers here.
func (r *Replica) noteLog(id uint64) error {
	switch r.store.LogID {
	case id:
		return nil
	case 0:
		return r.store.NoteLog(id)
	}
	return fmt.Errorf("%w: the log and the state store in %q are of different servers", wal.ErrMissing, r.opts.Dir)
}

func newReplica(o Options) *Replica {
	e := &Replica{
		opts: o, clock: o.Clock,
		tending: make(chan struct{}, 1),
	}
	e.ending, e.stop = context.WithCancel(context.Background())
	e.Machine = machine.New(machine.Options{
		First: o.First, Count: o.Count, Workers: o.Workers, MemoryBytes: o.MemoryBytes, Addressable: o.addressable,
		MaxDeltaChanges: o.MaxDeltaChanges, Limits: o.Limits, Groups: o.Carrier, Tap: o.Tap, OnDocument: o.OnDocument,
		Failed: e.Failed, Fail: e.fail, Reading: o.Reading, Logger: o.Logger,
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

// loadStore reads what the store has: the control documents, the books of all partitions, and all entries when they fit
// the memory.
func (e *Replica) loadStore() error {
	start := time.Now()
	if err := e.Load(e.store); err != nil {
		return err
	}
	stamp, err := e.store.Stamp()
	if err != nil {
		return err
	}
	e.clock.Observe(stamp)
	if err := e.clock.Check(); err != nil {
		return err
	}
	from := uint64(math.MaxUint64)
	for _, p := range e.Held() {
		from = min(from, p.Applied)
	}
	e.checkpointed.Store(from)
	packed, _, err := e.store.Packed()
	if err != nil {
		return err
	}
	e.checkpoints.toForget.Store(packed) // a crash may have come before the checkpoint that was to delete it
	e.opts.Logger.Info("state store loaded", "position", from, "ms", time.Since(start).Milliseconds())
	return nil
}

// recover brings the state to where the log ends: it applies the records that the store has not seen, by the same apply
// as live.
func (e *Replica) recover() error {
	start := time.Now()
	from := e.checkpointed.Load()
	for _, w := range e.workers {
		w.Begin(from)
		w.queue.upTo, w.queue.done = from, from
		go w.run()
	}
	e.recovering.Store(true)
	durable := e.log.DurablePosition()
	e.background.Go(func() { e.runCheckpoints(durable) }) // replay of much log may need room
	records, err := e.replay(from + 1)
	if err != nil {
		return err
	}
	if err := e.clock.Check(); err != nil {
		return err
	}
	e.recovering.Store(false)
	e.background.Go(e.runSweeps)
	e.opts.Logger.Info("recovered", "position", e.log.LastPosition(), "replayed_records", records,
		"ms", time.Since(start).Milliseconds())
	e.background.Go(e.tend)
	return nil
}

// replay applies the records from position from on.
func (e *Replica) replay(from uint64) (records int, err error) {
	undelivered := 0
	err = e.log.Replay(from, func(position uint64, count uint32, payload []byte) error {
		c := e.window.take(len(payload))
		if c == nil {
			return e.Failed()
		}
		c.copied = append(c.copied[:0], payload...)
		if err := e.adopt(c, position, c.copied); err != nil {
			return err
		}
		records++
		e.dispatch([]*wal.Record{&c.Record}, position)
		if undelivered += len(payload); undelivered > replayStretch {
			undelivered = 0
			e.drain()
			e.ForgetOwn()
		}
		return nil
	})
	if err != nil {
		return records, err
	}
	e.drain()
	e.ForgetOwn()
	e.window.forget()
	return records, e.Failed()
}

// replayStretch is how many bytes of log are replayed between two looks at the outboxes.
const replayStretch = 64 << 20

// drain waits until all workers are idle.
func (e *Replica) drain() {
	for _, w := range e.workers {
		w.drain()
	}
}

// Close ends leadership, applies what was dispatched, writes a checkpoint and closes store and log. Later calls get
// ErrClosed. Errors: ErrFailed, when what it wrote did not reach the disk.
func (e *Replica) Close() error {
	if e.closing.Swap(true) {
		return nil
	}
	// Those who wait for records that come no more may be the engine's own goroutines, for which Close waits.
	e.wakeAll()
	e.Follow()
	if e.opts.ownsLog {
		e.endOwnLog()
	}
	e.stop()
	e.window.end()
	e.background.Wait()
	e.usable.Lock() // earlier readers have left, later ones find the replica closing
	e.usable.Unlock()
	err := e.Failed()
	if err == nil {
		e.drain()
		err = e.Checkpoint()
	}
	if err = errors.Join(err, e.log.Close()); err != nil && !errors.Is(err, ErrFailed) {
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	for _, w := range e.workers {
		w.retire()
	}
	return errors.Join(err, e.letGo())
}

// endOwnLog returns when everything that the replica's own log has taken is durable and dispatched. The log takes
// nothing more, since the replica doesn't lead any more.
func (e *Replica) endOwnLog() {
	for e.dispatched() < e.log.LastPosition() && e.Failed() == nil {
		time.Sleep(time.Millisecond)
	}
}

// abandon ends what a failed Open has begun.
func (e *Replica) abandon() {
	e.stop()
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

// letGo frees what open has taken. For a dead store it frees nothing: a round of checkpoints may be stuck in the middle
// of it.
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
