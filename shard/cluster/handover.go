package cluster

import (
	"cmp"
	"context"
	"slices"

	"millrace/shard/cluster/routes"
	"millrace/wal/pause"
	"millrace/wal/quorum"
)

// handOver gives the leaderships of this node to other nodes, as far as there is time.
func (n *Node) handOver() {
	ctx, cancel := context.WithTimeout(n.context, n.opts.CloseTimeout)
	defer cancel()
	_ = together(slices.Collect(n.groups()), func(g *group) error {
		g.handOver(ctx)
		return nil
	})
}

func (g *group) handOver(ctx context.Context) {
	withRoom := true
	for g.leads.Load() && ctx.Err() == nil {
		best := g.heir(withRoom)
		if g.log.Status().Role != quorum.Leader || best == 0 {
			return
		}
		if err := g.transfer(ctx, best); err != nil {
			g.n.log.Info("leadership is not handed over yet", "group", g.id, "to", best, "error", err)
			withRoom = !withRoom // the node with room may be far behind
			_ = pause.For(ctx, routes.MaxPause)
		}
	}
}

// heir returns the node that is to lead the group next: of the voters that are reached, the one with most of the log.
// If withRoom is set, a node whose disk has room is preferred. It returns 0 when there is none.
func (g *group) heir(withRoom bool) (best quorum.Node) {
	var most uint64
	full := 1
	for _, m := range g.log.Status().Members {
		if m.Node == g.n.self || !m.Voter || !g.n.reaches(m.Node) {
			continue
		}
		index, ok := g.log.Progress(m.Node)
		isFull := 0
		if report := g.n.remote(m.Node).report.Load(); report != nil && report.Full && withRoom {
			isFull = 1
		}
		if ok && (best == 0 || cmp.Or(cmp.Compare(full, isFull), cmp.Compare(index, most)) > 0) {
			best, most, full = m.Node, index, isFull
		}
	}
	return best
}

// transfer hands the leadership to another node, once what was taken here is answered. Requests that come meanwhile
// wait for the next leader.
func (g *group) transfer(ctx context.Context, to quorum.Node) error {
	e := g.replica.Load()
	if e == nil {
		return g.log.Transfer(ctx, to)
	}
	resume, err := e.HandOver(g.n.opts.HandOverTimeout)
	if err != nil {
		return err
	}
	if err := g.log.Transfer(ctx, to); err != nil {
		resume()
		return err
	}
	return nil
}

// gently is the log of a group whose leadership is handed over as transfer does it.
type gently struct {
	*quorum.Log
	g *group
}

// Transfer hands the leadership to another node. It ends with the replica.
func (l gently) Transfer(to quorum.Node) error { return l.g.transfer(l.g.context, to) }
