package replica

import (
	"fmt"
	"slices"
	"time"

	"millrace/wal"
)

// Log is what an engine needs of its log. wal.Log keeps it on one disk, quorum.Log (package wal/quorum) on the disks of
// a majority of nodes.
//
//   - Positions rise from record to record; there may be gaps between them. A record gets its position in Append or
//     later, before it is handed back.
//   - Records are handed back once they are durable, in the order of their positions, from one goroutine at a time: by
//     wal.Options.OnDurable, or Replica.Dispatch.
//   - Append refuses a record (then nothing was done), or takes it: then it is handed back, or it is reported as lost
//     (Replica.Lost: whether it is in the log is unknown), or the log fails.
//   - Replay and Read give records from a position on: from need not be a record's position, but it must not lie before
//     FirstPosition (wal.ErrMissing).
//   - Of a record that was made elsewhere, Data is the engine's from Dispatch on; the log does not write to it any
//     more.
type Log interface {
	// Append gives a record a place in the log. It doesn't wait for a disk, unless the record Waits. Errors:
	// wal.ErrBusy, wal.ErrDiskFull, wal.ErrRecordTooLarge, wal.ErrFailed, wal.ErrClosed, wal.ErrNotLeader.
	Append(r *wal.Record) error
	// Replay calls f for the records from position from on that the log will not hand back: all that were there when it
	// was opened (wal.Log), or those that are known to be decided (quorum.Log).
	Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error
	// Read calls f for the durable records from position from to to. payload is lent for the call.
	Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error
	// Hold keeps the records from position from on for a reader of that name, until it says otherwise; math.MaxUint64
	// ends it.
	Hold(name string, from uint64)
	// Trim says that records before this position are not needed by the engine any more.
	Trim(before uint64) error
	// FirstPosition: all records from there on are there, earlier ones may not be. It is 1 or above, and need not be a
	// record's position. LastPosition is that of the last record that was taken, DurablePosition of the last that was
	// handed back. The engine's state may be ahead of both, when it came from another node.
	FirstPosition() uint64
	LastPosition() uint64
	DurablePosition() uint64
	Bytes() int64
	// Stalled: the disk, or the quorum, has not answered for long. DiskFull: Append returns wal.ErrDiskFull.
	Stalled() bool
	DiskFull() bool
	// Image is for backups; see wal.Log.Image.
	Image(hold string, from, to uint64) ([]wal.File, error)
	Close() error
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

// findLog makes the log's directory. The store may be made when there was never a log here: it is on disk before the
// log gets its first file.
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
	o.Trusted = r.checkpointed.Load()
	o.FS, o.Dir, o.Logger = r.opts.FS, r.opts.FS.PathJoin(r.opts.Dir, "log"), r.opts.Logger
	o.OnDurable, o.OnFailure = r.Dispatch, r.fail
	log, err := wal.Open(o)
	if err != nil {
		return nil, err
	}
	for _, name := range r.opts.Readers {
		log.Hold(name, log.FirstPosition())
	}
	return log, nil
}

// endOwnLog returns when what the replica's own log has taken is durable and dispatched. No other comes: the replica
// leads no more.
func (e *Replica) endOwnLog() {
	for e.dispatched() < e.log.LastPosition() && e.Failed() == nil {
		time.Sleep(time.Millisecond)
	}
}
