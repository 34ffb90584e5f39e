package placement

import (
	"maps"
	"slices"

	"millrace/shard"
	"millrace/wal/quorum"
)

// PartitionsOf returns the partitions of a group, given the number of user groups: count of them, from first on. The
// control group has a partition of its own, which holds no user's data.
func PartitionsOf(group uint32, groups int) (first, count int) {
	if group == shard.ControlGroup {
		return 0, 1
	}
	start := func(g int) int { return (g*allPartitions + groups - 1) / groups }
	first = start(int(group) - 1)
	return first, start(int(group)) - first
}

// GroupOf returns the user group of a partition, given the number of user groups; see PartitionsOf.
func GroupOf(partition uint8, groups int) int { return 1 + int(partition)*groups/allPartitions }

const allPartitions = 256

// initialPlacement places groups over nodes. Each group gets the given number of replicas (or all nodes). The nodes get
// equal numbers of replicas, give or take one, and of groups that they lead first.
func initialPlacement(nodes []quorum.Node, groups, replicas int) []GroupDocument {
	nodes = slices.Sorted(slices.Values(nodes))
	replicas = min(replicas, len(nodes))
	holds, together := map[quorum.Node]int{}, map[[2]quorum.Node]int{}
	list := make([]GroupDocument, groups)
	for g := range list {
		var chosen []quorum.Node
		for range replicas {
			chosen = append(chosen, leastOf(nodes, func(n quorum.Node) (int, bool) {
				company := 0 // groups that n shares with those chosen: with few, many nodes replace it if it fails
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
		list[g] = GroupDocument{Replicas: chosen, MadeOf: slices.Clone(chosen)}
	}
	for g, leader := range spreadLeaders(list, nodes) {
		r := list[g].Replicas
		i := slices.Index(r, leader)
		list[g].Replicas = append([]quorum.Node{leader}, slices.Delete(slices.Clone(r), i, i+1)...)
	}
	return list
}

func pair(a, b quorum.Node) [2]quorum.Node { return [2]quorum.Node{min(a, b), max(a, b)} }

// leastOf returns the eligible node with the smallest cost, of equal ones that with the smallest number; 0 when there
// is none.
func leastOf(nodes []quorum.Node, cost func(quorum.Node) (cost int, eligible bool)) (best quorum.Node) {
	least := 0
	for _, n := range nodes {
		if c, ok := cost(n); ok && (best == 0 || c < least || c == least && n < best) {
			best, least = n, c
		}
	}
	return best
}

// spreadLeaders chooses a leader for each group among its replicas. Each node leads as many groups as any other, give
// or take one, when the replicas allow that.
func spreadLeaders(groups []GroupDocument, nodes []quorum.Node) []quorum.Node {
	leaders, leads := make([]quorum.Node, len(groups)), map[quorum.Node]int{}
	for g, p := range groups {
		leaders[g] = leastOf(p.Replicas, func(n quorum.Node) (int, bool) { return leads[n], true })
		leads[leaders[g]]++
	}
	for {
		g, to := handOver(nodes, leads, len(groups), func(g int) quorum.Node { return leaders[g] },
			func(g int) []quorum.Node { return groups[g].Replicas })
		if to == 0 {
			return leaders
		}
		leads[leaders[g]]--
		leads[to]++
		leaders[g] = to
	}
}

// handOver returns the next change of a leader on the shortest way that takes one group from a node that leads the most
// groups to one that leads at least two fewer; 0 when there is none. If the way has several changes, the next call
// finds the rest, since the way is then one change shorter.
func handOver(
	nodes []quorum.Node, leads map[quorum.Node]int, groups int, leader func(g int) quorum.Node,
	successors func(g int) []quorum.Node,
) (g int, to quorum.Node) {
	most := 0
	for _, n := range nodes {
		most = max(most, leads[n])
	}
	type hop struct {
		node  quorum.Node
		first struct { // first change of the way that leads here
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

// catchingUp counts the user groups in which a node is getting the state: that is what a move costs.
func (s *clusterView) catchingUp() (count int) {
	for i := range s.groups {
		g := &s.groups[i]
		if slices.ContainsFunc(g.members,
			func(m quorum.Member) bool { return !m.Voter && s.nodes[m.Node].alive && !g.fresh[m.Node] }) {
			count++
		}
	}
	return count
}

// handOffs returns transfers off nodes that shall no longer lead. Each node that drains hands over one group at a time.
// A node that is not fit to lead hands over all its groups at once, because they take no writes as long as it leads, or
// not all. When nobody else can lead, a node keeps its groups. Beside other steps there are only transfers off such
// nodes, for groups without a step.
func (s *clusterView) handOffs(beside []*Step) (steps []*Step) {
	leads, seen := s.leads(), map[quorum.Node]bool{}
	for i := range s.groups {
		g := &s.groups[i]
		isOf := func(x *Step) bool { return x.Group == g.group }
		if len(beside) > 0 && (s.nodes[g.leader].isFit() || slices.ContainsFunc(beside, isOf)) {
			continue
		}
		if g.leader == 0 || s.mayLead(g.leader) || seen[g.leader] || len(g.MadeOf) > 0 {
			continue
		}
		if to := s.successor(g, leads); s.mayLead(to) {
			seen[g.leader] = s.nodes[g.leader].isFit()
			leads[to]++
			steps = append(steps, g.step(Transfer, to))
		}
	}
	return steps
}

// stepAside chooses nodes that shall not lead, until no two of the others are cut off from one another. What a leader
// has to tell the leader of another group would not arrive. The node with the most cuts steps aside first, of several
// the one that leads the least. As a node serves nothing of a group whose leader it doesn't reach, it is both nodes
// when there is just one cut: then all nodes serve all groups.
func (s *clusterView) stepAside(cuts [][2]quorum.Node) {
	leads, isOnly := s.leads(), len(cuts) == 1
	for len(cuts) > 0 {
		count := map[quorum.Node]int{}
		for _, p := range cuts {
			for _, n := range p {
				count[n]++
				d := s.nodes[n]
				d.cut, d.aside = true, d.aside || isOnly
				s.nodes[n] = d
			}
		}
		worst := leastOf(slices.Sorted(maps.Keys(count)),
			func(n quorum.Node) (int, bool) { return leads[n] - count[n]<<20, true })
		d := s.nodes[worst]
		d.aside = true
		s.nodes[worst] = d
		cuts = slices.DeleteFunc(cuts, func(p [2]quorum.Node) bool { return slices.Contains(p[:], worst) })
	}
}

// nextTransfer makes the numbers of groups that nodes lead more even. It returns nil when they differ by at most one,
// or when nothing can be done about it. Nodes that have just come, or just become fit, are left alone.
func (s *clusterView) nextTransfer() *Step {
	nodes := slices.DeleteFunc(s.usable(), func(n quorum.Node) bool { return !s.nodes[n].settled })
	g, to := handOver(nodes, s.leads(), len(s.groups), func(g int) quorum.Node { return s.groups[g].leader },
		func(i int) (list []quorum.Node) {
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

// unevenLeads returns the difference between the most and the fewest groups that a node leads.
func (s *clusterView) unevenLeads() int {
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

// successor returns the node that shall lead a group instead: a voter that is as far as the leader and leads the fewest
// groups. Nodes that are fit come first, then nodes that stay. It returns 0 when there is none.
func (s *clusterView) successor(g *groupView, leads map[quorum.Node]int) quorum.Node {
	return leastOf(g.Replicas, func(n quorum.Node) (int, bool) {
		cost := leads[n]
		if !s.stays(n) {
			cost += 1 << 20
		}
		if !s.nodes[n].isFit() {
			cost += 1 << 21
		}
		return cost, n != g.leader && g.votes(n) && g.fresh[n]
	})
}
