package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/valyala/fasthttp"

	"millrace/shard"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/identity"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal/quorum"
)

// Options configure a Node. The zero value of a field means its default.
type Options struct {
	Node   quorum.Node
	Dir    string
	Listen string // HOST:PORT between nodes
	// where nodes are: those that make the cluster, or, for a node that joins, some that are there
	Members map[quorum.Node]string
	TLS     *tls.Config
	// Advertise are the addresses of the API and of the admin listener, for the others.
	API, Admin string
	// Services are calls of other nodes, by name, that something above this package answers (Node.Call): so rate limits
	// hold for all nodes together. body and the answer are lent for the call. A service must not wait for long; it may
	// make calls itself.
	Services map[string]func(from quorum.Node, body []byte) (answer []byte, err error)
	// Groups and Replicas are fixed when the cluster is made. Defaults: two for each of Members and six at least, and
	// 3 (or as many as there are nodes).
	Groups, Replicas int
	Quorum           quorum.Options        // what is alike in all groups: times and bounds
	Engine           replica.EngineOptions // memory and bounds of the whole node: shared out among the replicas
	Events           eventlog.Options      // Dir is set for each group
	OnDocument       func(key string, doc []byte)
	OnFailure        func(error)
	Program          string // version, for status
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
	// it is as good as dead (remote.go). Defaults 250 ms, and what groups give their leaders (Quorum.HeartbeatTimeout).
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

// defaultGroups is how many groups a cluster of so many nodes gets. A request costs an entry in the log of each group
// that it has a user in, on each of its disks, so few are best; and what a node that fails has led is to be shared out
// among the others.
func defaultGroups(members int) int { return min(max(6, 2*members), identity.Partitions) }

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Groups = cmp.Or(max(o.Groups, 0), defaultGroups(len(o.Members)))
	o.Replicas = cmp.Or(max(o.Replicas, 0), 3)
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

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Node == 0 || o.Node > maxNode:
		return fmt.Errorf("cluster: node %d: must be 1 to %d", o.Node, maxNode)
	case o.Dir == "":
		return errors.New("cluster: Dir is not set")
	case len(o.Members) == 0:
		return errors.New("cluster: no members")
	case o.Groups > identity.Partitions:
		return fmt.Errorf("cluster: %d groups: must be 1 to %d", o.Groups, identity.Partitions)
	case o.Replicas > maxReplicas:
		return fmt.Errorf("cluster: %d replicas: must be 1 to %d", o.Replicas, maxReplicas)
	}
	for node, address := range o.Members {
		if _, _, err := net.SplitHostPort(address); err != nil || node == 0 || node > maxNode {
			return fmt.Errorf("cluster: member %d at %q: want a number from 1 to %d and HOST:PORT",
				node, address, maxNode)
		}
	}
	return nil
}

const (
	maxNode     = nodeMask
	maxReplicas = 7
	// callExtra is what a call has besides records.
	callExtra = 256 << 10
)

// maxCallBytes bounds the body of a call: the parts of a request, or messages.
func (o *Options) maxCallBytes() int { return o.maxRecordBytes() + callExtra }

// maxRecordBytes bounds what one request is, over all groups.
func (o *Options) maxRecordBytes() int { return 2 * max(o.Quorum.MaxRecordBytes, 16<<20) }

// Node is this node of the cluster.
type Node struct {
	opts        Options
	self        quorum.Node
	log         *slog.Logger
	clock       *stamp.Clock
	epoch       uint64 // of this process, among all that have been this node
	started     time.Time
	host        *quorum.Host
	servers     []*fasthttp.Server
	serving     sync.WaitGroup
	streams     sync.WaitGroup // answers that are streams
	coordinator *shard.Coordinator
	cache       *store.Cache
	operator    *placement.Operator

	facts   atomic.Pointer[facts] // replaced, never changed
	factsMu sync.Mutex            // held by who replaces it
	joined  atomic.Bool           // Open is about to return

	// furnished: what calls need, from here on, is there.
	furnished atomic.Bool

	routes    *routes
	replicas  []atomic.Pointer[group] // by group; nil: there is none here
	control   atomic.Pointer[group]   // the control group's, once it is open
	documents *placement.Documents
	remotes   *xsync.MapOf[quorum.Node, *remote]
	promises  *xsync.MapOf[quorum.Node, *promises]
	barriers  barriers
	// groupBarriers are those of single groups.
	groupBarriers []barriers
	images        images

	// leaderless: leaders are being found for groups that were opened (succeed.go).
	leaderless atomic.Bool
	// changing is held by who opens and closes replicas.
	changing sync.Mutex
	leading  context.CancelFunc // ends the reconciler; nil: it doesn't run. Of the goroutine that calls OnLead

	clockWarned atomic.Int64
	failing     sync.Once
	closing     atomic.Bool
	draining    chan struct{}   // closed when leaderships have been handed over: calls that only wait end
	context     context.Context // ends with stop
	cancel      context.CancelFunc
	stop        <-chan struct{} // closed by Close
	background  background
}

