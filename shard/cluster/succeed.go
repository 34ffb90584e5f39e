package cluster

import (
	"math"
	"slices"
	"sync"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// The groups that a node led need other leaders when it is no longer reached. Raft's timers see to that, each by
// itself, and a follower that still waits refuses its vote, so an election takes one to two timeouts more. Here
// followers tell one another: when a majority of a group's voters doesn't reach the leader, the one of them with most
// of the log stands for election at once. The same happens in groups that have had no leader since their nodes were
// started, where nobody need be waited for: there the lost leader is node 0, and a node that asks doesn't lead,
// whatever others believe. If all that fails, the timers go on.
//
//	body    node u32, for each group: group u32, term u64
//	answer  whether the node is reached u8, then for each group: index of the last entry u64; 0: there is no voter here;
//	        led: somebody else leads the group

const (
	succeedPause = 50 * time.Millisecond
	succeedAsk   = 250 * time.Millisecond // how long to wait for an answer
	led          = math.MaxUint64
)

// seekLeaders starts findLeaders, unless it already runs.
func (n *Node) seekLeaders() {
	if !n.leaderless.Swap(true) && !n.background.start(n.findLeaders) {
		n.leaderless.Store(false)
	}
}

// findLeaders makes nodes stand for election in groups without a leader.
func (n *Node) findLeaders() {
	defer n.leaderless.Store(false)
	n.stand(0, max(n.opts.PingTimeout, n.opts.Quorum.HeartbeatTimeout), func() bool { return true })
}

// succeed makes other nodes lead the groups of this one, as long as it is not reached.
func (r *remote) succeed() {
	defer r.succeeding.Store(false)
	r.n.stand(r.Node, r.n.opts.PingTimeout, func() bool { return !r.Up() })
}

// stand seeks leaders for the groups of a lost leader, while it is lost. By the time stand gives up, the timers have
// run.
func (n *Node) stand(lost quorum.Node, timer time.Duration, isLost func() bool) {
	for end := time.Now().Add(2 * timer); isLost() && time.Now().Before(end); {
		groups := n.followed(lost)
		if len(groups) == 0 {
			return
		}
		n.standFor(lost, groups)
		if pause.For(n.context, succeedPause) != nil {
			return
		}
	}
}

// followed returns the groups that a node leads, as far as this node knows, and in which this node has a vote.
func (n *Node) followed(leader quorum.Node) (groups []*group) {
	for g := range n.groups() {
		if g.leader() == leader && g.log.Votes() {
			groups = append(groups, g)
		}
	}
	return groups
}

// standFor stands for election in those of a lost leader's groups in which it is this node's turn.
func (n *Node) standFor(lost quorum.Node, groups []*group) {
	var mu sync.Mutex
	indexes := make([]map[quorum.Node]uint64, len(groups)) // of voters that don't reach the leader either
	body := calls.NewBody(4 + 12*len(groups)).U32(uint32(lost))
	for i, g := range groups {
		indexes[i] = map[quorum.Node]uint64{n.self: g.log.Status().LastIndex}
		body = body.U32(g.id).U64(g.log.Term())
	}
	n.askAll(func(r *remote) error { // no answer means no agreement
		end := time.Now().Add(succeedAsk)
		return r.Post(calls.Services, callLost, slices.Clone(body), end, func(x *calls.Reader) error {
			if x.Bool() {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range groups {
				if index := x.U64(); index > 0 {
					indexes[i][r.Node] = index
				}
			}
			return nil
		})
	})
	for i, g := range groups {
		if g.leader() == lost && n.isNext(g.log.Status().Members, indexes[i]) && g.log.Stand() {
			n.log.Info("this node stands for election: a majority can't reach a leader",
				"group", g.id, "leader", lost)
		}
	}
}

// isNext reports whether the voters that don't reach the leader are a majority, none of them is to stand in preference
// to this node, and none knows of another leader.
func (n *Node) isNext(members []quorum.Member, indexes map[quorum.Node]uint64) bool {
	voters, agree := 0, 0
	mine := indexes[n.self]
	for _, m := range members {
		if !m.Voter {
			continue
		}
		voters++
		index, agrees := indexes[m.Node]
		if !agrees {
			continue
		}
		agree++
		if index == led || index > mine || index == mine && m.Node < n.self {
			return false
		}
	}
	return 2*agree > voters
}

func (n *Node) serveLost(conn *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	lost := quorum.Node(x.U32())
	if x.Bad || lost == n.self {
		return dst, replica.ErrUnavailable
	}
	if lost != 0 {
		r, known := n.remotes.Load(lost)
		if reached := known && r.Up(); reached || !known {
			return append(dst, 1), nil
		}
	}
	dst = append(dst, 0)
	for len(x.Rest) > 0 {
		group, term := x.U32(), x.U64()
		if g := n.group(group); lost == 0 && g != nil && g.disown(conn.Node, term) {
			n.seekLeaders()
		}
		dst = dst.U64(n.voterIndex(group, lost))
	}
	return dst, x.Err()
}

// disown takes a node at its word that it doesn't lead in a term. It reports whether this node had believed that it
// did.
func (g *group) disown(node quorum.Node, term uint64) bool {
	if g.leader() != node || g.log.Term() != term {
		return false
	}
	g.disowned.Store(&disowned{node, term})
	return true
}

// leader returns the leader of the group; 0 when none is known.
func (g *group) leader() quorum.Node {
	leader := g.log.Leader()
	if d := g.disowned.Load(); d != nil && *d == (disowned{leader, g.log.Term()}) {
		return 0
	}
	return leader
}

// voterIndex returns the index of the last entry if this node has a vote, else 0; led if another node than the lost one
// leads.
func (n *Node) voterIndex(group uint32, lost quorum.Node) uint64 {
	g := n.group(group)
	if g == nil {
		return 0
	}
	if leader := g.leader(); leader != 0 && leader != lost {
		return led
	}
	if !g.log.Votes() {
		return 0
	}
	return g.log.Status().LastIndex
}
