package placement

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/wal/quorum"
)

// viewOf has nodes 1, 2, … in these states, all reachable, and groups on them. With "1,2,3" these nodes are voters, the
// first one leads, and all replicas are open and fresh.
func viewOf(replicas int, states []NodeState, groups ...[]quorum.Node) *clusterView {
	s := &clusterView{replicas: replicas, nodes: map[quorum.Node]nodeView{}}
	for i, state := range states {
		s.nodes[quorum.Node(i+1)] = nodeView{NodeDocument: NodeDocument{State: state, Address: "a:1", Disk: "d"}, here: true, alive: true, settled: true}
	}
	for i, nodes := range groups {
		s.groups = append(s.groups, groupOn(uint32(i+1), nodes...))
	}
	s.control = groupOn(0, s.numbers()[:WantedVoters(len(states))]...)
	s.control.GroupDocument = GroupDocument{}
	return s
}

func groupOn(group uint32, nodes ...quorum.Node) groupView {
	g := groupView{group: group, leader: nodes[0], open: map[quorum.Node]bool{}, fresh: map[quorum.Node]bool{}}
	g.Replicas = slices.Sorted(slices.Values(nodes))
	for _, n := range nodes {
		g.members = append(g.members, quorum.Member{Node: n, Voter: true})
		g.open[n], g.fresh[n] = true, true
	}
	return g
}

func (s *clusterView) kill(nodes ...quorum.Node) {
	for _, n := range nodes {
		d := s.nodes[n]
		d.here, d.alive = false, false
		s.nodes[n] = d
		for _, g := range append(s.groups, s.control) {
			delete(g.open, n)
			delete(g.fresh, n)
		}
	}
}

func states(list string) (states []NodeState) {
	for _, c := range list {
		states = append(states, map[rune]NodeState{'j': Joining, 'a': Active, 'd': Draining, 'D': Drained, 'r': Removed}[c])
	}
	return states
}

func nodes(list ...quorum.Node) []quorum.Node { return list }

