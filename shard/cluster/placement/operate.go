package placement

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"

	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/wal/quorum"
)

// The errors of an operator's verbs, besides those of the engine (shard.ErrUnavailable, …). Their texts are for
// operators.
var (
	ErrInvalid  = errors.New("invalid")
	ErrNotFound = errors.New("not found")
	ErrRefused  = errors.New("refused")
)

// ErrReplaced is returned by Claim, and by cluster.Open, when the node's number has been used before by a node with
// another disk: with an empty log it must not vote. Start the node under a new number, and remove the old one.
var ErrReplaced = errors.New("cluster: this node's number was used before, and its data is gone")

// ErrRemoved is returned by Claim, and by cluster.Open, when the node was removed: nobody in the cluster talks to it.
var ErrRemoved = errors.New("cluster: this node was removed, and its number is not used again")

const (
	adminActor      = math.MaxUint32 // as in all control documents that no API key has changed
	maxNodes        = 1000           // not counting removed ones: every node knows all of them
	maxAddressBytes = 255
	maxAttempts     = 10 // at a change that others overtake
)

// Entry is what the audit log shall say of a change of the cluster's documents.
type Entry struct {
	What          string // "node added", …
	Kind, ID      string // cluster_node or cluster_group, and its number; empty when several are concerned
	Before, After []byte // the document
	Details       []any  // pairs of names and values
}

// What an Entry says that Add has done.
const (
	NodeAdded      = "node added"
	AddressChanged = "node's address changed"
	DrainTakenBack = "node's drain taken back"
)

// Add adds a node that will be at address, HOST:PORT for other nodes; the node is Joining until it is heard of. For a
// known node it changes the address, unless address is empty, and a node that drains, or has drained, serves again. The
// change is durable when Add returns; the reconciler carries it out. audit makes the entry of the audit log, and is
// called again when somebody else's change comes first. Errors: ErrInvalid, ErrRefused, those of Peers.PutDocuments.
func (o *Operator) Add(ctx context.Context, node quorum.Node, address string, audit func(Entry) []byte) error {
	return o.change(ctx, node, audit,
		func(d *Directory, now NodeDocument, known bool) (next NodeDocument, what string, err error) {
			if address == "" && !known {
				return now, "", fmt.Errorf("%w: an address is required: node %d is new", ErrInvalid, node)
			}
			if address != "" {
				if err := checkAddress(address); err != nil {
					return now, "", err
				}
				for other, document := range d.Nodes {
					if other != node && document.State != Removed && document.Address == address {
						return now, "", fmt.Errorf("%w: node %d is at %s", ErrRefused, other, address)
					}
				}
			}
			next, what = now, NodeAdded
			switch {
			case !known:
				if count := d.members(); count >= maxNodes {
					return now, "", fmt.Errorf("%w: there are %d nodes, which is the limit", ErrRefused, count)
				}
				next.State = Joining
			case now.State == Removed:
				return now, "", fmt.Errorf("%w: node %d is removed, and its number is not used again: take another one",
					ErrRefused, node)
			case now.State == Draining || now.State == Drained:
				next.State, what = Active, DrainTakenBack
			default:
				what = AddressChanged
			}
			if address != "" {
				next.Address = address
			}
			return next, what, nil
		})
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		var number uint64
		if number, err = strconv.ParseUint(port, 10, 16); host == "" || number == 0 || len(address) > maxAddressBytes {
			err = errors.New("it has no host or port, or is too long")
		}
	}
	if err != nil {
		return fmt.Errorf("%w: address %.300q: want HOST:PORT", ErrInvalid, address)
	}
	return nil
}

// members counts the nodes that are not removed.
func (n *Directory) members() (count int) {
	for _, d := range n.Nodes {
		if d.State != Removed {
			count++
		}
	}
	return count
}

// Drain makes a node give its groups away; then it is Drained. Its errors are those of Add, and ErrNotFound.
func (o *Operator) Drain(ctx context.Context, node quorum.Node, audit func(Entry) []byte) error {
	return o.change(ctx, node, audit,
		func(d *Directory, now NodeDocument, known bool) (next NodeDocument, what string, err error) {
			next = now
			switch {
			case !known:
				return now, "", fmt.Errorf("node %d: %w", node, ErrNotFound)
			case now.State == Removed:
				return now, "", fmt.Errorf("%w: node %d is removed", ErrRefused, node)
			case now.State == Joining:
				return now, "", fmt.Errorf("%w: node %d has not joined yet, so it has nothing to give away: remove it",
					ErrRefused, node)
			case now.State == Active:
				next.State = Draining
				if !slices.ContainsFunc(d.numbers(), func(n quorum.Node) bool {
					return n != node && d.Nodes[n].State == Active
				}) {
					return now, "", fmt.Errorf("%w: there is no other node that is active", ErrRefused)
				}
			}
			return next, "node to be drained", nil
		})
}

