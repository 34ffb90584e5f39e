// Package quorum implements the contract of package wal over a majority of nodes: one raft group (hashicorp/raft) for
// each Log, any number of groups on one port (package host). It knows bytes and positions, but not what the records
// mean. Consensus is the library's; this package is the glue around it.
//
// What always holds:
//   - OnDurable sees a record only after a majority of the voters has it on disk, in the order of positions, from one
//     goroutine. Every node sees the same records at the same positions.
//   - A record that Append has taken is handed back as the same *Record or reported as lost (it may then still end up
//     in the log), or the log fails.
//   - A failed write is final: the node takes no further part in the group, and nothing is acknowledged.
//   - What this node has promised to the group (entries, votes) is there after the next Open, or Open refuses
//     (wal.ErrCorrupt): a voter that has lost its memory must not vote.
//   - Whatever waits is bounded. Append never waits for a disk or a node.
//
// Who does what: Append queues (propose.go). The proposer packs waiting records into entries (entry.go) and gives them
// to raft. Raft's goroutine of the state machine hands back what is committed (machine.go). Package store, the log on
// disk, is hashicorp/raft-wal with checksums, a high-water mark, and a say in what may be deleted. A snapshot of raft
// is only a marker (package marker); a node that lacks too much gets the state itself, as a stream beside raft
// (restore.go).
// lead.go tells the owner whether this node leads. Barriers are answered without an entry (barrier.go). Everything else
// goes through the library's transport, over a few connections for each group and node (transport.go). Readers on
// followers bring along what the leader has told them of commits (learn.go).
package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
)

// Node is a node's number in its cluster.
type Node = host.Node

// idOf and addressOf return what raft knows a node by: its number. Where the node is, the host finds out at each dial.
func idOf(n Node) raft.ServerID           { return raft.ServerID(strconv.FormatUint(uint64(n), 10)) }
func addressOf(n Node) raft.ServerAddress { return raft.ServerAddress(idOf(n)) }

// nodeOf returns 0 for what isn't a node's number.
func nodeOf[T ~string | ~[]byte](id T) Node {
	n, err := strconv.ParseUint(string(id), 10, 32)
	if err != nil {
		return 0
	}
	return Node(n)
}

// ErrNotLeader is returned by what only the leader of a group can do. Nothing was done.
var ErrNotLeader = wal.ErrNotLeader

// State is the state that a group's records build up, for a node that lacks so much of the log that it needs the state
// instead.
type State interface {
	// Snapshot writes the state to w, with the effects of at least all records up to position; more is fine. It is
	// called on the leader, for one receiver. position has been handed to OnDurable; if need be, Snapshot waits until
	// it is applied.
	Snapshot(ctx context.Context, position uint64, w io.Writer) error
	// Restore replaces the state by what Snapshot has written, whole or not at all, even when the process ends in the
	// middle. Records up to position don't come any more; after a crash, some may. Nothing is handed back while Restore
	// runs. r ends with io.EOF only when everything is there and unharmed; after any other error the state must stay as
	// it was. When Restore returns nil, the new state is on disk.
	Restore(position uint64, r io.Reader) error
}

