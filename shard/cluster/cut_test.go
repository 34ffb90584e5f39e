package cluster

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/cut"
	"millrace/shard/replica"
	"millrace/wal/quorum/host"
)

// While a group is held, no message of another group comes in, and requests go on. A token that doesn't hold the group,
// or no longer does, confirms nothing.
func TestCutHolds(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.node(1)
	require.NoError(t, track(n.Coordinator(), "bought", users("u", 20)...))
	const hold, mark, confirm, letGo = 1, 2, 3, 4
	do := func(verb byte, token uint64) (position, term uint64, err error) {
		out, err := n.cuts.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(calls.Body{}.Byte(verb).U64(token).U32(1)))
		x := calls.NewReader(out)
		return x.U64(), x.U64(), err
	}
	first, term, err := do(hold, 9)
	require.NoError(t, err)
	require.ErrorIs(t, n.receive(1, []replica.Message{{Number: 1}}), replica.ErrBusy)
	require.NoError(t, track(n.Coordinator(), "bought", users("u", 20)...), "requests go on")
	waited := make(chan struct{}) // by a stream, with what it has read meanwhile
	go func() {
		defer close(waited)
		n.Replicas()[1].Gate.Pass()
	}()
	testengine.NotYet(t, waited, "the group is held")
	position, again, err := do(mark, 9)
	require.NoError(t, err)
	require.Equal(t, term, again)
	require.Greater(t, position, first)
	_, _, err = do(confirm, 10)
	require.ErrorIs(t, err, cut.ErrApart, "another's")
	_, _, err = do(confirm, 9)
	require.NoError(t, err)
	<-waited
	g := n.group(1)
	require.True(t, g.gate.Enter(), "it lets go")
	g.gate.Leave()

	_, _, err = do(hold, 11)
	require.NoError(t, err)
	_, _, err = do(letGo, 11)
	require.NoError(t, err)
	_, _, err = do(confirm, 11)
	require.ErrorIs(t, err, cut.ErrApart, "it was let go")

	positions, err := n.cuts.Take(context.Background(), len(n.replicas))
	require.NoError(t, err)
	require.Len(t, positions, len(n.replicas))
	for i := range positions {
		require.True(t, n.group(uint32(i)).gate.Enter(), "nothing stays held")
		n.group(uint32(i)).gate.Leave()
	}
}

// What a stream has read is noted by the leader of its group alone: others don't wait for a backup.
func TestOnlyLeadersNote(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.whole()
	c.eventually(func() error {
		for _, n := range c.all() {
			for _, r := range n.Replicas() {
				if r.Gate.Pass() != r.Leads {
					return fmt.Errorf("node %d in group %d leads: %v", n.self, r.Group, r.Leads)
				}
			}
		}
		return nil
	})
}
