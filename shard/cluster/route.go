package cluster

import (
	"sync/atomic"
	"time"

	"millrace/shard/cluster/placement"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// routes says which node leads each group, as far as is known here: from the own replicas, from what others say
// (ping), and from who refused.
type routes struct {
	self quorum.Node
	// leaders by group: term, 40 bits, and node, 24 bits. What is known of a later term counts; within a term there is
	// one leader.
	leaders []atomic.Uint64
	// groupOf a partition is its user group.
	groupOf [identity.Partitions]uint32
	// missing is since when no leader of a group is reached, Unix ns, as far as anybody has looked; 0: one is. looked
	// is when the own replica was asked last.
	missing, looked []atomic.Int64
}

const (
	controlGroup = 0
	nodeBits     = 24
	nodeMask     = 1<<nodeBits - 1
)

// newRoutes shares the partitions out among so many user groups, which are numbered from 1 on.
func newRoutes(self quorum.Node, groups int) *routes {
	r := &routes{self: self, leaders: make([]atomic.Uint64, groups+1), missing: make([]atomic.Int64, groups+1),
		looked: make([]atomic.Int64, groups+1)}
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
	for now := r.leaders[group].Load(); hint>>nodeBits > now>>nodeBits || hint>>nodeBits == now>>nodeBits &&
		now&nodeMask == 0; now = r.leaders[group].Load() {
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
func (r *routes) learn(report *placement.Report) {
	for i := range report.Replicas {
		s := &report.Replicas[i].Status
		if int(s.Group) >= len(r.leaders) {
			continue
		}
		if s.Leader != 0 {
			r.set(s.Group, s.Term, s.Leader)
		}
		if s.Role != quorum.Leader && r.leader(s.Group) == report.Node &&
			r.leaders[s.Group].Load()>>nodeBits <= s.Term {
			r.resign(s.Group, report.Node)
		}
	}
}

// reachable is the leader of a group, when this node reaches it now; else 0.
func (n *Node) reachable(group uint32) quorum.Node {
	r := n.routes
	leader := r.leader(group)
	if leader != 0 && (leader == n.self || n.remote(leader).up.Load()) {
		if r.missing[group].Load() != 0 {
			r.missing[group].Store(0)
		}
		return leader
	}
	r.resign(group, leader) // who can't be asked can't say that it leads no more: whoever knows another one is believed
	r.missing[group].CompareAndSwap(0, time.Now().UnixNano())
	return 0
}

// await is reachable, after a wait for an election that is under way. ErrUnavailable: there is none until the deadline,
// or the node is closing. When others have waited for long in vain, it doesn't wait: what can't be served must not pile
// up.
func (n *Node) await(group uint32, deadline time.Time) (quorum.Node, error) {
	return n.awaitLeader(group, deadline, false)
}

// awaitLeader is await; who is patient waits in any case.
func (n *Node) awaitLeader(group uint32, deadline time.Time, patient bool) (quorum.Node, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		if leader := n.reachable(group); leader != 0 {
			return leader, nil
		}
		now := time.Now()
		if last := n.routes.looked[group].Load(); now.UnixNano()-last > int64(lookInterval) &&
			n.routes.looked[group].CompareAndSwap(last, now.UnixNano()) {
			n.lookAt(group)
			if leader := n.reachable(group); leader != 0 {
				return leader, nil
			}
		}
		left := deadline.Sub(now)
		missing := n.routes.missing[group].Load()
		if left <= 0 || !patient && missing != 0 && now.UnixNano()-missing > int64(hopelessAfter*n.opts.LeaderWait) {
			return 0, replica.ErrUnavailable
		}
		select {
		case <-time.After(min(pause, left)):
		case <-n.stop:
			return 0, replica.ErrUnavailable
		}
	}
}

const (
	maxRoutePause = 50 * time.Millisecond
	lookInterval  = 2 * time.Millisecond // between two looks at a replica, however many wait
	hopelessAfter = 2                    // times LeaderWait
)

// lookAt takes in what the own replica of a group knows.
func (n *Node) lookAt(group uint32) {
	if g := n.group(group); g != nil {
		s := g.log.Status()
		n.routes.see(&s)
	}
}

// watch keeps the routes up to date, until the node is closed.
func (n *Node) watch() {
	tick := time.NewTicker(n.opts.PingInterval)
	defer tick.Stop()
	for {
		for g := range n.routes.leaders {
			n.lookAt(uint32(g))
			n.reachable(uint32(g)) // so that it is known since when none is
		}
		select {
		case <-tick.C:
		case <-n.stop:
			return
		}
	}
}
