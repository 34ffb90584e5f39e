package quorum

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// A barrier is no entry of the log. The leader reads up to where it knows entries to be committed, and makes sure that
// nobody had replaced it when the barrier was asked for: it waits until a majority of the voters, itself included, was
// in its term at a later moment. A node was when it has answered a request of that term, entries or a heartbeat, that
// was sent later, or when it says so itself (Voucher). Whoever leads in a newer term has the votes of a majority. One
// of these voters is among those who were in the leader's term, and voted after that, so the newer leader has
// acknowledged nothing before the barrier was asked for. That holds while members change, too: the majorities before
// and after one change have a node in common.
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
	from uint64 // the entry by which earlier leaders' entries were known to be handed back
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

// Voucher is what a node says of itself: that it is in this term, and where its log ends.
type Voucher struct {
	Node      Node
	Term, End uint64
}

// Vouch returns this node's voucher, or a zero one when it has none to give. A newcomer has none: as it doesn't vote, a
// newer leader may have been elected without it.
func (l *Log) Vouch() Voucher {
	n := l.node.Load()
	if n == nil || l.newcomer.is.Load() {
		return Voucher{}
	}
	v := Voucher{l.self, n.raft.CurrentTerm(), n.raft.LastIndex()}
	select {
	case <-n.trans.done: // another instance may have voted by now
		return Voucher{}
	default:
		return v
	}
}

// Barrier returns a position. Everything in the group that was acknowledged before the call, and before any of the
// vouchers was made, is at or before that position, and OnDurable has had it on this node. On another node, Wait
// returns once OnDurable there has had it. Only the leader gives barriers; otherwise, or when leadership is lost
// meanwhile, Barrier returns ErrNotLeader. When the vouchers are not those of a majority, the voters are asked;
// barriers that are asked for during such a round share the next one. A leader that was paused and has been replaced
// can't give one.
func (l *Log) Barrier(ctx context.Context, vouchers ...Voucher) (position uint64, err error) {
	l.mu.Lock()
	if err := l.takes(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	r, n, done := l.reign, l.node.Load(), make(chan barrier, 1)
	committed, lasts := r.committed(n)
	vouched := lasts && l.isConfirmed(n, r, none, vouchers...)
	if c := &l.confirmation; !vouched {
		if c.asked = append(c.asked, done); !c.running {
			c.running = true
			l.loops.Go(l.confirm)
		}
	}
	l.mu.Unlock()
	l.metrics.barriers.Inc()
	if vouched {
		return l.handedBack(ctx, committed)
	}
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
	committed, lasts := r.committed(n)
	if !lasts {
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
	return l.handedBack(r.ctx, committed)
}

// committed returns how far this node knows entries to be committed, and whether the reign's term lasts: if not, this
// node itself may have voted for another leader.
func (r *reign) committed(n *instance) (index uint64, lasts bool) {
	index = n.raft.CommitIndex()
	return index, n.raft.CurrentTerm() == r.term
}

// handedBack returns the barrier when entries up to committed are handed back.
func (l *Log) handedBack(ctx context.Context, committed uint64) (position uint64, err error) {
	if err := l.Wait(ctx, endOf(committed)); err != nil {
		return 0, err
	}
	return l.passed.handedBack(), nil
}

// none is a number after which no request was sent.
const none = math.MaxUint64

// isConfirmed says whether a majority of the voters vouches for the reign's term, or has answered requests of that term
// that were sent after since. A node whose log ends before the reign doesn't count: it may have come anew, without a
// memory of its votes.
func (l *Log) isConfirmed(n *instance, r *reign, since uint64, vouchers ...Voucher) bool {
	voters, confirm := 0, 0
	for _, m := range l.members() {
		if !m.Voter {
			continue
		}
		voters++
		a := n.trans.contact(m.Node).latest
		if m.Node == l.self || a.term == r.term && a.sent > since && a.end >= r.from ||
			slices.ContainsFunc(vouchers, func(v Voucher) bool {
				return v.Node == m.Node && v.Term == r.term && v.End >= r.from
			}) {
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