func TestNextStep(t *testing.T) {
	moving := func() *clusterView { // group 1 goes from node 3 to node 4
		s := viewOf(3, states("aaaa"), nodes(1, 2, 3))
		s.groups[0].Replicas, s.groups[0].Leaving = nodes(1, 2, 4), nodes(3)
		return s
	}
	learner := func(fresh bool) *clusterView {
		s := moving()
		g := &s.groups[0]
		g.members, g.open[4], g.fresh[4] = append(g.members, quorum.Member{Node: 4}), true, fresh
		return s
	}
	voter := func(leader quorum.Node) *clusterView {
		s := learner(true)
		s.groups[0].members[3].Voter, s.groups[0].leader = true, leader
		return s
	}
	for name, c := range map[string]struct {
		s       *clusterView
		change  func(*clusterView)
		verb    Verb
		node    quorum.Node
		says    string
		place   *GroupDocument
		nothing bool
	}{
		"at rest":                      {s: viewOf(3, states("aaa"), nodes(1, 2, 3)), nothing: true},
		"not placed":                   {s: moving(), change: func(s *clusterView) { s.groups[0].GroupDocument = GroupDocument{} }, says: "is not placed"},
		"no leader":                    {s: moving(), change: func(s *clusterView) { s.groups[0].leader = 0 }, says: "has no leader"},
		"no majority":                  {s: moving(), change: func(s *clusterView) { s.groups[0].leader = 0; s.kill(1, 2) }, says: "has no majority"},
		"to be opened":                 {s: moving(), says: "node 4 opens a replica"},
		"opened":                       {s: moving(), change: func(s *clusterView) { s.groups[0].open[4] = true }, verb: AddLearner, node: 4},
		"target is dead":               {s: moving(), change: func(s *clusterView) { s.kill(4) }, says: "waits for node 4"},
		"catches up":                   {s: learner(false), says: "node 4 catches up"},
		"has caught up":                {s: learner(true), verb: AddVoter, node: 4},
		"one dead":                     {s: learner(true), change: func(s *clusterView) { s.kill(3) }, verb: AddVoter, node: 4},
		"too many dead for a new vote": {s: learner(true), change: func(s *clusterView) { s.kill(2, 3) }, says: "too few voters answer to take node 4 in"},
		"old one may go":               {s: voter(1), verb: Remove, node: 3},
		"old one leads":                {s: voter(3), verb: Transfer, node: 1},
		"old one leads, 1 lags":        {s: voter(3), change: func(s *clusterView) { delete(s.groups[0].fresh, 1) }, verb: Transfer, node: 2},
		"old one leads, all lag":       {s: voter(3), change: func(s *clusterView) { clear(s.groups[0].fresh) }, says: "node 3 leads until another one is as far"},
		"old one is needed":            {s: voter(1), change: func(s *clusterView) { s.kill(2, 4) }, says: "too few voters answer to go on without node 3"},
		"old one is gone": {s: voter(1), change: func(s *clusterView) {
			s.groups[0].members = slices.Delete(s.groups[0].members, 2, 3)
		}, place: &GroupDocument{Replicas: nodes(1, 2, 4)}},
		"old one is gone, which is not decided": {s: voter(1), change: func(s *clusterView) {
			s.groups[0].members, s.groups[0].changing = slices.Delete(s.groups[0].members, 2, 3), true
		}, says: "its members are being changed"},
		"two leave, the dead one first": {s: voter(1), change: func(s *clusterView) {
			s.nodes[5] = nodeView{NodeDocument: NodeDocument{State: Active, Disk: "d"}}
			s.groups[0].members = append(s.groups[0].members, quorum.Member{Node: 5, Voter: true})
		}, verb: Remove, node: 5},
		"stranger": {s: viewOf(3, states("aaaa"), nodes(1, 2, 3)), change: func(s *clusterView) {
			s.groups[0].members = append(s.groups[0].members, quorum.Member{Node: 9})
		}, verb: Remove, node: 9},
		"made, another one leads": {s: viewOf(3, states("aaa"), nodes(2, 1, 3)), change: func(s *clusterView) {
			s.groups[0].MadeOf = nodes(1, 2, 3)
		}, verb: Transfer, node: 1},
		"made": {s: viewOf(3, states("aaa"), nodes(1, 2, 3)), change: func(s *clusterView) {
			s.groups[0].MadeOf, s.groups[0].Replicas = nodes(1, 2, 3), nodes(1, 3, 2)
		}, place: &GroupDocument{Replicas: nodes(1, 2, 3)}},
		"made, the first one is dead": {s: viewOf(3, states("aaa"), nodes(2, 1, 3)), change: func(s *clusterView) {
			s.groups[0].MadeOf = nodes(1, 2, 3)
			s.kill(1)
		}, place: &GroupDocument{Replicas: nodes(1, 2, 3)}},
		"drains, nowhere to go":    {s: viewOf(3, states("aad"), nodes(1, 2, 3)), says: "node 3 is draining, and there is no node to take its place"},
		"drains, waits":            {s: viewOf(3, states("aada"), nodes(1, 2, 3)), says: "waits for its turn"},
		"removed, nowhere to go":   {s: viewOf(3, states("aar"), nodes(1, 2, 3)), says: "node 3 is removed, and there is no node"},
		"too few replicas":         {s: viewOf(3, states("aa"), nodes(1, 2)), says: "has 2 of 3 replicas, and there is no node"},
		"too few replicas, waits":  {s: viewOf(3, states("aaa"), nodes(1, 2)), says: "waits for its turn"},
		"a node that doesn't come": {s: viewOf(3, states("aaa"), nodes(1, 2, 3)), change: func(s *clusterView) { s.kill(3) }, says: "node 3 does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.s)
			}
			d := c.s.nextStep(&c.s.groups[0])
			require.Equal(t, c.place, d.place)
			if c.verb == 0 {
				require.Nil(t, d.step, "%v", d.step)
			} else {
				require.Equal(t, []any{c.verb, c.node, uint32(1)}, []any{d.step.Verb, d.step.Node, d.step.Group})
				require.Equal(t, c.s.groups[0].members, d.step.Members)
			}
			require.Contains(t, d.doing+d.problem, c.says)
			require.Equal(t, c.nothing, d == decision{})
		})
	}
}

