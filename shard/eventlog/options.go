package eventlog

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/books"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/files"
	"millrace/shard/identity"
)

var (
	// ErrCorrupt is wrapped by errors about a damaged or foreign file, which they name. If the file is a block, only
	// that block is affected. Restore the file, or wait until it expires.
	ErrCorrupt = blocks.ErrCorrupt
	// errFailed is returned by Pack after the disk has failed. Reads go on; packing resumes after the next Open.
	errFailed = errors.New("event log: the disk has failed")
	// errClosed is returned after Close.
	errClosed = errors.New("event log: closed")
	// ErrPacks is returned by Options.Ahead to the log that packs for the others.
	ErrPacks = errors.New("event log: this log packs for the others")
)

// Source is the replica whose log is packed; *replica.Replica is one. Time is that of its stamps, by which events grow
// old: the system's clock might jump ahead by years, and take with it all that is kept, or back, and stop all upkeep.
type Source interface {
	Time() time.Time
	Hasher() *identity.Hasher
	ReadLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error
	HoldLog(name string, from uint64)
	FirstPosition() uint64
	AppliedPosition() uint64
	CheckpointedPosition() uint64
	Dropped(from, to uint64) ([]books.DroppedOp, error)
	Noted(from, to uint64) (changes []books.Noted, through uint64, err error)
	PackedPosition() (position uint64, ok bool, err error)
	NotePacked(position uint64, forget bool) error
}

// HoldName is the name under which the event log holds the engine's log.
const HoldName = "eventlog"

// Options configure a Log. The zero value of a field means its default.
type Options struct {
	FS  vfs.FS // default vfs.Default
	Dir string // belongs to the event log alone; made when absent
	// Group is the name of the group whose replica the engine is, in a cluster. It is part of the ids of events. Unlike
	// that of an engine that is alone, the event log of such a replica may be ahead of its engine, when both came from
	// another node. Default: the engine is alone.
	Group string
	// Retention is how long events are kept, counted from when they were accepted. Default 30 days. Events expire block
	// by block.
	Retention time.Duration
	// BlockBytes is how many bytes of events, in the form of the log, make a block due; tiny events and new names count
	// for what they take in memory. Default 32 MiB. Packing and rewriting take about four times as much memory.
	BlockBytes int64
	// PackAfter is the age of the oldest unpacked record at which less than a block is packed. Default 10 min.
	PackAfter time.Duration
	// MaxDuty is the share of one core that background work takes while less than three quarters of
	// MaxBacklogBytes are unpacked. Default 0.2.
	MaxDuty float64
	// Share is common to the logs of a node, whose work then counts together. Default: there are no others.
	Share *Share
	// Ahead asks the log that packs for all replicas of the group what it has packed from a position on (AheadFrom);
	// ErrPacks: this is that log. Default: each log packs by itself.
	Ahead func(from, to uint64) (Ahead, error)
	// MaxBacklogBytes is how much of the log may be unpacked before packing is no longer throttled. From three
	// quarters of it on packing is throttled less and less. Default 8 GiB.
	MaxBacklogBytes int64
	// DeleteWithin is how soon a deleted user's events leave the disk. Rewriting begins after half of it. Default 24 h.
	DeleteWithin time.Duration
	// MaxDeletedBytes is how much memory the deletions may take whose events are still on disk, those of all logs of
	// the Share together (about 30 bytes for a user). Beyond it rewriting begins at once. Default 16 MiB.
	MaxDeletedBytes int64
	// Interval is how often the background worker looks for something to do. Default 1 s.
	Interval time.Duration
	Logger   *slog.Logger // default slog.Default()

	tailBytes int64 // bytes of events that are read of the log at a time; default 2 MiB, for the processor's caches
	groupRows int   // for blocks.Writer
}

// maxStretchFactor times what a stretch of the log may have of events is where one with few events ends.
const maxStretchFactor = 8

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.FS = cmp.Or(o.FS, vfs.Default)
	o.Retention = cmp.Or(o.Retention, 30*24*time.Hour)
	o.BlockBytes = cmp.Or(o.BlockBytes, 32<<20)
	o.PackAfter = cmp.Or(o.PackAfter, 10*time.Minute)
	o.MaxDuty = cmp.Or(o.MaxDuty, 0.2)
	o.MaxBacklogBytes = cmp.Or(o.MaxBacklogBytes, 8<<30)
	o.DeleteWithin = cmp.Or(o.DeleteWithin, 24*time.Hour)
	o.MaxDeletedBytes = cmp.Or(o.MaxDeletedBytes, 16<<20)
	o.Interval = cmp.Or(o.Interval, time.Second)
	if o.Share == nil {
		o.Share = NewShare()
	}
	o.tailBytes = cmp.Or(o.tailBytes, 2<<20)
	o.groupRows = cmp.Or(o.groupRows, blocks.DefaultGroupRows)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("eventlog: Dir is not set")
	case o.Retention < 0 || o.PackAfter < 0 || o.DeleteWithin < 0 || o.Interval < 0:
		return fmt.Errorf("eventlog: Retention %v, PackAfter %v, DeleteWithin %v or Interval %v is negative",
			o.Retention, o.PackAfter, o.DeleteWithin, o.Interval)
	case o.MaxBacklogBytes < 0 || o.MaxDeletedBytes < 0:
		return fmt.Errorf("eventlog: MaxBacklogBytes %d or MaxDeletedBytes %d is negative", o.MaxBacklogBytes,
			o.MaxDeletedBytes)
	case o.BlockBytes < 1 || o.BlockBytes > 256<<20:
		return fmt.Errorf("eventlog: BlockBytes %d: must be 1 to 256 MiB", o.BlockBytes)
	case !(o.MaxDuty > 0 && o.MaxDuty <= 1):
		return fmt.Errorf("eventlog: MaxDuty %v: must be above 0 and up to 1", o.MaxDuty)
	}
	return nil
}

// Ahead is what a log has packed from a position on.
type Ahead struct {
	Last  uint64 // the stretch from that position on ends here; 0: nothing is packed there
	Block []byte // its file; nil: it has none, or none of just this stretch, or it goes too far
}

// Version is the version of the files of an event log. A program reads only its own.
func Version() int { return files.Version() }
