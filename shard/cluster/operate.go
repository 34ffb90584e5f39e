package cluster

import (
	"context"
	"errors"
	"log/slog"

	"millrace/wal/quorum"
)

// What an operator's verbs return besides the errors of the engine (shard.ErrUnavailable, …); their texts are for him.
var (
	ErrInvalid  = errors.New("invalid")
	ErrNotFound = errors.New("not found")
	ErrRefused  = errors.New("refused")
)

// Entry is what the audit log is to say of a change of the cluster's documents.
type Entry struct {
	What          string // "node added", …
	Kind, ID      string // node, group; its number
	Before, After []byte // the document
	Details       []any  // pairs of names and values
}

// operator does what operators ask for, on any node.
type operator struct {
	self             quorum.Node
	cluster          string
	groups, replicas int // user groups; replicas of each
	documents        *documents
	peers            peers
	log              *slog.Logger
}

// What an operator does. Each is durable when it returns; the reconciler carries it out. audit makes the entry of the audit log.
func (n *Node) Add(ctx context.Context, node quorum.Node, address string, audit func(Entry) []byte) error {
	panic("not built")
}
func (n *Node) Drain(ctx context.Context, node quorum.Node, audit func(Entry) []byte) error {
	panic("not built")
}

// Remove takes a node out for good; its groups are placed elsewhere. force: also when it isn't drained (it is gone).
func (n *Node) Remove(ctx context.Context, node quorum.Node, force bool, audit func(Entry) []byte) error {
	panic("not built")
}