// Open starts the node and returns when it is of the cluster: the control group has a leader and its documents are
// known here. ctx ends the wait.
func Open(ctx context.Context, o Options) (*Node, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := &Node{
		opts: o, self: o.Node, log: o.Logger,
		clock: &stamp.Clock{Now: o.Engine.Now, MaxOffset: o.Engine.MaxClockOffset, Logger: o.Logger},
		epoch: rand.Uint64(), started: time.Now(),
		documents: placement.NewDocuments(), remotes: xsync.NewMapOf[quorum.Node, *remote](), promises: newPromises(),
	}
	n.draining = make(chan struct{})
	n.context, n.cancel = context.WithCancel(context.Background())
	n.stop = n.context.Done()
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) (err error) {
	if err := n.openFacts(); err != nil {
		return err
	}
	n.host, err = quorum.Listen(quorum.HostOptions{Node: n.self, Listen: n.opts.Listen, TLS: n.opts.TLS,
		Resolve: n.resolve, Logger: n.log})
	if err != nil {
		return err
	}
	n.serveCalls(n.requestHandlers(), n.serviceHandlers())
	if err := n.join(ctx); err != nil {
		return err
	}
	if err := n.furnish(); err != nil {
		return err
	}
	n.furnished.Store(true)
	n.host.SetCluster(n.facts.Load().Cluster)
	for node := range n.facts.Load().Members {
		if node != n.self {
			n.remote(node)
		}
	}
	if err := n.greet(ctx); err != nil {
		return err
	}
	if err := n.openReplicas(); err != nil {
		return err
	}
	n.background.start(n.watch)
	n.background.start(n.keepReplicas)
	if err := n.awaitControl(ctx); err != nil {
		return err
	}
	n.joined.Store(true)
	return nil
}

// furnish makes what needs the facts.
func (n *Node) furnish() error {
	f := n.facts.Load()
	secret, err := f.secret()
	if err != nil {
		return err
	}
	n.routes = newRoutes(n.self, f.Groups)
	n.replicas = make([]atomic.Pointer[group], f.Groups+1)
	n.groupBarriers = make([]barriers, f.Groups+1)
	n.cache = store.NewCache(n.opts.Engine.StoreCacheBytes, openFiles)
	n.coordinator = shard.NewCoordinator(shard.CoordinatorOptions{
		Secret: secret, Clock: n.clock, Nodes: mesh{n}, Context: n.context, CommitTimeout: n.opts.CommitTimeout,
		LeaderWait:     n.opts.LeaderWait,
		MaxRecordBytes: n.opts.maxRecordBytes(), MaxInflightBytes: n.opts.Engine.MaxInflightBytes,
		MaxMergesWaiting: n.opts.Engine.MaxMergesWaiting,
		Now:              n.opts.Engine.Now, Logger: n.log,
	})
	n.operator = &placement.Operator{
		Self: n.self, Cluster: f.Cluster, Groups: f.Groups, Replicas: f.Replicas,
		Documents: n.documents, Peers: peers{n}, Pace: n.opts.Pace, Now: time.Now, Logger: n.log,
	}
	return nil
}

// openFiles is how many files the stores of all replicas keep open.
const openFiles = 4 << 10

// awaitControl returns when this node has all control documents that were acknowledged before.
func (n *Node) awaitControl(ctx context.Context) error {
	told := time.Now()
	for {
		err := n.barrierControl(n.opts.BarrierTimeout)
		if err == nil {
			return nil
		}
		if time.Since(told) > tellInterval {
			told = time.Now()
			n.log.Warn("waiting for the control group: too few of its nodes can be reached, or it has not taken this " +
				"node in yet")
		}
		select {
		case <-time.After(maxRoutePause):
		case <-n.stop:
			return replica.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("the control group is not reached: %w: %w", err, ctx.Err())
		}
	}
}

