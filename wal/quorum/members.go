package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// changeTimeout is how long a change of the members waits for the one before it.
const changeTimeout = 10 * time.Second

// AddLearner takes a node in that gets the log and has no vote. Like all changes of the members: only the leader does
// it, and it returns when the change is committed. Errors: ErrNotLeader (nothing was done), ErrUncertain, or what raft
// says.
func (l *Log) AddLearner(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.AddNonvoter(n.id(), n.address(), 0, changeTimeout) })
}

// AddVoter makes a node, best a learner that has caught up, a voter.
func (l *Log) AddVoter(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.AddVoter(n.id(), n.address(), 0, changeTimeout) })
}

// Demote makes a voter a learner.
func (l *Log) Demote(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.DemoteVoter(n.id(), 0, changeTimeout) })
}

// Remove takes a node out of the group.
func (l *Log) Remove(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.RemoveServer(n.id(), 0, changeTimeout) })
}

func (l *Log) change(ask func(*raft.Raft) raft.IndexFuture) error {
	n := l.node.Load()
	if n == nil || n.raft.State() != raft.Leader {
		return ErrNotLeader
	}
	l.changes.Add(1)
	defer l.changes.Add(-1)
	err := ask(n.raft).Error()
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return ErrNotLeader
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	case err != nil:
		return fmt.Errorf("change the members of group %d: %w", l.opts.Group, err)
	}
	return nil
}

// Transfer hands leadership to a voter, once what is on its way is handed back; 0: to the one that has most of the log.
// Append and Barrier return ErrNotLeader meanwhile. After an error this node still leads, if it did.
func (l *Log) Transfer(to Node) error {
	n := l.node.Load()
	if n == nil || n.raft.State() != raft.Leader {
		return ErrNotLeader
	}
	l.mu.Lock()
	if l.transferring {
		l.mu.Unlock()
		return errors.New("quorum: a transfer of the leadership is under way")
	}
	l.transferring = true
	epoch := l.epoch
	l.mu.Unlock()
	var err error
	defer func() {
		l.mu.Lock()
		l.transferring = false
		if err == nil && l.epoch == epoch { // raft has not told it yet: what is taken until then would be lost
			l.leads = false
		}
		l.mu.Unlock()
	}()
	l.settle(l.opts.ElectionTimeout)
	var future raft.Future
	if to == 0 {
		future = n.raft.LeadershipTransfer()
	} else {
		future = n.raft.LeadershipTransferToServer(to.id(), to.address())
	}
	if err = future.Error(); err != nil {
		return fmt.Errorf("transfer the leadership of group %d to node %d: %w", l.opts.Group, to, err)
	}
	return nil
}

// settle waits until nothing waits or is on its way.
func (l *Log) settle(timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) {
		l.mu.Lock()
		q := &l.queue
		settled := len(q.flying) == 0 && len(q.records) == 0 && len(q.barriers) == 0
		l.mu.Unlock()
		if settled {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Progress is how far a member has the log, as it has told this leader not longer ago than ElectionTimeout; ok is false
// when it hasn't.
func (l *Log) Progress(n Node) (index uint64, ok bool) {
	node := l.node.Load()
	if node == nil || node.raft.State() != raft.Leader {
		return 0, false
	}
	if n == l.self {
		return node.raft.LastIndex(), true
	}
	c := node.trans.contact(n)
	return c.index, !c.at.IsZero() && time.Since(c.at) <= l.opts.ElectionTimeout
}

// members are those of the newest configuration, committed or not.
func (l *Log) members() []Member {
	node := l.node.Load()
	if node == nil {
		return nil
	}
	var members []Member
	for _, s := range node.raft.GetConfiguration().Configuration().Servers {
		members = append(members, Member{Node: nodeOf(s.ID), Voter: s.Suffrage == raft.Voter})
	}
	return members
}

// Status of the group as this node knows it.
func (l *Log) Status() Status {
	s := Status{Group: l.opts.Group, HandedBack: l.passed.index.Load(), SnapshotIndex: l.markers.current().Index,
		LogBytes: l.Bytes(), Role: Gone, Newcomer: l.newcomer.is.Load()}
	node := l.node.Load()
	if node == nil {
		s.LastIndex, _ = l.store.LastIndex()
		return s
	}
	r := node.raft
	s.Leader, s.Term = leaderOf(r)
	s.LastIndex, s.CommitIndex, s.Members = r.LastIndex(), max(r.CommitIndex(), s.SnapshotIndex), l.members()
	for _, m := range s.Members {
		if m.Node != l.self {
			continue
		}
		switch {
		case r.State() == raft.Leader && l.stoodDown.Load():
			s.Role, s.Leader = Follower, 0
		case r.State() == raft.Leader:
			s.Role = Leader
			s.Changing = l.changes.Load() > 0 || !l.Leads()
		case !m.Voter:
			s.Role = Learner
		case r.State() == raft.Candidate:
			s.Role = Candidate
		default:
			s.Role = Follower
		}
	}
	if last := r.LastContact(); s.Role != Leader && !last.IsZero() {
		s.LastContact = time.Since(last)
	}
	return s
}

// leaderOf is the leader that a raft knows, and in which term: of one moment, as far as raft is. (A heartbeat that it
// takes while it goes to another term may still leave it with the leader of the one before, until it hears of the
// next.)
func leaderOf(r *raft.Raft) (leader Node, term uint64) {
	for {
		term = r.CurrentTerm()
		_, id := r.LeaderWithID()
		if r.CurrentTerm() == term {
			return nodeOf(id), term
		}
	}
}

// Term is the term that this node is in.
func (l *Log) Term() uint64 {
	if node := l.node.Load(); node != nil {
		return node.raft.CurrentTerm()
	}
	return 0
}

// Leads says whether Append and Barrier are taken here.
func (l *Log) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takes() == nil
}

// Leader is who leads the group, as far as this node knows; 0: nobody that is known.
func (l *Log) Leader() Node {
	node := l.node.Load()
	if node == nil {
		return 0
	}
	_, id := node.raft.LeaderWithID()
	return nodeOf(id)
}

// Stand makes this node stand for election at once, and the others vote although they may know a leader: for when a
// majority is known to have lost it. It says whether it was told to. One that stands already waits for votes, and after
// voteWait stands anew: those that were asked too early, or whose answer was lost, are not asked again until raft's
// election timer has run.
func (l *Log) Stand() bool {
	n := l.node.Load()
	if n == nil || l.newcomer.is.Load() {
		return false
	}
	switch n.raft.State() {
	case raft.Follower:
	case raft.Candidate:
		e := election{n.raft.CurrentTerm(), time.Now()}
		if seen := l.election.Load(); seen == nil || seen.term != e.term {
			l.election.Store(&e)
			return false
		} else if e.since.Sub(seen.since) < voteWait {
			return false
		}
		n.trans.stepDown(e.term + 1)
	default:
		return false
	}
	n.trans.stand()
	return true
}

// voteWait is how long a candidate waits for votes before Stand has it stand anew.
const voteWait = time.Second

// election is one that this node stands for.
type election struct {
	term  uint64
	since time.Time // it was first seen
}
