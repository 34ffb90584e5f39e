package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"millrace/shard"
	"millrace/wal/quorum"
)

// The cluster's own control documents. Their keys begin with DocumentPrefix:
//
//	cluster/node/<number>   a node: what the operator wants of it, where it is, which disk it has
//	cluster/group/<number>  where a user group's replicas are, or shall be; the control group has none: each node has a replica of it
//
// They say what is wanted. What is, the groups themselves know (quorum.Status); the reconciler leads from one to the other.
//
// A node has a replica of exactly the groups whose document names it (placement.holds). One that is missing is opened, with placement.MadeOf as the voters
// when it names the node, else without any: then the group's leader takes it in. One that is not named any more is closed and its directory removed. Whoever
// acts on a document that may be old could put an empty log in the place of one that has voted: so replicas are made and removed only after a fence of the
// control group.

// DocumentPrefix is what the keys of the cluster's own control documents begin with. Nobody else's do.
const DocumentPrefix = "cluster/"

const (
	nodePrefix  = DocumentPrefix + "node/"
	groupPrefix = DocumentPrefix + "group/"
)

func nodeKey(n quorum.Node) string { return nodePrefix + strconv.FormatUint(uint64(n), 10) }
func groupKey(group uint32) string { return groupPrefix + strconv.FormatUint(uint64(group), 10) }

// nodeDocument is a node of the cluster.
type nodeDocument struct {
	State   NodeState `json:"state"`
	Address string    `json:"address"` // between nodes
	// Disk names the data directory that the number belongs to; empty until the node has come for the first time. A node with another one is refused.
	Disk string `json:"disk,omitempty"`
}

// member says whether the node is of the cluster: has, or shall have, a replica of the control group.
func (d nodeDocument) member() bool { return d.State != Removed && d.Disk != "" }

// placement is where a group's replicas are.
type placement struct {
	// Replicas are the nodes that shall have one, as voters; in order, apart from a group that is just made: the first one is to lead it first.
	Replicas []quorum.Node `json:"replicas"`
	// Leaving are those that have one until all of Replicas vote.
	Leaving []quorum.Node `json:"leaving,omitempty"`
	// MadeOf are the voters that the group is made with, until it has been led for the first time.
	MadeOf []quorum.Node `json:"made_of,omitempty"`
}

// holds says whether node has a replica, or shall have one.
func (p placement) holds(node quorum.Node) bool {
	return slices.Contains(p.Replicas, node) || slices.Contains(p.Leaving, node)
}

// directory is all documents at one time. Immutable.
type directory struct {
	nodes  map[quorum.Node]nodeDocument
	groups map[uint32]placement
	raw    map[string][]byte // as they are stored, for conditions
}

// documents are this node's copies of them, as its replica of the control group has applied them.
type documents struct {
	mu      sync.Mutex
	now     *directory
	changed chan struct{} // closed by the next change
}

func newDocuments() *documents {
	return &documents{
		now:     &directory{nodes: map[quorum.Node]nodeDocument{}, groups: map[uint32]placement{}, raw: map[string][]byte{}},
		changed: make(chan struct{}),
	}
}

// apply takes a document in (shard.Options.OnDocument); empty: it is removed. The error says that it can't be read; then it is left out.
func (d *documents) apply(key string, doc []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := &directory{nodes: maps.Clone(d.now.nodes), groups: maps.Clone(d.now.groups), raw: maps.Clone(d.now.raw)}
	err := next.set(key, doc)
	d.now = next
	close(d.changed)
	d.changed = make(chan struct{})
	return err
}

func (n *directory) set(key string, doc []byte) error {
	delete(n.raw, key)
	if len(doc) > 0 {
		n.raw[key] = slices.Clone(doc)
	}
	if number, ok := strings.CutPrefix(key, nodePrefix); ok {
		return setIn(n.nodes, key, number, doc)
	}
	if number, ok := strings.CutPrefix(key, groupPrefix); ok {
		return setIn(n.groups, key, number, doc)
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

// get returns all documents as they are, and a channel that the next change closes.
func (d *documents) get() (*directory, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now, d.changed
}

// address is where a node is (quorum.HostOptions.Resolve). One that is removed may still have to be reached: its replicas go only when others are there.
func (n *directory) address(node quorum.Node) (string, bool) {
	d, ok := n.nodes[node]
	return d.Address, ok
}

// numbers are all nodes that have a document, in order.
func (n *directory) numbers() []quorum.Node { return slices.Sorted(maps.Keys(n.nodes)) }

// change makes a document what v says (nil: removed), on the condition that it still is what it is here.
func (n *directory) change(key string, v any) shard.DocumentChange {
	c := shard.DocumentChange{Key: key, Check: true, Was: n.raw[key]}
	if v != nil {
		var err error
		if c.Doc, err = json.Marshal(v); err != nil {
			panic("BUG: " + err.Error()) // numbers and strings
		}
	}
	return c
}
