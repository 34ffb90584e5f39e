package quorum

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/wal"
)

// Only answers to requests that were sent after a barrier was asked for say that nobody had replaced the leader by
// then: a leader may be paused before it reads an answer.
func TestAnswersFromBefore(t *testing.T) { simulated(t, testAnswersFromBefore) }

func testAnswersFromBefore(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(3)
	leader := g.leader()
	n := leader.log.node.Load()
	r := leader.log.reign
	hold := func(held bool) {
		for _, f := range others(g, leader.node) {
			g.net.hold(f, leader.node, held)
		}
		synctest.Wait()
	}
	hold(true)
	n.raft.VerifyLeader()
	synctest.Wait() // heartbeats were sent, and answered
	since := n.trans.sent.Add(1)
	hold(false)
	require.False(t, leader.log.isConfirmed(n, r, since), "the answers are to requests from before")
	n.raft.VerifyLeader()
	synctest.Wait()
	require.True(t, leader.log.isConfirmed(n, r, since))
	require.False(t, leader.log.isConfirmed(n, newReign(r.term, n.raft.LastIndex()+1), since), "the others lack an entry")
	require.False(t, leader.log.isConfirmed(n, newReign(r.term+1, r.from), since))
	require.False(t, leader.log.isConfirmed(n, r, n.trans.sent.Add(1)))

	hold(true)
	since = n.trans.sent.Add(1)
	g.net.hold(g.follower().node, leader.node, false)
	n.raft.VerifyLeader()
	synctest.Wait()
	require.True(t, leader.log.isConfirmed(n, r, since), "one follower and the leader are a majority")
}

// A record that OnDurable is just having is behind a barrier that was asked for before it was decided: followers could
// not be told yet that they may hand it back, too.
func TestBarrierBeforeOnDurable(t *testing.T) { simulated(t, testBarrierBeforeOnDurable) }

func testBarrierBeforeOnDurable(t *testing.T) {
	slow, done := make(chan struct{}), make(chan struct{})
	g := newGroup(t, 3, func(o *Options) {
		durable := o.OnDurable
		o.OnDurable = func(records []*wal.Record) {
			if string(records[0].Data[wal.HeaderBytes:]) == "slow" {
				<-slow
			}
			durable(records)
		}
	})
	g.write(3)
	leader := g.leader()
	hold := func(answers, held bool) {
		for _, f := range others(g, leader.node) {
			if answers {
				g.net.hold(f, leader.node, held)
			} else {
				g.net.hold(leader.node, f, held)
			}
		}
		synctest.Wait()
	}
	hold(true, true)
	require.NoError(t, leader.append("slow"))
	hold(false, true) // the followers have it
	var position uint64
	var err error
	go func() {
		defer close(done)
		position, err = leader.log.Barrier(t.Context())
	}()
	synctest.Wait()
	hold(true, false) // it is decided
	hold(false, false)
	<-done
	index, _ := leader.log.Committed()
	close(slow)
	require.NoError(t, err)
	require.LessOrEqual(t, indexOf(position), index)
	soon(t, "slow", func() bool { return leader.handedBack("slow") })
}

// With the vouchers of a majority a leader gives a barrier without asking anybody; those of other terms, of nodes that
// have no vote, and of logs that end before the reign don't count. Nobody vouches for a leader who was replaced.
func TestVouchers(t *testing.T) { simulated(t, testVouchers) }

func testVouchers(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(3)
	leader, follower := g.leader(), g.follower()
	var v Voucher
	soon(t, "a voucher", func() bool {
		v = follower.log.Vouch()
		return v.End >= leader.log.reign.from
	})
	require.Equal(t, follower.node, v.Node)
	follower.log.newcomer.is.Store(true)
	require.Zero(t, follower.log.Vouch())
	follower.log.newcomer.is.Store(false)
	g.net.partition([]Node{leader.node}, others(g, leader.node))
	isGiven := func(vouchers ...Voucher) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := leader.log.Barrier(ctx, vouchers...)
		return err == nil
	}
	require.True(t, isGiven(v))
	require.True(t, isGiven(Voucher{}, v))
	require.False(t, isGiven())
	require.False(t, isGiven(leader.log.Vouch()), "the leader is no majority")
	require.False(t, isGiven(Voucher{Node: 9, Term: v.Term, End: v.End}))
	require.False(t, isGiven(Voucher{Node: v.Node, Term: v.Term - 1, End: v.End}))
	require.False(t, isGiven(Voucher{Node: v.Node, Term: v.Term, End: leader.log.reign.from - 1}))

	other := g.leader(leader.node)
	require.Greater(t, other.log.Vouch().Term, v.Term)
	require.False(t, isGiven(other.log.Vouch(), g.follower(leader.node).log.Vouch()))

	stopped := other.log
	require.NotZero(t, stopped.Vouch())
	other.stop()
	require.Zero(t, stopped.Vouch())
}