// Options configure a Log. The zero value of a field means its default.
type Options struct {
	Host  *host.Host
	Disk  *disk.Disk // the one that the logs of all groups of the Host write to
	Group uint32
	Dir   string // belongs to the log alone; made when absent
	// MustExist says that this node has had the log before. If Dir has none, it is lost, with everything that it has
	// promised, and Open refuses (wal.ErrCorrupt).
	MustExist bool
	// Voters make a new group, and must be the same on each of them. If empty, the log waits until the group's leader
	// takes this node in. Ignored when Dir has a log.
	Voters []Node
	// Base is for a new group whose state was made elsewhere (imported, or restored from a backup): its records come
	// after this position. It must be the same on all voters. Default 0.
	Base  uint64
	State State
	// OnDurable gets records in order, from one goroutine: those that were appended here with their Context, others
	// without one. The slice is lent for the call. The records belong to the caller, who may keep the Data of records
	// that were appended elsewhere but not write to it. Nothing is handed back while OnDurable runs, so it should hand
	// the records over and return. Required.
	OnDurable func([]*wal.Record)
	// OnLost gets records that were appended here and may or may not end up in the log, because leadership was lost, or
	// the log was closed or has failed. They belong to the caller again. Those that are in the log reach OnDurable like
	// records that were appended elsewhere.
	OnLost func([]*wal.Record)
	// OnLead says that this node leads, and that OnDurable has had all records of earlier leaders. OnFollow says that
	// it no longer leads. They are called alternately from one goroutine. Append takes records before OnLead returns,
	// and may refuse them before OnFollow is called.
	OnLead, OnFollow func()
	// OnFailure is called once, when the log's disk has failed or what is on it is damaged. The failure is final; the
	// process should exit. OnFailure must not call Close.
	OnFailure func(error)
	// HeartbeatTimeout, ElectionTimeout and LeaseTimeout are those of raft. Defaults 800 ms, HeartbeatTimeout,
	// HeartbeatTimeout: a leader that is gone is replaced in 1 to 2.5 s.
	HeartbeatTimeout, ElectionTimeout, LeaseTimeout time.Duration
	// CommitTimeout is how often an idle leader makes sure that its followers have the log and know what is committed.
	// They also learn of commits with the next entry, and from readers there (Learn). Default 2 s.
	CommitTimeout time.Duration
	// MaxPendingRecords and MaxPendingBytes bound the records that wait for the quorum. Beyond either, Append returns
	// ErrBusy. Defaults 4096, 64 MiB.
	MaxPendingRecords int
	MaxPendingBytes   int64
	// MaxRecordBytes bounds len(Record.Data). Default 16 MiB, at most 32 MiB.
	MaxRecordBytes int
	// MaxEntryBytes is the size up to which records share one entry of raft; a larger record is an entry of its own. A
	// follower that catches up gets up to 64 entries at once. Default 256 KiB.
	MaxEntryBytes int
	// MinFreeBytes and MinFreePercent: with less free space than either, Append returns ErrDiskFull for records that
	// are not urgent. Defaults 2 GB and 5; a negative value means no floor.
	MinFreeBytes   int64
	MinFreePercent float64
	// FreeSpace returns how much of the disk of a directory is free, and how large that disk is. One group is asked
	// for all of the Disk. Default: what the file system says.
	FreeSpace func(dir string) (free, total uint64, err error)
	// StallAfter is how long the quorum may take to answer before Stalled reports true. Default 5 s.
	StallAfter time.Duration
	// DiskTimeout is how long a write may take before all groups of the Disk that are led here give up their
	// leadership (lead.go). Default 1.5 s; a negative value means no limit.
	DiskTimeout time.Duration
	// SegmentBytes is the size in which the log's files are allocated. A file is deleted when nothing in it is needed.
	// Default 16 MiB.
	SegmentBytes int
	// KeepBytes is how much of the log is kept before the position given to Trim, for nodes that were away for a short
	// time; for a while it may be twice as much. Default 32 MiB.
	KeepBytes int64
	// CacheBytes is how much of the log's end is kept in memory: each entry is read back for each follower, and when it
	// is committed. Default 4 MiB.
	CacheBytes int
	Logger     *slog.Logger // default slog.Default()

	hooks hooks
}

// hooks let tests stop a restore, as a crash would, and make a disk hang.
type hooks struct {
	restore func(step string) error
	write   func() // called before entries are written; nil: not called
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	for _, f := range []*func(){&o.OnLead, &o.OnFollow} {
		if *f == nil {
			*f = func() {}
		}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.FreeSpace == nil {
		o.FreeSpace = disk.Free
	}
	if o.OnLost == nil {
		o.OnLost = func([]*wal.Record) {}
	}
	if o.hooks.restore == nil {
		o.hooks.restore = func(string) error { return nil }
	}
	o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, 800*time.Millisecond)
	o.ElectionTimeout = cmp.Or(o.ElectionTimeout, o.HeartbeatTimeout)
	o.LeaseTimeout = cmp.Or(o.LeaseTimeout, o.HeartbeatTimeout)
	o.CommitTimeout = cmp.Or(o.CommitTimeout, 2*time.Second)
	o.MaxPendingRecords = cmp.Or(o.MaxPendingRecords, 4096)
	o.MaxPendingBytes = cmp.Or(o.MaxPendingBytes, 64<<20)
	o.MaxRecordBytes = cmp.Or(o.MaxRecordBytes, 16<<20)
	o.MaxEntryBytes = cmp.Or(o.MaxEntryBytes, 256<<10)
	o.MinFreeBytes = cmp.Or(o.MinFreeBytes, 2_000_000_000)
	o.MinFreePercent = cmp.Or(o.MinFreePercent, 5)
	o.StallAfter = cmp.Or(o.StallAfter, 5*time.Second)
	o.DiskTimeout = cmp.Or(o.DiskTimeout, 1500*time.Millisecond)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 16<<20)
	o.KeepBytes = cmp.Or(o.KeepBytes, 32<<20)
	o.CacheBytes = cmp.Or(o.CacheBytes, 4<<20)
}

