// Package cluster combines the engines of several nodes into one store.
//
//	request ─▶ coordinator of any node: split by group ─▶ mesh.Take: one call to each node that leads any of them ─▶ Replica.Take: log of the group, apply
//	                                                                                            messages to other groups ─▶ mesh.Deliver ─▶ …
//	read    ─▶ mesh.Barrier: where do the leaders' logs end? wait until the own replicas have applied that far ─▶ read them
//
// A node has a coordinator (shard.Coordinator), a replica of the control group, which holds the control documents, and
// a replica of each group of partitions that is placed on it: its state (replica.Replica), its event log, and the
// group's log (package quorum). The reconciler, on the node that leads the control group, decides which replica is
// where; all nodes carry that out.
//
// Invariants:
//   - A record is sent to a leader once. When it isn't known what became of it, the request gets shard.ErrUnknown and
//     is not tried again: events would count twice. A record that was refused has not been applied, and may be tried
//     elsewhere. So may a record with a request's key, which is recognized when it is applied again (shard/commit.go).
//   - A node that doesn't answer for PingTimeout is treated as dead: nobody waits for it (calls.Peer).
//   - A replica is read only after a barrier that it took part in (barrier.go).
//   - A node is known by its number and its disk. A number with another disk is refused, since that disk doesn't know
//     what the node has voted for (package facts).
package cluster

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"time"

	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// Options configure a Node. The zero value of a field means its default.
type Options struct {
	// Plan describes the cluster. For a node that joins, Members are some of the existing nodes.
	facts.Plan
	Listen string // HOST:PORT for other nodes
	TLS    *tls.Config
	// API and Admin are the addresses of the API and of the admin listener that are made known to the other nodes.
	API, Admin string
	// Services are calls of other nodes, by name, that something above this package answers (Node.Call). This is how
	// rate limits hold for all nodes together. body and the answer are lent for the call. A service must not wait for
	// long; it may make calls itself.
	Services   map[string]func(body []byte) (answer []byte, err error)
	Quorum     quorum.Options        // what is the same in all groups: times and bounds
	Engine     replica.EngineOptions // memory and bounds of the whole node, shared out among the replicas
	Events     eventlog.Options      // Dir is set for each group
	OnDocument func(key string, doc []byte)
	OnFailure  func(error)
	Program    string // the program's version, for status
	// Audit makes an entry of the audit log for what the reconciler does by itself; nil: there are no such entries.
	Audit func(placement.Entry) []byte
	Pace  placement.Pace // pace of the reconciler

	// CommitTimeout is how long the node tries to carry out a request, which then gets ErrUnavailable or ErrUnknown.
	// Default 2.5 s.
	CommitTimeout time.Duration
	// BarrierTimeout is the same for reads. Default: CommitTimeout.
	BarrierTimeout time.Duration
	// LeaderWait is how long requests and reads wait for the leader of a group that has none. Default: four fifths of
	// CommitTimeout.
	LeaderWait time.Duration
	// MaxReadLag is how long reads wait for a replica of this node. A replica that takes longer is not read until it
	// has caught up. Default 1 s.
	MaxReadLag time.Duration
	// PingInterval is how often nodes ping one another, and PingTimeout how long a node may fail to answer before it is
	// treated as dead (calls.Peer). Defaults 250 ms, and what groups give their leaders (Quorum.HeartbeatTimeout).
	PingInterval, PingTimeout time.Duration
	// SpreadTimeout bounds Spread. Default 2 s.
	SpreadTimeout time.Duration
	// CloseTimeout is how long Close tries to hand over leaderships. Default 10 s.
	CloseTimeout time.Duration
	// HandOverTimeout is how long a leader that hands over waits until the requests that it has taken are answered;
	// those that are not answered by then get ErrUnknown. Default 2 s.
	HandOverTimeout time.Duration
	// DialTimeout is for a connection to another node. Default 1 s.
	DialTimeout time.Duration
	// MaxCalls is how many calls of each of two kinds may be under way to a node at once, each over a connection of its
	// own. Further calls wait, and are refused after a while. MaxCallsServed bounds the calls of all nodes together,
	// for each kind. Defaults 1024, 16384.
	MaxCalls, MaxCallsServed int
	// CallConns is how many connections calls may take in all, to other nodes and from them. It lowers MaxCalls as more
	// nodes join, though never below leastCalls, and MaxCallsServed. Default 0: no such bound.
	CallConns int

	Logger *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Plan.EnsureDefaults()
	o.CommitTimeout = cmp.Or(max(o.CommitTimeout, 0), 2500*time.Millisecond)
	o.BarrierTimeout = cmp.Or(max(o.BarrierTimeout, 0), o.CommitTimeout)
	o.LeaderWait = cmp.Or(max(o.LeaderWait, 0), o.CommitTimeout*4/5)
	o.MaxReadLag = cmp.Or(max(o.MaxReadLag, 0), time.Second)
	o.PingInterval = cmp.Or(max(o.PingInterval, 0), 250*time.Millisecond)
	o.PingTimeout = cmp.Or(max(o.PingTimeout, 0), o.Quorum.HeartbeatTimeout)
	o.PingTimeout = cmp.Or(max(o.PingTimeout, 0), 800*time.Millisecond)
	o.SpreadTimeout = cmp.Or(max(o.SpreadTimeout, 0), 2*time.Second)
	o.CloseTimeout = cmp.Or(max(o.CloseTimeout, 0), 10*time.Second)
	o.HandOverTimeout = cmp.Or(max(o.HandOverTimeout, 0), 2*time.Second)
	o.DialTimeout = cmp.Or(max(o.DialTimeout, 0), time.Second)
	o.MaxCalls = cmp.Or(max(o.MaxCalls, 0), 1024)
	o.MaxCallsServed = cmp.Or(max(o.MaxCallsServed, 0), 16384)
	if o.CallConns > 0 {
		o.MaxCallsServed = min(o.MaxCallsServed, o.CallConns/4+spareCalls)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.OnDocument == nil {
		o.OnDocument = func(string, []byte) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.Engine.Logger == nil {
		o.Engine.Logger = o.Logger
	}
	o.Engine.EnsureDefaults()
	o.Pace.EnsureDefaults()
}

// leastCalls is how many calls of a kind may be under way to a node even with few files. One of them may be a question
// that stays open while effects are waited for, and others may wait for calls that they have caused.
const leastCalls = 8

// spareCalls is how many connections each kind of calls from other nodes may have beyond its part of CallConns: pings
// and streams have some of their own.
const spareCalls = 64

// callsTo is how many calls of each kind may be under way to each of so many other nodes: connections are of two kinds,
// and go both ways.
func (o *Options) callsTo(peers int) int {
	if o.CallConns <= 0 {
		return o.MaxCalls
	}
	return min(max(o.CallConns/(4*max(peers, 1)), leastCalls), o.MaxCalls)
}

// callExtra is the size of what a call carries besides records.
const callExtra = 256 << 10

// maxCallBytes bounds the body of a call: the parts of a request, or messages.
func (o *Options) maxCallBytes() int { return o.maxRecordBytes() + callExtra }

// maxRecordBytes bounds the size of one request, over all groups.
func (o *Options) maxRecordBytes() int { return 2 * max(o.Quorum.MaxRecordBytes, 16<<20) }
