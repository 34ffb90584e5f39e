package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"

	"millrace/wal/quorum"
)

// The leader of a group packs its events, and the other replicas take the blocks. All of them have the same events, and
// with the leader gone, too, they go on packing.
func TestOneReplicaPacks(t *testing.T) {
	t.Parallel()
	taken := metrics.GetOrCreateCounter("millrace_eventlog_taken_blocks_total")
	before := taken.Get()
	c := startCluster(t, 3, func(o *Options) {
		o.Engine.CheckpointInterval = 50 * time.Millisecond
		o.Events.PackAfter, o.Events.Interval, o.Events.MaxDuty = 20*time.Millisecond, 20*time.Millisecond, 1
	})
	c.whole()
	packed := func() error {
		for _, n := range c.all() {
			for i := 1; i < len(n.replicas); i++ {
				events := n.group(uint32(i)).events.Load()
				if events == nil {
					return fmt.Errorf("node %d, group %d: the replica takes a newer state", n.self, i)
				}
				if s := events.Stats(); s.Events == 0 || s.BacklogPositions > 0 {
					return fmt.Errorf("node %d, group %d: %d events are packed, and %d positions are not", n.self, i,
						s.Events, s.BacklogPositions)
				}
			}
		}
		return nil
	}
	all := users("p", 100)
	for i := range 4 {
		require.NoError(t, track(c.node(quorum.Node(1+i%3)).Coordinator(), "bought", all...))
		c.eventually(packed)
	}
	require.Greater(t, taken.Get(), before)
	ids := exported(t, c.node(1), "bought")
	require.Len(t, ids, 400)
	require.Equal(t, ids, exported(t, c.node(2), "bought"))
	require.Equal(t, ids, exported(t, c.node(3), "bought"))

	c.stop(1)
	c.ready(2)
	require.NoError(t, track(c.node(2).Coordinator(), "bought", all...))
	c.eventually(packed)
	ids = exported(t, c.node(2), "bought")
	require.Len(t, ids, 500)
	require.Equal(t, ids, exported(t, c.node(3), "bought"))
}
