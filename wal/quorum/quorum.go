// Package quorum is the contract of package wal over a majority of nodes: one raft group (hashicorp/raft) for each Log, any number of groups on one
// port (Host). It knows bytes and positions, nothing of what the records mean.
package quorum

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"millrace/wal"
)

// Node is a node's number in its cluster: 1, 2, 3, … A number is never given again: a node whose disk was replaced is a new node.
type Node uint32

var (
	// ErrNotLeader is returned by what only the leader of a group does. Nothing was done.
	ErrNotLeader = wal.ErrNotLeader
	// ErrStranger is returned by connections to or from what is not of this cluster.
	ErrStranger = errors.New("quorum: the other side is not of this cluster")
)

// HostOptions configure a Host.
type HostOptions struct {
	Node   Node
	Listen string      // HOST:PORT, for all groups and for calls between nodes
	TLS    *tls.Config // with certificates for both directions; nil: none, loopback only
	// Resolve says where a node is.
	Resolve func(Node) (address string, ok bool)
	Logger  *slog.Logger
}

// Host is a node's one port between nodes: connections of raft groups, and those of calls (package cluster). Each connection says which cluster and node it
// comes from and what it is for; one of another cluster is closed.
type Host struct{}

// Listen opens the port.
func Listen(o HostOptions) (*Host, error) { panic("not built") }

// SetCluster says which cluster this is. Until then, and from nodes that don't know it yet, only connections for calls are let through, and marked
// (Conn.Cluster is empty).
func (h *Host) SetCluster(id string) { panic("not built") }

// Calls is where connections for calls come in; each is a *Conn.
func (h *Host) Calls() net.Listener { panic("not built") }

// DialCalls opens one to a node, DialAddress to an address whose node isn't known yet (0).
func (h *Host) DialCalls(to Node, timeout time.Duration) (net.Conn, error) { panic("not built") }
func (h *Host) DialAddress(address string, timeout time.Duration) (net.Conn, error) {
	panic("not built")
}

func (h *Host) Addr() net.Addr { panic("not built") }
func (h *Host) Close() error   { panic("not built") }

// Conn is a connection between nodes.
type Conn struct {
	net.Conn
	Node    Node   // the other side
	Cluster string // as the other side knows it; empty: not yet
}

// State is what a group's log is about, for a node that lacks so much of the log that it needs the state instead.
type State interface {
	// Snapshot writes the state with the effects of at least all records up to position to w; more is fine. Called on the leader, for one receiver.
	Snapshot(ctx context.Context, position uint64, w io.Writer) error
	// Restore puts what Snapshot has written in the place of the state, whole or not at all, also when the process ends in the middle. Records up to position
	// don't come any more. Nothing is handed back while it runs.
	Restore(position uint64, r io.Reader) error
}

// Options configure a Log. The zero value of a field means its default.
type Options struct {
	Host  *Host
	Group uint32
	Dir   string // the log's own; made when absent
	// Voters make a new group, the same on each of them; empty: the log waits until the group's leader takes this node in. Ignored when Dir has a log.
	Voters []Node
	State  State
	// OnDurable gets records in order, from one goroutine: those that were appended here with their Context, others without one. See wal.Options.
	OnDurable func([]*wal.Record)
	// OnLost gets records that were appended here and that may or may not come to be in the log: leadership was lost. They are the caller's again; should they
	// be in the log, OnDurable gets them as others'.
	OnLost func([]*wal.Record)
	// OnLead: this node leads, and OnDurable has had all records of earlier leaders. OnFollow: it does not any more. From one goroutine, in turns.
	OnLead, OnFollow func()
	OnFailure        func(error)
	// HeartbeatTimeout, ElectionTimeout and LeaseTimeout of raft. Defaults 1 s, 1 s, 500 ms.
	HeartbeatTimeout, ElectionTimeout, LeaseTimeout time.Duration
	// MaxPendingRecords and MaxPendingBytes bound what waits for the quorum; MaxRecordBytes a record. MaxEntryBytes: records are put together into one entry of
	// raft up to this size. MinFreeBytes and MinFreePercent as in wal.Options.
	MaxPendingRecords             int
	MaxPendingBytes               int64
	MaxRecordBytes, MaxEntryBytes int
	MinFreeBytes                  int64
	MinFreePercent                float64
	StallAfter                    time.Duration
	Logger                        *slog.Logger
}

// Log is one group's log on this node. It is a shard.Log. Position: the entry's index in raft, times 65536, plus the record's number in the entry.
type Log struct{}

// Open opens or makes the log and serves nothing yet: the caller replays (Replay), then calls Start.
func Open(o Options) (*Log, error) { panic("not built") }

// Start takes part in the group from now on.
func (l *Log) Start() error { panic("not built") }

// Fence returns a position: everything in the group that was acknowledged before the call stands at or before it, and OnDurable has had it on this node. Only
// the leader fences: ErrNotLeader, or that leadership was lost meanwhile. Fences that wait share one round of the quorum, with records if there are any.
func (l *Log) Fence(ctx context.Context) (position uint64, err error) { panic("not built") }

// Role of a node in a group.
type Role uint8

const (
	Follower Role = iota
	Candidate
	Leader
	Learner // has the log but no vote
	Gone    // is not of the group (any more)
)

// Member of a group.
type Member struct {
	Node  Node
	Voter bool
}

// Status is what is known on this node of the group.
type Status struct {
	Group       uint32
	Role        Role
	Leader      Node // 0: none that is known
	Term        uint64
	LastIndex   uint64
	CommitIndex uint64
	// HandedBack is the index of the last entry that OnDurable has had.
	HandedBack    uint64
	SnapshotIndex uint64
	LogBytes      int64
	LastContact   time.Duration // since the leader was heard of; 0 for the leader
	Members       []Member
}

func (l *Log) Status() Status { panic("not built") }

// Changes of the members; only the leader does them, one at a time; they return when the change is committed.
func (l *Log) AddLearner(n Node) error { panic("not built") }
func (l *Log) AddVoter(n Node) error   { panic("not built") } // also: makes a learner a voter
func (l *Log) Demote(n Node) error     { panic("not built") }
func (l *Log) Remove(n Node) error     { panic("not built") }

// Transfer hands leadership to a voter.
func (l *Log) Transfer(to Node) error { panic("not built") }

// Progress is how far a member has the log, as this leader knows; ok is false when it doesn't (yet).
func (l *Log) Progress(n Node) (index uint64, ok bool) { panic("not built") }

// The contract of wal; see shard.Log.
func (l *Log) Append(r *wal.Record) error { panic("not built") }
func (l *Log) Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error {
	panic("not built")
}
func (l *Log) Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	panic("not built")
}
func (l *Log) Hold(name string, from uint64) { panic("not built") }
func (l *Log) Trim(before uint64) error      { panic("not built") }
func (l *Log) FirstPosition() uint64         { panic("not built") }
func (l *Log) LastPosition() uint64          { panic("not built") }
func (l *Log) DurablePosition() uint64       { panic("not built") }
func (l *Log) Bytes() int64                  { panic("not built") }
func (l *Log) Stalled() bool                 { panic("not built") }
func (l *Log) DiskFull() bool                { panic("not built") }
func (l *Log) Image(hold string, from, to uint64) ([]wal.File, error) {
	panic("not built")
}
func (l *Log) Close() error { panic("not built") }
