package placement

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"millrace/wal/quorum"
)

// Status is the state of the cluster as this node knows it.
type Status struct {
	Cluster  string        `json:"cluster"`
	Node     quorum.Node   `json:"node"` // the node that answers
	Time     time.Time     `json:"time"` // the node's clock
	Replicas int           `json:"replicas"`
	Control  GroupStatus   `json:"control"`
	Nodes    []NodeStatus  `json:"nodes"`
	Groups   []GroupStatus `json:"groups"`
}

// NodeStatus is a node as an operator sees it.
type NodeStatus struct {
	Node    quorum.Node `json:"node"`
	State   NodeState   `json:"state"`
	Address string      `json:"address"` // for other nodes
	API     string      `json:"api,omitempty"`
	Admin   string      `json:"admin,omitempty"`
	Program string      `json:"version,omitempty"`
	Alive   bool        `json:"alive"` // the node has answered
	Seen    time.Time   `json:"seen,omitzero"`
	Started time.Time   `json:"started,omitzero"`
	Leads   int         `json:"leads"` // user groups
	Holds   int         `json:"holds"`
	Problem string      `json:"problem,omitempty"`
}

// GroupStatus is a group as its leader sees it, or else as far as any node does.
type GroupStatus struct {
	Group    uint32          `json:"group"`
	First    int             `json:"first"` // first of its partitions
	Count    int             `json:"count"`
	Leader   quorum.Node     `json:"leader,omitempty"`
	Term     uint64          `json:"term"`
	Replicas []ReplicaStatus `json:"replicas"`
	Doing    string          `json:"doing,omitempty"`   // what the reconciler is doing
	Problem  string          `json:"problem,omitempty"` // what keeps the group from being as it should
}

// ReplicaStatus is a member of a group.
type ReplicaStatus struct {
	Node      quorum.Node `json:"node"`
	Role      string      `json:"role"` // leader, voter, learner; coming: not yet in the group
	Voter     bool        `json:"voter"`
	Leaving   bool        `json:"leaving,omitempty"`
	Open      bool        `json:"open"`  // the node has answered, and has the replica
	Index     uint64      `json:"index"` // last entry of its log
	Commit    uint64      `json:"commit"`
	Applied   uint64      `json:"applied"`
	CommitLag uint64      `json:"commit_lag"` // entries that the leader's log has and this one's lacks
	ApplyLag  uint64      `json:"apply_lag"`  // entries that the leader has applied and this replica has not
}

// clockSkewLimit is the skew from which a node's clock is a problem, since times of requests and retention depend on
// it.
const clockSkewLimit = 500 * time.Millisecond

// Status asks all nodes how they are. What a node shall do, it reads from this node's copy of the control documents.
func (o *Operator) Status(ctx context.Context) (Status, error) {
	l := o.probe(ctx, []quorum.Node{o.Self})
	if err := ctx.Err(); err != nil {
		return Status{}, err
	}
	s := o.view(l, newMemory(l.at))
	status := Status{Cluster: o.Cluster, Node: o.Self, Time: l.at, Replicas: o.Replicas, Nodes: []NodeStatus{},
		Groups: []GroupStatus{}}
	status.Control = l.groupStatus(&s.control, s.controlStep())
	for i := range s.groups {
		g := &s.groups[i]
		of := l.groupStatus(g, s.nextStep(g))
		of.First, of.Count = PartitionsOf(g.group, o.Groups)
		status.Groups = append(status.Groups, of)
	}
	leads, loads := s.leads(), s.loads()
	for _, n := range s.numbers() {
		status.Nodes = append(status.Nodes, l.nodeStatus(n, s.nodes[n], leads[n], loads[n]))
	}
	cuts := l.cuts()
	for i := range status.Nodes {
		n, others := &status.Nodes[i], []string(nil)
		for _, p := range cuts {
			if slices.Contains(p[:], n.Node) {
				others = append(others, fmt.Sprint(p[0]+p[1]-n.Node))
			}
		}
		if slices.Sort(others); len(others) > 0 {
			n.Problem = strings.TrimPrefix(n.Problem+", is cut off from node "+strings.Join(others, ", "), ", ")
		}
	}
	return status, nil
}

