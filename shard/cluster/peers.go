package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"millrace/shard/bodies"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// Operator does what operators ask for.
func (n *Node) Operator() *placement.Operator { return n.operator }

// peers is the node as its reconciler and operator see it (peers).
type peers struct{ *Node }

var _ placement.Peers = peers{}

func isClusterDocument(key string) bool { return strings.HasPrefix(key, placement.DocumentPrefix) }

// report is what this node says of itself.
func (n *Node) report() placement.Report {
	report := placement.Report{
		Node: n.self, Disk: n.facts.Load().Disk, API: n.opts.API, Admin: n.opts.Admin, Program: n.opts.Program,
		Now: n.clock.Time(), Started: n.started,
		Heard: map[quorum.Node]time.Time{},
	}
	for i := range n.replicas {
		g := n.group(uint32(i))
		if g == nil {
			continue
		}
		r := placement.ReplicaReport{Status: g.log.Status()}
		if e := g.replica.Load(); e != nil {
			r.Applied = indexOf(e.AppliedPosition())
		}
		report.Replicas = append(report.Replicas, r)
	}
	n.remotes.Range(func(node quorum.Node, r *remote) bool {
		if seen := r.seen.Load(); seen != 0 {
			report.Heard[node] = time.Unix(0, seen)
		}
		return true
	})
	return report
}

// indexOf is the index of the entry that a position is in; see quorum.Log.
func indexOf(position uint64) uint64 { return position >> 16 }

// Report asks a node how it is.
func (c peers) Report(ctx context.Context, node quorum.Node) (report placement.Report, err error) {
	if node == c.self {
		return c.report(), nil
	}
	r := c.remote(node)
	if err := r.ping(ctx); err != nil {
		return report, err
	}
	return *r.report.Load(), nil
}

// Step has a node change a group.
func (c peers) Step(ctx context.Context, node quorum.Node, s placement.Step) error {
	if node == c.self {
		return c.step(s)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(c.opts.CommitTimeout)
	}
	_, err = c.remote(node).ask(callStep, body, deadline)
	return err
}

func (n *Node) step(s placement.Step) error {
	g := n.group(s.Group)
	if g == nil {
		return quorum.ErrNotLeader
	}
	if err := n.barrierControl(n.opts.BarrierTimeout); err != nil {
		return err
	}
	d, _ := n.documents.Get()
	if err := s.Stands(d); err != nil {
		return err
	}
	return s.Do(gently{g.log, g})
}

func (n *Node) serveStep(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	var s placement.Step
	if err := json.Unmarshal(body, &s); err != nil {
		return dst, err
	}
	return dst, n.step(s)
}

// Barrier is a barrier of the control group.
func (c peers) Barrier(ctx context.Context) error {
	timeout := c.opts.BarrierTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.barrierControl(timeout)
}

// PutDocuments is the coordinator's.
func (c peers) PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error {
	return c.coordinator.PutDocuments(actor, changes, audit)
}

// reconcile runs the reconciler until endReconcile.
func (n *Node) reconcile() {
	ctx, cancel := context.WithCancel(n.context)
	n.leading = cancel
	n.background.start(func() {
		placement.NewReconciler(n.operator, n.facts.Load().Members, n.opts.Audit).Run(ctx)
	})
}

func (n *Node) endReconcile() {
	if n.leading != nil {
		n.leading()
		n.leading = nil
	}
}
