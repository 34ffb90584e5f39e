package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/pause"
)

// changeTimeout is how long a change of the members waits for the previous one.
const changeTimeout = 10 * time.Second

// AddLearner adds a node that gets the log and has no vote. As with all changes of the members, only the leader can do
// it, and the call returns when the change is committed. Errors: ErrNotLeader (nothing was done), or any other, after
// which it may or may not have been made.
func (l *Log) AddLearner(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture {
		return r.AddNonvoter(idOf(n), addressOf(n), 0, changeTimeout)
	})
}

// AddVoter makes a node, best a learner that has caught up, a voter.
func (l *Log) AddVoter(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.AddVoter(idOf(n), addressOf(n), 0, changeTimeout) })
}

// Demote makes a voter a learner.
func (l *Log) Demote(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.DemoteVoter(idOf(n), 0, changeTimeout) })
}

// Remove removes a node from the group.
func (l *Log) Remove(n Node) error {
	return l.change(func(r *raft.Raft) raft.IndexFuture { return r.RemoveServer(idOf(n), 0, changeTimeout) })
}

func (l *Log) change(ask func(*raft.Raft) raft.IndexFuture) error {
	n := l.node.Load()
	if n == nil || n.raft.State() != raft.Leader {
		return ErrNotLeader
	}
	l.changes.Add(1)
	defer l.changes.Add(-1)
	err := l.await(n, func() raft.Future { return ask(n.raft) })
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return ErrNotLeader
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, wal.ErrClosed):
		return fmt.Errorf("quorum: leadership was lost meanwhile: %w", err) // the change may have been made
	case err != nil:
		return fmt.Errorf("change the members of group %d: %w", l.opts.Group, err)
	}
	return nil
}

// Transfer hands leadership to a voter, once everything under way is handed back. With 0 it chooses the voter with most
// of the log. It refuses a node without a vote, whose leadership nothing would end. Append and Barrier return
// ErrNotLeader until it is known what has come of it. The end of ctx ends only the wait for that. After another error
// this node still leads, if it did before.
func (l *Log) Transfer(ctx context.Context, to Node) error {
	n := l.node.Load()
	if n == nil || n.raft.State() != raft.Leader {
		return ErrNotLeader
	}
	done := make(chan error, 1)
	l.mu.Lock()
	err := l.takes()
	switch {
	case l.transferring:
		err = errors.New("quorum: a transfer of the leadership is under way")
	case err == nil && to != 0 && !hasVote(n.raft, to):
		err = fmt.Errorf("quorum: node %d has no vote in group %d and can't lead it", to, l.opts.Group)
	case err == nil:
		l.transferring = true
		epoch := l.epoch
		l.loops.Go(func() { done <- l.transfer(ctx, n, epoch, to) })
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Log) transfer(ctx context.Context, n *instance, epoch uint64, to Node) error {
	err := l.settle(ctx, l.opts.ElectionTimeout)
	if err == nil {
		to, err = l.heir(ctx, n, to)
	}
	if err == nil {
		err = l.await(n, func() raft.Future { return n.raft.LeadershipTransferToServer(idOf(to), addressOf(to)) })
		if err != nil {
			_, _ = l.barrier(n) // until then raft refuses entries, and they would be lost although this node leads
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.transferring = false
	if err != nil {
		return fmt.Errorf("transfer the leadership of group %d to node %d: %w", l.opts.Group, to, err)
	}
	if l.epoch == epoch { // raft has not reported it yet: what is taken until then would be lost
		l.endReign()
	}
	return nil
}

// heir waits until a node is known to have the whole log, and returns it; with 0, the voter with most of the log. Raft
// waits for that, too, but when it waits for the same node twice and the leadership is lost meanwhile, two of its
// goroutines never end.
func (l *Log) heir(ctx context.Context, n *instance, to Node) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.ElectionTimeout)
	defer cancel()
	for asked := false; ; asked = true {
		heir := cmp.Or(to, l.furthest(n))
		if heir == 0 {
			return 0, errors.New("nobody else has a vote")
		}
		if index, ok := l.Progress(heir); ok && index >= n.raft.LastIndex() {
			return heir, nil
		}
		if !asked {
			n.raft.VerifyLeader() // has the nodes asked at once; what was heard may be old
		}
		select {
		case <-l.stop:
			return heir, wal.ErrClosed
		default:
		}
		if n.raft.State() != raft.Leader {
			return heir, ErrNotLeader
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return heir, fmt.Errorf("it isn't known to have the whole log: %w", err)
		}
	}
}

// settle waits until no record waits or is under way.
func (l *Log) settle(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		l.mu.Lock()
		q := &l.queue
		settled := len(q.flying) == 0 && len(q.records) == 0
		l.mu.Unlock()
		if settled {
			return nil
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("records are under way: %w", err)
		}
	}
}

