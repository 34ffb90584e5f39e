package replica

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/arena"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal"
)

var (
	// ErrBusy is returned when as much is in flight as may be. Nothing was done; try again shortly.
	ErrBusy = wal.ErrBusy
	// ErrDiskFull is returned by writes while the disk's free space is below the floor. Nothing was done; reads go on.
	ErrDiskFull = wal.ErrDiskFull
	// ErrTooLarge is returned for a request whose record is larger than the log takes.
	ErrTooLarge = wal.ErrRecordTooLarge
	// ErrFailed is returned once the disk has failed. Whether changes that waited were kept is unknown. The process
	// should exit.
	ErrFailed = errors.New("the engine has failed")
	// ErrNotLeader is returned by a replica that doesn't lead its group. Nothing was done.
	ErrNotLeader = wal.ErrNotLeader
	// ErrUnavailable is returned in a cluster when too few nodes can be reached. Nothing was done; try again later.
	ErrUnavailable = errors.New("too few nodes of the cluster can be reached")
	// ErrUnknown is returned in a cluster when a node was lost while the request was under way: some of it may have
	// been done.
	ErrUnknown = effect.ErrUnknown
	// ErrClosed is returned after Close has begun.
	ErrClosed = errors.New("the engine is closed")
)

// What callers of a replica need of the packages below.
type (
	// Lent is an entry that is lent to a reader, who gives it back.
	Lent = machine.Lent
	// Use is what an entry is lent for.
	Use = machine.Use
	// Tap sees the changes that replicas which lead apply, except in replay.
	Tap = machine.Tap
	// Watcher is shown the changes of one record.
	Watcher = machine.Watcher
)

// What entries are lent for, see package machine.
const (
	ToRead   = machine.ToRead
	ToChange = machine.ToChange
)

// AnswerLife is how long an answer is kept (decisions.md D3).
const AnswerLife = machine.AnswerLife

// EngineOptions configure a node that is alone (shard.Open), and bound a replica. The zero value of a field means its
// default.
type EngineOptions struct {
	FS  vfs.FS // default vfs.Default
	Dir string // the engine's own directory: log under log/, store under state/
	// Workers is how many workers own the partitions and apply in parallel; it may differ from start to start. Default:
	// GOMAXPROCS, at most 64; for a replica 1.
	Workers int
	// MemoryBytes bounds the memory for hot entries, the tables that find them and unwritten trails, over all workers.
	// Default 4 GiB. A worker can address 64 GiB, and gets at most 48.
	MemoryBytes int64
	// MaxDeltaChanges is how many changes of a user who isn't in memory are kept unread between two checkpoints, once
	// the state is larger than MemoryBytes; a user with more changes is read. Default 8, at most 1,000. Negative: none,
	// all users are read.
	MaxDeltaChanges int
	// StoreCacheBytes is the size of Pebble's block cache. Default 128 MiB. It has no effect when StoreCache is set.
	StoreCacheBytes int64
	// StoreCache is a block cache and open files that several engines of a process share. Default: the engine has its
	// own.
	StoreCache *store.Cache
	// Reading is told of reads that workers and readers wait for, and bounds those of readers. Default: nobody does.
	Reading *procs.Reading
	// StoreMemTableBytes is how many bytes of what checkpoints write are collected in memory before they become a file;
	// up to four such tables wait to be written. Default 64 MiB, for a replica 16 MiB.
	StoreMemTableBytes int64
	// MaxInflightBytes bounds the records between Commit and applied, and separately the records between Dispatch and
	// applied that were made elsewhere. Default 256 MiB.
	MaxInflightBytes int64
	// CheckpointBytes is after how many bytes of log what is dirty is written to the store, so that replay stays short.
	// Default 1 GiB.
	CheckpointBytes int64
	// CheckpointInterval is after how much time the same is done. Default 5 min.
	CheckpointInterval time.Duration
	// SweepInterval is how often expired entries are forgotten. Default 1 h.
	SweepInterval time.Duration
	// MaxMergesWaiting bounds the merges of users (Batch.Merge) that were committed and are not yet done. Default
	// 100,000.
	MaxMergesWaiting int64
	Limits           profile.Limits
	Log              wal.Options // FS, Dir and the callbacks are set by the engine
	// Readers are the names of readers that hold the log from its first record on until they change that by HoldLog
	// (package eventlog).
	Readers []string
	// OnDocument is called for every control document while Open runs and then for each that is applied (doc empty:
	// removed), from one goroutine at a time. It must not call the engine.
	OnDocument func(key string, doc []byte)
	// Tap sees what is applied. Default: none.
	Tap Tap
	// OnFailure is called once, when the engine has failed. It must not call Close.
	OnFailure func(error)
	Logger    *slog.Logger // default slog.Default()
	// Clock is the clock of the node, shared by all its replicas. Open refuses data whose stamps are further ahead of
	// it than it permits (stamp.ErrClock). Default: one of its own, with the defaults of stamp.Clock.
	Clock *stamp.Clock

	// Patience is how long a deferred record waits for its coordinator, TendInterval how often outboxes are looked
	// after. Defaults: Patience 5 s, on a node that is alone 1 min; TendInterval 1 s.
	Patience, TendInterval time.Duration
	// addressable is how much memory a worker can address, in bytes. Default 64 GiB.
	addressable int64
}

