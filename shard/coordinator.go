package shard

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/identity"
	"millrace/shard/lookup"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/replica"
	"millrace/shard/stamp"
)

// CoordinatorOptions configure the Coordinator of a node of a cluster.
type CoordinatorOptions struct {
	// Secret is the secret that numbers are made with, the same in the whole cluster.
	Secret [32]byte
	Clock  *stamp.Clock // of the node, shared with its replicas
	Nodes  Nodes
	// Context ends when requests must stop waiting. Default: never.
	Context context.Context
	// CommitTimeout is how long a request is tried, LeaderWait how long it waits for a leader while no part of it was
	// sent. Defaults 2.5 s, 2 s. On a node that is alone a request waits as long as the disk takes.
	CommitTimeout, LeaderWait time.Duration
	// MaxRecordBytes bounds the size of one request, over all groups. Default: no bound.
	MaxRecordBytes int
	// MaxInflightBytes bounds the bytes of records between Commit and the answer. Default 256 MiB.
	MaxInflightBytes int64
	// MaxMergesWaiting bounds the merges of users that were committed and are not yet done, as far as this node's
	// replicas have them in hand. Default 100,000.
	MaxMergesWaiting int64
	// Reading says how many users may be read at once. Default: 64.
	Reading *procs.Reading
	Logger  *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in the fields that are not set.
func (o *CoordinatorOptions) EnsureDefaults() {
	o.CommitTimeout = cmp.Or(max(o.CommitTimeout, 0), 2500*time.Millisecond)
	o.LeaderWait = cmp.Or(max(o.LeaderWait, 0), 2*time.Second)
	if o.Context == nil {
		o.Context = context.Background()
	}
	o.MaxInflightBytes = cmp.Or(max(o.MaxInflightBytes, 0), 256<<20)
	o.MaxMergesWaiting = cmp.Or(max(o.MaxMergesWaiting, 0), 100_000)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Coordinator is where requests come in on a node: it makes batches, looks up whom they name, carries them to the
// replicas that lead, and reads. It holds no state of users. On a node that is alone (Open) there is one replica below
// it, which holds all partitions and always leads; in a cluster (NewCoordinator) there are many, here and on other
// nodes. All methods are safe for concurrent use.
type Coordinator struct {
	*lookup.Reader
	opts    CoordinatorOptions
	nodes   Nodes
	sole    *replica.Replica // on a node that is alone: the replica of all partitions; else nil
	hasher  *identity.Hasher
	clock   *stamp.Clock
	batches sync.Pool

	inflight atomic.Int64 // bytes between Commit and the answer
	closing  atomic.Bool

	renames *lookup.Renames
	// spread has the workspaces that are among the renames of all nodes.
	spread *xsync.MapOf[uint32, struct{}]
	// resumed is closed when everything is visible that was under way when the process before ended; only on a node
	// that is alone.
	resumed <-chan struct{}
}

// Close waits, within reason, until all committed requests are answered, and closes the replica below when the node is
// alone. Later commits return ErrClosed.
func (c *Coordinator) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	for end := time.Now().Add(settleTime); c.inflight.Load() > 0 && time.Now().Before(end) && c.Failed() == nil; {
		time.Sleep(time.Millisecond)
	}
	if c.sole == nil {
		return nil
	}
	return c.sole.Close()
}

const settleTime = 10 * time.Second

// Failed is nil, or why nothing is acknowledged any more. In a cluster it is always nil: there the node itself knows.
func (c *Coordinator) Failed() error {
	if c.sole == nil {
		return nil
	}
	return c.sole.Failed()
}

// ended is why no change is taken any more, nil as long as changes are taken.
func (c *Coordinator) ended() error {
	if c.closing.Load() {
		return replica.ErrClosed
	}
	return c.Failed()
}

// Ready is nil when all requests are served, or says why they aren't: the engine has failed, is closing, or its disk
// stalls or is full; in a cluster, a group has no leader that this node reaches.
func (c *Coordinator) Ready() error {
	if err := c.ended(); err != nil {
		return err
	}
	return c.nodes.Ready()
}

// Replica is the replica below the coordinator of a node that is alone, else nil.
func (c *Coordinator) Replica() *replica.Replica { return c.sole }

// Stats are those of requests and, on a node that is alone, of its replica.
func (c *Coordinator) Stats() (s replica.Stats) {
	if c.sole != nil {
		s = c.sole.Stats()
	}
	s.InflightBytes, s.MergesWaiting = c.inflight.Load(), int(c.mergesWaiting())
	return s
}

// mergesWaiting is how many merges this node's replicas have in hand.
func (c *Coordinator) mergesWaiting() (n int64) {
	var last *replica.Replica
	for p := range identity.Partitions { // the partitions of a group are next to one another
		if r := c.nodes.Local(uint8(p)); r != nil && r != last {
			n += r.Merges.Load()
			last = r
		}
	}
	return n
}

// ParseSvcID is the number of the profile that a svc_id of the API names.
func (c *Coordinator) ParseSvcID(workspace uint32, s []byte) (number uint64, ok bool) {
	return c.hasher.ParseSvcID(workspace, s)
}

// AppendSvcID appends the svc_id of the profile with this number.
func (c *Coordinator) AppendSvcID(dst []byte, workspace uint32, number uint64) []byte {
	return c.hasher.AppendSvcID(dst, workspace, number)
}

// HomeNumber is the number that an op has which is addressed by this identifier, unless the directory has sent the op
// on. For an external id it is mostly the user's number, too.
func (c *Coordinator) HomeNumber(workspace uint32, id op.IDKind, key []byte) uint64 {
	return c.hasher.Number(workspace, id, key)
}

// Barrier returns when everything that was acknowledged anywhere before the call is visible to reads here. On a node
// that is alone it returns at once.
func (c *Coordinator) Barrier() error { return c.nodes.Barrier() }

// BarrierControl is Barrier for control documents only.
func (c *Coordinator) BarrierControl() error { return c.nodes.BarrierControl() }

// Spread returns when all nodes that can be reached know the control documents that are acknowledged by now, or after a
// while. On a node that is alone it returns at once.
func (c *Coordinator) Spread() { c.nodes.Spread() }

// BarrierAnswer is Barrier for the answer that is kept under a key (Answer).
func (c *Coordinator) BarrierAnswer(workspace uint32, key []byte) error {
	return c.nodes.BarrierOf(identity.Partition(c.hasher.Number(workspace, op.NoID, key)))
}

// isBlocked says whether the profile at number is known to be a dummy user (reference.md 1.4). It asks a replica of
// this node, which in a cluster may be a little behind, or missing.
func (c *Coordinator) isBlocked(number uint64) bool {
	if c.sole != nil {
		return c.sole.IsBlocked(number)
	}
	r := c.nodes.Local(identity.Partition(number))
	return r != nil && r.IsBlocked(number)
}

// admitShare is the divisor for the part of Options.MaxInflightBytes that Admit leaves to requests that it has let in
// before and that have not committed yet. This part is larger than a usual record.
const admitShare = 64

// Admit is nil when a change may be begun. Otherwise it is the error that Commit would return if no request ended
// meanwhile: as much is in flight as may be, or the engine is closing or has failed. A caller that asks before it
// decodes a request sheds overload while that costs little. A request that was let in may still be refused.
func (c *Coordinator) Admit() error {
	if err := c.ended(); err != nil {
		return err
	}
	if m := c.opts.MaxInflightBytes; c.inflight.Load() > m-m/admitShare {
		replica.RefusedBusy.Inc()
		return replica.ErrBusy
	}
	return nil
}