// movesOf is the moves as text: group, replicas, who leaves.
func movesOf(s *clusterView, limit int) (list []string) {
	for _, m := range s.nextMoves(limit) {
		list = append(list, fmt.Sprintf("%d: %v %v", m.group, m.place.Replicas, m.place.Leaving))
	}
	return list
}

func TestNextMoves(t *testing.T) {
	full := func(list string) *clusterView {
		return viewOf(3, states(list), nodes(1, 2, 3), nodes(1, 2, 3), nodes(1, 2, 3), nodes(1, 2, 3))
	}
	require.Empty(t, movesOf(full("aaa"), 2))
	require.Equal(t, []string{"1: [1 2 4] [3]", "2: [1 3 4] [2]"}, movesOf(full("aaaa"), 2), "a new node gets its share, two groups at a time")
	require.Len(t, movesOf(full("aaaa"), 9), 3, "and no more than its share")
	require.Equal(t, []string{"1: [1 2 4] [3]", "2: [1 2 4] [3]", "3: [1 2 4] [3]"}, movesOf(full("aada"), 3))
	require.Equal(t, []string{"1: [1 2 4] [3]"}, movesOf(full("aara"), 1))
	require.Empty(t, movesOf(full("aaaj"), 2), "who joins gets nothing yet")
	require.Empty(t, movesOf(full("aaaD"), 2))

	s := full("aaaa")
	s.kill(4)
	require.Empty(t, movesOf(s, 2), "nor does who is dead")
	s = full("aaaa")
	s.kill(2)
	require.Empty(t, movesOf(s, 2), "with a replica dead, numbers are not made even")
	s = full("aada")
	s.kill(2)
	require.Len(t, movesOf(s, 2), 2, "but nodes are drained")

	s = full("aaaa") // a move is on its way
	s.groups[3].Replicas, s.groups[3].Leaving = nodes(1, 2, 4), nodes(3)
	require.Equal(t, []string{"1: [1 3 4] [2]"}, movesOf(s, 2))
	require.Empty(t, movesOf(s, 1))
	s.nodes[5] = nodeView{NodeDocument: NodeDocument{State: Active, Disk: "d"}, here: true, alive: true}
	s.kill(4)
	require.Equal(t, []string{"1: [1 3 5] [2]"}, movesOf(s, 1), "what waits for a node doesn't count")
	d := s.nodes[4]
	d.lost = true
	s.nodes[4] = d
	require.Equal(t, "4: [1 2 3] [4]", movesOf(s, 1)[0], "and in the end stays where it was")

	s = viewOf(3, states("aadra"), nodes(1, 2, 3), nodes(1, 2, 4), nodes(1, 2))
	require.Equal(t, []string{"2: [1 2 5] [4]", "3: [1 2 5] []", "1: [1 2 5] [3]"}, movesOf(s, 9), "first what is gone, then what is missing, then what drains")

	s = full("aadaa") // its new node is removed in the middle, although it votes; the old one drains
	g := &s.groups[0]
	g.Replicas, g.Leaving, g.members = nodes(1, 2, 4), nodes(3), append(g.members, quorum.Member{Node: 4, Voter: true})
	d = s.nodes[4]
	d.State = Removed
	s.nodes[4] = d
	require.Equal(t, "1: [1 2 5] [3 4]", movesOf(s, 1)[0])
	d = s.nodes[3]
	d.State = Active
	s.nodes[3] = d
	require.Equal(t, "1: [1 2 3] [4]", movesOf(s, 1)[0], "who votes and may stay after all stays")

	s = full("aaaa")
	s.groups[0].leader = 0
	require.Equal(t, []string{"2: [1 2 4] [3]", "3: [1 3 4] [2]"}, movesOf(s, 2), "without a leader nothing can be moved")
}

