package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/replica"
)

// This file has what tests outside of the package need of a cluster in memory.

// PaperCluster is a testCluster.
type PaperCluster struct{ c *testCluster }

// OpenPaperCluster opens a cluster of two nodes that both have replicas of all groups.
func OpenPaperCluster(t *testing.T, seed uint64, groups int) PaperCluster {
	return PaperCluster{openCluster(t, seed, clusterOptions{nodes: 2, replicas: 2, groups: groups})}
}

// Coordinator is the coordinator of any node, behind a barrier.
func (p PaperCluster) Coordinator() *Engine { return clusterWorld{p.c}.engine() }

// Replicas are a node's replicas of the groups with users.
func (p PaperCluster) Replicas(node int) (all []*replica.Replica) {
	for _, g := range p.c.groups[1:] {
		all = append(all, g.replicas[node].e.Load())
	}
	return all
}

// Move gives a random group a random leader, which may be the same as before.
func (p PaperCluster) Move() {
	g := p.c.groups[1+p.c.intN(len(p.c.groups)-1)]
	p.c.move(g, p.c.anyNode(g))
}

// Settle waits until nothing is under way.
func (p PaperCluster) Settle(t *testing.T) { settle(t, p.Coordinator()) }

// CatchUp waits until a replica of a group has all that is decided.
func (p PaperCluster) CatchUp(t *testing.T) {
	for _, g := range p.c.groups {
		g.mu.Lock()
		position := g.position
		g.mu.Unlock()
		for _, r := range g.replicas {
			end := time.Now().Add(patient)
			for r.DurablePosition() < position {
				require.True(t, time.Now().Before(end))
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, r.e.Load().WaitApplied(position))
		}
	}
}