// Progress returns how far a member has the log, as reported to this leader within the last ElectionTimeout; ok is
// false when there is no such report.
func (l *Log) Progress(n Node) (index uint64, ok bool) {
	node := l.node.Load()
	if node == nil || node.raft.State() != raft.Leader {
		return 0, false
	}
	if n == l.self {
		return node.raft.LastIndex(), true
	}
	c := node.trans.contact(n)
	return c.index, c.within(l.opts.ElectionTimeout)
}

// members returns the members of the newest configuration, committed or not.
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

// Status is the state of the group as this node knows it.
func (l *Log) Status() Status {
	s := Status{Group: l.opts.Group, SnapshotIndex: l.markers.Current().Index, Role: Gone,
		Newcomer: l.newcomer.is.Load()}
	s.HandedBack, s.HandedBackTerm = l.Committed()
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
	return s
}

// leaderOf returns the leader that a raft knows, and the term. Both are of one moment, as far as raft keeps them in
// step. (When raft takes a heartbeat while it moves to another term, it may keep the leader of the previous term until
// it hears of the next leader.)
func leaderOf(r *raft.Raft) (leader Node, term uint64) {
	for {
		term = r.CurrentTerm()
		_, id := r.LeaderWithID()
		if r.CurrentTerm() == term {
			return nodeOf(id), term
		}
	}
}

// Term is the current term of this node.
func (l *Log) Term() uint64 {
	if node := l.node.Load(); node != nil {
		return node.raft.CurrentTerm()
	}
	return 0
}

// Leads reports whether Append and Barrier are taken here.
func (l *Log) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takes() == nil
}

// Leader is the leader of the group as far as this node knows; 0 when none is known.
func (l *Log) Leader() Node {
	node := l.node.Load()
	if node == nil {
		return 0
	}
	_, id := node.raft.LeaderWithID()
	return nodeOf(id)
}

// Votes reports whether this node votes: it has a vote by the newest configuration that it knows, and is no newcomer.
func (l *Log) Votes() bool {
	n := l.node.Load()
	return n != nil && !l.newcomer.is.Load() && hasVote(n.raft, l.self)
}

// Stand makes this node stand for election at once, and makes the others vote although they may know a leader. It is
// for when a majority is known to have lost the leader. It reports whether raft was told to stand. A node without a
// vote isn't: the others would give up their leader for it. A node that already stands waits for votes, and stands anew
// after voteWait: nodes that were asked too early, or whose answers were lost, are not asked again until raft's
// election timer has run.
func (l *Log) Stand() bool {
	if !l.Votes() {
		return false
	}
	n := l.node.Load()
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
		n.trans.tell(n.trans.dismissal(e.term + 1))
	default:
		return false
	}
	n.trans.stand()
	return true
}

// voteWait is how long a candidate waits for votes before Stand makes it stand anew.
const voteWait = time.Second

// election is an election in which this node stands.
type election struct {
	term  uint64
	since time.Time // when Stand first saw it
}