func TestControlStep(t *testing.T) {
	for name, c := range map[string]struct {
		states string
		voters []quorum.Node // the first one leads
		others []quorum.Node // learners
		dead   []quorum.Node
		change func(*clusterView)
		verb   Verb
		node   quorum.Node
		says   string
	}{
		"three":                 {states: "aaa", voters: nodes(1, 2, 3)},
		"a fourth comes":        {states: "aaaj", voters: nodes(1, 2, 3), change: func(s *clusterView) { s.control.open[4] = true }, verb: AddLearner, node: 4},
		"a fourth isn't open":   {states: "aaaj", voters: nodes(1, 2, 3)},
		"four":                  {states: "aaaa", voters: nodes(1, 2, 3), others: nodes(4)},
		"five":                  {states: "aaaaa", voters: nodes(1, 2, 3), others: nodes(4, 5), verb: AddVoter, node: 4},
		"five, one lags":        {states: "aaaaa", voters: nodes(1, 2, 3), others: nodes(4, 5), change: func(s *clusterView) { delete(s.control.fresh, 4) }, verb: AddVoter, node: 5},
		"five, both lag":        {states: "aaaaa", voters: nodes(1, 2, 3), others: nodes(4, 5), change: func(s *clusterView) { clear(s.control.fresh) }, says: "node 4 catches up"},
		"five, one joins":       {states: "aaaaj", voters: nodes(1, 2, 3), others: nodes(4, 5)},
		"seven":                 {states: "aaaaaaa", voters: nodes(1, 2, 3, 4, 5), others: nodes(6, 7)},
		"made of four":          {states: "aaaa", voters: nodes(1, 2, 3, 4), verb: Demote, node: 4},
		"made of four, 4 leads": {states: "aaaa", voters: nodes(4, 1, 2, 3), verb: Demote, node: 3},
		"made of four, 2 dead":  {states: "aaaa", voters: nodes(1, 2, 3, 4), dead: nodes(2), verb: Demote, node: 2},
		"a voter drains":        {states: "aada", voters: nodes(1, 2, 3), others: nodes(4), verb: AddVoter, node: 4},
		"its successor votes":   {states: "aada", voters: nodes(1, 2, 3, 4), verb: Demote, node: 3},
		"and it leads":          {states: "aada", voters: nodes(3, 1, 2, 4), verb: Transfer, node: 1},
		"nobody to succeed it":  {states: "aad", voters: nodes(1, 2, 3)},
		"but to lead":           {states: "aad", voters: nodes(3, 1, 2), verb: Transfer, node: 1},
		"a voter is gone":       {states: "aara", voters: nodes(1, 2, 3), others: nodes(4), dead: nodes(3), verb: AddVoter, node: 4},
		"and replaced":          {states: "aara", voters: nodes(1, 2, 3, 4), dead: nodes(3), verb: Demote, node: 3},
		"and has no vote":       {states: "aara", voters: nodes(1, 2, 4), others: nodes(3), dead: nodes(3), verb: Remove, node: 3},
		"not replaced":          {states: "aar", voters: nodes(1, 2, 3), dead: nodes(3), verb: Demote, node: 3},
		"removed with groups": {states: "aara", voters: nodes(1, 2, 4), others: nodes(3), change: func(s *clusterView) {
			s.groups = []groupView{groupOn(1, 1, 2, 3)}
		}},
		"removed with groups, comes back": {states: "aar", voters: nodes(1, 2), change: func(s *clusterView) {
			s.groups = []groupView{groupOn(1, 1, 2, 3)}
			s.control.open[3] = true
		}, verb: AddLearner, node: 3},
		"removed without groups": {states: "aar", voters: nodes(1, 2), change: func(s *clusterView) { s.control.open[3] = true }},
		"removed, leads":         {states: "aara", voters: nodes(3, 1, 2, 4), verb: Transfer, node: 1},
		"dead ones are kept":     {states: "aaa", voters: nodes(1, 2, 3), dead: nodes(3), says: "node 3 does not answer"},
		"too few for a new vote": {states: "aaaaa", voters: nodes(1, 2, 3), others: nodes(4, 5), dead: nodes(2, 3), says: "catches up"},
		"too few to let go":      {states: "aadaaa", voters: nodes(1, 2, 3, 4, 5, 6), dead: nodes(2, 4, 5), says: "too few voters answer to go on without node 3"},
		"its leader is cut off":  {states: "aaa", voters: nodes(1, 2, 3), change: func(s *clusterView) { s.stepAside([][2]quorum.Node{{1, 2}}) }, verb: Transfer, node: 3},
		"another one is cut off": {states: "aaa", voters: nodes(3, 1, 2), change: func(s *clusterView) { s.stepAside([][2]quorum.Node{{1, 2}}) }},
		"all are cut off":        {states: "aaaa", voters: nodes(1, 2, 3), others: nodes(4), change: func(s *clusterView) { s.stepAside([][2]quorum.Node{{1, 4}, {2, 4}, {3, 4}}) }},
		"no leader":              {states: "aaa", voters: nodes(1, 2, 3), change: func(s *clusterView) { s.control.leader = 0 }, says: "has no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			s := viewOf(3, states(c.states))
			s.control = groupOn(0, c.voters...)
			s.control.GroupDocument = GroupDocument{}
			for _, n := range c.others {
				s.control.members = append(s.control.members, quorum.Member{Node: n})
				s.control.open[n], s.control.fresh[n] = true, true
			}
			s.kill(c.dead...)
			if c.change != nil {
				c.change(s)
			}
			d := s.controlStep()
			if c.verb == 0 {
				require.Nil(t, d.step, "%v", d.step)
			} else {
				require.NotNil(t, d.step, d.doing+d.problem)
				require.Equal(t, fmt.Sprint(c.verb, c.node), fmt.Sprint(d.step.Verb, d.step.Node))
			}
			require.Contains(t, d.doing+d.problem, c.says)
		})
	}
}

