package replica

import (
	"millrace/wal"
)

// Log is what an engine needs of its log. wal.Log keeps it on one disk, quorum.Log (package wal/quorum) on the disks of
// a majority of nodes.
//
//   - Positions rise from record to record; there may be gaps between them. A record gets its position in Append or
//     later, before it is handed back.
//   - Records are handed back once they are durable, in the order of their positions, from one goroutine at a time: by
//     wal.Options.OnDurable, or Replica.Dispatch.
//   - Append refuses a record, and then nothing was done; or it takes the record. A record that was taken is handed
//     back, or is reported as lost (Replica.Lost: whether it is in the log is unknown), or the log fails.
//   - Replay and Read give records from a position on: from need not be a record's position, but it must not lie before
//     FirstPosition (wal.ErrMissing).
//   - Data of a record that was made elsewhere is the engine's from Dispatch on; the log does not write to it any more.
type Log interface {
	// Append gives a record a place in the log. It doesn't wait for a disk, unless the record Waits. Errors:
	// wal.ErrBusy, wal.ErrDiskFull, wal.ErrRecordTooLarge, wal.ErrFailed, wal.ErrClosed, wal.ErrNotLeader.
	Append(r *wal.Record) error
	// Replay calls f for the records from position from on that the log will not hand back: all that were there when it
	// was opened (wal.Log), or those that are known to be decided (quorum.Log).
	Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error
	// Read calls f for the durable records with positions between from and to. payload is lent for the call.
	Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error
	// Hold keeps the records from position from on for the reader with this name, until the next call for it;
	// math.MaxUint64 ends the hold.
	Hold(name string, from uint64)
	// Trim says that the engine doesn't need the records before this position any more.
	Trim(before uint64) error
	// FirstPosition is the position from which on all records are there; earlier ones may not be. It is 1 or above, and
	// need not be a record's position. LastPosition is that of the last record that was taken, DurablePosition that of
	// the last record that was handed back. The engine's state may be ahead of both, when it came from another node.
	FirstPosition() uint64
	LastPosition() uint64
	DurablePosition() uint64
	Bytes() int64
	// Stalled says that the disk, or the quorum, has not answered for long; DiskFull, that Append returns
	// wal.ErrDiskFull.
	Stalled() bool
	DiskFull() bool
	// Image is for backups; see wal.Log.Image.
	Image(hold string, from, to uint64) ([]wal.File, error)
	Close() error
}
