package placement

import (
	"cmp"
	"fmt"
	"slices"

	"millrace/wal/quorum"
)

// A replica moves in small steps. Each can be repeated, and each may be the last one for a long time:
//
//	document: Replicas gets the new node, Leaving the old one     the new node opens an empty replica
//	AddLearner(new)                                               it gets the state
//	AddVoter(new)                                                 when it is as far as the leader was a moment ago
//	Transfer, when the old one leads; Remove(old)
//	document: Leaving is empty                                    the old node closes its replica and deletes it
//
// So a group never has fewer voters than before, and no step is taken that the voters that are alive could not commit.

// decision is what is to be done about a group next. The zero value means nothing.
type decision struct {
	step    *Step
	place   *GroupDocument // the new document
	doing   string         // for people
	problem string         // why nothing can be done, or what is not as it should be
}

// nextStep returns the next step on the group's way to what its document says.
func (s *clusterView) nextStep(g *groupView) decision {
	switch {
	case len(g.Replicas) == 0:
		return decision{problem: "is not placed"}
	case g.leader == 0:
		return decision{problem: s.leaderless(g)}
	case g.changing:
		return decision{doing: "its members are being changed"}
	case len(g.MadeOf) > 0:
		return s.firstLeader(g)
	}
	for _, n := range g.Replicas {
		m, isMember := g.member(n)
		switch {
		case isMember && m.Voter:
		case !s.nodes[n].alive:
			return decision{problem: fmt.Sprintf("waits for node %d", n)}
		case !g.open[n]:
			return decision{doing: fmt.Sprintf("node %d opens a replica", n)}
		case !isMember:
			return decision{step: g.step(AddLearner, n), doing: fmt.Sprintf("node %d gets a replica", n)}
		case !g.fresh[n]:
			return decision{doing: fmt.Sprintf("node %d catches up", n)}
		case !s.decides(append(g.voters(), n)):
			return decision{problem: fmt.Sprintf("too few voters answer to take node %d in", n)}
		default:
			return decision{step: g.step(AddVoter, n), doing: fmt.Sprintf("node %d gets a vote", n)}
		}
	}
	if n := s.nextToLeave(g); n != 0 {
		return s.leave(g, n, Remove, s.successor(g, nil))
	}
	if len(g.Leaving) > 0 {
		return decision{place: &GroupDocument{Replicas: slices.Sorted(slices.Values(g.Replicas))}, doing: "has moved"}
	}
	return s.atRest(g)
}

// firstLeader hands a new group to the node that is to lead it first, and then records that the group is made.
func (s *clusterView) firstLeader(g *groupView) decision {
	if first := g.Replicas[0]; g.leader != first && s.nodes[first].alive && s.nodes[first].isFit() &&
		g.votes(first) {
		if g.fresh[first] {
			return decision{step: g.step(Transfer, first), doing: fmt.Sprintf("node %d is to lead first", first)}
		}
		return decision{doing: fmt.Sprintf("node %d is to lead first, and catches up", first)}
	}
	return decision{place: &GroupDocument{Replicas: slices.Sorted(slices.Values(g.Replicas)), Leaving: g.Leaving},
		doing: "is made"}
}

// nextToLeave returns a member that isn't wanted any more, the one that is missed least.
func (s *clusterView) nextToLeave(g *groupView) quorum.Node {
	var leaving []quorum.Node
	for _, m := range g.members {
		if !slices.Contains(g.Replicas, m.Node) {
			leaving = append(leaving, m.Node)
		}
	}
	return leastOf(leaving, func(n quorum.Node) (cost int, _ bool) {
		for i, dear := range []bool{s.nodes[n].here, g.leader == n, g.votes(n) && !s.decides(without(g.voters(), n))} {
			if dear {
				cost += 1 << i
			}
		}
		return cost, true
	})
}

