package host

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Node is a node's number in its cluster: 1, 2, 3, … A number is never given out again: a node whose disk was replaced
// is a new node.
type Node uint32

// nodeAddr is the address of a node as its groups see it.
type nodeAddr Node

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return strconv.FormatUint(uint64(a), 10) }

// ErrUnauthenticated is returned for connections to or from a process that is not of this cluster.
var ErrUnauthenticated = errors.New("quorum: the other side is not of this cluster")

// ErrAbsent is returned for connections to a group that the other node does not have, or not yet: it is starting.
var ErrAbsent = errors.New("quorum: the node does not have this group")

// StrangerError says who was found at an address instead of whoever was looked for. It is an ErrUnauthenticated.
type StrangerError struct {
	Node    Node
	Cluster string // empty: of none yet
}

// Error names the node and its cluster.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("%v: node %d of %q is there", ErrUnauthenticated, e.Node, e.Cluster)
}

// Unwrap returns ErrUnauthenticated.
func (e *StrangerError) Unwrap() error { return ErrUnauthenticated }

// Conn is a connection between nodes.
type Conn struct {
	net.Conn
	Node    Node   // the other side
	Cluster string // as the other side knows it; empty: it doesn't know yet
}
