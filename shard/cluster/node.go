package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"

	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/wal/quorum"
)

// ErrReplaced is returned by Open when this node's number has been used before by a node with another disk: with an empty log it must not vote. Start it under
// a new number, and remove the old one.
var ErrReplaced = errors.New("cluster: this node's number was used before, and its data is gone")

// Options configure a Node. The zero value of a field means its default.
type Options struct {
	Node    quorum.Node
	Dir     string
	Listen  string                 // HOST:PORT between nodes
	Members map[quorum.Node]string // where nodes are: those that make the cluster, or, for a node that joins, some that are there
	TLS     *tls.Config
	// Advertise are the addresses of the API and of the admin listener, for the others.
	API, Admin string
	// Services are calls of other nodes, by name, that something above this package answers (Node.Call): so rate limits hold for all nodes together. body and the
	// answer are lent for the call. A service must not wait for long; it may make calls itself.
	Services map[string]func(from quorum.Node, body []byte) (answer []byte, err error)
	// Groups and Replicas are fixed when the cluster is made. Defaults 16 (of 16 partitions each) and 3 (or as many as there are nodes).
	Groups, Replicas int
	Quorum           quorum.Options   // what is alike in all groups: times and bounds
	Engine           shard.Options    // memory and bounds of the whole node: shared out among the replicas
	Events           eventlog.Options // Dir is set for each group
	OnDocument       func(key string, doc []byte)
	OnFailure        func(error)
	Program          string // version, for status
	// Audit makes an entry of the audit log of what the reconciler does by itself; nil: there is none.
	Audit func(Entry) []byte
	// MaxMoves is how many groups are moved to other nodes at the same time. Default 2.
	MaxMoves int
	Logger   *slog.Logger
}

// Node is this node of the cluster.
type Node struct {
	operator *operator
}

// Open starts the node and returns when it is of the cluster: the control group has a leader and its documents are known here. ctx ends the wait.
func Open(ctx context.Context, o Options) (*Node, error) { panic("not built") }

// Front is the engine that requests go to.
func (n *Node) Front() *shard.Engine { panic("not built") }

// Ready is nil when this node can serve all of the API: each group has a leader that this node reaches.
func (n *Node) Ready() error { panic("not built") }

// Spread returns when all nodes that can be reached have applied the control documents that are acknowledged by now, or after a while.
func (n *Node) Spread() { panic("not built") }

func (n *Node) Close() error { panic("not built") }