func TestNextTransfer(t *testing.T) {
	s := viewOf(3, states("aaa"), nodes(1, 2, 3), nodes(1, 2, 3), nodes(2, 1, 3), nodes(3, 1, 2))
	require.Nil(t, s.nextTransfer(), "2, 1 and 1 are even")
	s.groups[2].leader = 1
	step := s.nextTransfer()
	require.Equal(t, []any{Transfer, quorum.Node(2), uint32(1)}, []any{step.Verb, step.Node, step.Group})
	require.Equal(t, 3, s.unevenLeads())
	for what, change := range map[string]func(*clusterView){
		"who has just come takes no part": func(s *clusterView) { d := s.nodes[2]; d.settled = false; s.nodes[2] = d },
		"nor does who drains":             func(s *clusterView) { d := s.nodes[2]; d.State = Draining; s.nodes[2] = d },
		"nor who is dead":                 func(s *clusterView) { s.kill(2) },
		"nor who lags": func(s *clusterView) {
			delete(s.groups[0].fresh, 2)
			delete(s.groups[1].fresh, 2)
			delete(s.groups[2].fresh, 2)
		},
	} {
		s := viewOf(3, states("aaa"), nodes(1, 2, 3), nodes(1, 2, 3), nodes(1, 2, 3), nodes(3, 1, 2))
		change(s)
		if step := s.nextTransfer(); step != nil {
			require.Equal(t, quorum.Node(3), step.Node, what)
		}
	}
	// Node 3 leads nothing and shares no group with node 1, which leads three, so node 2 passes one on.
	s = viewOf(2, states("aaa"), nodes(1, 2), nodes(1, 2), nodes(1, 2), nodes(2, 3), nodes(2, 3))
	var steps []string
	for step := s.nextTransfer(); step != nil && len(steps) < 10; step = s.nextTransfer() {
		steps = append(steps, fmt.Sprintf("%d to %d", step.Group, step.Node))
		s.groups[step.Group-1].leader = step.Node
	}
	require.Equal(t, []string{"1 to 2", "4 to 3"}, steps)
	s.groups[0].Leaving = nodes(3)
	s.groups[0].leader = 1
	s.groups[3].leader = 2
	require.NotEqual(t, uint32(1), s.nextTransfer().Group, "what is being moved is left alone")
}

