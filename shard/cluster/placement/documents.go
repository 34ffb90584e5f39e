// Package placement decides where the replicas of a cluster's groups are and who leads them. It has the documents that
// say what is wanted, the nodes' reports of themselves (probe), a view of the cluster that is made of both, and pure
// functions that find the next step from that view. The Reconciler, on the leader of the control group, takes these
// steps; the verbs of an Operator change the documents, on any node. The package knows nodes, groups and steps, but not
// what groups hold.
package placement

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"millrace/shard/bodies"
	"millrace/wal/quorum"
)

// The cluster's own control documents. Their keys begin with DocumentPrefix:
//
//	cluster/node/<number>   a node: what the operator wants of it, where it is, which disk it has
//	cluster/group/<number>  where a user group's replicas are, or shall be; the control group has none: each node has a replica of it
//
// They say what is wanted. The groups themselves know the actual state (quorum.Status); the reconciler leads from one
// to the other.
//
// A node has a replica of exactly the groups whose document names it (GroupDocument.Holds). A missing replica is
// opened. If GroupDocument.MadeOf names the node, it is opened with MadeOf as the voters, else without any: then the
// group's leader takes it in. A replica that is no longer named is closed and its directory removed. Whoever acts on a
// document that may be old could put an empty log in the place of one that has voted: so replicas are made and removed
// only after a barrier of the control group.

// DocumentPrefix is the prefix of the keys of the cluster's own control documents, and of no others.
const DocumentPrefix = "cluster/"

const (
	nodePrefix  = DocumentPrefix + "node/"
	groupPrefix = DocumentPrefix + "group/"
)

// NodeKey is the key of a node's document.
func NodeKey(n quorum.Node) string { return nodePrefix + strconv.FormatUint(uint64(n), 10) }

// GroupKey is the key of a user group's document.
func GroupKey(group uint32) string { return groupPrefix + strconv.FormatUint(uint64(group), 10) }

// NodeState is what an operator wants of a node.
type NodeState string

// A node is added, serves, gives its groups away, has none any more, and is gone.
const (
	Joining  NodeState = "joining" // known, but never heard of
	Active   NodeState = "active"
	Draining NodeState = "draining" // gives its groups away
	Drained  NodeState = "drained"  // has no groups any more
	Removed  NodeState = "removed"  // its number is not used again
)

// NodeDocument describes a node of the cluster.
type NodeDocument struct {
	State   NodeState `json:"state"`
	Address string    `json:"address"` // for other nodes
	// Disk names the data directory that the number belongs to; it is empty until the node has come for the first time.
	// A node with another disk is refused.
	Disk string `json:"disk,omitempty"`
}

// Member reports whether the node belongs to the cluster: it has, or shall have, a replica of the control group.
func (d NodeDocument) Member() bool { return d.State != Removed && d.Disk != "" }

// GroupDocument says where a group's replicas are.
type GroupDocument struct {
	// Replicas are the nodes that shall have a replica, as voters. They are sorted, except in a group that is just
	// being made, where the first one is to lead it first.
	Replicas []quorum.Node `json:"replicas"`
	// Leaving are the nodes that keep a replica until all of Replicas vote.
	Leaving []quorum.Node `json:"leaving,omitempty"`
	// MadeOf are the voters that the group is made with, until it has been led for the first time.
	MadeOf []quorum.Node `json:"made_of,omitempty"`
}

// Holds reports whether node has a replica, or shall have one.
func (p GroupDocument) Holds(node quorum.Node) bool {
	return slices.Contains(p.Replicas, node) || slices.Contains(p.Leaving, node)
}

// Directory is all documents at one time. It is immutable.
type Directory struct {
	Nodes  map[quorum.Node]NodeDocument
	Groups map[uint32]GroupDocument // the user groups
	raw    map[string][]byte        // as they are stored, for the conditions of changes
}

// Documents are this node's copies of the documents, as its replica of the control group has applied them.
type Documents struct {
	mu      sync.Mutex
	now     *Directory
	changed chan struct{} // closed by the next change
}

// NewDocuments returns Documents that are still empty.
func NewDocuments() *Documents {
	return &Documents{
		now: &Directory{Nodes: map[quorum.Node]NodeDocument{}, Groups: map[uint32]GroupDocument{},
			raw: map[string][]byte{}},
		changed: make(chan struct{}),
	}
}

// Apply takes in a document (replica.Options.OnDocument); an empty one is removed. An error says that the document
// can't be read; it is then left out.
func (d *Documents) Apply(key string, doc []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &Directory{Nodes: maps.Clone(d.now.Nodes), Groups: maps.Clone(d.now.Groups), raw: maps.Clone(d.now.raw)}
	err := next.set(key, doc)
	d.now = next
	close(d.changed)
	d.changed = make(chan struct{})
	return err
}

func (n *Directory) set(key string, doc []byte) error {
	delete(n.raw, key)
	if len(doc) > 0 {
		n.raw[key] = slices.Clone(doc)
	}
	if number, ok := strings.CutPrefix(key, nodePrefix); ok {
		return setIn(n.Nodes, key, number, doc)
	}
	if number, ok := strings.CutPrefix(key, groupPrefix); ok {
		return setIn(n.Groups, key, number, doc)
	}
	return fmt.Errorf("document %q is unknown", key)
}

func setIn[K ~uint32, V any](m map[K]V, key, number string, doc []byte) error {
	id, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return fmt.Errorf("document %q: %w", key, err)
	}
	delete(m, K(id))
	if len(doc) == 0 {
		return nil
	}
	var v V
	if err := json.Unmarshal(doc, &v); err != nil {
		return fmt.Errorf("document %q: %w", key, err)
	}
	m[K(id)] = v
	return nil
}

// Get returns all current documents, and a channel that the next change closes.
func (d *Documents) Get() (*Directory, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now, d.changed
}

// Address returns where a node is (host.Options.Resolve). A removed node may still have to be reached, because
// its replicas go only once others have taken their place.
func (n *Directory) Address(node quorum.Node) (string, bool) {
	d, ok := n.Nodes[node]
	return d.Address, ok
}

// numbers returns all nodes that have a document, in order.
func (n *Directory) numbers() []quorum.Node { return slices.Sorted(maps.Keys(n.Nodes)) }

// IsNeeded reports whether some group has a replica on the node.
func (n *Directory) IsNeeded(node quorum.Node) bool {
	for _, p := range n.Groups {
		if p.Holds(node) {
			return true
		}
	}
	return false
}

// change makes a document what v says (nil: removed), on the condition that it still is what it is here.
func (n *Directory) change(key string, v any) bodies.DocumentChange {
	c := bodies.DocumentChange{Key: key, Check: true, Was: n.raw[key]}
	if v != nil {
		var err error
		if c.Doc, err = json.Marshal(v); err != nil {
			panic("BUG: " + err.Error()) // there are only numbers and strings
		}
	}
	return c
}
