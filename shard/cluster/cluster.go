// Package cluster makes one store of the engines of several nodes.
//
//	request ─▶ coordinator of any node: split by group ─▶ mesh.Take: one call to each node that leads any of them ─▶ Replica.Take: log of the group, apply
//	                                                                                            messages to other groups ─▶ mesh.Deliver ─▶ …
//	read    ─▶ mesh.Barrier: where do the leaders' logs end? wait until the own replicas have applied that far ─▶ read them
//
// A node has a coordinator (shard.Coordinator), a replica of the control group, which has the control documents, and a
// replica of each group of partitions that is placed on it: its state (replica.Replica), its event log, and the group's
// log (package quorum). The reconciler, on the node that leads the control group, decides which replica is where; all
// nodes carry it out.
//
// Invariants:
//   - A record is sent to a leader once. When it isn't known what became of it, the request gets shard.ErrUnknown and
//     is not tried again: events would count twice. What was refused was not done, and may be tried elsewhere. So may a
//     record with a request's key: whoever applies it knows it again (shard/commit.go).
//   - A node that says nothing for PingTimeout is as good as dead: nobody waits for it (calls.Peer).
//   - A replica is read only behind a barrier that it took part in (barrier.go).
//   - A node is known by its number and its disk. A number with another disk is refused: it would have forgotten what
//     it has voted for (package facts).
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
	// Plan is of the cluster. For a node that joins, Members are some that are there.
	facts.Plan
	Listen string // HOST:PORT between nodes
	TLS    *tls.Config
	// Advertise are the addresses of the API and of the admin listener, for the others.
	API, Admin string
	// Services are calls of other nodes, by name, that something above this package answers (Node.Call): so rate limits
	// hold for all nodes together. body and the answer are lent for the call. A service must not wait for long; it may
	// make calls itself.
	Services   map[string]func(from quorum.Node, body []byte) (answer []byte, err error)
	Quorum     quorum.Options        // what is alike in all groups: times and bounds
	Engine     replica.EngineOptions // memory and bounds of the whole node: shared out among the replicas
	Events     eventlog.Options      // Dir is set for each group
	OnDocument func(key string, doc []byte)
	OnFailure  func(error)
	Program    string // version, for status
	// Audit makes an entry of the audit log of what the reconciler does by itself; nil: there is none.
	Audit func(placement.Entry) []byte
	Pace  placement.Pace // of the reconciler

	// CommitTimeout is how long a request tries to be done: beyond it, it gets ErrUnavailable or ErrUnknown. Default
	// 2.5 s.
	CommitTimeout time.Duration
	// BarrierTimeout is the same for reads. Default 2.5 s.
	BarrierTimeout time.Duration
	// LeaderWait is how long requests and reads wait for the leader of a group that has none. Default 2 s.
	LeaderWait time.Duration
	// MaxReadLag is how long reads wait for a replica of this node; one that takes longer is not read until it has
	// caught up. Default 1 s.
	MaxReadLag time.Duration
	// PingInterval is how often nodes say ping to one another, and PingTimeout how long one may say nothing before
	// it is as good as dead (calls.Peer). Defaults 250 ms, and what groups give their leaders
	// (Quorum.HeartbeatTimeout).
	PingInterval, PingTimeout time.Duration
	// SpreadTimeout bounds Spread. Default 2 s.
	SpreadTimeout time.Duration
	// CloseTimeout is how long Close tries to hand leaderships over. Default 10 s.
	CloseTimeout time.Duration
	// HandOverTimeout is how long a leader that hands over waits until the requests that it has taken are answered;
	// those that aren't by then get ErrUnknown. Default 2 s.
	HandOverTimeout time.Duration
	// DialTimeout is for a connection to another node. Default 1 s.
	DialTimeout time.Duration
	// MaxCalls is how many calls of each of two kinds are under way to a node at once, each over a connection of its
	// own; further ones wait, then they are refused. MaxCallsServed bounds those of all nodes together, of each kind.
	// Defaults 1024, 16384.
	MaxCalls, MaxCallsServed int

	Logger *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Plan.EnsureDefaults()
	o.CommitTimeout = cmp.Or(max(o.CommitTimeout, 0), 2500*time.Millisecond)
	o.BarrierTimeout = cmp.Or(max(o.BarrierTimeout, 0), 2500*time.Millisecond)
	o.LeaderWait = cmp.Or(max(o.LeaderWait, 0), 2*time.Second)
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
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.OnDocument == nil {
		o.OnDocument = func(string, []byte) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	o.Engine.EnsureDefaults()
	o.Pace.EnsureDefaults()
}

// callExtra is what a call has besides records.
const callExtra = 256 << 10

// maxCallBytes bounds the body of a call: the parts of a request, or messages.
func (o *Options) maxCallBytes() int { return o.maxRecordBytes() + callExtra }

// maxRecordBytes bounds what one request is, over all groups.
func (o *Options) maxRecordBytes() int { return 2 * max(o.Quorum.MaxRecordBytes, 16<<20) }
