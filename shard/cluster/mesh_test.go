package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/identity"
	"millrace/shard/replica"
)

// A replica that closes behind the barrier of a read, because its group moves to another node, is not read: nobody would
// be found there, or the store would be closed. The read is tried anew, at another node.
func TestReadOfAReplicaThatCloses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.whole()
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 20)...))
	for partition := range identity.Partitions {
		p := uint8(partition)
		g := c.node(1).group(c.node(1).routes.GroupOf(p))
		if g == nil || !g.leads.Load() {
			continue
		}
		e := g.replica.Load()
		require.NoError(t, g.events.Load().Close()) // reads the engine
		require.NoError(t, e.Close())
		for _, what := range []byte{readEntry, readTrail, readPage} {
			_, err := c.node(1).readHere(nil, question{what, p, uint64(p)<<56 | 1, nil}, time.Now().Add(time.Second))
			require.ErrorIs(t, err, replica.ErrNotLeader)
		}
		return
	}
	t.Fatal("node 1 leads no group")
}
