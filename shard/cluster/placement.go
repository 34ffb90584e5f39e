package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"millrace/wal/quorum"
)

// What is to be done next, as functions of what is: no calls, no clock, no randomness. The reconciler looks, asks them, and does it; the tests of these
// functions play a cluster.
//
// A replica moves in small steps, each of which can be repeated or be the last one for a long time:
//
//	document: Replicas gets the new node, Leaving the old one     the new node opens an empty replica
//	AddLearner(new)                                               it gets the state
//	AddVoter(new)                                                 when it is as far as the leader was a moment ago
//	Transfer, when the old one leads; Remove(old)
//	document: Leaving is empty                                    the old node closes its replica and deletes it
//
// So a group has never fewer voters than before, and no step is taken that the voters who are alive could not commit.

// partitionsOf are the partitions of a user group, of so many groups; see routes.
func partitionsOf(group uint32, groups int) (first, count int) {
	start := func(g int) int { return (g*allPartitions + groups - 1) / groups }
	first = start(int(group) - 1)
	return first, start(int(group)) - first
}

const (
	allPartitions = 256
	maxVoters     = 5 // of the control group
)

// scene is a cluster as somebody has seen it.
type scene struct {
	replicas int // of each user group, as far as there are nodes
	nodes    map[quorum.Node]nodeView
	groups   []groupView // user groups, in order
	control  groupView   // Replicas, Leaving and MadeOf are empty
}

// nodeView is a node of a scene.
type nodeView struct {
	nodeDocument
	here    bool // has answered now
	alive   bool // has answered now, or a moment ago
	lost    bool // has not answered for so long that new replicas go elsewhere
	settled bool // has been there for a while: leadership comes and goes
}

// groupView is a group of a scene.
type groupView struct {
	group uint32
	placement
	leader  quorum.Node // 0: none is known
	members []quorum.Member
	open    map[quorum.Node]bool // nodes whose replica is open
	fresh   map[quorum.Node]bool // and as far as the leader was a moment ago
}

// decision is what is to be done about a group next. The zero value: nothing.
type decision struct {
	step    *Step
	place   *placement // the document as it shall be
	doing   string     // for persons
	problem string     // why nothing can be done, or what is not as it should be
}

// initialPlacement places so many groups over nodes: each group on replicas of them (or all), each node with as many as any other, give or take one, and
// so for the groups that it leads first.
func initialPlacement(nodes []quorum.Node, groups, replicas int) []placement {
	nodes = slices.Sorted(slices.Values(nodes))
	replicas = min(replicas, len(nodes))
	holds, together := map[quorum.Node]int{}, map[[2]quorum.Node]int{}
	list := make([]placement, groups)
	for g := range list {
		var chosen []quorum.Node
		for range replicas {
			chosen = append(chosen, leastOf(nodes, func(n quorum.Node) (int, bool) {
				company := 0 // groups that n shares with those already chosen: who fails is then replaced by many
				for _, other := range chosen {
					company += together[pair(n, other)]
				}
				return holds[n]<<20 + company, !slices.Contains(chosen, n)
			}))
		}
		for i, n := range chosen {
			holds[n]++
			for _, other := range chosen[:i] {
				together[pair(n, other)]++
			}
		}
		slices.Sort(chosen)
		list[g] = placement{Replicas: chosen, MadeOf: slices.Clone(chosen)}
	}
	for g, leader := range spreadLeaders(list, nodes) {
		r := list[g].Replicas
		i := slices.Index(r, leader)
		list[g].Replicas = append([]quorum.Node{leader}, slices.Delete(slices.Clone(r), i, i+1)...)
	}
	return list
}

func pair(a, b quorum.Node) [2]quorum.Node { return [2]quorum.Node{min(a, b), max(a, b)} }

// leastOf is the node with the smallest cost, of equals the smallest number; 0 when none is eligible.
func leastOf(nodes []quorum.Node, cost func(quorum.Node) (cost int, eligible bool)) (best quorum.Node) {
	least := 0
	for _, n := range nodes {
		if c, ok := cost(n); ok && (best == 0 || c < least || c == least && n < best) {
			best, least = n, c
		}
	}
	return best
}

