package quorum

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// A barrier is no entry of the log. The leader reads up to where it knows entries to be committed, and makes sure that
// nobody had replaced it when the barrier was asked for: it waits until a majority of the voters, itself included, was
// in its term at a later moment. A node was when it has answered a request of that term, entries or a heartbeat, that
// was sent later. Whoever leads in a newer term has the votes of a majority. One of these voters is among those who
// answered, and voted after it had, so the newer leader has acknowledged nothing before the barrier was asked for. That
// holds while members change, too: the majorities before and after one change have a node in common.
//
// Raft's VerifyLeader counts answers to requests that were sent before. A leader that was paused between request and
// answer would take itself for the leader although there is another one. So VerifyLeader is used for no more than to
// have heartbeats sent at once.

// reign is a time in which this node leads: from when all entries of earlier leaders were handed back until it no
// longer takes records.
type reign struct {
	ctx  context.Context // done when the time has ended
	end  context.CancelFunc
	term uint64
	// from is the entry by which earlier leaders' entries were known to be handed back. Of the entries behind it raft
	// hands back each.
	from uint64
}

// confirmation makes barriers. Log.mu guards it.
type confirmation struct {
	asked   []chan barrier // these wait for the next round
	running bool
}

type barrier struct {
	position uint64
	err      error
}

// Barrier returns a position. Everything in the group that was acknowledged before the call is at or before that
// position, and OnDurable has had it on this node. On another node, Wait returns once OnDurable there has had it. Only
// the leader gives barriers; otherwise, or when leadership is lost meanwhile, Barrier returns ErrNotLeader. Barriers
// that are asked for during a round share the next one. A leader that was paused and has been replaced can't give one.
func (l *Log) Barrier(ctx context.Context) (position uint64, err error) {
	done := make(chan barrier, 1)
	l.mu.Lock()
	if err := l.takes(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	c := &l.confirmation
	if c.asked = append(c.asked, done); !c.running {
		c.running = true
		l.loops.Go(l.confirm)
	}
	l.mu.Unlock()
	l.metrics.barriers.Inc()
	select {
	case f := <-done:
		return f.position, f.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// confirm does rounds until nobody waits for one.
func (l *Log) confirm() {
	c := &l.confirmation
	for {
		l.mu.Lock()
		asked, r := c.asked, l.reign
		c.asked, c.running = nil, len(asked) > 0
		l.mu.Unlock()
		if len(asked) == 0 {
			return
		}
		var b barrier
		if b.position, b.err = l.confirmed(r); b.err != nil {
			b.err = fmt.Errorf("%w: %w", ErrNotLeader, b.err)
		}
		for _, done := range asked {
			done <- b
		}
	}
}

// confirmed returns a barrier of a reign that lasts, or an error when it has ended.
func (l *Log) confirmed(r *reign) (position uint64, err error) {
	n := l.node.Load()
	since := n.trans.sent.Add(1)
	committed := n.raft.CommitIndex()
	if n.raft.CurrentTerm() != r.term { // then this node itself may have voted for another leader
		return 0, raft.ErrLeadershipLost
	}
	for n.raft.VerifyLeader(); !l.isConfirmed(n, r, since); {
		select {
		case <-n.trans.answered:
		case <-r.ctx.Done():
			return 0, raft.ErrLeadershipLost
		case <-l.stop: // raft may end without a word about the leadership
			return 0, wal.ErrClosed
		}
	}
	if committed > r.from {
		if err := l.Wait(r.ctx, endOf(committed)); err != nil {
			return 0, err
		}
	}
	return l.passed.handedBack(), nil
}

// isConfirmed says whether a majority of the voters has answered requests of the reign's term that were sent after
// since. A node whose log ends before the reign doesn't count: it may have come anew, without a memory of its votes.
func (l *Log) isConfirmed(n *instance, r *reign, since uint64) bool {
	voters, confirm := 0, 0
	for _, m := range l.members() {
		if !m.Voter {
			continue
		}
		voters++
		a := n.trans.contact(m.Node).latest
		if m.Node == l.self || a.term == r.term && a.sent > since && a.end >= r.from {
			confirm++
		}
	}
	return confirm > voters/2
}

func newReign(term, from uint64) *reign {
	r := &reign{term: term, from: from}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// endReign refuses barriers that wait, and those that are asked for from now on. The caller holds mu.
func (l *Log) endReign() {
	l.leads = false
	if l.reign != nil {
		l.reign.end()
	}
}