// leave removes a member from the group, or takes away its vote, according to the verb. A leader first hands over to
// successor, a node that is as far (0: there is none).
func (s *clusterView) leave(g *groupView, n quorum.Node, verb Verb, successor quorum.Node) decision {
	switch {
	case g.votes(n) && !s.decides(without(g.voters(), n)):
		return decision{problem: fmt.Sprintf("too few voters answer to go on without node %d", n)}
	case g.leader != n:
		return decision{step: g.step(verb, n), doing: fmt.Sprintf("%s node %d", verb, n)}
	case successor == 0:
		return decision{doing: fmt.Sprintf("node %d leads until another one is as far", n)}
	}
	return s.handOver(g, successor)
}

func (s *clusterView) handOver(g *groupView, to quorum.Node) decision {
	return decision{step: g.step(Transfer, to), doing: fmt.Sprintf("node %d hands over to node %d", g.leader, to)}
}

// leaderless returns why a group has no leader.
func (s *clusterView) leaderless(g *groupView) string {
	voters := g.voters()
	if len(voters) == 0 {
		voters = g.MadeOf
	}
	if len(voters) > 0 && !s.decides(voters) {
		return "has no majority: too few of its nodes answer"
	}
	return "has no leader"
}

// atRest returns what is still wrong with a group whose placement is what its document says.
func (s *clusterView) atRest(g *groupView) decision {
	elsewhere := slices.ContainsFunc(s.usable(), func(n quorum.Node) bool { return !g.Holds(n) })
	lacks := func(what string) decision {
		if elsewhere {
			return decision{doing: what + ", and waits for its turn to be moved"}
		}
		return decision{problem: what + ", and there is no node to take its place"}
	}
	for _, n := range g.Replicas {
		if d, known := s.nodes[n]; !known || d.State == Removed {
			return lacks(fmt.Sprintf("node %d is removed", n))
		}
	}
	for _, n := range g.Replicas {
		if !s.nodes[n].alive {
			return decision{problem: fmt.Sprintf("node %d does not answer", n)}
		}
	}
	for _, n := range g.Replicas {
		if !s.stays(n) {
			return lacks(fmt.Sprintf("node %d is draining", n))
		}
	}
	if len(g.Replicas) < s.replicas {
		return lacks(fmt.Sprintf("has %d of %d replicas", len(g.Replicas), s.replicas))
	}
	return decision{}
}

// controlStep is the next step for the control group: each node is a member of it, a few of them vote.
func (s *clusterView) controlStep() decision {
	switch g := &s.control; {
	case g.leader == 0:
		return decision{problem: s.leaderless(g)}
	case g.changing:
		return decision{doing: "its members are being changed"}
	}
	m := s.controlMembers()
	return cmp.Or(s.nextLearner(), s.nextVote(&m), s.nextGone(&m), s.nextControlLeader(&m), s.silentVoter())
}

// controlMembers are the members of the control group by what becomes of them.
type controlMembers struct {
	stay, drain []quorum.Node // voters
	candidates  []quorum.Node // learners that may get a vote
	gone        []quorum.Node // of removed nodes
	successor   quorum.Node   // who can lead instead of the leader; 0: nobody
}

func (s *clusterView) controlMembers() (c controlMembers) {
	for _, m := range sortedMembers(s.control.members) {
		switch d := s.nodes[m.Node]; {
		case !d.Member():
			c.gone = append(c.gone, m.Node)
		case m.Voter && d.State == Active:
			c.stay = append(c.stay, m.Node)
		case m.Voter:
			c.drain = append(c.drain, m.Node)
		case s.isUsable(m.Node):
			c.candidates = append(c.candidates, m.Node)
		}
	}
	c.successor = s.controlSuccessor(c.stay)
	return c
}

// nextLearner makes each node a member of the control group. One that was removed by force, and comes back while groups
// still need it, must hear of changes, too: it serves clients, by keys that may have been revoked.
func (s *clusterView) nextLearner() decision {
	g := &s.control
	for _, n := range s.numbers() {
		isWanted := s.nodes[n].Member() || s.nodes[n].alive && s.holdsAny(n)
		if _, isMember := g.member(n); !isMember && isWanted && g.open[n] {
			return decision{step: g.step(AddLearner, n), doing: fmt.Sprintf("node %d gets a replica", n)}
		}
	}
	return decision{}
}