func TestHandOffs(t *testing.T) {
	s := viewOf(3, states("daar"), nodes(1, 2, 3), nodes(1, 2, 3), nodes(4, 2, 3), nodes(2, 1, 3))
	var list []string
	for _, step := range s.handOffs(nil) {
		list = append(list, fmt.Sprintf("%d to %d", step.Group, step.Node))
	}
	require.Equal(t, []string{"1 to 3", "3 to 2"}, list, "one of each node that is to lead nothing any more, to who leads fewest by then")
	s = viewOf(3, states("dda"), nodes(1, 2))
	require.Empty(t, s.handOffs(nil), "not to one that drains itself")

	s = viewOf(3, states("daaa"), nodes(1, 3), nodes(2, 3), nodes(2, 4))
	full := s.nodes[2]
	full.full = true
	s.nodes[2] = full
	require.Len(t, s.handOffs(nil), 3)
	list = nil
	for _, step := range s.handOffs([]*Step{{Group: 2}}) {
		list = append(list, fmt.Sprintf("%d to %d", step.Group, step.Node))
	}
	require.Equal(t, []string{"3 to 4"}, list, "who drains waits for other steps, who is full for none of other groups")
}

// Who has the most cuts steps aside, then who leads least, until no cut is left between those that lead; both nodes when
// there is just one cut.
func TestStepAside(t *testing.T) {
	for want, cuts := range map[string][][2]quorum.Node{
		"":     nil,
		"1, 3": {{1, 3}},
		"1, 4": {{1, 2}, {4, 5}},
		"2":    {{1, 2}, {2, 3}},
		"2, 3": {{1, 2}, {2, 4}, {2, 5}, {3, 4}},
	} {
		s := viewOf(3, states("aaaaa"), nodes(1, 2, 3), nodes(2, 1, 3), nodes(2, 1, 3), nodes(4, 5, 3), nodes(5, 1, 2))
		s.stepAside(slices.Clone(cuts))
		var aside []string
		for _, n := range s.numbers() {
			if s.nodes[n].aside {
				aside = append(aside, fmt.Sprint(n))
			}
			require.Equal(t, slices.ContainsFunc(cuts, func(p [2]quorum.Node) bool { return p[0] == n || p[1] == n }), s.nodes[n].cut, "node %d", n)
		}
		require.Equal(t, want, strings.Join(aside, ", "))
	}
}

// A replica is fresh when it is as far as the same leader was at the previous probe, in the same term.
func TestFreshness(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	o := newWorld(t, 1).operator(3, 1)
	require.NoError(t, o.Documents.Apply("cluster/group/1", []byte(`{"replicas":[1,2]}`)))
	m := newMemory(now)
	at := func(leader quorum.Node, term, leaderIndex, leaderApplied, index, applied uint64) bool {
		now = now.Add(time.Second)
		d, _ := o.Documents.Get()
		l := &probe{at: now, directory: d, reports: map[quorum.Node]*Report{}}
		for n := quorum.Node(1); n <= 2; n++ {
			r := ReplicaReport{Status: quorum.Status{Group: 1, Role: quorum.Follower, Leader: leader, Term: term, LastIndex: index}, Applied: applied}
			if n == leader {
				r = ReplicaReport{Status: quorum.Status{Group: 1, Role: quorum.Leader, Leader: leader, Term: term, LastIndex: leaderIndex, CommitIndex: leaderIndex}, Applied: leaderApplied}
			}
			l.reports[n] = &Report{Node: n, Replicas: []ReplicaReport{r}}
		}
		return o.view(l, m).groups[0].fresh[3-leader]
	}
	require.False(t, at(1, 5, 100, 99, 100, 99), "at the first probe nobody knows")
	require.True(t, at(1, 5, 200, 199, 100, 99), "as far as the leader was then; its last entry need not be a record")
	require.False(t, at(1, 5, 300, 299, 199, 199), "the log is shorter")
	require.False(t, at(1, 5, 300, 299, 300, 298), "the effects are behind")
	require.False(t, at(1, 6, 300, 299, 300, 299), "another term")
	require.True(t, at(1, 6, 300, 299, 300, 299))
	require.False(t, at(2, 6, 300, 299, 300, 299), "another leader")
	require.True(t, at(2, 6, 300, 299, 300, 299))
}

