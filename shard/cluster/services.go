package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// What the rest of the process needs of a node besides its coordinator.

// Call asks the service of that name (Options.Services) of another node. The answer is the caller's. Any error means
// that nobody knows whether the service was called; a service's own error comes as text.
func (n *Node) Call(ctx context.Context, to quorum.Node, service string, body []byte) (answer []byte, err error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(n.opts.CommitTimeout)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if to == n.self {
		serve := n.opts.Services[service]
		if serve == nil {
			return nil, fmt.Errorf("there is no service %q", service)
		}
		answer, err := serve(n.self, body)
		return append([]byte{}, answer...), err
	}
	return n.remote(to).ask(callService+service, body, deadline)
}

// Nodes are all that belong to the cluster (Active, Draining or Drained), in order, this one included. The slice is the
// caller's.
func (n *Node) Nodes() []quorum.Node {
	d, _ := n.documents.Get()
	nodes := []quorum.Node{n.self}
	for node, document := range d.Nodes {
		if node != n.self && (document.State == placement.Active || document.State == placement.Draining ||
			document.State == placement.Drained) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Leader is who leads the group of a partition, and the term that it leads in; 0: there is no leader, or this node
// doesn't reach it.
func (n *Node) Leader(partition uint8) (leader quorum.Node, term uint64) {
	group := n.routes.groupOf[partition]
	if g := n.group(group); g != nil && g.log.Leads() {
		return n.self, g.log.Term()
	}
	if leader = n.routes.leader(group); leader == 0 || leader == n.self {
		n.lookAt(group)
	}
	hint := n.routes.hint(group)
	if leader = quorum.Node(hint & nodeMask); leader == 0 || leader == n.self || !n.remote(leader).up.Load() {
		return 0, 0
	}
	return leader, hint >> nodeBits
}

// Replica is this node's part of a group.
type Replica struct {
	Group  uint32
	Status quorum.Status
	Engine *replica.Replica
	Events *eventlog.Log // nil: the control group has no events
}

// Replicas are this node's, in order of their groups: for metrics. One that is just taking in the state of another node
// is left out.
func (n *Node) Replicas() (list []Replica) {
	for i := range n.replicas {
		g := n.group(uint32(i))
		if g == nil {
			continue
		}
		if e := g.replica.Load(); e != nil {
			list = append(list, Replica{g.id, g.log.Status(), e, g.events.Load()})
		}
	}
	return list
}
