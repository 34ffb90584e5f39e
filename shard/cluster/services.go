package cluster

import (
	"context"

	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/wal/quorum"
)

// What the rest of the process needs of a node besides its front.

// Call asks the service of that name (Options.Services) of another node. The answer is the caller's. Any error means that nobody knows whether the service was
// called; a service's own error comes as text.
func (n *Node) Call(ctx context.Context, to quorum.Node, service string, body []byte) (answer []byte, err error) {
	panic("not built")
}

// Nodes are all that belong to the cluster (Active, Draining or Drained), in order, this one included. The slice is the caller's.
func (n *Node) Nodes() []quorum.Node { panic("not built") }

// Replica is this node's part of a group.
type Replica struct {
	Group  uint32
	Status quorum.Status
	Engine *shard.Engine
	Events *eventlog.Log // nil: the control group has no events
}

// Replicas are this node's, in order of their groups: for metrics.
func (n *Node) Replicas() []Replica { panic("not built") }
