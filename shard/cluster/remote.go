package cluster

import (
	"context"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/wal/quorum"
)

// The calls of a node. The handlers and the callers are in the files named here.
const (
	callFacts    = "/facts"    // what a node must know to belong to the cluster (facts.Keeper)
	callPing     = "/ping"     // how the node is (ping.go)
	callCommit   = "/commit"   // parts of a request (mesh.go)
	callRelease  = "/release"  // the deferred rest of a request
	callMessages = "/messages" // messages between groups (mesh.go)
	callEffects  = "/effects"  // what has become of the effects of messages
	callBarrier  = "/barrier"  // where logs end (barrier.go)
	callEntry    = "/entry"    // one entry (mesh.go)
	callEvents   = "/events"   // the events of a group (events.go)
	callPacked   = "/packed"   // a packed block of a group's events (events.go)
	callSpread   = "/spread"   // wait for control documents
	callLost     = "/lost"     // a leader is not reached (succeed.go)
	callBye      = "/bye"      // the node is about to close (ping.go)
	callCut      = "/cut"      // where logs end, together (package cut)
	callImage    = "/image"    // the state of a group for a backup (backup.go)
	callStep     = "/step"     // change the members of a group (peers.go)
	callService  = "/service/" // followed by the name of a service above this package (services.go)
)

// callOptions are the options of this node's calls.
func (n *Node) callOptions() *calls.Options {
	return &calls.Options{
		Host: n.host, Stamp: n.clock.Last, Observe: n.observe,
		DialTimeout: n.opts.DialTimeout, PingTimeout: n.opts.PingTimeout,
		MaxCalls: n.opts.MaxCalls, MaxCallsServed: n.opts.MaxCallsServed, MaxBytes: n.opts.maxCallBytes(),
		Logger: n.log,
	}
}

// askAll asks all nodes that are reached, at once. The caller can do without any of them, so errors are ignored.
func (n *Node) askAll(ask func(*remote) error) {
	var up []*remote
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		if r.Up() {
			up = append(up, r)
		}
		return true
	})
	_ = together(up, ask)
}

// divideCalls divides the connections for calls among the nodes that there are now.
func (n *Node) divideCalls() {
	n.dividing.Lock()
	defer n.dividing.Unlock()
	calls := n.opts.callsTo(n.remotes.Size())
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		r.Bound(calls)
		return true
	})
}

// letGo ends what is kept for a node that no longer belongs to the cluster.
func (r *remote) letGo() {
	r.cancel()
	r.n.remotes.Delete(r.Node)
	r.n.divideCalls()
	r.CloseIdle()
}

// deadline returns the deadline of ctx, or that of a request.
func (n *Node) deadline(ctx context.Context) time.Time {
	if deadline, ok := ctx.Deadline(); ok {
		return deadline
	}
	return time.Now().Add(n.opts.CommitTimeout)
}

// answerTime is how much longer the caller waits than the other side.
const answerTime = 250 * time.Millisecond
