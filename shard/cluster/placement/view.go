package placement

import (
	"maps"
	"slices"

	"millrace/wal/quorum"
)

// clusterView is a cluster as somebody has seen it. Functions of it, without calls, clock or randomness, say what is to
// be done next: where replicas go and who leads (placement.go), and the next step of a group on its way there
// (step.go). The reconciler probes, asks these functions, and carries out the steps. The tests of these functions
// simulate a cluster.
type clusterView struct {
	replicas int // wanted of each user group, as far as there are nodes
	nodes    map[quorum.Node]nodeView
	groups   []groupView // user groups, in order
	control  groupView   // Replicas, Leaving and MadeOf are empty
}

// nodeView is a node of a clusterView.
type nodeView struct {
	NodeDocument
	here    bool // has answered this probe
	alive   bool // has answered this probe, or did a moment ago
	lost    bool // has not answered for so long that new replicas go elsewhere
	full    bool // its disk has no room: it takes no writes where it leads, and gets no more replicas
	hangs   bool // its disk does not answer: it gets nothing more, and gives up by itself what it leads
	cut     bool // it and another node that is there have not reached one another for a while
	aside   bool // it shall not lead, because it is cut off from others (stepAside)
	settled bool // has been there for a while, fit to lead: it takes part in balancing leadership
}

// groupView is a group of a clusterView.
type groupView struct {
	group uint32
	GroupDocument
	leader  quorum.Node // 0: none is known
	members []quorum.Member
	// changing says that members may not be decided yet. It would be too early to act on them, or to have a node delete
	// its replica.
	changing bool
	open     map[quorum.Node]bool // nodes whose replica is open
	fresh    map[quorum.Node]bool // of these, nodes that are as far as the leader was a moment ago
}

// The members of a group.

func (g *groupView) member(n quorum.Node) (m quorum.Member, ok bool) {
	for _, m := range g.members {
		if m.Node == n {
			return m, true
		}
	}
	return m, false
}

func (g *groupView) votes(n quorum.Node) bool {
	m, _ := g.member(n)
	return m.Voter
}

func (g *groupView) voters() (list []quorum.Node) {
	for _, m := range g.members {
		if m.Voter {
			list = append(list, m.Node)
		}
	}
	slices.Sort(list)
	return list
}

// underWay reports whether the group is being made or moved.
func (g *groupView) underWay() bool {
	return len(g.Leaving) > 0 || len(g.MadeOf) > 0 ||
		slices.ContainsFunc(g.Replicas, func(n quorum.Node) bool { return !g.votes(n) })
}

func (g *groupView) step(verb Verb, n quorum.Node) *Step {
	return &Step{Group: g.group, Verb: verb, Node: n, Members: g.members}
}

// The nodes of a clusterView.

// numbers returns all nodes, in order.
func (s *clusterView) numbers() []quorum.Node { return slices.Sorted(maps.Keys(s.nodes)) }

// usable returns the nodes that can be given replicas.
func (s *clusterView) usable() []quorum.Node {
	return slices.DeleteFunc(s.numbers(), func(n quorum.Node) bool { return !s.isUsable(n) })
}

func (s *clusterView) isUsable(n quorum.Node) bool {
	return s.nodes[n].State == Active && s.nodes[n].alive && !s.nodes[n].full && !s.nodes[n].hangs
}

// stays reports whether a replica on the node may stay there.
func (s *clusterView) stays(n quorum.Node) bool { return s.nodes[n].State == Active }

// mayLead reports whether the node may go on leading what it leads.
func (s *clusterView) mayLead(n quorum.Node) bool { return s.stays(n) && s.nodes[n].isFit() }

// isFit reports whether the node can do what a leader has to do.
func (d nodeView) isFit() bool { return !d.full && !d.aside }

// decides reports whether enough of these voters answer for a majority.
func (s *clusterView) decides(voters []quorum.Node) bool {
	here := 0
	for _, n := range voters {
		if s.nodes[n].here {
			here++
		}
	}
	return here*2 > len(voters)
}

// loads returns how many groups each node has, or shall have, for good.
func (s *clusterView) loads() map[quorum.Node]int {
	loads := map[quorum.Node]int{}
	for i := range s.groups {
		for _, n := range s.groups[i].Replicas {
			loads[n]++
		}
	}
	return loads
}

// leads returns how many user groups each node leads.
func (s *clusterView) leads() map[quorum.Node]int {
	leads := map[quorum.Node]int{}
	for i := range s.groups {
		if l := s.groups[i].leader; l != 0 {
			leads[l]++
		}
	}
	return leads
}

// holdsAny reports whether a node has, or shall have, a replica of a user group.
func (s *clusterView) holdsAny(n quorum.Node) bool {
	return slices.ContainsFunc(s.groups, func(g groupView) bool { return g.Holds(n) })
}

func without(list []quorum.Node, n quorum.Node) []quorum.Node {
	return slices.DeleteFunc(slices.Clone(list), func(other quorum.Node) bool { return other == n })
}
