package quorum

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// The only node that can lead was made a voter while another voter was away. That one doesn't know of it, and gives its
// vote nevertheless.
func TestVoteForANewVoter(t *testing.T) { simulated(t, testVoteForANewVoter) }

func testVoteForANewVoter(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.agree(5)
	leader, knows := g.leader(), g.follower()
	away := g.follower(knows.node)
	four := g.add(4, nil)
	four.start()
	require.NoError(t, leader.log.AddLearner(4))
	g.same()
	g.net.partition([]Node{leader.node, knows.node, 4}, []Node{away.node})
	require.NoError(t, leader.log.AddVoter(4))
	g.same(leader.node, knows.node, 4)

	g.net.partition([]Node{leader.node, 4}, []Node{knows.node}, []Node{away.node})
	require.NoError(t, leader.append(g.text()))
	soon(t, "node 4 has more than the others", func() bool {
		return four.log.Status().LastIndex > knows.log.Status().LastIndex
	})
	leader.kill()
	g.net.partition() // now three of four voters are there, and node 4 has most of the log
	require.Equal(t, Node(4), g.leader().node)
	g.write(5)
	g.same(knows.node, away.node, 4)
}

// The leader is lost when only the node whose vote it takes has the entry that takes it. The others can't do without
// that node's vote, which it refuses them, because its log has more; so the node itself leads until the entry is
// decided.
func TestOnlyTheLeavingNodeKnows(t *testing.T) {
	for name, leave := range map[string]func(*Log, Node) error{"removed": (*Log).Remove, "demoted": (*Log).Demote} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarted %v", name, restarted), func(t *testing.T) {
				simulated(t, func(t *testing.T) { testOnlyTheLeavingNodeKnows(t, leave, restarted) })
			})
		}
	}
}

func testOnlyTheLeavingNodeKnows(t *testing.T, leave func(*Log, Node) error, restarted bool) {
	g := newGroup(t, 4, standard)
	leader, leaving, a, b, changed := takeVoteUnheard(t, g, leave)
	leader.kill()
	require.Error(t, <-changed)
	if restarted {
		leaving.kill()
		leaving.start()
	}
	g.net.partition()
	soon(t, "one that stays leads", func() bool { return a.log.Leads() || b.log.Leads() })
	g.write(5)
	g.same(a.node, b.node)
	require.False(t, votes(leaving))
	term := a.log.Term()
	lookOn()
	require.Equal(t, term, a.log.Term())
	require.False(t, leaving.log.Leads())
}

// takeVoteUnheard has the leader of four voters take one's vote, of which a and b don't hear. changed gets what becomes
// of that.
func takeVoteUnheard(
	t *testing.T, g *group, leave func(*Log, Node) error,
) (leader, leaving, a, b *member, changed chan error) {
	g.agree(5)
	leader, leaving = g.leader(), g.follower()
	a = g.follower(leaving.node)
	b = g.follower(leaving.node, a.node)
	g.net.partition([]Node{leader.node, leaving.node}, []Node{a.node}, []Node{b.node})
	changed = make(chan error, 1)
	go func(l *Log) { changed <- leave(l, leaving.node) }(leader.log)
	soon(t, "the node that leaves has the entry", func() bool { return !votes(leaving) })
	return leader, leaving, a, b, changed
}

func votes(m *member) bool {
	return slices.Contains(m.log.Status().Members, Member{m.node, true})
}

// A node without a vote takes the leadership from nobody, whoever wants it to: it is no heir, it doesn't stand, and it
// heeds no summons that has come late.
func TestWithoutAVoteNobodyLeads(t *testing.T) {
	for name, leave := range map[string]func(*Log, Node) error{"removed": (*Log).Remove, "demoted": (*Log).Demote} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T) { testWithoutAVoteNobodyLeads(t, leave) })
		})
	}
}

func testWithoutAVoteNobodyLeads(t *testing.T, leave func(*Log, Node) error) {
	g := newGroup(t, 4, standard)
	g.agree(5)
	leader, left := g.leader(), g.follower()
	term := leader.log.Term()
	require.NoError(t, leave(leader.log, left.node))
	soon(t, "it has the entry", func() bool { return !votes(left) })
	require.ErrorContains(t, leader.log.Transfer(t.Context(), left.node), "has no vote")
	require.False(t, left.log.Stand())
	require.ErrorContains(t, leader.log.node.Load().trans.summon(left.node), "has no vote")
	time.Sleep(time.Minute)
	require.Equal(t, term, leader.log.Term())
	require.True(t, leader.log.Leads())
	g.write(5)
}

