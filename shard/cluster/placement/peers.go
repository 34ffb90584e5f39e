package placement

import (
	"context"
	"errors"
	"slices"
	"time"

	"millrace/shard/bodies"
	"millrace/wal/quorum"
)

// Peers is what the reconciler and the operator's verbs need of the node that they run on. All calls end with their
// context.
type Peers interface {
	// Report asks a node, this one too, how it is.
	Report(ctx context.Context, node quorum.Node) (Report, error)
	// Step has node, which leads a group, change the group's members or hand it over, and returns when that is done.
	// Errors: quorum.ErrNotLeader, ErrMembers, ErrPlaced, that it can't be reached, or that nobody knows: the next
	// probe will tell.
	Step(ctx context.Context, node quorum.Node, s Step) error
	// Barrier returns when everything that was acknowledged in the control group before the call is applied in this
	// node's replica, its documents included.
	Barrier(ctx context.Context) error
	// PutDocuments is the engine's: shard.Coordinator.
	PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error
}

// Report is what a node says of itself.
type Report struct {
	Node       quorum.Node
	Disk       string // see NodeDocument
	API, Admin string
	Program    string
	Now        time.Time // its clock
	Started    time.Time
	Full       bool            // less of its disk is free than its floor: where it leads, writes are refused
	Replicas   []ReplicaReport // those that are open, the control group's too
	// Heard is when it last got a call or an answer of each other node.
	Heard map[quorum.Node]time.Time
	// Said is up to which entry who asks had the groups' logs, as far as it has told; only for one that wants to know.
	Said map[uint32]uint64 `json:",omitempty"`
}

// ReplicaReport is how a node's replica of a group is.
type ReplicaReport struct {
	quorum.Status
	Applied uint64 // index of the last entry whose effects are visible
}

// controlGroup has no document: each node has a replica of it.
const controlGroup = 0

// Step is one change of a group, on the condition that its members are what they were when it was decided on.
type Step struct {
	Group   uint32
	Verb    Verb
	Node    quorum.Node
	Members []quorum.Member // in any order
	Until   time.Time       // it is too late afterwards: what it was decided by may not be so any more
}

// Verb is what a step does with a node.
type Verb uint8

// The verbs of quorum.Log.
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

// What Step returns when nothing was done.
var (
	ErrMembers = errors.New("cluster: the group's members have changed")
	ErrLate    = errors.New("cluster: the step comes too late, or clocks differ")
	ErrPlaced  = errors.New("cluster: the group is placed elsewhere by now")
)

// Stands is nil when the documents still want the step, else ErrPlaced. A node deletes its replica of a group that is
// placed elsewhere, so it must not become a member then by a step that was long under way.
func (s Step) Stands(d *Directory) error {
	if s.Verb == AddLearner && s.Group != controlGroup && !slices.Contains(d.Groups[s.Group].Replicas, s.Node) {
		return ErrPlaced
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

// Do carries a step out on the log of the group that this node leads.
func (s Step) Do(log members) error { return s.doAt(time.Now(), log) }

func (s Step) doAt(now time.Time, log members) error {
	if now.After(s.Until) {
		return ErrLate
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

func sameMembers(a, b []quorum.Member) bool {
	if len(a) != len(b) {
		return false
	}
	of := map[quorum.Node]quorum.Member{}
	for _, m := range a {
		of[m.Node] = m
	}
	for _, m := range b {
		if was, ok := of[m.Node]; !ok || was != m {
			return false
		}
		delete(of, m.Node)
	}
	return true
}
