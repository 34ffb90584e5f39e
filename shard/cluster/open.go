package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard"
	"millrace/shard/cluster/cut"
	"millrace/shard/cluster/image"
	"millrace/shard/cluster/placement"
	"millrace/shard/cluster/promise"
	"millrace/shard/cluster/routes"
	"millrace/shard/eventlog"
	"millrace/shard/op"
	"millrace/shard/store"
	"millrace/wal/pause"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// Open starts the node and returns when it belongs to the cluster: the control group has a leader and its documents are
// known here. ctx ends the wait, and so does a failure of the node, which is returned as well.
func Open(ctx context.Context, o Options) (*Node, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := &Node{
		opts: o, self: o.Node, log: o.Logger,
		clock: o.Engine.Clock,
		epoch: rand.Uint64(), started: time.Now(),
		documents: placement.NewDocuments(), remotes: xsync.NewMapOf[quorum.Node, *remote](),
	}
	n.clock.Shared = true
	n.draining = make(chan struct{})
	n.owed = promise.NewOwed(n.epoch, n.draining)
	n.context, n.cancel = context.WithCancel(context.Background())
	n.images = image.NewLender(n.context, n.beginImage, n.log)
	n.server = n.newServer()
	n.facts.Plan, n.facts.Claim, n.facts.Logger = &n.opts.Plan, n.claim, n.log
	n.cuts = cut.Taker{
		Self: n.self, Here: n.gateOf, Ask: n.askCut, Context: n.context, Logger: n.log,
		Leader: func(group uint32) (quorum.Node, error) { return n.routes.Soon(group, time.Time{}) },
	}
	opening, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	n.giveUp = giveUp
	err := n.open(opening)
	if ctx.Err() == nil && opening.Err() != nil {
		err = context.Cause(opening)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) (err error) {
	if err := n.facts.Open(); err != nil {
		return err
	}
	n.host, err = host.Listen(host.Options{Node: n.self, Listen: n.opts.Listen, TLS: n.opts.TLS,
		Records: op.Version, Resolve: n.resolve, Logger: n.log})
	if err != nil {
		return err
	}
	n.server.Serve(n.callOptions())
	if err := n.facts.Join(ctx, callFacts, n.callOptions()); err != nil {
		return err
	}
	if err := n.furnish(); err != nil {
		return err
	}
	n.furnished.Store(true)
	n.host.SetCluster(n.facts.Get().Cluster)
	if err := n.facts.CheckFounder(n.callOptions()); err != nil {
		return err
	}
	for node := range n.facts.Get().Members {
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
	n.background.start(func() { n.routes.Watch(n.opts.PingInterval) })
	n.background.start(n.keepReplicas)
	n.background.start(n.watchForTwin)
	if err := n.awaitControl(ctx); err != nil {
		return err
	}
	n.joined.Store(true)
	return nil
}

// claim makes the cluster take in a node.
func (n *Node) claim(node quorum.Node, disk string) error {
	if !n.joined.Load() {
		return errors.New("it is starting")
	}
	ctx, cancel := context.WithTimeout(n.context, claimTime)
	defer cancel()
	return n.operator.Claim(ctx, node, disk, n.opts.Audit)
}

// furnish makes what depends on the facts.
func (n *Node) furnish() error {
	f := n.facts.Get()
	secret, err := f.SecretKey()
	if err != nil {
		return err
	}
	n.routes = routes.New(n.self, f.Groups, routes.Node{
		Reaches: n.reaches, Status: n.statusOf, LeaderWait: n.opts.LeaderWait, Stop: n.context.Done(),
	})
	n.replicas = make([]atomic.Pointer[group], f.Groups+1)
	n.groupBarriers = make([]rounds, f.Groups+1)
	n.cache = store.NewCache(n.opts.Engine.StoreCacheBytes, n.opts.Engine.StoreMemTableBytes, openFiles)
	n.packing = eventlog.NewShare()
	n.coordinator = shard.NewCoordinator(shard.CoordinatorOptions{
		Secret: secret, Clock: n.clock, Nodes: mesh{n}, Context: n.context, CommitTimeout: n.opts.CommitTimeout,
		LeaderWait:     n.opts.LeaderWait,
		MaxRecordBytes: n.opts.maxRecordBytes(), MaxInflightBytes: n.opts.Engine.MaxInflightBytes,
		MaxMergesWaiting: n.opts.Engine.MaxMergesWaiting, Reading: n.opts.Engine.Reading, Logger: n.log,
	})
	n.operator = &placement.Operator{
		Self: n.self, Cluster: f.Cluster, Groups: f.Groups, Replicas: f.Replicas,
		Documents: n.documents, Peers: peers{n}, Pace: n.opts.Pace, Now: time.Now, Logger: n.log,
	}
	return nil
}

// openFiles is how many files the stores of all replicas together keep open.
const openFiles = 4 << 10

// greet asks each of the other nodes once how it is, before this node takes part in any group, so that a node with a
// wrong clock never leads, and one with the directory of another node never votes.
func (n *Node) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.opts.DialTimeout)
	defer cancel()
	var asking sync.WaitGroup
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		asking.Go(func() { _ = r.ping(ctx) }) // nodes that don't answer now report their time later
		return true
	})
	twin := n.checkTwin(ctx)
	asking.Wait()
	if twin != nil {
		return twin
	}
	return n.checkClock()
}