const tellInterval = 10 * time.Second

// barrierControl returns when what was acknowledged in the control group before the call is applied here.
func (n *Node) barrierControl(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	mark, err := n.barrierOne(controlGroup, deadline)
	if err != nil {
		return err
	}
	return n.group(controlGroup).wait(mark.position, deadline)
}

// resolve is where another node is: as the control documents say, or, as long as they don't, as Options do.
func (n *Node) resolve(node quorum.Node) (string, bool) {
	d, _ := n.documents.Get()
	if address, ok := d.Address(node); ok {
		return address, true
	}
	address, ok := n.opts.Members[node]
	if f := n.facts.Load(); !ok && f != nil {
		address, ok = f.Members[node]
	}
	return address, ok
}

// fail says once that the node can't go on.
func (n *Node) fail(err error) {
	n.failing.Do(func() {
		n.log.Error("the node has failed", "error", err)
		n.opts.OnFailure(err)
	})
}

// Coordinator is the coordinator that requests go to.
func (n *Node) Coordinator() *shard.Coordinator { return n.coordinator }

// Ready is nil when this node can serve all of the API: each group has a leader that this node reaches. Else it says
// what is the matter.
func (n *Node) Ready() error {
	if n.closing.Load() {
		return replica.ErrClosed
	}
	d, _ := n.documents.Get()
	if len(d.Groups) < len(n.replicas)-1 {
		return errors.New("the cluster's groups are not placed yet")
	}
	var missing []uint32
	for i := range n.replicas {
		g := n.group(uint32(i))
		if g != nil {
			if e := g.replica.Load(); e != nil {
				if err := e.Ready(); err != nil {
					return fmt.Errorf("group %d: %w", i, err)
				}
			}
		}
		if n.reachable(uint32(i)) == 0 {
			missing = append(missing, uint32(i))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: no leader is reached of the groups %v", replica.ErrUnavailable, missing)
	}
	return nil
}

// Spread returns when all nodes that can be reached have applied the control documents that are acknowledged by now, or
// after a while.
func (n *Node) Spread() {
	deadline := time.Now().Add(n.opts.SpreadTimeout)
	mark, err := n.barrierOne(controlGroup, deadline)
	if err != nil {
		return
	}
	var asking sync.WaitGroup
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		if r.up.Load() {
			asking.Go(func() {
				body := appendU64(make([]byte, headerBytes), mark.position)
				body = appendU64(appendU64(body, mark.index), mark.term)
				body = appendU32(body, uint32(max(time.Until(deadline), 0).Milliseconds()))
				_ = r.post(r.services, callSpread, body, deadline, nil) // it has all the time that there is
			})
		}
		return true
	})
	_ = n.group(controlGroup).wait(mark.position, deadline)
	asking.Wait()
}

// serveSpread waits for control documents.
//
//	body    position u64, index and term of an entry that is committed u64 each, timeout ms u32
func (n *Node) serveSpread(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	position, index, term := x.u64(), x.u64(), x.u64()
	timeout := time.Duration(x.u32()) * time.Millisecond
	g := n.group(controlGroup)
	if x.short || g == nil {
		return dst, errMalformed
	}
	g.log.Learn(index, term)
	return dst, g.wait(position, time.Now().Add(min(timeout, maxWait)))
}

// Close hands leaderships over, ends what is under way and closes everything in order.
func (n *Node) Close() error {
	if n.closing.Swap(true) {
		return nil
	}
	if n.furnished.Load() {
		n.handOver()
		n.keepPromises()
		n.sayBye()
	}
	close(n.draining)
	n.drain()
	n.cancel()
	n.streams.Wait()
	n.background.end()
	n.takeBackAll()
	err := n.closeReplicas()
	if n.coordinator != nil {
		err = errors.Join(err, n.coordinator.Close())
	}
	if n.host != nil {
		err = errors.Join(err, n.host.Close())
		n.serving.Wait()
	}
	if n.cache != nil {
		n.cache.Close()
	}
	return err
}

// drain ends the servers of calls.
func (n *Node) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var ending sync.WaitGroup
	for _, s := range n.servers {
		ending.Go(func() { _ = s.ShutdownWithContext(ctx) }) // what is still there ends with the host
	}
	ending.Wait()
}

// drainTime is how long calls of other nodes that are under way have at the end.
const drainTime = 2 * time.Second
