// Package shard is the engine: it orders the ops of requests in the log, applies them to the hot state of 256 virtual partitions once they
// are durable, and keeps that state in a Pebble store behind the log.
//
//	Batch.Commit ─▶ Log.Append … fsync … OnDurable ─▶ workers apply in log order ─▶ ticket ─▶ Commit returns
//	aside: checkpoint: what is dirty + the applied position of its partition, in one store batch; then the log is trimmed
//
// Invariants:
//   - Apply after durable, answer after apply. A reader never sees what a crash could take back; what was answered, every reader sees.
//   - A partition belongs to one worker. Whoever touches a partition, or the worker's arena, holds the worker's mutex; the worker takes it
//     per record, readers and checkpoints in between. Partitions touch one another through messages only (message.go).
//   - Apply is a pure function of a partition's state and a record (apply.go), so replay comes to the state that was answered from.
//   - Hot state is a cache of the store under a memory budget. What is dirty is never evicted; what is clean can be read back.
//   - Everything that waits is bounded, reserved before the log is touched; beyond a bound there is ErrBusy at once.
//   - A failed write or fsync of the log, or of the store, is final: the engine stops acknowledging and says why.
package shard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/identity"
	"millrace/shard/profile"
	"millrace/wal"
)

var (
	// ErrBusy is returned when as much is under way as may be. Nothing was done; try again shortly.
	ErrBusy = wal.ErrBusy
	// ErrDiskFull is returned by writes while the disk's free space is below the floor. Nothing was done; reads go on.
	ErrDiskFull = wal.ErrDiskFull
	// ErrTooLarge is returned for a request whose record is larger than the log takes.
	ErrTooLarge = wal.ErrRecordTooLarge
	// ErrFailed is returned once the disk has failed. Whether what waited was kept is unknown. The process should exit.
	ErrFailed = errors.New("the engine has failed")
	// ErrNotLeader is returned by a replica that doesn't lead its group. Nothing was done.
	ErrNotLeader = wal.ErrNotLeader
	// ErrUnavailable is returned in a cluster when too few nodes can be reached. Nothing was done; try again later.
	ErrUnavailable = errors.New("too few nodes of the cluster can be reached")
	// ErrUnknown is returned in a cluster when a node was lost while the request was under way: some of it may have been done.
	ErrUnknown = errors.New("a node was lost meanwhile; whether the request was done is unknown")
	// ErrClosed is returned after Close has begun.
	ErrClosed = errors.New("the engine is closed")
)

