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

// Eventually is for the tests outside the package.
var Eventually = eventually

// Hold keeps messages from being delivered to other groups, or no longer does so.
func (p PaperCluster) Hold(hold bool) { p.c.held.Store(hold) }

// Freeze keeps a group from deciding anything, or no longer does so. Groups with users count from 0.
func (p PaperCluster) Freeze(group int, frozen bool) { p.c.groups[1+group].frozen.Store(frozen) }

// Pending is how many records of a group are not decided.
func (p PaperCluster) Pending(group int) int {
	g := p.c.groups[1+group]
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending)
}

// Leader is the replica that leads a group.
func (p PaperCluster) Leader(group int) *replica.Replica { return p.c.leader(1 + group).Replica }

// Lead makes a node lead a group.
func (p PaperCluster) Lead(group, node int) {
	g := p.c.groups[1+group]
	p.c.move(g, node)
	eventually(p.c.t, "the node leads", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.leader == g.replicas[node]
	})
}
