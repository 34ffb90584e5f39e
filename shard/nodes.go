package shard

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"millrace/shard/books"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// Nodes is how a coordinator reaches the groups that hold the partitions, wherever they are led. Package cluster
// implements it; alone there is one group, here.
type Nodes interface {
	// GroupOf is the number of the group that holds a partition. It is the same for ever, and those of a group are next
	// to one another.
	GroupOf(partition uint8) int
	// Self is this node.
	Self() NodeID
	// Leader is who leads a group, after a wait for an election that is under way; until zero: no bound. When others
	// have waited for long in vain only who is patient waits. ErrUnavailable: there is none.
	Leader(group int, until time.Time, patient bool) (NodeID, error)
	// Resigned says that a node was asked and doesn't lead a group. hint is what it knows, 0: nothing.
	Resigned(group int, node NodeID, hint uint64)
	// Replica is this node's replica of a group, which may lead it; nil when it has none.
	Replica(group int) *replica.Replica
	// Take has another node take parts for groups that it leads (Part.Take, Part.Wait), by one call, and fills in what
	// has become of each. ErrUnavailable: nothing was sent.
	Take(node NodeID, parts []*Part, wanted int, until time.Time)
	// Release asks another node (Replica.Release). ErrUnavailable: nothing was sent.
	Release(node NodeID, ref uint64, until time.Time) (replica.Effects, error)

	// Local is this node's replica of the group that holds a partition, as far as everything is applied in it that
	// Barrier has promised; nil without one.
	Local(partition uint8) *replica.Replica
	// Control is this node's replica of the control group. Each node has one.
	Control() *replica.Replica
	// Barrier returns when everything that was acknowledged anywhere before the call is applied in all replicas of this
	// node, and the node's Clock has seen the stamps of all of it, that of groups without a replica here included.
	Barrier() error
	// BarrierOf is Barrier for the groups that hold these partitions alone: what concerns no other group need not wait
	// for theirs.
	BarrierOf(partitions ...uint8) error
	// BarrierControl is Barrier for the control group alone: control documents can be changed, and seen, also while
	// other groups have no leader.
	BarrierControl() error
	// Spread returns when all nodes that can be reached know the control documents that are acknowledged by now, or
	// after a while.
	Spread()
	// Flush asks the leader of the group that holds a partition (Replica.Flush).
	Flush(partition uint8, owner uint64) (waiting []uint64, err error)

	// Of partitions without a replica on this node, as their group's leader has it, linearizable: what the Replica's
	// methods of these names return.
	Entry(number uint64) ([]byte, error)
	TrailOf(number uint64) (books.History, error)
	BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error)
}

// NodeID is the number of a node.
type NodeID uint64

// ControlGroup is the number of the group that has the control documents and the audit log.
const ControlGroup = 0

// Part is what one group gets of a request, and what has become of it.
type Part struct {
	Group  int
	Record []byte
	// nil: it is visible, with all that it has caused but what was deferred. ErrUnknown: it may be. Else nothing was
	// done
	Err     error
	Hint    uint64 // of ErrNotLeader: what the node that was asked knows of who leads (Nodes.Resigned)
	Effects replica.Effects

	to      NodeID
	tried   bool
	pending *replica.Pending
}

// Take gives the part to a replica that should lead; nil: there is none. Wait must follow.
func (p *Part) Take(r *replica.Replica, wanted int) {
	p.pending, p.Err, p.Hint = nil, replica.ErrNotLeader, 0
	if r == nil {
		return
	}
	pending, err := r.Take(p.Record, wanted)
	switch {
	case err == nil:
		p.pending, p.Err = pending, nil
	case slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) }):
		p.Err = err
	default: // of this replica: another one may lead soon
		r.Logger().Warn("a record was not taken", "error", err)
		p.Err = fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
}

// refusals are what Replica.Take refuses a record for that any replica would refuse it for, or that says who to ask.
var refusals = []error{replica.ErrNotLeader, replica.ErrBusy, replica.ErrTooLarge, replica.ErrDiskFull}

// Wait returns when the part is visible, if it was taken. end ends the wait.
func (p *Part) Wait(end <-chan struct{}) {
	if p.pending == nil {
		return
	}
	var err error
	if p.Effects, err = p.pending.Wait(end); err != nil {
		p.Err = replica.ErrUnknown
	}
	p.pending = nil
}

// split is the parts of a finished record by the groups that its ops are for, in the order of their first ops; of one
// group the ops stay in order. A record that is for one group is that part itself.
//
// Each op keeps its stamp, so that of two users in different groups that one request changes it is known who came last.
// It is not when a leader must give its part another stamp (Replica.Take): then requests of other nodes were under way
// to the same group, and the two users' order is as if they had been, too.
func split(record []byte, nodes Nodes) ([]op.Part, error) {
	return op.Split(record, func(o op.Op) int {
		if o.Kind() == op.Document {
			return ControlGroup
		}
		return nodes.GroupOf(o.Partition())
	})
}