// EnsureDefaults fills in the fields that are not set.
func (o *EngineOptions) EnsureDefaults() {
	o.FS = cmp.Or(o.FS, vfs.Default)
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	o.StoreMemTableBytes = cmp.Or(max(o.StoreMemTableBytes, 0), 64<<20)
	o.MemoryBytes = cmp.Or(max(o.MemoryBytes, 0), 4<<30)
	o.StoreCacheBytes = cmp.Or(max(o.StoreCacheBytes, 0), 128<<20)
	o.MaxInflightBytes = cmp.Or(max(o.MaxInflightBytes, 0), 256<<20)
	o.CheckpointBytes = cmp.Or(max(o.CheckpointBytes, 0), 1<<30)
	o.CheckpointInterval = cmp.Or(max(o.CheckpointInterval, 0), 5*time.Minute)
	o.SweepInterval = cmp.Or(max(o.SweepInterval, 0), time.Hour)
	o.MaxMergesWaiting = cmp.Or(max(o.MaxMergesWaiting, 0), 100_000)
	o.Patience = cmp.Or(max(o.Patience, 0), 5*time.Second)
	o.TendInterval = cmp.Or(max(o.TendInterval, 0), time.Second)
	o.addressable = cmp.Or(max(o.addressable, 0), arena.MaxBytes)
	o.Limits.EnsureDefaults()
	o.MaxDeltaChanges = cmp.Or(o.MaxDeltaChanges, 8)
	// A profile with unread changes might exceed the Limits.
	if o.MaxDeltaChanges = min(o.MaxDeltaChanges, 1000); o.Limits.LeastOver() < 3*entries.LargeBytes {
		o.MaxDeltaChanges = -1
	}
	if o.OnDocument == nil {
		o.OnDocument = func(string, []byte) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Clock == nil {
		o.Clock = &stamp.Clock{Logger: o.Logger}
	}
}

// The versions of what a replica has on disk: its store, and the records in its log. A program reads only these.
const (
	StoreVersion  = store.Version
	RecordVersion = op.Version
)

// Validate reports the first setting that cannot work.
func (o *EngineOptions) Validate() error {
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
	return nil
}

const maxWorkers = 64

// Carrier is how the messages of a replica get to other groups.
type Carrier interface {
	// GroupOf is the number of the group that holds a partition; messages are collected by group. It never changes.
	GroupOf(partition uint8) int
	// Deliver carries messages from this group to the partitions of one other group (Replica.Receive), in their order,
	// and returns nil when all are applied there, or an error: then some of them may be. The sender delivers to each
	// group one call after the other, and tries the same messages again until it is told that they are applied. The
	// messages of several senders may be delivered together. Bodies are the callee's for the call only.
	Deliver(messages []Message) error
}

// Message is a message between groups, as it is carried.
type Message struct {
	Number uint64 // of the entry that it goes to; the highest byte is the partition
	Body   []byte // of the Message op
	// Done, when not nil, is called once all effects of the message are visible, with what came of them. That may be
	// before or after Deliver has returned nil. err is ErrUnknown when the node that took care of the effects was lost,
	// or no longer leads: the effects come, but it is unknown when. Only the first call counts.
	Done func(effects effect.Effects, err error)
}
