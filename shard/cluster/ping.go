package cluster

import (
	"context"
	"errors"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/placement"
	"millrace/shard/cluster/promise"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

func (n *Node) newRemote(node quorum.Node) *remote {
	r := &remote{n: n}
	r.context, r.cancel = context.WithCancel(n.context)
	opts := n.callOptions()
	opts.Observe = r.observe
	r.Peer = opts.NewPeer(node, func() {
		if !r.succeeding.Swap(true) && !n.background.start(r.succeed) {
			r.succeeding.Store(false)
		}
	})
	r.effects = promise.Expected{
		Epoch: n.epoch, Context: n.context, Start: n.background.start,
		Ask: func(body calls.Body, deadline time.Time, answer func(*calls.Reader) error) error {
			return r.Post(calls.Services, callEffects, body, deadline.Add(answerTime), answer)
		},
	}
	return r
}

// remote returns the node with that number, which need not exist.
func (n *Node) remote(node quorum.Node) *remote {
	if r, ok := n.remotes.Load(node); ok {
		return r
	}
	r, loaded := n.remotes.LoadOrCompute(node, func() *remote { return n.newRemote(node) })
	if !loaded {
		n.divideCalls()
		n.background.start(r.keepInTouch)
	}
	return r
}

// reaches reports whether another node is reached now.
func (n *Node) reaches(node quorum.Node) bool { return n.remote(node).Up() }

// keepInTouch sends a ping now and then. So each node knows which others can be reached, where leaders are, and what
// time it is.
func (r *remote) keepInTouch() {
	tick := time.NewTicker(r.n.opts.PingInterval)
	defer tick.Stop()
	for {
		if err := r.ping(r.context); err != nil { // the Peer remembers it
			r.n.log.Debug("no ping", "node", r.Node, "error", err)
		}
		select {
		case <-tick.C:
		case <-r.Kick: // perhaps only one connection was lost
		case <-r.context.Done():
			return
		}
	}
}

func (r *remote) ping(ctx context.Context) error {
	deadline := time.Now().Add(r.n.opts.PingTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	var report placement.Report
	begun := r.n.clock.Time()
	body := calls.NewBody(1).Bool(!r.Up()) // a node that was away asks what it has said
	err := r.Post(calls.Pings, callPing, body, deadline, func(x *calls.Reader) error {
		return x.JSON(&report)
	})
	if errors.Is(err, placement.ErrRemoved) {
		r.n.removed.Store(true)
	}
	if !report.Now.IsZero() { // perhaps its stamps are refused
		r.compareClocks(begun, report.Now, r.n.clock.Time())
	}
	if err != nil {
		return err
	}
	r.said.hear(&report)
	r.report.Store(&report)
	r.n.recall(report.Said)
	r.n.routes.Learn(&report)
	// An idle leader seldom says what is committed. Only while it leads may its followers be told in its name: raft
	// takes that for a sign of life.
	for _, there := range report.Replicas {
		if g := r.n.group(there.Group); g != nil && there.Role == quorum.Leader {
			g.log.Learn(there.HandedBack, there.HandedBackTerm)
		}
	}
	return nil
}

func (n *Node) servePing(from *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	r, report := n.remote(from.Node), n.report()
	r.See()
	if len(x.Rest) > 0 && x.Bool() { // other versions send nothing
		report.Said = r.said.all()
	}
	return dst.JSON(report)
}

// report is what this node says of itself.
func (n *Node) report() placement.Report {
	report := placement.Report{
		Node: n.self, Disk: n.facts.Get().Disk, API: n.opts.API, Admin: n.opts.Admin, Program: n.opts.Program,
		Now: n.clock.Time(), Started: n.started, Heard: map[quorum.Node]time.Time{},
	}
	for g := range n.groups() {
		report.Full, report.Hangs = report.Full || g.log.DiskFull(), report.Hangs || g.log.DiskHangs()
		r := placement.ReplicaReport{Status: g.log.Status()}
		if e := g.replica.Load(); e != nil {
			r.Applied = indexOf(e.AppliedPosition())
		}
		report.Replicas = append(report.Replicas, r)
	}
	n.remotes.Range(func(node quorum.Node, r *remote) bool {
		if seen := r.Seen(); !seen.IsZero() {
			report.Heard[node] = seen
		}
		if r.Up() {
			report.Reaches = append(report.Reaches, node)
		}
		return true
	})
	return report
}

// indexOf is the index of the entry that contains a position; see quorum.Log.
func indexOf(position uint64) uint64 { return position >> 16 }

// sayBye tells the other nodes that this node is about to close, so that they send nothing more over connections that
// it is closing.
func (n *Node) sayBye() {
	deadline := time.Now().Add(byeTime)
	n.askAll(func(r *remote) error { return r.Post(calls.Services, callBye, calls.NewBody(0), deadline, nil) })
}

// byeTime bounds the good-byes.
const byeTime = time.Second

func (n *Node) serveBye(from *host.Conn, dst calls.Body, _ *calls.Reader) (calls.Body, error) {
	if n.remote(from.Node).Leave() {
		n.log.Info("node is closing", "node", from.Node)
	}
	return dst, nil
}
