package cluster

import (
	"context"
	"time"

	"millrace/wal/quorum"
)

// Status of the cluster as this node knows it.
type Status struct {
	Cluster  string        `json:"cluster"`
	Node     quorum.Node   `json:"node"` // that answers
	Replicas int           `json:"replicas"`
	Control  GroupStatus   `json:"control"`
	Nodes    []NodeStatus  `json:"nodes"`
	Groups   []GroupStatus `json:"groups"`
}

// NodeState is what an operator wants of a node.
type NodeState string

// A node is added, serves, gives its groups away, has none any more, and is gone.
const (
	Joining  NodeState = "joining" // is known, has never been heard of
	Active   NodeState = "active"
	Draining NodeState = "draining" // gives its groups away
	Drained  NodeState = "drained"  // has none any more
	Removed  NodeState = "removed"  // its number is not used again
)

// NodeStatus is a node as an operator sees it.
type NodeStatus struct {
	Node    quorum.Node `json:"node"`
	State   NodeState   `json:"state"`
	Address string      `json:"address"` // between nodes
	API     string      `json:"api,omitempty"`
	Admin   string      `json:"admin,omitempty"`
	Program string      `json:"version,omitempty"`
	Alive   bool        `json:"alive"` // it has answered
	Seen    time.Time   `json:"seen,omitzero"`
	Started time.Time   `json:"started,omitzero"`
	Leads   int         `json:"leads"` // user groups
	Holds   int         `json:"holds"`
	Problem string      `json:"problem,omitempty"`
}

// GroupStatus is a group as its leader sees it, or else as far as anybody does.
type GroupStatus struct {
	Group    uint32          `json:"group"`
	First    int             `json:"first"` // partitions
	Count    int             `json:"count"`
	Leader   quorum.Node     `json:"leader,omitempty"`
	Term     uint64          `json:"term"`
	Replicas []ReplicaStatus `json:"replicas"`
	Doing    string          `json:"doing,omitempty"`   // what the reconciler is about
	Problem  string          `json:"problem,omitempty"` // what keeps it from being as it should
}

// ReplicaStatus is a member of a group.
type ReplicaStatus struct {
	Node      quorum.Node `json:"node"`
	Voter     bool        `json:"voter"`
	Alive     bool        `json:"alive"`
	Index     uint64      `json:"index"` // last of its log
	Commit    uint64      `json:"commit"`
	Applied   uint64      `json:"applied"`
	CommitLag uint64      `json:"commit_lag"` // entries that the leader's log has and this one's has not
	ApplyLag  uint64      `json:"apply_lag"`  // entries that the leader has committed and this replica has not applied
}

// Status asks all nodes.
func (n *Node) Status(ctx context.Context) (Status, error) { panic("not built") }