// Of two leaders, the one of the later term is believed.
func TestTwoLeaders(t *testing.T) {
	l := &probe{reports: map[quorum.Node]*Report{}}
	for n := quorum.Node(1); n <= 3; n++ {
		s := quorum.Status{Group: 1, Role: quorum.Leader, Leader: n, Term: []uint64{0, 5, 7, 6}[n]}
		l.reports[n] = &Report{Node: n, Replicas: []ReplicaReport{{Status: s}}}
	}
	leader, latest := l.of(1)
	require.Equal(t, quorum.Node(2), leader.Leader)
	require.Equal(t, uint64(7), latest.Term)
	leader, latest = l.of(2)
	require.True(t, leader == nil && latest == nil)
}

// The lag that is shown of a group is that of the member that lags most behind its leader.
func TestLag(t *testing.T) {
	p := newPlay(t, 1, 3, 1, 1, 2, 3)
	report := func(role quorum.Role, index, applied uint64) *Report {
		s := quorum.Status{Group: 1, Role: role, Term: 5, LastIndex: index}
		for n := quorum.Node(1); n <= 3; n++ {
			s.Members = append(s.Members, quorum.Member{Node: n, Voter: true})
		}
		return &Report{Replicas: []ReplicaReport{{Status: s, Applied: applied}}}
	}
	l := &probe{directory: p.directory(), reports: map[quorum.Node]*Report{
		1: report(quorum.Leader, 100, 90), 2: report(quorum.Follower, 80, 85), 3: report(quorum.Follower, 103, 60),
		4: report(quorum.Gone, 0, 0), // has a replica that the group doesn't know of yet
	}}
	shown := func() [2]float64 {
		s := &clusterView{groups: []groupView{l.group(1, GroupDocument{}, nil, map[uint32]sample{})}}
		p.r.notice(l, s)
		return [2]float64{p.r.gauge(`millrace_cluster_commit_lag{group="1"}`).Get(), p.r.gauge(`millrace_cluster_apply_lag{group="1"}`).Get()}
	}
	require.Equal(t, [2]float64{20, 30}, shown())
	delete(l.reports, 2)
	require.Equal(t, [2]float64{0, 30}, shown(), "who doesn't answer is counted elsewhere")
	delete(l.reports, 1)
	require.Equal(t, [2]float64{0, 0}, shown(), "nobody leads")
}

// A group of two is not left to one node that can't decide alone, even before anybody has noticed that the other node
// is dead.
func TestRemoveOneOfTwo(t *testing.T) {
	p := newPlay(t, 7, 2, 4, 1, 2)
	p.until(60)
	p.world.nodes[2].alive = false // the leaders go on until their lease ends
	err := p.Remove(context.Background(), 2, true, entryOf)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "has no majority")
}

// The status of a group that moves lists who has a replica or shall have one. A node that has left is not among them,
// although the move isn't over: it would look like one that comes.
func TestStatusOfWhoHasLeft(t *testing.T) {
	g := &groupView{group: 1}
	g.Replicas, g.Leaving = nodes(1, 2, 4), nodes(3)
	roles := func() (list []string) {
		for _, r := range new(probe).groupStatus(g, decision{}).Replicas {
			list = append(list, fmt.Sprint(r.Node, " ", r.Role, " ", r.Leaving))
		}
		return list
	}
	for _, n := range nodes(1, 2, 3) {
		g.members = append(g.members, quorum.Member{Node: n, Voter: true})
	}
	require.Equal(t, []string{"1 voter false", "2 voter false", "3 voter true", "4 coming false"}, roles())
	g.members[2].Node = 4
	require.Equal(t, []string{"1 voter false", "2 voter false", "4 voter false"}, roles())
	g.members = nil // nobody answers
	require.Equal(t, []string{"1 coming false", "2 coming false", "3 coming true", "4 coming false"}, roles())
}
