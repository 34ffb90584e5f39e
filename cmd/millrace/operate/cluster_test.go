package operate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// A group is whole when so many of its replicas as are wanted could stand in for the others.
func TestMissingReplicas(t *testing.T) {
	voter := func(n quorum.Node) placement.ReplicaStatus {
		return placement.ReplicaStatus{Node: n, Role: "voter", Voter: true, Open: true, CommitLag: 40}
	}
	silent, behind, learner := voter(3), voter(3), placement.ReplicaStatus{Node: 4, Role: "learner", Open: true, ApplyLag: 70_000}
	silent.Open = false
	behind.ApplyLag = 1001
	for _, c := range []struct {
		group    uint32
		doing    string
		replicas []placement.ReplicaStatus
		want     string
	}{
		{1, "", []placement.ReplicaStatus{voter(1), voter(2), voter(3)}, ""},
		{1, "node 4 catches up", []placement.ReplicaStatus{voter(1), voter(2), voter(3), learner}, ""}, // it is moved
		{1, "", []placement.ReplicaStatus{voter(1), voter(2), silent}, "2 of 3 replicas are in sync: node 3 does not answer"},
		{1, "", []placement.ReplicaStatus{voter(1), voter(2), behind}, "2 of 3 replicas are in sync: node 3 is 1001 entries behind"},
		{1, "node 4 catches up", []placement.ReplicaStatus{voter(1), voter(2), learner}, "2 of 3 replicas are in sync: node 4 has no vote yet, node 4 catches up"},
		{1, "waits for its turn", []placement.ReplicaStatus{voter(1), voter(2)}, "2 of 3 replicas are in sync: waits for its turn"},
		{1, "", nil, "0 of 3 replicas are in sync"},
		{0, "", []placement.ReplicaStatus{voter(1), {Node: 2, Role: "learner", Open: true}}, ""},
		{0, "", []placement.ReplicaStatus{voter(1), learner}, "1 of 2 replicas are in sync: node 4 is 70000 entries behind"},
	} {
		require.Equal(t, c.want, missingReplicas(placement.GroupStatus{Group: c.group, Doing: c.doing, Replicas: c.replicas}, 3, nil))
	}
}

// What a removed node says of the others is of long ago.
func TestWasRemoved(t *testing.T) {
	nodes := []placement.NodeStatus{{Node: 1, State: placement.Removed}, {Node: 2, State: placement.Active}}
	require.True(t, wasRemoved(placement.Status{Node: 1, Nodes: nodes}))
	require.False(t, wasRemoved(placement.Status{Node: 2, Nodes: nodes}))
}

func TestSince(t *testing.T) {
	now := time.Now()
	for ago, want := range map[time.Duration]string{-time.Second: "0s", 0: "0s", 59*time.Second + 900*time.Millisecond: "59s", 60 * time.Second: "1m", 3 * time.Hour: "3h", 72 * time.Hour: "3d"} {
		require.Equal(t, want, since(now.Add(-ago), now))
	}
	require.Empty(t, since(time.Time{}, now))
}