// Remove removes a node for good; its number is never used again. With force it also removes a node that isn't drained,
// because it is gone. It is refused when a group would be left without a majority, and with force while a node that
// hasn't been drained answers: its groups would lack a replica that could have been moved. Its errors are those of
// Drain.
func (o *Operator) Remove(ctx context.Context, node quorum.Node, force bool, audit func(Entry) []byte) error {
	return o.change(ctx, node, audit,
		func(d *Directory, now NodeDocument, known bool) (next NodeDocument, what string, err error) {
			next = now
			next.State = Removed
			switch {
			case !known:
				return now, "", fmt.Errorf("node %d: %w", node, ErrNotFound)
			case now.State == Removed:
				return now, "", nil
			case now.State == Joining && now.Disk == "", now.State == Drained, force:
			default:
				advice := "drain it first"
				if now.State == Draining {
					advice = "wait until it is drained"
				}
				return now, "", fmt.Errorf("%w: node %d is %s: %s, or remove it by force when it is gone for good",
					ErrRefused, node, now.State, advice)
			}
			if now.Disk != "" {
				err = o.mayLeave(ctx, node, now.State == Active || now.State == Draining)
			}
			return next, "node removed", err
		})
}

// mayLeave returns an error when a group could not go on without node, or when node has groups to give away and could
// do so.
func (o *Operator) mayLeave(ctx context.Context, node quorum.Node, hasGroups bool) error {
	s := o.view(o.probe(ctx, nil), newMemory(o.Now()))
	for _, g := range append([]groupView{s.control}, s.groups...) {
		name := groupName(g.group)
		switch voters := g.voters(); {
		case (g.leader == 0 || !s.decides(voters)) &&
			(g.Holds(node) || g.votes(node) || len(voters) == 0 && g.group == 0):
			return fmt.Errorf("%w: %s %s, so nothing can be moved off node %d", ErrRefused, name,
				s.leaderless(&g), node)
		case !g.votes(node):
		case len(voters) == 1:
			return fmt.Errorf("%w: %s has its only replica on node %d", ErrRefused, name, node)
		case !s.decides(without(voters, node)):
			return fmt.Errorf("%w: %s would be left without a majority: too few of nodes %v answer", ErrRefused, name,
				without(voters, node))
		}
	}
	if hasGroups && s.nodes[node].alive {
		return fmt.Errorf("%w: node %d answers: drain it first, or stop it when it is to be given up with what it has",
			ErrRefused, node)
	}
	return nil
}

// groupName is the name of a group in messages to people.
func groupName(group uint32) string {
	if group == 0 {
		return "the control group"
	}
	return fmt.Sprintf("group %d", group)
}

// Claim records that a node's number belongs to a disk, when the node comes for the first time. Errors: ErrReplaced
// when the number belongs to another disk, ErrNotFound when nobody has added the node, ErrRemoved when it was removed.
func (o *Operator) Claim(ctx context.Context, node quorum.Node, disk string, audit func(Entry) []byte) error {
	return o.change(ctx, node, audit,
		func(_ *Directory, now NodeDocument, known bool) (next NodeDocument, what string, err error) {
			next = now
			switch next.Disk = disk; {
			case !known:
				return now, "", fmt.Errorf("node %d: %w: add it first", node, ErrNotFound)
			case now.State == Removed:
				return now, "", ErrRemoved
			case now.Disk != "" && now.Disk != disk:
				return now, "", ErrReplaced
			}
			return next, "node has come", nil
		})
}

// change makes a change of a node's document: judge decides what the document becomes, based on everything that is
// acknowledged. It judges anew when somebody else's change comes first.
func (o *Operator) change(
	ctx context.Context, node quorum.Node, audit func(Entry) []byte,
	judge func(d *Directory, now NodeDocument, known bool) (next NodeDocument, what string, err error),
) error {
	if node == 0 {
		return fmt.Errorf("%w: node 0: nodes have numbers from 1 on", ErrInvalid)
	}
	for attempt := 1; ; attempt++ {
		if err := o.Peers.Barrier(ctx); err != nil {
			return err
		}
		d, _ := o.Documents.Get()
		now, known := d.Nodes[node]
		next, what, err := judge(d, now, known)
		if err != nil || known && next == now {
			return err
		}
		change := d.change(NodeKey(node), next)
		entry := Entry{What: what, Kind: "cluster_node", ID: strconv.FormatUint(uint64(node), 10), Before: change.Was,
			After:   change.Doc,
			Details: []any{"state", string(next.State), "node_address", next.Address}}
		err = o.Peers.PutDocuments(adminActor, []bodies.DocumentChange{change}, encodeEntry(audit, entry))
		if !errors.Is(err, shard.ErrConflict) || attempt == maxAttempts {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func encodeEntry(audit func(Entry) []byte, e Entry) []byte {
	if audit == nil {
		return nil
	}
	return audit(e)
}