// spreadLeaders gives each group a leader of its replicas, each node as many as any other, give or take one, when the replicas are spread so.
func spreadLeaders(groups []placement, nodes []quorum.Node) []quorum.Node {
	leaders, leads := make([]quorum.Node, len(groups)), map[quorum.Node]int{}
	for g, p := range groups {
		leaders[g] = leastOf(p.Replicas, func(n quorum.Node) (int, bool) { return leads[n], true })
		leads[leaders[g]]++
	}
	for {
		g, to := handOver(nodes, leads, len(groups), func(g int) quorum.Node { return leaders[g] }, func(g int) []quorum.Node { return groups[g].Replicas })
		if to == 0 {
			return leaders
		}
		leads[leaders[g]]--
		leads[to]++
		leaders[g] = to
	}
}

// handOver is the next change of a leader on the shortest way that takes one group from a node which leads the most to one which leads at least two fewer;
// 0 when there is none. On a longer way the next call finds the rest: it is shorter by one then.
func handOver(nodes []quorum.Node, leads map[quorum.Node]int, groups int, leader func(g int) quorum.Node, successors func(g int) []quorum.Node) (g int, to quorum.Node) {
	most := 0
	for _, n := range nodes {
		most = max(most, leads[n])
	}
	type hop struct {
		node  quorum.Node
		first struct { // of the way that leads here
			g  int
			to quorum.Node
		}
	}
	var way []hop
	seen := map[quorum.Node]bool{}
	for _, n := range nodes {
		if leads[n] == most {
			way, seen[n] = append(way, hop{node: n}), true
		}
	}
	for i := 0; i < len(way); i++ {
		for g := range groups {
			if leader(g) != way[i].node {
				continue
			}
			for _, next := range successors(g) {
				if seen[next] || !slices.Contains(nodes, next) {
					continue
				}
				h := hop{node: next, first: way[i].first}
				if h.first.to == 0 {
					h.first.g, h.first.to = g, next
				}
				if leads[next] <= most-2 {
					return h.first.g, h.first.to
				}
				seen[next] = true
				way = append(way, h)
			}
		}
	}
	return 0, 0
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

// underWay says whether the group is being made or moved.
func (g *groupView) underWay() bool {
	return len(g.Leaving) > 0 || len(g.MadeOf) > 0 || slices.ContainsFunc(g.Replicas, func(n quorum.Node) bool { return !g.votes(n) })
}

func (g *groupView) step(verb Verb, n quorum.Node) *Step {
	return &Step{Group: g.group, Verb: verb, Node: n, Members: g.members}
}

// The nodes of a scene.

// numbers are all nodes, in order.
func (s *scene) numbers() []quorum.Node {
	list := make([]quorum.Node, 0, len(s.nodes))
	for n := range s.nodes {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// usable are the nodes that can be given replicas.
func (s *scene) usable() []quorum.Node {
	return slices.DeleteFunc(s.numbers(), func(n quorum.Node) bool { return !s.isUsable(n) })
}

func (s *scene) isUsable(n quorum.Node) bool { return s.nodes[n].State == Active && s.nodes[n].alive }

// stays says whether a replica on the node may stay there.
func (s *scene) stays(n quorum.Node) bool { return s.nodes[n].State == Active }

// decides says whether so many of these voters answer that they can decide.
func (s *scene) decides(voters []quorum.Node) bool {
	here := 0
	for _, n := range voters {
		if s.nodes[n].here {
			here++
		}
	}
	return here*2 > len(voters)
}

// loads are how many groups each node has or shall have for good.
func (s *scene) loads() map[quorum.Node]int {
	loads := map[quorum.Node]int{}
	for i := range s.groups {
		for _, n := range s.groups[i].Replicas {
			loads[n]++
		}
	}
	return loads
}

func without(list []quorum.Node, n quorum.Node) []quorum.Node {
	return slices.DeleteFunc(slices.Clone(list), func(other quorum.Node) bool { return other == n })
}

// nextStep is what is next on the group's way to its document.
func (s *scene) nextStep(g *groupView) decision {
	switch {
	case len(g.Replicas) == 0:
		return decision{problem: "is not placed"}
	case g.leader == 0:
		return decision{problem: s.leaderless(g)}
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
		return decision{place: &placement{Replicas: slices.Sorted(slices.Values(g.Replicas))}, doing: "has moved"}
	}
	return s.atRest(g)
}

func sortedMembers(members []quorum.Member) []quorum.Member {
	return slices.SortedFunc(slices.Values(members), func(a, b quorum.Member) int { return cmp.Compare(a.Node, b.Node) })
}

// firstLeader hands a new group to the node that is to lead it first, and then says that it is made.
func (s *scene) firstLeader(g *groupView) decision {
	if first := g.Replicas[0]; g.leader != first && s.nodes[first].alive && g.votes(first) {
		if g.fresh[first] {
			return decision{step: g.step(Transfer, first), doing: fmt.Sprintf("node %d is to lead first", first)}
		}
		return decision{doing: fmt.Sprintf("node %d is to lead first, and catches up", first)}
	}
	return decision{place: &placement{Replicas: slices.Sorted(slices.Values(g.Replicas)), Leaving: g.Leaving}, doing: "is made"}
}

// nextToLeave is a member that isn't wanted any more: rather one that is missed less.
func (s *scene) nextToLeave(g *groupView) quorum.Node {
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

// leave takes a member out of the group, or its vote: what a verb does. When it leads, it hands over before, to a node that is as far (0: there is none).
func (s *scene) leave(g *groupView, n quorum.Node, verb Verb, successor quorum.Node) decision {
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

func (s *scene) handOver(g *groupView, to quorum.Node) decision {
	return decision{step: g.step(Transfer, to), doing: fmt.Sprintf("node %d hands over to node %d", g.leader, to)}
}

// successor is who shall lead a group instead: a voter that is as far as the leader and leads the fewest, rather one that stays; 0 when there is none.
func (s *scene) successor(g *groupView, leads map[quorum.Node]int) quorum.Node {
	return leastOf(g.Replicas, func(n quorum.Node) (int, bool) {
		cost := leads[n]
		if !s.stays(n) {
			cost += 1 << 20
		}
		return cost, n != g.leader && g.votes(n) && g.fresh[n]
	})
}

// leaderless says why a group has no leader.
func (s *scene) leaderless(g *groupView) string {
	voters := g.voters()
	if len(voters) == 0 {
		voters = g.MadeOf
	}
	if len(voters) > 0 && !s.decides(voters) {
		return "has no majority: too few of its nodes answer"
	}
	return "has no leader"
}

// atRest says what a group that is as its document wants it lacks all the same.
func (s *scene) atRest(g *groupView) decision {
	elsewhere := slices.ContainsFunc(s.usable(), func(n quorum.Node) bool { return !g.holds(n) })
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
			return lacks(fmt.Sprintf("node %d drains", n))
		}
	}
	if len(g.Replicas) < s.replicas {
		return lacks(fmt.Sprintf("has %d of %d replicas", len(g.Replicas), s.replicas))
	}
	return decision{}
}

// catchingUp are the user groups in which a node gets the state at the moment: that is what a move costs.
func (s *scene) catchingUp() (count int) {
	for i := range s.groups {
		g := &s.groups[i]
		if slices.ContainsFunc(g.members, func(m quorum.Member) bool { return !m.Voter && s.nodes[m.Node].alive && !g.fresh[m.Node] }) {
			count++
		}
	}
	return count
}

// move is a group's document as it shall be.
type move struct {
	group uint32
	place placement
	why   string
}

// nextMoves begins moves, so that at most limit groups are on their way: first off nodes that are removed, then what lacks replicas, then off nodes that drain,
// and when nothing of that is left, from nodes that have many groups to those that have few. A move that waits for a node does not count.
func (s *scene) nextMoves(limit int) (moves []move) {
	loads, busy := s.loads(), 0
	begin := func(g *groupView, from, to quorum.Node, why string) {
		p := placement{Replicas: g.Replicas, Leaving: g.Leaving}
		if from != 0 {
			p.Replicas, p.Leaving = without(p.Replicas, from), append(slices.Clone(p.Leaving), from)
			loads[from]--
		}
		p.Replicas, p.Leaving = slices.Sorted(slices.Values(append(slices.Clone(p.Replicas), to))), without(p.Leaving, to)
		loads[to]++
		moves = append(moves, move{group: g.group, place: p, why: why})
		g.placement = p // for the rest of this call
	}
	target := func(g *groupView) quorum.Node {
		return leastOf(s.usable(), func(n quorum.Node) (int, bool) {
			cost := loads[n]
			if g.votes(n) { // it was about to leave
				cost -= 1 << 20
			}
			return cost, !slices.Contains(g.Replicas, n)
		})
	}
	gone := func(n quorum.Node) bool { d, known := s.nodes[n]; return !known || d.State == Removed }
	drains := func(n quorum.Node) bool { return !gone(n) && !s.stays(n) }
	groups := s.groups
	s.groups = slices.Clone(groups) // begin changes them
	defer func() { s.groups = groups }()

	for i := range s.groups { // what is on its way to a node that has gone meanwhile goes elsewhere
		g := &s.groups[i]
		if !g.underWay() || len(g.MadeOf) > 0 {
			continue
		}
		for _, n := range g.Replicas {
			if !gone(n) && (g.votes(n) || s.stays(n) && !s.nodes[n].lost) {
				continue
			}
			if to := target(g); to != 0 {
				begin(g, n, to, fmt.Sprintf("to node %d instead of node %d", to, n))
				break
			}
		}
	}
	for i := range s.groups {
		if g := &s.groups[i]; g.underWay() && !s.waits(g) {
			busy++
		}
	}
	possible := false // something that must move can
	for _, need := range []struct {
		from func(quorum.Node) bool
		why  string
	}{{gone, "node %d is removed: node %d takes its place"}, {nil, ""}, {drains, "from node %d, which drains, to node %d"}} {
		for i := range s.groups {
			g := &s.groups[i]
			if g.underWay() || g.leader == 0 {
				continue
			}
			var from quorum.Node
			if need.from == nil {
				if len(g.Replicas) >= s.replicas {
					continue
				}
			} else if j := slices.IndexFunc(g.Replicas, need.from); j >= 0 {
				from = g.Replicas[j]
			} else {
				continue
			}
			to := target(g)
			if to == 0 {
				continue
			}
			if possible = true; busy >= limit {
				return moves
			}
			why := fmt.Sprintf("node %d gets one more replica", to)
			if from != 0 {
				why = fmt.Sprintf(need.why, from, to)
			}
			begin(g, from, to, why)
			busy++
		}
	}
	for !possible && busy < limit {
		g, from, to := s.unevenness(loads)
		if g == nil {
			break
		}
		begin(g, from, to, fmt.Sprintf("from node %d, which has many groups, to node %d", from, to))
		busy++
	}
	return moves
}

// waits says whether a group on its way can't go on before a node comes back.
func (s *scene) waits(g *groupView) bool {
	return g.leader == 0 || slices.ContainsFunc(g.Replicas, func(n quorum.Node) bool { return !g.votes(n) && !s.nodes[n].alive })
}

// unevenness is a group that may be moved from a node with many groups to one with at least two fewer: one whose replicas are all there, rather one
// that the node doesn't lead; nil when there is none.
func (s *scene) unevenness(loads map[quorum.Node]int) (g *groupView, from, to quorum.Node) {
	nodes := s.usable()
	byLoad := func(a, b quorum.Node) int { return cmp.Or(cmp.Compare(loads[a], loads[b]), cmp.Compare(a, b)) }
	slices.SortFunc(nodes, byLoad)
	for _, to = range nodes {
		for _, from = range slices.Backward(nodes) {
			if loads[from]-loads[to] < 2 {
				break
			}
			for i := range s.groups {
				c := &s.groups[i]
				if c.underWay() || c.leader == 0 || !slices.Contains(c.Replicas, from) || c.holds(to) || slices.ContainsFunc(c.Replicas, func(n quorum.Node) bool { return !s.nodes[n].alive }) {
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

// leads are how many user groups each node leads.
func (s *scene) leads() map[quorum.Node]int {
	leads := map[quorum.Node]int{}
	for i := range s.groups {
		if l := s.groups[i].leader; l != 0 {
			leads[l]++
		}
	}
	return leads
}

// handOffs are transfers off nodes that are to lead nothing any more: one group a node.
func (s *scene) handOffs() (steps []*Step) {
	leads, seen := s.leads(), map[quorum.Node]bool{}
	for i := range s.groups {
		g := &s.groups[i]
		if g.leader == 0 || s.stays(g.leader) || seen[g.leader] || len(g.MadeOf) > 0 {
			continue
		}
		if to := s.successor(g, leads); to != 0 && s.stays(to) {
			seen[g.leader] = true
			steps = append(steps, g.step(Transfer, to))
		}
	}
	return steps
}

// nextTransfer makes the numbers of groups that nodes lead more alike; nil when they are, give or take one, or nothing can be done about it. Nodes that have
// just come are left alone.
func (s *scene) nextTransfer() *Step {
	nodes := slices.DeleteFunc(s.usable(), func(n quorum.Node) bool { return !s.nodes[n].settled })
	g, to := handOver(nodes, s.leads(), len(s.groups), func(g int) quorum.Node { return s.groups[g].leader }, func(i int) (list []quorum.Node) {
		g := &s.groups[i]
		if g.underWay() {
			return nil
		}
		for _, n := range g.Replicas {
			if n != g.leader && g.votes(n) && g.fresh[n] {
				list = append(list, n)
			}
		}
		return list
	})
	if to == 0 {
		return nil
	}
	return s.groups[g].step(Transfer, to)
}

// unevenLeads is by how much the numbers of groups that nodes lead differ.
func (s *scene) unevenLeads() int {
	leads, nodes := s.leads(), s.usable()
	if len(nodes) == 0 {
		return 0
	}
	least, most := leads[nodes[0]], 0
	for _, n := range nodes {
		least, most = min(least, leads[n]), max(most, leads[n])
	}
	return most - least
}

// wantedVoters is how many voters the control group has with so many nodes: an odd number, but both of two nodes, so that none has the only copy.
func wantedVoters(nodes int) int {
	if nodes <= 3 {
		return nodes
	}
	return min(maxVoters, nodes-1+nodes%2)
}

// controlStep is what is next for the control group: each node is a member of it, a few of them vote.
func (s *scene) controlStep() decision {
	g := &s.control
	if g.leader == 0 {
		return decision{problem: s.leaderless(g)}
	}
	var stay, drain, candidates, gone []quorum.Node // voters that stay and that drain, learners that may get a vote, members that are removed
	for _, m := range sortedMembers(g.members) {
		switch d := s.nodes[m.Node]; {
		case !d.member():
			gone = append(gone, m.Node)
		case m.Voter && d.State == Active:
			stay = append(stay, m.Node)
		case m.Voter:
			drain = append(drain, m.Node)
		case s.isUsable(m.Node):
			candidates = append(candidates, m.Node)
		}
	}
	for _, n := range s.numbers() {
		if _, isMember := g.member(n); !isMember && s.nodes[n].member() && g.open[n] {
			return decision{step: g.step(AddLearner, n), doing: fmt.Sprintf("node %d gets a replica", n)}
		}
	}
	wanted, to := wantedVoters(len(stay)+len(drain)+len(candidates)), s.controlSuccessor(stay)
	if len(g.voters()) > wanted {
		for _, n := range gone {
			if g.votes(n) {
				return s.leave(g, n, Demote, to)
			}
		}
		if len(drain) > 0 {
			return s.leave(g, drain[len(drain)-1], Demote, to)
		}
		return s.leave(g, s.leastVoter(stay), Demote, to)
	}
	if len(stay) < wanted && len(candidates) > 0 {
		for _, n := range candidates {
			if g.fresh[n] && s.decides(append(g.voters(), n)) {
				return decision{step: g.step(AddVoter, n), doing: fmt.Sprintf("node %d gets a vote", n)}
			}
		}
		return decision{doing: fmt.Sprintf("node %d catches up", candidates[0])}
	}
	for _, n := range gone {
		if !s.nodes[n].alive || !s.holdsAny(n) { // who has groups has to know where they go
			return s.leave(g, n, Remove, to)
		}
	}
	if !s.stays(g.leader) && to != 0 {
		return s.handOver(g, to)
	}
	for _, n := range g.voters() {
		if !s.nodes[n].alive {
			return decision{problem: fmt.Sprintf("node %d does not answer", n)}
		}
	}
	return decision{}
}

// controlSuccessor is who shall lead the control group instead; 0 when there is nobody.
func (s *scene) controlSuccessor(stay []quorum.Node) quorum.Node {
	return leastOf(stay, func(n quorum.Node) (int, bool) {
		return 0, n != s.control.leader && s.control.fresh[n]
	})
}

// leastVoter is whose vote in the control group is missed least: not the leader's, rather that of one who does not answer.
func (s *scene) leastVoter(voters []quorum.Node) quorum.Node {
	return leastOf(voters, func(n quorum.Node) (int, bool) {
		cost := -int(n)
		if s.nodes[n].alive {
			cost += 1 << 33
		}
		return cost, n != s.control.leader
	})
}

// holdsAny says whether a node has, or shall have, a replica of a user group.
func (s *scene) holdsAny(n quorum.Node) bool {
	return slices.ContainsFunc(s.groups, func(g groupView) bool { return g.holds(n) })
}
