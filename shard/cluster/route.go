package cluster

import (
	"sync/atomic"
	"time"

	"millrace/shard"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal/quorum"
)

// routes says which node leads each group, as far as is known here: from the own replicas, from what others say (hello), and from who refused.
type routes struct {
	self quorum.Node
	// leaders by group: term, 40 bits, and node, 24 bits. What is known of a later term counts; within a term there is one leader.
	leaders []atomic.Uint64
	// groupOf a partition is its user group.
	groupOf [identity.Partitions]uint32
}

const (
	controlGroup = 0
	nodeBits     = 24
	nodeMask     = 1<<nodeBits - 1
)

// newRoutes shares the partitions out among so many user groups, which are numbered from 1 on.
func newRoutes(self quorum.Node, groups int) *routes {
	r := &routes{self: self, leaders: make([]atomic.Uint64, groups+1)}
	for p := range r.groupOf {
		r.groupOf[p] = uint32(1 + p*groups/identity.Partitions)
	}
	return r
}

// partitions of a group: the control group has one of its own, which no user's data is in.
func (r *routes) partitions(group uint32) (first, count int) {
	if group == controlGroup {
		return 0, 1
	}
	first = -1
	for p, g := range r.groupOf {
		if g == group {
			if first < 0 {
				first = p
			}
			count++
		}
	}
	return max(first, 0), count
}

// of is the group that an op goes to.
func (r *routes) of(o op.Op) int {
	if o.Kind() == op.Document {
		return controlGroup
	}
	return int(r.groupOf[o.Partition()])
}

// leader is who leads a group, 0 when nobody is known to.
func (r *routes) leader(group uint32) quorum.Node {
	return quorum.Node(r.leaders[group].Load() & nodeMask)
}

// set says that node leads (0: nobody does) in this term.
func (r *routes) set(group uint32, term uint64, node quorum.Node) {
	r.put(group, term<<nodeBits|uint64(node))
}

// put is set with what hint has given out somewhere.
func (r *routes) put(group uint32, hint uint64) {
	if int(group) >= len(r.leaders) {
		return
	}
	for now := r.leaders[group].Load(); hint>>nodeBits > now>>nodeBits || hint>>nodeBits == now>>nodeBits && now&nodeMask == 0; now = r.leaders[group].Load() {
		if hint == now || r.leaders[group].CompareAndSwap(now, hint) {
			return
		}
	}
}

// hint is what is known of a group's leader, for others.
func (r *routes) hint(group uint32) uint64 { return r.leaders[group].Load() }

// resign says that node does not lead in the term that it was known to lead in.
func (r *routes) resign(group uint32, node quorum.Node) {
	now := r.leaders[group].Load()
	if quorum.Node(now&nodeMask) == node {
		r.leaders[group].CompareAndSwap(now, now&^nodeMask)
	}
}

// see takes in what a replica knows.
func (r *routes) see(s *quorum.Status) {
	switch {
	case s.Leader != 0:
		r.set(s.Group, s.Term, s.Leader)
	case r.leader(s.Group) == r.self:
		r.resign(s.Group, r.self)
	}
}

// learn takes in what another node says.
func (r *routes) learn(report *Report) {
	for i := range report.Replicas {
		s := &report.Replicas[i].Status
		if int(s.Group) >= len(r.leaders) {
			continue
		}
		if s.Leader != 0 {
			r.set(s.Group, s.Term, s.Leader)
		}
		if s.Role != quorum.Leader && r.leader(s.Group) == report.Node && r.leaders[s.Group].Load()>>nodeBits <= s.Term {
			r.resign(s.Group, report.Node)
		}
	}
}

// reachable is the leader of a group, when this node reaches it now; else 0.
func (n *Node) reachable(group uint32) quorum.Node {
	leader := n.routes.leader(group)
	if leader == 0 || leader == n.self || n.remote(leader).up.Load() {
		return leader
	}
	return 0
}

// await is reachable, after a wait for an election that is under way. ErrUnavailable: there is none until the deadline, or the node is closing.
func (n *Node) await(group uint32, deadline time.Time) (quorum.Node, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		if leader := n.reachable(group); leader != 0 {
			return leader, nil
		}
		n.lookAt(group)
		if leader := n.reachable(group); leader != 0 {
			return leader, nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return 0, shard.ErrUnavailable
		}
		select {
		case <-time.After(min(pause, left)):
		case <-n.stop:
			return 0, shard.ErrUnavailable
		}
	}
}

const maxRoutePause = 50 * time.Millisecond

// lookAt takes in what the own replica of a group knows.
func (n *Node) lookAt(group uint32) {
	if g := n.group(group); g != nil {
		s := g.log.Status()
		n.routes.see(&s)
	}
}

// watch keeps the routes up to date, until the node is closed.
func (n *Node) watch() {
	defer n.background.Done()
	tick := time.NewTicker(n.opts.HelloInterval)
	defer tick.Stop()
	for {
		for g := range n.routes.leaders {
			n.lookAt(uint32(g))
		}
		select {
		case <-tick.C:
		case <-n.stop:
			return
		}
	}
}