// A node without a vote that leads although nothing is undecided, because it stood in the very moment in which it heard
// that its vote was taken, hands over.
func TestLeaderWithoutAVoteHandsOver(t *testing.T) { simulated(t, testLeaderWithoutAVoteHandsOver) }

func testLeaderWithoutAVoteHandsOver(t *testing.T) {
	g := newGroup(t, 4, standard)
	g.agree(5)
	leader, left := g.leader(), g.follower()
	require.NoError(t, leader.log.Demote(left.node))
	soon(t, "it knows that this is decided", func() bool {
		return !votes(left) && left.log.Status().CommitIndex == leader.log.Status().LastIndex
	})
	left.log.node.Load().trans.stand()
	soon(t, "it leads", func() bool { return left.log.node.Load().raft.State() == raft.Leader })
	soon(t, "another one leads", func() bool { return votes(g.leader()) })
	term := g.leader().log.Term()
	lookOn()
	require.Equal(t, term, g.leader().log.Term())
	g.agree(5)
}

// A node that has left doesn't know that this is decided. It disturbs the group neither when it comes back nor when the
// leader is lost.
func TestWhoHasLeftDisturbsNobody(t *testing.T) { simulated(t, testWhoHasLeftDisturbsNobody) }

func testWhoHasLeftDisturbsNobody(t *testing.T) {
	g := newGroup(t, 4, standard)
	g.agree(5)
	leader, left := g.leader(), g.follower()
	others := others(g, left.node)
	away := g.follower(left.node)
	g.net.partition([]Node{away.node}, []Node{leader.node, left.node, g.follower(left.node, away.node).node})
	require.NoError(t, leader.log.Remove(left.node))
	soon(t, "the node that leaves has the entry", func() bool { return !votes(left) })
	left.kill()
	g.net.partition()
	g.same(others...)
	left.start()
	term := leader.log.Term()
	lookOn()
	require.Equal(t, term, leader.log.Term())
	require.True(t, leader.log.Leads())
	require.Equal(t, raft.Follower, left.log.node.Load().raft.State())

	leader.kill()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
		require.Equal(t, raft.Follower, left.log.node.Load().raft.State())
	}
	g.write(5)
}

// A learner has an entry that changes the members, and another leader replaces it by one that doesn't. Then the learner
// doesn't stand, although nobody else can be elected: nothing would end its leadership.
func TestLearnerNeverStaysLeader(t *testing.T) { simulated(t, testLearnerNeverStaysLeader) }

func testLearnerNeverStaysLeader(t *testing.T) {
	var held [5]atomic.Pointer[chan struct{}] // a node that is to write entries waits for this
	g := newGroup(t, 4, func(o *Options) {
		standard(o)
		o.hooks.write = func() {
			if c := held[o.Host.Node()].Load(); c != nil {
				<-*c
			}
		}
	})
	g.agree(5)
	a, learner := g.leader(), g.follower()
	require.NoError(t, a.log.Demote(learner.node))
	g.agree(5)
	b := g.follower(learner.node)
	c := g.follower(learner.node, b.node)
	g.net.partition([]Node{a.node, learner.node}, []Node{b.node}, []Node{c.node})
	end := learner.log.Status().LastIndex
	go func(l *Log) { _ = l.AddLearner(5) }(a.log)
	soon(t, "the learner has the entry", func() bool { return learner.log.Status().LastIndex > end })
	require.NoError(t, a.append(g.text()))
	soon(t, "the learner has another one", func() bool { return learner.log.Status().LastIndex == end+2 })
	a.kill()
	soon(t, "the learner knows of no leader", func() bool { return learner.log.Leader() == 0 })
	time.Sleep(5 * time.Second)
	hold := make(chan struct{})
	held[b.node].Store(&hold)
	held[c.node].Store(&hold)
	g.net.partition([]Node{b.node, c.node})
	soon(t, "one is elected", func() bool { return c.log.Leader() != 0 && c.log.Leader() == b.log.Leader() })
	if c.log.Leader() == c.node {
		b, c = c, b
	}
	g.net.partition([]Node{b.node, learner.node})
	held[b.node].Store(nil)
	held[c.node].Store(nil)
	close(hold)
	soon(t, "the learner has b's entries", func() bool { return len(learner.log.Status().Members) == 4 })
	soon(t, "its log ends where it did", func() bool { return learner.log.Status().LastIndex == end+2 })
	b.kill()
	a.start()
	g.net.partition([]Node{a.node, learner.node}, []Node{c.node, learner.node})
	time.Sleep(time.Minute)
	g.net.partition()
	time.Sleep(time.Minute)
	require.Equal(t, raft.Follower, learner.log.node.Load().raft.State())
	g.write(5)
}