// Options configure an Engine. The zero value of a field means its default.
type Options struct {
	FS  vfs.FS // default vfs.Default
	Dir string // the engine's own: log under log/, store under state/
	// Workers own the partitions and apply in parallel; may differ from start to start. Default: GOMAXPROCS, at most 64; of a replica 1.
	Workers int
	// MemoryBytes bounds what hot entries, the tables that find them and unwritten trails take in memory, over all
	// workers. Default 4 GiB. A worker can address 64 GiB, and gets at most 48.
	MemoryBytes int64
	// StoreCacheBytes is Pebble's block cache. Default 128 MiB. Without effect when StoreCache is set.
	StoreCacheBytes int64
	// StoreCache is a block cache and open files that several engines of a process share. Default: the engine has its own.
	StoreCache *StoreCache
	// StoreMemTableBytes is how much of what checkpoints write is put together in memory before it becomes a file; up to four such tables wait to be
	// written. Default 64 MiB, of a replica 16 MiB.
	StoreMemTableBytes int64
	// MaxInflightBytes bounds the records between Commit and applied, and again those between Dispatch and applied that were made elsewhere. Default
	// 256 MiB.
	MaxInflightBytes int64
	// CheckpointBytes: after so much log, what is dirty is written to the store, so that replay stays short. Default 1 GiB.
	CheckpointBytes int64
	// CheckpointInterval: the same after so much time. Default 5 min.
	CheckpointInterval time.Duration
	// SweepInterval is how often what has expired is forgotten. Default 1 h.
	SweepInterval time.Duration
	// MaxMergesWaiting bounds the merges of users (Batch.Merge) between Commit and done. Default 100,000.
	MaxMergesWaiting int64
	Limits           profile.Limits
	Log              wal.Options // FS, Dir and the callbacks are set by the engine
	// Readers are the names of readers that hold the log from its first record on until they say otherwise by HoldLog (package eventlog).
	Readers []string
	// Group makes the engine a replica of a group of a cluster: then Log and Readers' first holds are the group's owner's. Default nil: alone.
	Group *Group
	// OnDocument is called for every control document while Open runs and then for each that is applied (doc empty: removed), from one
	// goroutine at a time. It must not call the engine.
	OnDocument func(key string, doc []byte)
	// OnFailure is called once, when the engine has failed. It must not call Close.
	OnFailure func(error)
	Logger    *slog.Logger     // default slog.Default()
	Now       func() time.Time // default time.Now
	// MaxClockOffset is how far ahead of the clock stamps may be, before Open refuses what it finds (ErrClock); see Clock. Default 10 min.
	MaxClockOffset time.Duration

	// Of replicas: how long a deferred record waits for the front that it belongs to, and how often outboxes are looked after. Defaults 5 s, 1 s.
	patience, tend time.Duration
	// How much memory a worker can address. Default 64 GiB.
	addressable int64
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Workers <= 0 && o.Group != nil {
		o.Workers = 1
	}
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	if o.Group != nil {
		preset(&o.StoreMemTableBytes, 16<<20)
	}
	preset(&o.StoreMemTableBytes, 64<<20)
	preset(&o.MemoryBytes, 4<<30)
	preset(&o.StoreCacheBytes, 128<<20)
	preset(&o.MaxInflightBytes, 256<<20)
	preset(&o.CheckpointBytes, 1<<30)
	preset(&o.CheckpointInterval, 5*time.Minute)
	preset(&o.SweepInterval, time.Hour)
	preset(&o.MaxMergesWaiting, 100_000)
	preset(&o.MaxClockOffset, DefaultMaxClockOffset)
	preset(&o.patience, 5*time.Second)
	preset(&o.tend, time.Second)
	preset(&o.addressable, maxChunks*arenaChunk)
	o.Limits.EnsureDefaults()
	if o.OnDocument == nil {
		o.OnDocument = func(string, []byte) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports the first setting that cannot work.
func (o *Options) Validate() error {
	if o.Dir == "" {
		return errors.New("shard: Dir is not set")
	}
	if o.Workers > maxWorkers {
		return fmt.Errorf("shard: %d workers, at most %d", o.Workers, maxWorkers)
	}
	// What is dirty may take more than its share for a while: a quarter is left for it.
	if most := o.addressable / 4 * 3 * int64(o.Workers); o.MemoryBytes > most {
		return fmt.Errorf("shard: MemoryBytes %d: at most %d with %d workers; more workers can have more",
			o.MemoryBytes, most, o.Workers)
	}
	if o.StoreMemTableBytes < 1<<20 || o.StoreMemTableBytes > 1<<30 {
		return fmt.Errorf("shard: StoreMemTableBytes %d: must be 1 MiB to 1 GiB", o.StoreMemTableBytes)
	}
	if g := o.Group; g != nil {
		switch {
		case g.Log == nil || g.Clock == nil:
			return errors.New("shard: a group without a log or a clock")
		case g.First < 0 || g.Count < 1 || g.First+g.Count > identity.Partitions:
			return fmt.Errorf("shard: a group of %d partitions from %d on", g.Count, g.First)
		}
	}
	return nil
}

func popcount(x uint64) int { return bits.OnesCount64(x) }

func preset[T ~int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

const (
	maxWorkers = 64
	answerLife = 24 * time.Hour // of a kept answer (decisions.md D3)
)

// Engine is the state of one node. All methods are safe for concurrent use.
type Engine struct {
	opts       Options
	limits     profile.Limits
	log        Log
	store      *store
	hasher     *identity.Hasher
	partitions [identity.Partitions]*partition // nil: not held by this engine
	owner      [identity.Partitions]*worker    // of each partition that is held
	held       []*partition                    // those that are, in order
	workers    []*worker
	window     window

	clock      *Clock
	memory     atomic.Int64 // Options.MemoryBytes, or what SetMemoryBytes has said since
	inflight   atomic.Int64 // bytes between Commit and applied
	logged     atomic.Int64 // bytes given to the log since Open
	merges     atomic.Int64 // begun and not ended
	blocked    *xsync.MapOf[uint64, struct{}]
	anyBlock   atomic.Bool
	closing    atomic.Bool
	imaging    atomic.Bool // an Image is there
	recovering atomic.Bool
	lead       atomic.Pointer[leadership] // a replica's, between Lead and Follow
	leading    sync.Mutex                 // held by Lead and Follow
	seen       atomic.Int64               // a replica's: the latest stamp of its group
	tending    chan struct{}              // asks for tend's turn
	usable     sync.RWMutex               // a replica's: held for reading by who reads from outside while it may be closed
	// checkpointed: the store holds everything up to this position.
	checkpointed atomic.Uint64
	advanced     atomic.Uint64 // what Advance has said

	batches sync.Pool
	reads   sync.Pool // a front's, for its batches
	pump    pump

	// renamed has the workspaces of which this engine knows, or on a front all nodes know, that external ids were renamed.
	renamed *xsync.MapOf[uint32, struct{}]

	documentsMu sync.Mutex
	documents   map[string][]byte
	unsavedDocs map[string]struct{}
	audit       auditLog // partition 0's

	checkpoints checkpoints
	failure     failure
	stop        chan struct{} // closed by Close
	resumed     chan struct{} // closed when all is visible that was under way when the process before ended
	background  sync.WaitGroup
}

// failure is the state of having failed: err is set before failed is closed.
type failure struct {
	once   sync.Once
	failed chan struct{}
	err    error
}

// Open opens the engine on what Options.Dir holds and recovers: the store, then the log behind it.
func Open(opts Options) (*Engine, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	e := newEngine(opts)
	if err := e.open(); err != nil {
		e.abandon()
		return nil, err
	}
	return e, nil
}

func newEngine(opts Options) *Engine {
	e := &Engine{
		opts: opts, limits: opts.Limits,
		clock:   &Clock{Now: opts.Now, MaxOffset: opts.MaxClockOffset, Logger: opts.Logger},
		blocked: xsync.NewMapOf[uint64, struct{}](), renamed: xsync.NewMapOf[uint32, struct{}](),
		documents: make(map[string][]byte), unsavedDocs: make(map[string]struct{}),
		stop: make(chan struct{}), resumed: make(chan struct{}), failure: failure{failed: make(chan struct{})}, tending: make(chan struct{}, 1),
	}
	if opts.Group != nil {
		e.clock = opts.Group.Clock
	}
	e.memory.Store(opts.MemoryBytes)
	e.batches.New = func() any { return newBatch(e) }
	e.window.init(opts.MaxInflightBytes)
	e.pump.init()
	e.checkpoints.init()
	return e
}

func (e *Engine) open() (err error) {
	if err := errors.Join(e.checkRestored(), e.removeImage()); err != nil {
		return err
	}
	if err := wal.MakeDir(e.opts.FS, e.opts.FS.PathJoin(e.opts.Dir, "state")); err != nil {
		return err
	}
	if e.opts.Group != nil {
		return e.openReplica()
	}
	if err := wal.MakeDir(e.opts.FS, e.opts.FS.PathJoin(e.opts.Dir, "log")); err != nil {
		return err
	}
	isNew, err := e.isNew()
	if err != nil {
		return err
	}
	var secret [32]byte
	if isNew {
		if _, err := rand.Read(secret[:]); err != nil {
			return err
		}
	}
	if err := e.openState(isNew, secret); err != nil {
		return err
	}
	lo := e.opts.Log
	lo.Trusted = e.checkpointed.Load()
	lo.FS, lo.Dir, lo.Logger = e.opts.FS, e.opts.FS.PathJoin(e.opts.Dir, "log"), e.opts.Logger
	lo.OnDurable, lo.OnFailure = e.onDurable, e.fail
	log, err := wal.Open(lo)
	if err != nil {
		return err
	}
	e.log = log
	for _, name := range e.opts.Readers {
		e.log.Hold(name, e.log.FirstPosition())
	}
	return e.recover()
}

// openState opens the store, or makes it with this secret, and reads what it has.
func (e *Engine) openState(isNew bool, secret [32]byte) (err error) {
	if e.store, err = openStore(e, isNew, secret); err != nil {
		return err
	}
	e.hasher = identity.NewHasher(e.store.secret)
	e.hire()
	return e.loadStore()
}

// openReplica opens the store of a group's replica. Should it be empty, it is the log that says whether it may: Replay returns an error when it has
// not got all records.
func (e *Engine) openReplica() error {
	g := e.opts.Group
	if err := e.openState(true, g.Secret); err != nil {
		return err
	}
	if e.store.secret != g.Secret {
		return fmt.Errorf("%w: %q is of another cluster", ErrStore, e.opts.Dir)
	}
	e.log = g.Log
	return e.recover()
}

// isNew says that there was never a log here: the store is made, and on disk, before the log gets its first file.
func (e *Engine) isNew() (bool, error) {
	dir := e.opts.FS.PathJoin(e.opts.Dir, "log")
	names, err := e.opts.FS.List(dir)
	if err != nil {
		return false, fmt.Errorf("list %q: %w", dir, err)
	}
	return !slices.ContainsFunc(names, func(name string) bool { return name != "LOCK" }), nil
}

// hire makes the workers and shares the partitions out among them.
func (e *Engine) hire() {
	for i := range e.opts.Workers {
		e.workers = append(e.workers, newWorker(e, i))
	}
	first, count := 0, identity.Partitions
	if g := e.opts.Group; g != nil {
		first, count = g.First, g.Count
	}
	for i := range count {
		p, w := &partition{id: uint8(first + i)}, e.workers[i%len(e.workers)]
		p.first, p.last = uint8(first), uint8(first+count-1)
		if e.opts.Group != nil {
			p.tokens = &e.merges
		}
		e.partitions[p.id], e.owner[p.id] = p, w
		e.held = append(e.held, p)
		w.parts = append(w.parts, p)
	}
}

// Close drains what is under way, writes a checkpoint and closes store and log, but the log of a group, of which nothing is taken any more. Commits
// that come later return ErrClosed.
func (e *Engine) Close() error {
	if e.closing.Swap(true) {
		return nil
	}
	for _, w := range e.workers { // who waits for records that come no more may be of the engine's own, whom Close waits for
		w.queue.mu.Lock()
		w.queue.cond.Broadcast()
		w.queue.mu.Unlock()
	}
	if e.opts.Group == nil || e.log == nil {
		e.settle()
	}
	e.Follow()
	close(e.stop)
	e.window.end()
	e.pump.close()
	<-e.pump.gone
	e.background.Wait()
	if e.log == nil { // a front has nothing else
		return e.Failed()
	}
	e.usable.Lock() // who reads has gone, who comes finds it closing
	e.usable.Unlock()
	err := e.Failed()
	if err == nil {
		e.quiesce()
		err = e.checkpoint()
	}
	err = errors.Join(err, e.closeLog())
	for _, w := range e.workers {
		w.retire()
	}
	return errors.Join(err, e.release0())
}

// closeLog closes the log unless it is a group's.
func (e *Engine) closeLog() error {
	if e.log == nil || e.opts.Group != nil {
		return nil
	}
	return e.log.Close()
}

// abandon ends what a failed Open has begun.
func (e *Engine) abandon() {
	close(e.stop)
	e.window.end()
	e.background.Wait()
	if e.recovering.Load() {
		for _, w := range e.workers {
			w.retire()
		}
	}
	_ = e.closeLog() // nothing was appended
	_ = e.release0()
}

// settle waits, within reason, until what was committed is applied: later than that it is taken up at the next start.
func (e *Engine) settle() {
	for end := time.Now().Add(settleTime); e.inflight.Load() > 0 && time.Now().Before(end) && e.Failed() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// quiesce waits until everything that the log has taken is durable and applied. Nothing is appended any more. What a group's log has not handed back,
// it may not hand back for long.
func (e *Engine) quiesce() {
	for e.opts.Group == nil && e.log.DurablePosition() < e.log.LastPosition() && e.Failed() == nil {
		time.Sleep(time.Millisecond)
	}
	e.drain()
}

const settleTime = 10 * time.Second

// release0 gives back what open has taken. Of a dead store nothing is: a round of checkpoints may stand still in the middle of it.
func (e *Engine) release0() error {
	if e.store != nil && e.store.isDead() {
		return nil
	}
	var err error
	for _, w := range e.workers {
		w.free()
	}
	if e.store != nil {
		err = e.store.close()
	}
	return err
}

// fail makes the first error final.
func (e *Engine) fail(err error) {
	e.failure.once.Do(func() {
		e.failure.err = fmt.Errorf("%w: %w", ErrFailed, err)
		close(e.failure.failed)
		for _, w := range e.workers {
			w.queue.mu.Lock() // who waits has either seen it, or is woken
			w.queue.cond.Broadcast()
			w.queue.mu.Unlock()
		}
		e.window.end()
		e.opts.Logger.Error("engine failed; nothing more is acknowledged", "error", err)
		e.opts.OnFailure(e.failure.err)
	})
}

// Failed is nil, or why the engine has failed.
func (e *Engine) Failed() error {
	select {
	case <-e.failure.failed:
		return e.failure.err
	default:
		return nil
	}
}

// Ready is nil when the engine serves writes, or says why it doesn't: it has failed, is closing, or its disk stalls or is full.
func (e *Engine) Ready() error {
	if err := e.Failed(); err != nil {
		return err
	}
	if e.closing.Load() {
		return ErrClosed
	}
	if e.log == nil {
		return nil
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
func (e *Engine) now(n int) int64 { return e.clock.Next(n) }

func (e *Engine) block(number uint64) {
	e.blocked.Store(number, struct{}{})
	e.anyBlock.Store(true)
}

// unblock: the number is nobody's any more. Who comes to its identifier next is not to be blamed.
func (e *Engine) unblock(number uint64) {
	if e.anyBlock.Load() {
		e.blocked.Delete(number)
	}
}

// isBlocked says whether the profile at number is known to be a dummy user (reference.md 1.4).
func (e *Engine) isBlocked(number uint64) bool {
	if !e.anyBlock.Load() {
		return false
	}
	_, ok := e.blocked.Load(number)
	return ok
}

// ParseSvcID and AppendSvcID translate between profile numbers and the svc_id of the API.
func (e *Engine) ParseSvcID(workspace uint32, s []byte) (number uint64, ok bool) {
	return e.hasher.ParseSvcID(workspace, s)
}

func (e *Engine) AppendSvcID(dst []byte, workspace uint32, number uint64) []byte {
	return e.hasher.AppendSvcID(dst, workspace, number)
}
