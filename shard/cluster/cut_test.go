package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/replica"
)

// While a group is held, no message of another group comes in; who holds it has waited for those inside; and a hold
// that has lapsed confirms nothing.
func TestCutHolds(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.node(1)
	require.NoError(t, track(n.Coordinator(), "bought", users("u", 20)...))
	g := n.group(1)
	require.True(t, g.gate.enter())
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, g.gate.hold(short, 7), errCut, "one is inside")
	require.ErrorIs(t, g.gate.hold(context.Background(), 8), errCut, "held by another")
	g.gate.leave()
	g.gate.letGo(7)

	first, term, err := n.cutHere(cutHold, 9, 1)
	require.NoError(t, err)
	require.ErrorIs(t, n.receive(1, []replica.Message{{Number: 1}}), replica.ErrBusy)
	require.NoError(t, track(n.Coordinator(), "bought", users("u", 20)...), "requests go on")
	position, again, err := n.cutHere(cutCut, 9, 1)
	require.NoError(t, err)
	require.Equal(t, term, again)
	require.Greater(t, position, first)
	_, _, err = n.cutHere(cutConfirm, 10, 1)
	require.ErrorIs(t, err, errCut, "another's")
	_, _, err = n.cutHere(cutConfirm, 9, 1)
	require.NoError(t, err)
	require.True(t, g.gate.enter(), "it lets go")
	g.gate.leave()

	_, _, err = n.cutHere(cutHold, 11, 1)
	require.NoError(t, err)
	g.gate.mu.Lock()
	g.gate.until = time.Now()
	g.gate.mu.Unlock()
	_, _, err = n.cutHere(cutConfirm, 11, 1)
	require.ErrorIs(t, err, errCut, "it has lapsed")

	positions, err := n.cut(context.Background())
	require.NoError(t, err)
	require.Len(t, positions, len(n.replicas))
	for i := range positions {
		require.True(t, n.group(uint32(i)).gate.enter(), "nothing stays held")
		n.group(uint32(i)).gate.leave()
	}
}