// A node without a vote asks the others whether it is needed, and before all of them have answered, there is a leader.
func TestStandsNotBesideALeader(t *testing.T) { simulated(t, testStandsNotBesideALeader) }

func testStandsNotBesideALeader(t *testing.T) {
	g := newGroup(t, 4, standard)
	leader, leaving, a, b, _ := takeVoteUnheard(t, g, (*Log).Demote)
	g.net.partition([]Node{a.node, leaving.node})
	time.Sleep(5 * time.Second) // they connect
	g.net.hold(a.node, leaving.node, true)
	g.net.partition([]Node{a.node, b.node, leaving.node})
	time.Sleep(4 * time.Second)
	g.net.partition()
	soon(t, "the leader leads again", leader.log.Leads)
	soon(t, "the node that leaves knows", func() bool { return leaving.log.Leader() == leader.node })
	term := leader.log.Term()
	time.Sleep(2 * time.Second)
	g.net.hold(a.node, leaving.node, false)
	lookOn()
	require.Equal(t, term, leader.log.Term())
	require.True(t, leader.log.Leads())
}

// A node that was told to stand hears that another one leads in the same term, and stays a candidate. Then that leader
// is lost. The candidate votes for the node with more of the log, although it has heard of a leader.
func TestCandidateWithALeaderVotes(t *testing.T) { simulated(t, testCandidateWithALeaderVotes) }

func testCandidateWithALeaderVotes(t *testing.T) {
	g := newGroup(t, 3, standard)
	g.agree(5)
	leader, candidate := g.leader(), g.follower()
	other := g.follower(candidate.node)
	g.net.partition([]Node{leader.node, other.node})
	n := candidate.log.node.Load()
	h, term := leader.log.node.Load().trans.summons().RPCHeader, n.raft.CurrentTerm()+1
	n.trans.stand()
	soon(t, "it stands", func() bool { return n.raft.CurrentTerm() == term })
	n.trans.tell(&raft.AppendEntriesRequest{RPCHeader: h, Term: term})
	soon(t, "it hears of a leader", func() bool { return candidate.log.Leader() == leader.node })
	require.Equal(t, raft.Candidate, n.raft.State())
	g.write(5)
	g.same(leader.node, other.node)
	leader.kill()
	g.net.partition()
	soon(t, "the other one leads", other.log.Leads)
}

// A node that was told to stand hears that another one leads in the same term, and stays a candidate. When that leader
// hands over to it, it leads at once, and not only when it has waited for votes in vain.
func TestCandidateWithALeaderTakesOver(t *testing.T) { simulated(t, testCandidateWithALeaderTakesOver) }

func testCandidateWithALeaderTakesOver(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.HeartbeatTimeout, o.ElectionTimeout = time.Hour, time.Hour })
	first, other, candidate := g.members[1], g.members[2], g.members[3]
	soon(t, "the first leads", func() bool { first.log.Stand(); return first.log.Leads() })
	g.agree(5)
	g.net.partition([]Node{first.node, other.node})
	require.True(t, candidate.log.Stand())
	require.True(t, other.log.Stand())
	soon(t, "the other one leads", other.log.Leads)
	require.Equal(t, candidate.log.Term(), other.log.Term())
	g.net.partition()
	g.write(5)
	soon(t, "the candidate hears of it", func() bool { return candidate.log.Leader() == other.node })
	require.Equal(t, Candidate, candidate.log.Status().Role)
	begun := time.Now()
	require.NoError(t, other.log.Transfer(t.Context(), candidate.node))
	soon(t, "the candidate leads", candidate.log.Leads)
	require.Less(t, time.Since(begun), time.Minute)
	g.agree(5)
}
