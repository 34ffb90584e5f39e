package quorum

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// replace takes a node out of the group and has it come again with an empty disk, like a replica that is moved away and
// back. The node isn't started.
func (g *group) replace(n Node, options func(*Options)) *member {
	g.t.Helper()
	require.NoError(g.t, g.leader().log.Remove(n))
	g.members[n].stop()
	delete(g.members, n)
	return g.add(n, options)
}

// A member that was away counts on the vote of a node that has left meanwhile and has joined the group again with an
// empty disk. That node has forgotten what the group has decided with its vote, and does not give its vote.
func TestNewcomerDoesNotVote(t *testing.T) { simulated(t, testNewcomerDoesNotVote) }

func testNewcomerDoesNotVote(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.agree(20)
	away, leaves := g.follower(), g.follower(g.follower().node)
	away.kill()
	g.add(4, nil).start()
	require.NoError(t, g.leader().log.AddLearner(4))
	require.NoError(t, g.leader().log.AddVoter(4))
	g.write(20)
	back := g.replace(leaves.node, nil)
	back.start()
	require.NoError(t, away.open())
	g.net.partition([]Node{away.node, leaves.node}, []Node{g.leader(away.node).node, 4})
	require.NoError(t, away.log.Start())
	for range 100 {
		require.False(t, away.log.Leads(), "it leads by the vote of a node that was not of the group")
		time.Sleep(100 * time.Millisecond)
	}
	g.net.partition()
	g.write(20)
	require.NoError(t, g.leader().log.AddLearner(leaves.node))
	require.NoError(t, g.leader().log.AddVoter(leaves.node))
	g.agree(5)

	// From then on its vote counts, also after a start.
	soon(t, "it has all", func() bool { return !back.log.Status().Newcomer })
	back.stop()
	back.start()
	require.False(t, back.log.Status().Newcomer)
	gone := g.leader()
	if gone == back {
		require.NoError(t, back.log.Transfer(context.Background(), 0))
		gone = g.leader(back.node)
	}
	gone.kill() // of four voters the other three must agree
	g.agree(5)
}

// A node that comes again learns that the group was founded by that node alone before it learns what the group has
// become. If it loses the others at that moment, it does not lead by its own vote.
func TestNewcomerDoesNotLeadAlone(t *testing.T) { simulated(t, testNewcomerDoesNotLeadAlone) }

func testNewcomerDoesNotLeadAlone(t *testing.T) {
	g := newGroup(t, 1, func(o *Options) { o.Base = 1 })
	g.write(20)
	for n := Node(2); n <= 3; n++ {
		g.add(n, nil).start()
		require.NoError(t, g.leader().log.AddLearner(n))
		g.same()
		require.NoError(t, g.leader().log.AddVoter(n))
	}
	require.NoError(t, g.members[1].log.Transfer(context.Background(), 2))
	require.Equal(t, Node(2), g.leader(1).node)
	g.write(20)
	marked := make(chan struct{})
	back := g.replace(1, func(o *Options) {
		o.hooks.restore = func(step string) error {
			if step == "marked" {
				g.net.partition([]Node{2, 3})
				close(marked)
			}
			return nil
		}
	})
	back.start()
	require.NoError(t, g.leader().log.AddLearner(1))
	<-marked
	for range 100 {
		require.False(t, back.log.Leads(), "it leads by its own vote")
		time.Sleep(100 * time.Millisecond)
	}
	g.net.partition()
	g.agree(5)
}

// As long as a change of members is not decided, the leader that knows of it says so.
func TestMembersThatAreNotDecided(t *testing.T) { simulated(t, testMembersThatAreNotDecided) }

func testMembersThatAreNotDecided(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(5)
	leader := g.leader()
	leaves := g.follower()
	require.False(t, leader.log.Status().Changing)
	for n := range g.members {
		if n != leader.node {
			g.net.hold(n, leader.node, true) // nobody's answer arrives
		}
	}
	done := make(chan error, 1)
	go func() { done <- leader.log.Remove(leaves.node) }()
	soon(t, "the leader has the change", func() bool { return len(leader.log.Status().Members) == 2 })
	require.Equal(t, Leader, leader.log.Status().Role)
	require.True(t, leader.log.Status().Changing)
	g.net.hold(leaves.node, leader.node, false)
	g.net.hold(g.follower(leaves.node).node, leader.node, false)
	if <-done == nil { // else it has lost its leadership meanwhile
		require.False(t, leader.log.Status().Changing)
	}
	soon(t, "all is decided", func() bool {
		s := g.leader().log.Status()
		return s.Role == Leader && !s.Changing
	})
}
