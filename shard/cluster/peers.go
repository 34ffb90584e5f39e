package cluster

import (
	"context"
	"time"

	"millrace/shard/bodies"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// Operator returns the Operator, which does what operators ask for.
func (n *Node) Operator() *placement.Operator { return n.operator }

// peers is the node as its reconciler and operator see it.
type peers struct{ *Node }

var _ placement.Peers = peers{}

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

// Step makes a node change a group.
func (c peers) Step(ctx context.Context, node quorum.Node, s placement.Step) error {
	if node == c.self {
		return c.step(s)
	}
	body, err := calls.NewBody(0).JSON(s)
	if err != nil {
		return err
	}
	return c.remote(node).Post(calls.Services, callStep, body, c.deadline(ctx), nil)
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

func (n *Node) serveStep(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	var s placement.Step
	if err := x.JSON(&s); err != nil {
		return dst, err
	}
	return dst, n.step(s)
}

// Barrier waits for a barrier of the control group.
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
		placement.NewReconciler(n.operator, n.facts.Get().Members, n.opts.Audit).Run(ctx)
	})
}

func (n *Node) endReconcile() {
	if n.leading != nil {
		n.leading()
		n.leading = nil
	}
}
