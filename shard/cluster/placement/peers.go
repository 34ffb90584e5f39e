package placement

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"millrace/shard/bodies"
	"millrace/wal/quorum"
)

// Peers is what the reconciler and the operator's verbs need from the node that they run on. All calls end with their
// context.
type Peers interface {
	// Report asks a node, which may be this one, how it is.
	Report(ctx context.Context, node quorum.Node) (Report, error)
	// Step makes node, which leads a group, change the group's members or hand it over, and returns when that is done.
	// Errors: quorum.ErrNotLeader, ErrMembers, that the step is out of date, that the node can't be reached, or that
	// the outcome is unknown: the next probe will tell.
	Step(ctx context.Context, node quorum.Node, s Step) error
	// Barrier returns when everything that was acknowledged in the control group before the call is applied in this
	// node's replica, its documents included.
	Barrier(ctx context.Context) error
	// PutDocuments is shard.Coordinator's.
	PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error
}

// Report is what a node says of itself.
type Report struct {
	Node       quorum.Node
	Disk       string // see NodeDocument
	API, Admin string
	Program    string
	Now        time.Time // the node's clock
	Started    time.Time
	Full       bool            // less of its disk is free than its floor: where it leads, writes are refused
	Hangs      bool            // its disk has not answered for long
	Replicas   []ReplicaReport // those that are open, including the control group's
	// Heard is when the node last got a call or an answer from each other node.
	Heard map[quorum.Node]time.Time
	// Reaches are the other nodes that have answered this node's last call of them.
	Reaches []quorum.Node
	// Said is up to which entry the asking node had the groups' logs, as far as it has told; sent only when asked for.
	Said map[uint32]uint64 `json:",omitempty"`
}

// ReplicaReport is what a node says of its replica of a group.
type ReplicaReport struct {
	quorum.Status
	Applied uint64 // index of the last entry whose effects are visible
}

// controlGroup has no document: each node has a replica of it.
const controlGroup = 0

// Step is one change of a group, on the condition that its members are still those for which it was decided.
type Step struct {
	Group   uint32
	Verb    Verb
	Node    quorum.Node
	Members []quorum.Member // in any order
	Until   time.Time       // afterwards it is too late: its grounds may no longer hold
}

// Verb is what a step does with a node.
type Verb uint8

// The verbs, which are those of quorum.Log.
const (
	AddLearner Verb = iota + 1
	AddVoter
	Demote
	Remove
	Transfer
)

func (v Verb) String() string {
	if names := [...]string{AddLearner: "add learner", AddVoter: "make voter",
		Demote: "demote", Remove: "remove", Transfer: "hand over to"}; int(v) < len(names) {
		return names[v]
	}
	return "unknown verb"
}

// The errors of Step when nothing was done.
var (
	ErrMembers = errors.New("cluster: the group's members have changed")
	errLate    = errors.New("cluster: the step comes too late, or clocks differ")
	errPlaced  = errors.New("cluster: the group is placed elsewhere by now")
)

// Stands returns nil when the documents still want the step. A node deletes its replica of a group that
// is placed elsewhere, so a step that was long under way must not make it a member then.
func (s Step) Stands(d *Directory) error {
	if s.Verb == AddLearner && s.Group != controlGroup && !slices.Contains(d.Groups[s.Group].Replicas, s.Node) {
		return errPlaced
	}
	return nil
}

// members is how a group's members are changed: quorum.Log, on the leader.
type members interface {
	Status() quorum.Status
	AddLearner(quorum.Node) error
	AddVoter(quorum.Node) error
	Demote(quorum.Node) error
	Remove(quorum.Node) error
	Transfer(quorum.Node) error
}

// Do carries out a step on the log of a group that this node leads.
func (s Step) Do(log members) error { return s.doAt(time.Now(), log) }

func (s Step) doAt(now time.Time, log members) error {
	if now.After(s.Until) {
		return errLate
	}
	if !sameMembers(log.Status().Members, s.Members) {
		return ErrMembers
	}
	switch s.Verb {
	case AddLearner:
		return log.AddLearner(s.Node)
	case AddVoter:
		return log.AddVoter(s.Node)
	case Demote:
		return log.Demote(s.Node)
	case Remove:
		return log.Remove(s.Node)
	case Transfer:
		return log.Transfer(s.Node)
	}
	return errors.New("cluster: unknown step")
}

func sameMembers(a, b []quorum.Member) bool { return slices.Equal(sortedMembers(a), sortedMembers(b)) }

func sortedMembers(members []quorum.Member) []quorum.Member {
	return slices.SortedFunc(slices.Values(members), func(a, b quorum.Member) int {
		return cmp.Compare(a.Node, b.Node)
	})
}
