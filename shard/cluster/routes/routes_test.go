package routes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/placement"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// The route of the latest term counts, and the leader does not change within a term.
func TestRoutes(t *testing.T) {
	r := New(1, 4, Node{})
	require.Zero(t, r.Leader(2))
	r.set(2, 5, 3)
	require.EqualValues(t, 3, r.Leader(2))
	r.set(2, 4, 1)
	require.EqualValues(t, 3, r.Leader(2), "an earlier term is past")
	r.set(2, 5, 1)
	require.EqualValues(t, 3, r.Leader(2))
	r.Resign(2, 1)
	require.EqualValues(t, 3, r.Leader(2))
	r.Resign(2, 3)
	require.Zero(t, r.Leader(2))
	r.Put(2, r.Hint(3))
	require.Zero(t, r.Leader(2))
	r.set(2, 6, 1)
	require.EqualValues(t, 1, r.Leader(2))
	r.Put(1000, 1)

	// The node says, in a later term, that it no longer leads.
	report := &placement.Report{Node: 1, Replicas: []placement.ReplicaReport{{Status: quorum.Status{Group: 2, Role: quorum.Follower, Term: 6}}}}
	r.Learn(report)
	require.Zero(t, r.Leader(2))
	report.Replicas[0].Status = quorum.Status{Group: 2, Role: quorum.Leader, Leader: 1, Term: 7}
	r.Learn(report)
	require.EqualValues(t, 1, r.Leader(2))

	seen := map[uint32]int{}
	for p := range 256 {
		seen[r.GroupOf(uint8(p))]++
	}
	require.Equal(t, map[uint32]int{1: 64, 2: 64, 3: 64, 4: 64}, seen)
}

// A leader that can't be reached doesn't stand in the way of another node that is said to lead, even in the same term.
// A node that can't be asked can't say that it was a mistake.
func TestLeaderThatIsNotReached(t *testing.T) {
	r := New(1, 2, Node{Reaches: func(node quorum.Node) bool { return node == 3 }})
	r.set(1, 8, 2)
	require.Zero(t, r.Reachable(1))
	r.Learn(&placement.Report{Node: 3, Replicas: []placement.ReplicaReport{{Status: quorum.Status{Group: 1, Role: quorum.Leader, Leader: 3, Term: 8}}}})
	require.EqualValues(t, 3, r.Reachable(1))
	r.set(1, 8, 2)
	require.EqualValues(t, 3, r.Reachable(1), "who is reached is believed")
}

// Where others have waited in vain for long, nobody waits, except a caller that owes the rest of a request.
func TestNobodyWaitsInVain(t *testing.T) {
	r := New(1, 2, Node{Status: func(uint32) *quorum.Status { return nil }, LeaderWait: 2 * time.Second})
	r.missing[1].Store(1)
	_, err := r.Await(1, time.Now().Add(time.Hour), false)
	require.ErrorIs(t, err, replica.ErrUnavailable)

	found := make(chan quorum.Node)
	go func() {
		leader, _ := r.Await(1, time.Now().Add(time.Hour), true)
		found <- leader
	}()
	r.set(1, 3, 1)
	require.EqualValues(t, 1, <-found)
	require.Zero(t, r.missing[1].Load())
	leader, err := r.Await(1, time.Now(), false)
	require.NoError(t, err)
	require.EqualValues(t, 1, leader)
}