func (l *probe) nodeStatus(n quorum.Node, d nodeView, leads, holds int) NodeStatus {
	status := NodeStatus{Node: n, State: d.State, Address: d.Address, Leads: leads, Holds: holds}
	for _, report := range l.reports {
		if heard := report.Heard[n]; heard.After(status.Seen) {
			status.Seen = heard
		}
	}
	report := l.reports[n]
	switch {
	case report == nil && d.Member():
		status.Problem = "does not answer"
	case report == nil && d.State == Joining:
		status.Problem = "has not come yet"
	case report == nil:
	case report.Full:
		status.Problem = "has a disk below the floor of free space"
	case report.Hangs:
		status.Problem = "has a disk that does not answer"
	case l.skew[n].Abs() > clockSkewLimit:
		status.Problem = fmt.Sprintf("has a clock that is %s off", l.skew[n].Round(time.Millisecond))
	}
	if report != nil {
		status.Alive, status.Seen = true, l.at
		status.API, status.Admin, status.Program, status.Started = report.API, report.Admin,
			report.Program, report.Started
	}
	return status
}

func (l *probe) groupStatus(g *groupView, next decision) GroupStatus {
	status := GroupStatus{Group: g.group, Leader: g.leader, Doing: next.doing, Problem: next.problem,
		Replicas: []ReplicaStatus{}}
	leader, latest := l.of(g.group)
	if latest != nil {
		status.Term = latest.Term
	}
	if leader != nil {
		status.Term = leader.Term
	}
	for _, n := range g.shown() {
		m, isMember := g.member(n)
		r := ReplicaStatus{Node: n, Role: "learner", Voter: m.Voter, Leaving: slices.Contains(g.Leaving, n)}
		switch {
		case n == g.leader:
			r.Role = "leader"
		case m.Voter:
			r.Role = "voter"
		case !isMember:
			r.Role = "coming"
		}
		if report := l.replica(n, g.group); report != nil {
			r.Open, r.Index, r.Commit, r.Applied = true, report.LastIndex, report.CommitIndex, report.Applied
			if leader != nil {
				r.CommitLag, r.ApplyLag = report.lag(leader)
			}
		}
		status.Replicas = append(status.Replicas, r)
	}
	return status
}

// shown returns the nodes that have a replica of a group or shall have one. A node that was to leave, and has left, has
// none, so those that are to leave count only while nobody says who the members are.
func (g *groupView) shown() []quorum.Node {
	nodes := slices.Clone(g.Replicas)
	for _, m := range g.members {
		nodes = append(nodes, m.Node)
	}
	if len(g.members) == 0 {
		nodes = append(nodes, g.Leaving...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// lag returns how many entries the leader of a group has in its log and this replica lacks, and how many the leader has
// applied and this replica has not. The two nodes have answered one after the other, so under load a replica that keeps
// up may be, or seem, some entries behind.
func (r *ReplicaReport) lag(leader *ReplicaReport) (commit, apply uint64) {
	return leader.LastIndex - min(leader.LastIndex, r.LastIndex), leader.Applied - min(leader.Applied, r.Applied)
}

// lag returns the largest lag of the members that answer; 0 as long as nobody leads.
func (l *probe) lag(g *groupView) (commit, apply uint64) {
	leader, _ := l.of(g.group)
	if leader == nil {
		return 0, 0
	}
	for _, m := range g.members {
		if report := l.replica(m.Node, g.group); report != nil {
			c, a := report.lag(leader)
			commit, apply = max(commit, c), max(apply, a)
		}
	}
	return commit, apply
}
