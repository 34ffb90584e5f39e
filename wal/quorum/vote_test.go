package quorum

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The only node that can lead was made a voter while another voter was away. That one doesn't know of it, and gives its
// vote nevertheless.
func TestVoteForANewVoter(t *testing.T) { simulated(t, testVoteForANewVoter) }

func testVoteForANewVoter(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(5)
	g.same()
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