// maxRecordBytes leaves room in the 64 MiB of an entry that raft-wal reads back. It would write larger entries.
const maxRecordBytes = 32 << 20

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Host == nil:
		return errors.New("quorum: Host is not set")
	case o.Disk == nil:
		return errors.New("quorum: Disk is not set")
	case o.Dir == "":
		return errors.New("quorum: Dir is not set")
	case o.OnDurable == nil:
		return errors.New("quorum: OnDurable is not set")
	case o.State == nil:
		return errors.New("quorum: State is not set")
	case o.MaxPendingRecords < 1 || o.MaxEntryBytes < 1:
		return fmt.Errorf("quorum: MaxPendingRecords %d or MaxEntryBytes %d is below 1", o.MaxPendingRecords,
			o.MaxEntryBytes)
	case o.KeepBytes < 0 || o.CacheBytes < 0 || o.StallAfter < 0:
		return fmt.Errorf("quorum: KeepBytes %d, CacheBytes %d or StallAfter %v is negative", o.KeepBytes,
			o.CacheBytes, o.StallAfter)
	case o.MaxRecordBytes < wal.HeaderBytes || o.MaxRecordBytes > maxRecordBytes || o.MaxEntryBytes > maxRecordBytes:
		return fmt.Errorf("quorum: MaxRecordBytes %d or MaxEntryBytes %d is above %d",
			o.MaxRecordBytes, o.MaxEntryBytes, maxRecordBytes)
	case o.MaxPendingBytes < int64(o.MaxRecordBytes):
		return fmt.Errorf("quorum: MaxPendingBytes %d is below MaxRecordBytes %d: such a record would never be taken",
			o.MaxPendingBytes, o.MaxRecordBytes)
	case o.SegmentBytes < 4<<10 || o.SegmentBytes > 1<<30:
		return fmt.Errorf("quorum: SegmentBytes %d is not between 4 KiB and 1 GiB", o.SegmentBytes)
	}
	return nil
}

// Role is the role of a node in a group.
type Role uint8

const (
	Follower Role = iota
	Candidate
	Leader
	Learner // has the log but no vote
	Gone    // not, or no longer, in the group
)

func (r Role) String() string {
	return [...]string{"follower", "candidate", "leader", "learner", "gone"}[r]
}

// Member is a member of a group.
type Member struct {
	Node  Node
	Voter bool
}

// Status is what this node knows of the group.
type Status struct {
	Group       uint32
	Role        Role
	Leader      Node // 0: none is known
	Term        uint64
	LastIndex   uint64
	CommitIndex uint64
	// HandedBack is the index of the last entry that OnDurable has had, and HandedBackTerm that entry's term. Other
	// nodes can be told of it (Learn).
	HandedBack, HandedBackTerm uint64
	SnapshotIndex              uint64
	Members                    []Member
	// Changing says that this node leads and that Members may not be decided yet. If the node were lost now, the
	// members might turn out to be others.
	Changing bool
	// Newcomer says that the node came with an empty log and hasn't caught up; until then it does not vote
	// (newcomer.go).
	Newcomer bool
}

// A position is the index of an entry in raft and the number of the record in it.
func position(index uint64, record int) uint64 { return index<<recordBits | uint64(record) }
func indexOf(position uint64) uint64           { return position >> recordBits }

// endOf returns the position after all records of an entry and before those of the next one.
func endOf(index uint64) uint64 { return index<<recordBits | maxEntryRecords }

const (
	recordBits      = 16
	maxEntryRecords = 1<<recordBits - 1
)