// nextVote takes a vote away where there are too many, and gives one where there are too few.
func (s *clusterView) nextVote(c *controlMembers) decision {
	g := &s.control
	wanted := WantedVoters(len(c.stay) + len(c.drain) + len(c.candidates))
	if len(g.voters()) > wanted {
		return s.leave(g, s.nextToDemote(c), Demote, c.successor)
	}
	if len(c.stay) >= wanted || len(c.candidates) == 0 {
		return decision{}
	}
	for _, n := range c.candidates {
		if g.fresh[n] && s.decides(append(g.voters(), n)) {
			return decision{step: g.step(AddVoter, n), doing: fmt.Sprintf("node %d gets a vote", n)}
		}
	}
	return decision{doing: fmt.Sprintf("node %d catches up", c.candidates[0])}
}

// nextToDemote returns the voter that is missed least.
func (s *clusterView) nextToDemote(c *controlMembers) quorum.Node {
	if i := slices.IndexFunc(c.gone, s.control.votes); i >= 0 {
		return c.gone[i]
	}
	if n := len(c.drain); n > 0 {
		return c.drain[n-1]
	}
	return s.leastVoter(c.stay)
}

// nextGone removes a removed node from the group. One that still has groups has to learn where they go.
func (s *clusterView) nextGone(c *controlMembers) decision {
	for _, n := range c.gone {
		if !s.nodes[n].alive || !s.holdsAny(n) {
			return s.leave(&s.control, n, Remove, c.successor)
		}
	}
	return decision{}
}

// nextControlLeader hands over when the leader shouldn't lead and another node may.
func (s *clusterView) nextControlLeader(c *controlMembers) decision {
	leader, to := s.control.leader, c.successor
	if !s.mayLead(leader) && s.mayLead(to) || !s.mayPlace(leader) && s.mayPlace(to) {
		return s.handOver(&s.control, to)
	}
	return decision{}
}

// silentVoter says which voter of the control group doesn't answer.
func (s *clusterView) silentVoter() decision {
	for _, n := range s.control.voters() {
		if !s.nodes[n].alive {
			return decision{problem: fmt.Sprintf("node %d does not answer", n)}
		}
	}
	return decision{}
}

const maxVoters = 5 // of the control group

// WantedVoters is how many voters the control group has with that many nodes. It is an odd number, except that both of
// two nodes vote, so that neither has the only copy.
func WantedVoters(nodes int) int {
	if nodes <= 3 {
		return nodes
	}
	return min(maxVoters, nodes-1+nodes%2)
}

// mayPlace reports whether the node may lead the control group, if another one could: whoever does has to reach all
// nodes.
func (s *clusterView) mayPlace(n quorum.Node) bool { return s.mayLead(n) && !s.nodes[n].cut }

// controlSuccessor returns the node that shall lead the control group instead, preferably one that is fit for it; 0
// when there is none.
func (s *clusterView) controlSuccessor(stay []quorum.Node) quorum.Node {
	return leastOf(stay, func(n quorum.Node) (cost int, _ bool) {
		for _, fit := range []bool{s.nodes[n].isFit(), s.mayPlace(n)} {
			if !fit {
				cost++
			}
		}
		return cost, n != s.control.leader && s.control.fresh[n]
	})
}

// leastVoter returns the node whose vote in the control group is missed least: not the leader, preferably one that does
// not answer.
func (s *clusterView) leastVoter(voters []quorum.Node) quorum.Node {
	return leastOf(voters, func(n quorum.Node) (int, bool) {
		cost := -int(n)
		if s.nodes[n].alive {
			cost += 1 << 33
		}
		return cost, n != s.control.leader
	})
}
