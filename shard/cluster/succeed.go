package cluster

import (
	"math"
	"sync"
	"time"

	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// The groups that a node led need other leaders when it is not reached any more. Raft's timers see to that, each by
// itself, and a follower that still waits refuses its vote: so it takes one to two timeouts more. Here followers tell
// one another: when a majority of a group's voters doesn't reach the leader, the one of them with most of the log
// stands for election at once. It is the same in groups that have had no leader since their nodes were started, where
// nobody need be waited for: there the lost leader is node 0, and who asks doesn't lead, whatever others believe.
// Should that fail, the timers go on.
//
//	body    node u32, for each group: group u32, term u64
//	answer  whether the node is reached u8, then for each group: index of the last entry u64; 0: there is no voter here;
//	        led: somebody else leads the group

const (
	succeedPause = 50 * time.Millisecond
	succeedAsk   = 250 * time.Millisecond // for an answer
	led          = math.MaxUint64
)

// seekLeaders has findLeaders run.
func (n *Node) seekLeaders() {
	if !n.leaderless.Swap(true) && !n.background.start(n.findLeaders) {
		n.leaderless.Store(false)
	}
}

// findLeaders has groups led that nobody leads. By the time it gives up the timers have run.
func (n *Node) findLeaders() {
	defer n.leaderless.Store(false)
	for end := time.Now().Add(2 * max(n.opts.PingTimeout, n.opts.Quorum.HeartbeatTimeout)); time.Now().Before(end); {
		groups := n.followed(0)
		if len(groups) == 0 {
			return
		}
		n.standFor(0, groups)
		select {
		case <-time.After(succeedPause):
		case <-n.stop:
			return
		}
	}
}

// succeed has the groups of a node led by others, as long as it is not reached.
func (r *remote) succeed() {
	defer r.succeeding.Store(false)
	n := r.n
	for end := time.Now().Add(2 * n.opts.PingTimeout); !r.up.Load() && time.Now().Before(end); {
		groups := n.followed(r.node)
		if len(groups) == 0 {
			return
		}
		n.standFor(r.node, groups)
		select {
		case <-time.After(succeedPause):
		case <-n.stop:
			return
		}
	}
}

// followed are the groups that a node leads, as far as this one knows, which has a vote in them.
func (n *Node) followed(leader quorum.Node) (groups []uint32) {
	for i := range n.replicas {
		g := n.group(uint32(i))
		if g == nil || g.leader() != leader {
			continue
		}
		for _, m := range g.log.Status().Members {
			if m.Node == n.self && m.Voter {
				groups = append(groups, uint32(i))
			}
		}
	}
	return groups
}

// lastIndex is that of this node's replica.
func (n *Node) lastIndex(group uint32) uint64 {
	if g := n.group(group); g != nil {
		return g.log.Status().LastIndex
	}
	return 0
}

// standFor stands for election in those of a lost leader's groups where this node is the one to do so.
func (n *Node) standFor(lost quorum.Node, groups []uint32) {
	var mu sync.Mutex
	indexes := make([]map[quorum.Node]uint64, len(groups)) // of voters that don't reach it either
	for i, group := range groups {
		indexes[i] = map[quorum.Node]uint64{n.self: n.lastIndex(group)}
	}
	body := appendU32(nil, uint32(lost))
	for _, group := range groups {
		term := uint64(0)
		if g := n.group(group); g != nil {
			term = g.log.Term()
		}
		body = appendU64(appendU32(body, group), term)
	}
	var asking sync.WaitGroup
	n.remotes.Range(func(node quorum.Node, r *remote) bool {
		if node != lost && r.up.Load() {
			asking.Go(func() {
				answer, err := r.ask(callLost, body, time.Now().Add(succeedAsk))
				x := &reader{rest: answer}
				if err != nil || x.u8() == 1 {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range groups {
					if index := x.u64(); index > 0 {
						indexes[i][node] = index
					}
				}
			})
		}
		return true
	})
	asking.Wait()
	for i, group := range groups {
		if g := n.group(group); g != nil && g.leader() == lost && n.isNext(g.log.Status().Members, indexes[i]) {
			if g.log.Stand() {
				n.log.Info("this node stands for election: no leader is reached by a majority",
					"group", group, "leader", lost)
			}
		}
	}
}

// isNext says whether the voters that don't reach the leader are a majority, none of them is to stand rather than this
// node, and none knows of another leader.
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

func (n *Node) serveLost(conn *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	lost := quorum.Node(x.u32())
	if x.short || lost == n.self {
		return dst, replica.ErrUnavailable
	}
	if lost != 0 {
		r, known := n.remotes.Load(lost)
		if reached := known && r.up.Load(); reached || !known {
			return append(dst, 1), nil
		}
	}
	dst = append(dst, 0)
	for len(x.rest) > 0 && !x.short {
		group, term := x.u32(), x.u64()
		if g := n.group(group); lost == 0 && g != nil && g.disown(conn.Node, term) {
			n.seekLeaders()
		}
		dst = appendU64(dst, n.voterIndex(group, lost))
	}
	return dst, x.err()
}

// disowned is a leadership that its node doesn't know of any more: it was started again.
type disowned struct {
	node quorum.Node
	term uint64
}

// disown takes a node at its word that it doesn't lead in a term, and says whether this one believed it.
func (g *group) disown(node quorum.Node, term uint64) bool {
	if g.leader() != node || g.log.Term() != term {
		return false
	}
	g.disowned.Store(&disowned{node, term})
	return true
}

// leader is who leads the group; 0: nobody that is known.
func (g *group) leader() quorum.Node {
	leader := g.log.Leader()
	if d := g.disowned.Load(); d != nil && *d == (disowned{leader, g.log.Term()}) {
		return 0
	}
	return leader
}

// voterIndex is lastIndex where this node has a vote, else 0; led where another one than the lost node leads.
func (n *Node) voterIndex(group uint32, lost quorum.Node) uint64 {
	g := n.group(group)
	if g == nil {
		return 0
	}
	if leader := g.leader(); leader != 0 && leader != lost {
		return led
	}
	for _, m := range g.log.Status().Members {
		if m.Node == n.self && m.Voter {
			return n.lastIndex(group)
		}
	}
	return 0
}
