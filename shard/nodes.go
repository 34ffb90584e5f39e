package shard

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"millrace/shard/effect"
	"millrace/shard/lookup"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// Nodes is how a coordinator reaches the groups that hold the partitions, wherever they are led. Package cluster
// implements it; on a node that is alone there is one group, here.
type Nodes interface {
	lookup.Nodes
	// Self is this node.
	Self() NodeID
	// Ready is nil when this node can carry out what is asked of it, or says why it can't.
	Ready() error
	// Leader is the node that leads a group, after a wait for an election that is under way; until zero: no bound. When
	// others have waited for long in vain, only patient callers wait. ErrUnavailable: there is no leader.
	Leader(group int, until time.Time, patient bool) (NodeID, error)
	// Resigned says that a node was asked and doesn't lead a group. hint is the leader that it knows, 0: none.
	Resigned(group int, node NodeID, hint uint64)
	// Replica is this node's replica of a group, which may lead it; nil when it has none.
	Replica(group int) *replica.Replica
	// Take has another node take parts for groups that it leads (Part.Take, Part.Wait), by one call, and fills in what
	// became of each. ErrUnavailable: nothing was sent.
	Take(node NodeID, parts []*Part, wanted int, until time.Time)
	// Release calls Replica.Release on a node, this one or another. ErrUnavailable: nothing was sent.
	Release(node NodeID, ref uint64, until time.Time) (effect.Effects, error)

	// Control is this node's replica of the control group. Each node has one.
	Control() *replica.Replica
	// Barrier returns when everything that was acknowledged anywhere before the call is applied in all replicas of this
	// node, and the node's Clock has seen all stamps of it, including those of groups without a replica here.
	Barrier() error
	// BarrierControl is Barrier for the control group only: control documents can be changed, and seen, also while
	// other groups have no leader.
	BarrierControl() error
	// Spread returns when all nodes that can be reached know the control documents that are acknowledged by now, or
	// after a while.
	Spread()
	// Flush calls Replica.Flush at the leader of the group that holds a partition.
	Flush(partition uint8, owner uint64) (waiting []uint64, err error)
}

// NodeID is the number of a node.
type NodeID uint64

// ControlGroup is the number of the group that has the control documents and the audit log.
const ControlGroup = 0

// Part is what one group gets of a request, and what became of it.
type Part struct {
	Group  int
	Record []byte
	// nil: the part is visible, with all its effects except what was deferred. ErrUnknown: it may be. Else nothing was
	// done
	Err     error
	Hint    uint64 // of ErrNotLeader: the leader that the node that was asked knows of (Nodes.Resigned)
	Effects effect.Effects

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
	default: // an error of this replica: another one may lead soon
		r.Logger().Warn("a record was not taken", "error", err)
		p.Err = fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
}

// refusals are the errors of Replica.Take for which any replica would refuse the record, or which say whom to ask.
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

// split splits a finished record by the groups that its ops are for, into parts in the order of their first ops; within
// a part the ops stay in order. A record that is for one group is its only part.
//
// Each op keeps its stamp. So when one request changes two users in different groups, their stamps say which change
// came last. They don't when a leader must give its part another stamp (Replica.Take): then requests of other nodes
// were under way to the same group, and the order of the two users is as if the two changes had been concurrent, too.
func split(record []byte, nodes Nodes) ([]op.Part, error) {
	return op.Split(record, func(o op.Op) int {
		if o.Kind() == op.Document {
			return ControlGroup
		}
		return nodes.GroupOf(o.Partition())
	})
}