// checkTwin returns facts.ErrTwin when another process runs as this node, at an address where others look for it.
func (n *Node) checkTwin(ctx context.Context) error {
	addresses := n.resolve(n.self)
	if address, ok := n.facts.Get().Members[n.self]; ok && !slices.Contains(addresses, address) {
		addresses = append(addresses, address)
	}
	addresses = slices.DeleteFunc(addresses, func(address string) bool { return address == n.opts.Listen })
	return n.facts.CheckTwin(ctx, callFacts, n.callOptions(), addresses)
}

// watchForTwin ends this node when another process comes to run under its number, where others look for it.
func (n *Node) watchForTwin() {
	for pause.For(n.context, twinPings*n.opts.PingInterval) == nil {
		if err := n.checkTwin(n.context); err != nil {
			n.fail(err)
			return
		}
	}
}

// twinPings is how many pings go by between two looks for a twin.
const twinPings = 20

// awaitControl returns when this node has all control documents that were acknowledged before the call, or when ctx
// ends.
func (n *Node) awaitControl(ctx context.Context) error {
	told := time.Now()
	for {
		if n.removed.Load() {
			return placement.ErrRemoved
		}
		asked := make(chan error, 1)
		n.background.start(func() { asked <- n.barrierControl(n.opts.BarrierTimeout) })
		var err error
		select {
		case err = <-asked:
		case <-ctx.Done():
			return fmt.Errorf("the control group is not reached: %w", ctx.Err())
		}
		if err == nil {
			return nil
		}
		if time.Since(told) > tellInterval {
			told = time.Now()
			n.log.Warn("waiting for the control group: too few of its nodes can be reached, or it has not taken this " +
				"node in yet")
		}
		if pause.For(ctx, routes.MaxPause) != nil {
			return fmt.Errorf("the control group is not reached: %w: %w", err, ctx.Err())
		}
	}
}

const (
	tellInterval = 10 * time.Second
	claimTime    = 2 * time.Second
)

// Close hands over leaderships, ends what is under way and closes everything in order.
func (n *Node) Close() error {
	if n.closing.Swap(true) {
		return nil
	}
	if n.furnished.Load() {
		n.handOver()
		n.owed.WaitUntilTold(byeTime, n.reaches)
		n.sayBye()
	}
	close(n.draining)
	n.server.Drain(drainTime)
	n.cancel()
	n.server.WaitStreams()
	n.background.end()
	n.images.TakeBackAll()
	err := n.closeReplicas()
	if n.coordinator != nil {
		err = errors.Join(err, n.coordinator.Close())
	}
	if n.host != nil {
		err = errors.Join(err, n.host.Close())
		n.server.Wait()
	}
	if n.cache != nil {
		n.cache.Close()
	}
	return err
}

// drainTime is how long calls of other nodes that are under way may take at the end.
const drainTime = 2 * time.Second
