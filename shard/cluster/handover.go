package cluster

import (
	"cmp"
	"slices"
	"time"

	"millrace/shard/cluster/routes"
	"millrace/wal/quorum"
)

// handOver gives the leaderships of this node to other nodes, as far as there is time.
func (n *Node) handOver() {
	deadline := time.Now().Add(n.opts.CloseTimeout)
	_ = together(slices.Collect(n.groups()), func(g *group) error {
		g.handOver(deadline)
		return nil
	})
}

func (g *group) handOver(deadline time.Time) {
	withRoom := true
	for g.leads.Load() && time.Now().Before(deadline) {
		best := g.heir(withRoom)
		if g.log.Status().Role != quorum.Leader || best == 0 {
			return
		}
		if err := g.transfer(best); err != nil {
			g.n.log.Info("leadership is not handed over yet", "group", g.id, "to", best, "error", err)
			withRoom = !withRoom // the node with room may be far behind
			time.Sleep(routes.MaxPause)
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
func (g *group) transfer(to quorum.Node) error {
	e := g.replica.Load()
	if e == nil {
		return g.log.Transfer(to)
	}
	resume, err := e.HandOver(g.n.opts.HandOverTimeout)
	if err != nil {
		return err
	}
	if err := g.log.Transfer(to); err != nil {
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

// Transfer hands the leadership to another node.
func (l gently) Transfer(to quorum.Node) error { return l.g.transfer(to) }
