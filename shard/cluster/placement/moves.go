package placement

import (
	"cmp"
	"fmt"
	"slices"

	"millrace/wal/quorum"
)

// move is a group's document as it shall be.
type move struct {
	group uint32
	place GroupDocument
	why   string
}

// nextMoves returns the moves to begin, so that at most limit groups are being moved: first off nodes that are removed,
// then of groups that lack replicas, then off nodes that drain; when none of these is left, from nodes with many groups
// to nodes with few. A move that waits for a node does not count.
func (s *clusterView) nextMoves(limit int) []move {
	p := &plan{clusterView: *s, load: s.loads(), limit: limit}
	p.groups = slices.Clone(s.groups)
	p.redirect()
	for i := range p.groups {
		if g := &p.groups[i]; g.underWay() && !p.waits(g) {
			p.busy++
		}
	}
	if !p.moveWhatMust() {
		p.level()
	}
	return p.moves
}

// plan makes moves: it is the cluster as it was seen, with the moves so far.
type plan struct {
	clusterView
	load        map[quorum.Node]int // groups that nodes have
	busy, limit int                 // groups on their way
	moves       []move
}

// begin moves a replica of a group, or adds one: then from is 0.
func (p *plan) begin(g *groupView, from, to quorum.Node, why string) {
	d := GroupDocument{Replicas: g.Replicas, Leaving: g.Leaving}
	if from != 0 {
		d.Replicas, d.Leaving = without(d.Replicas, from), append(slices.Clone(d.Leaving), from)
		p.load[from]--
	}
	d.Replicas, d.Leaving = slices.Sorted(slices.Values(append(slices.Clone(d.Replicas), to))), without(d.Leaving, to)
	p.load[to]++
	p.moves = append(p.moves, move{group: g.group, place: d, why: why})
	g.GroupDocument = d
}

// target returns the best node for another replica of a group; 0: there is none.
func (p *plan) target(g *groupView) quorum.Node {
	return leastOf(p.usable(), func(n quorum.Node) (int, bool) {
		cost := p.load[n]
		if g.votes(n) { // it was about to leave
			cost -= 1 << 20
		}
		return cost, !slices.Contains(g.Replicas, n)
	})
}

func (p *plan) gone(n quorum.Node) bool {
	d, known := p.nodes[n]
	return !known || d.State == Removed
}

func (p *plan) drains(n quorum.Node) bool { return !p.gone(n) && !p.stays(n) }

// redirect gives replicas on their way to a node that has gone meanwhile another node.
func (p *plan) redirect() {
	for i := range p.groups {
		g := &p.groups[i]
		if !g.underWay() || len(g.MadeOf) > 0 {
			continue
		}
		for _, n := range g.Replicas {
			if !p.gone(n) && (g.votes(n) || p.stays(n) && !p.nodes[n].lost) {
				continue
			}
			if to := p.target(g); to != 0 {
				p.begin(g, n, to, fmt.Sprintf("to node %d instead of node %d", to, n))
				break
			}
		}
	}
}

// moveWhatMust moves replicas off nodes that are removed or drain, and adds missing ones. It reports whether anything
// that must move can do so, now or when fewer groups are being moved.
func (p *plan) moveWhatMust() (canMove bool) {
	for _, need := range []struct {
		from func(quorum.Node) bool
		why  string
	}{{p.gone, "node %d is removed: node %d takes its place"}, {nil, ""},
		{p.drains, "from node %d, which drains, to node %d"}} {
		for i := range p.groups {
			g := &p.groups[i]
			if g.underWay() || g.leader == 0 {
				continue
			}
			var from quorum.Node
			if need.from == nil {
				if len(g.Replicas) >= p.replicas {
					continue
				}
			} else if j := slices.IndexFunc(g.Replicas, need.from); j >= 0 {
				from = g.Replicas[j]
			} else {
				continue
			}
			to := p.target(g)
			if to == 0 {
				continue
			}
			if canMove = true; p.busy >= p.limit {
				return canMove
			}
			why := fmt.Sprintf("node %d gets one more replica", to)
			if from != 0 {
				why = fmt.Sprintf(need.why, from, to)
			}
			p.begin(g, from, to, why)
			p.busy++
		}
	}
	return canMove
}

// level moves replicas from nodes with many groups to nodes with few.
func (p *plan) level() {
	for ; p.busy < p.limit; p.busy++ {
		g, from, to := p.unevenness()
		if g == nil {
			return
		}
		p.begin(g, from, to, fmt.Sprintf("from node %d, which has many groups, to node %d", from, to))
	}
}

// unevenness returns a group that may be moved from a node with many groups to one with at least two fewer: one whose
// replicas are all there, preferably one that the node doesn't lead; nil when there is none.
func (p *plan) unevenness() (g *groupView, from, to quorum.Node) {
	nodes := p.usable()
	byLoad := func(a, b quorum.Node) int { return cmp.Or(cmp.Compare(p.load[a], p.load[b]), cmp.Compare(a, b)) }
	slices.SortFunc(nodes, byLoad)
	for _, to = range nodes {
		for _, from = range slices.Backward(nodes) {
			if p.load[from]-p.load[to] < 2 {
				break
			}
			for i := range p.groups {
				c := &p.groups[i]
				if c.underWay() || c.leader == 0 || !slices.Contains(c.Replicas, from) || c.Holds(to) ||
					slices.ContainsFunc(c.Replicas, func(n quorum.Node) bool { return !p.nodes[n].alive }) {
					continue
				}
				if g == nil || g.leader == from && c.leader != from {
					g = c
				}
			}
			if g != nil {
				return g, from, to
			}
		}
	}
	return nil, 0, 0
}

// waits reports whether a group that is being moved can't go on before a node comes back.
func (s *clusterView) waits(g *groupView) bool {
	return g.leader == 0 || slices.ContainsFunc(g.Replicas,
		func(n quorum.Node) bool { return !g.votes(n) && !s.nodes[n].alive })
}
