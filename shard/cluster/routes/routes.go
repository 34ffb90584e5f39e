// Package routes says which node leads each group of a cluster, as far as one node knows: from its own replicas, from
// what others report (ping), and from nodes that refused.
package routes

import (
	"sync/atomic"
	"time"

	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// Routes are the routes of one node. Users are in the groups from 1 on.
type Routes struct {
	self quorum.Node
	n    Node
	// leaders has the leader by group: term, 40 bits, and node, 24 bits. Knowledge of a later term wins; within a term
	// there is one leader.
	leaders []atomic.Uint64
	// missing is since when no leader of a group is reached, as far as anybody has looked; 0: one is reached. looked is
	// when this node's own replica was last asked. Both are times of the method now.
	missing, looked []atomic.Int64
	epoch           time.Time
}

// Node is what the routes need from their node.
type Node struct {
	// Reaches says whether another node is reached now.
	Reaches func(quorum.Node) bool
	// Status returns what the node's own replica of a group knows; nil: there is none.
	Status func(group uint32) *quorum.Status
	// LeaderWait is how long requests wait for the leader of a group that has none.
	LeaderWait time.Duration
	Stop       <-chan struct{}
}

const (
	// nodeBits is how many bits of a hint (Hint) hold the leader's number; the term is above them.
	nodeBits = 24
	nodeMask = facts.MaxNode
)

// New returns routes that know no leader yet, for the given number of user groups and the control group.
func New(self quorum.Node, groups int, n Node) *Routes {
	return &Routes{self: self, n: n, leaders: make([]atomic.Uint64, groups+1),
		missing: make([]atomic.Int64, groups+1), looked: make([]atomic.Int64, groups+1),
		epoch: time.Now().Add(-time.Hour)}
}

// now is the time in ns by a clock that isn't set back, unlike the system's. 0 is long ago.
func (r *Routes) now() int64 { return int64(time.Since(r.epoch)) }

// Has reports whether there is such a group.
func (r *Routes) Has(group uint32) bool { return int(group) < len(r.leaders) }

// GroupOf returns the user group of a partition.
func (r *Routes) GroupOf(partition uint8) uint32 {
	return uint32(placement.GroupOf(partition, len(r.leaders)-1))
}

// Leader returns the leader of a group; 0 when none is known.
func (r *Routes) Leader(group uint32) quorum.Node {
	leader, _ := Leads(r.Hint(group))
	return leader
}

// Leads decodes a hint into the leader, 0 when none is known, and the term.
func Leads(hint uint64) (quorum.Node, uint64) { return quorum.Node(hint & nodeMask), hint >> nodeBits }

// set records that node leads in this term; 0: nobody does.
func (r *Routes) set(group uint32, term uint64, node quorum.Node) {
	r.Put(group, term<<nodeBits|uint64(node))
}

// Put takes in a hint that Hint has given out somewhere.
func (r *Routes) Put(group uint32, hint uint64) {
	if !r.Has(group) {
		return
	}
	for now := r.leaders[group].Load(); hint>>nodeBits > now>>nodeBits || hint>>nodeBits == now>>nodeBits &&
		now&nodeMask == 0; now = r.leaders[group].Load() {
		if hint == now || r.leaders[group].CompareAndSwap(now, hint) {
			return
		}
	}
}

// Hint returns what is known of a group's leader, for other nodes.
func (r *Routes) Hint(group uint32) uint64 { return r.leaders[group].Load() }

// Resign records that node does not lead in the term in which it was known to lead.
func (r *Routes) Resign(group uint32, node quorum.Node) {
	now := r.leaders[group].Load()
	if quorum.Node(now&nodeMask) == node {
		r.leaders[group].CompareAndSwap(now, now&^nodeMask)
	}
}

// see takes in what the node's own replica knows.
func (r *Routes) see(s *quorum.Status) {
	switch {
	case s.Leader != 0:
		r.set(s.Group, s.Term, s.Leader)
	case r.Leader(s.Group) == r.self:
		r.Resign(s.Group, r.self)
	}
}

// Learn takes in the report of another node.
func (r *Routes) Learn(report *placement.Report) {
	for i := range report.Replicas {
		s := &report.Replicas[i].Status
		if !r.Has(s.Group) {
			continue
		}
		if s.Leader != 0 {
			r.set(s.Group, s.Term, s.Leader)
		}
		if s.Role != quorum.Leader && r.Leader(s.Group) == report.Node &&
			r.leaders[s.Group].Load()>>nodeBits <= s.Term {
			r.Resign(s.Group, report.Node)
		}
	}
}

// Reachable returns the leader of a group if this node reaches it now; else 0.
func (r *Routes) Reachable(group uint32) quorum.Node {
	leader := r.Leader(group)
	if leader != 0 && (leader == r.self || r.n.Reaches(leader)) {
		if r.missing[group].Load() != 0 {
			r.missing[group].Store(0)
		}
		return leader
	}
	r.Resign(group, leader) // it can't say that it no longer leads: whoever knows another leader is believed
	r.missing[group].CompareAndSwap(0, r.now())
	return 0
}

// Await is Reachable after a wait for an election that is under way. It returns ErrUnavailable when there is no leader
// until the deadline, or the node is closing. When others have already waited for long in vain, it doesn't wait, unless
// the caller is patient: requests that can't be served must not pile up.
func (r *Routes) Await(group uint32, deadline time.Time, patient bool) (quorum.Node, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, MaxPause) {
		if leader := r.Reachable(group); leader != 0 {
			return leader, nil
		}
		now := r.now()
		if last := r.looked[group].Load(); now-last > int64(lookInterval) && r.looked[group].CompareAndSwap(last, now) {
			r.LookAt(group)
			if leader := r.Reachable(group); leader != 0 {
				return leader, nil
			}
		}
		left := time.Until(deadline)
		missing := r.missing[group].Load()
		if left <= 0 || !patient && missing != 0 && now-missing > int64(hopelessAfter*r.n.LeaderWait) {
			return 0, replica.ErrUnavailable
		}
		select {
		case <-time.After(min(pause, left)):
		case <-r.n.Stop:
			return 0, replica.ErrUnavailable
		}
	}
}

// Soon is Await for LeaderWait, and at most until deadline if there is one.
func (r *Routes) Soon(group uint32, deadline time.Time) (quorum.Node, error) {
	if wait := time.Now().Add(r.n.LeaderWait); deadline.IsZero() || wait.Before(deadline) {
		deadline = wait
	}
	return r.Await(group, deadline, false)
}

const (
	// MaxPause is the longest pause between two looks for a leader, and for other things that other nodes are about to
	// do.
	MaxPause      = 50 * time.Millisecond
	lookInterval  = 2 * time.Millisecond // between two looks at a replica, however many callers wait
	hopelessAfter = 2                    // times LeaderWait
)

// LookAt takes in what the node's own replica of a group knows.
func (r *Routes) LookAt(group uint32) {
	if s := r.n.Status(group); s != nil {
		r.see(s)
	}
}

// Watch keeps the routes up to date, until the node is closed.
func (r *Routes) Watch(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		for g := range r.leaders {
			r.LookAt(uint32(g))
			r.Reachable(uint32(g)) // so that it is known since when there is no leader
		}
		select {
		case <-tick.C:
		case <-r.n.Stop:
			return
		}
	}
}
