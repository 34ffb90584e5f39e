package quorum

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/wal"
)

// standard are the timers that a group has by default.
func standard(o *Options) {
	o.HeartbeatTimeout, o.ElectionTimeout, o.LeaseTimeout, o.CommitTimeout = 0, 0, 0, 0
}

// A leader says that it is there neither too often nor too seldom: a follower hears from it twice in the follower's
// shortest timeout, and nobody stands for election. A node that no longer leads has a follower's timers again.
func TestPace(t *testing.T) { simulated(t, testPace) }

func testPace(t *testing.T) {
	g := newGroup(t, 3, standard)
	leader, f := g.leader(), g.follower()
	soon(t, "heartbeats", func() bool { return !leader.log.node.Load().trans.contact(f.node).at.IsZero() })
	at := func() time.Time { return f.log.node.Load().raft.LastContact() }
	timeout := leader.log.opts.HeartbeatTimeout
	time.Sleep(10 * timeout) // a timer that runs is not changed
	beats, begun := 0, time.Now()
	for last := at(); beats < 200; {
		time.Sleep(time.Millisecond)
		if now := at(); now.After(last) {
			require.LessOrEqual(t, now.Sub(last), timeout/2)
			last = now
			beats++
		}
	}
	require.Greater(t, time.Since(begun)/200, timeout/5)
	term := leader.log.Term()
	lookOn()
	require.Equal(t, term, g.leader().log.Term())
	require.NoError(t, leader.log.Transfer(context.Background(), f.node))
	soon(t, "it leads", f.log.Leads)
	synctest.Wait()
	require.Equal(t, leaderPace*timeout, f.log.node.Load().raft.ReloadableConfig().HeartbeatTimeout)
	require.Equal(t, timeout, leader.log.node.Load().raft.ReloadableConfig().HeartbeatTimeout)
}

// A leader whose link is cut in one direction or in both, without being told, is replaced. It gives up by itself, and
// follows when the link is there again. A follower that hears nothing does not take the leadership from a leader whom
// the others hear.
func TestSilentLinks(t *testing.T) {
	for _, cut := range []struct {
		sends, hears bool // what the leader can't do
	}{{true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) { simulated(t, func(t *testing.T) { testSilentLeader(t, cut.sends, cut.hears) }) })
	}
	t.Run("follower", func(t *testing.T) { simulated(t, testDeafFollower) })
}

func testSilentLeader(t *testing.T, sends, hears bool) {
	g := newGroup(t, 3, standard)
	g.write(10)
	old := g.leader()
	hold := func(held bool) {
		for _, n := range others(g, old.node) {
			g.net.hold(old.node, n, held && sends)
			g.net.hold(n, old.node, held && hears)
		}
	}
	hold(true)
	begun := time.Now()
	require.NoError(t, old.append("unknown"))
	leader := g.leader(old.node)
	require.Less(t, time.Since(begun), 20*time.Second) // some elections may have no winner
	soon(t, "it gives up", func() bool { return old.isLost("unknown") && old.log.node.Load().raft.State() != raft.Leader })
	require.NoError(t, leader.append("newer"))
	soon(t, "newer", func() bool { return leader.handedBack("newer") })
	hold(false)
	soon(t, "the old leader has all", func() bool { return slices.Contains(old.owner.texts(), "newer") })
	g.same()
}

func testDeafFollower(t *testing.T) {
	g := newGroup(t, 3, standard)
	g.write(10)
	leader, f := g.leader(), g.follower()
	term := leader.log.Term()
	g.net.hold(leader.node, f.node, true)
	for i := range 5 {
		time.Sleep(5 * time.Second)
		text := fmt.Sprint("without it ", i)
		require.NoError(t, leader.append(text))
		soon(t, text, func() bool { return leader.handedBack(text) })
	}
	require.Equal(t, term, leader.log.Term())
	g.net.hold(leader.node, f.node, false)
	g.same()
	require.Equal(t, leader, g.leader())
}

// A leadership that can't be handed over stays as it was: it gives barriers, though nothing is taken afterwards, and
// what is taken is handed back.
func TestTransferToSilentNode(t *testing.T) { simulated(t, testTransferToSilentNode) }

func testTransferToSilentNode(t *testing.T) {
	g := newGroup(t, 3, standard)
	g.agree(10)
	leader, f := g.leader(), g.follower()
	g.net.hold(leader.node, f.node, true)
	require.Error(t, leader.log.Transfer(context.Background(), f.node))
	soon(t, "it takes records", leader.log.Leads)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, vouchers := range [][]Voucher{{g.follower(f.node).log.Vouch()}, nil} {
		_, err := leader.log.Barrier(ctx, vouchers...)
		require.NoError(t, err)
	}
	require.NoError(t, leader.append("later"))
	soon(t, "it is decided", func() bool { return leader.handedBack("later") || leader.isLost("later") })
	require.True(t, leader.handedBack("later"))
	g.net.hold(leader.node, f.node, false)
	g.same()
}

// Where nobody else has a vote, a transfer fails at once: nothing is refused while it would wait for somebody.
func TestTransferToNobody(t *testing.T) { simulated(t, testTransferToNobody) }

func testTransferToNobody(t *testing.T) {
	g := newGroup(t, 1, standard)
	g.write(10)
	leader := g.leader()
	begun := time.Now()
	require.ErrorContains(t, leader.log.Transfer(t.Context(), 0), "nobody else has a vote")
	require.Less(t, time.Since(begun), leader.log.opts.ElectionTimeout/10)
	g.write(10)
}

// When the leadership is lost in the middle of a transfer, raft can wait for ever for the goroutine that sent entries to
// the other node. It then refuses all entries whenever it leads again. The group takes records all the same, and the
// node can lead.
func TestTransferThatRaftNeverEnds(t *testing.T) { simulated(t, testTransferThatRaftNeverEnds) }

func testTransferThatRaftNeverEnds(t *testing.T) {
	g := newGroup(t, 3, standard)
	g.write(10)
	f := g.follower()
	// What raft has left behind. It would take a schedule of its goroutines that no test can choose.
	before := f.log.node.Load()
	state := reflect.ValueOf(before.raft).Elem().FieldByName("leaderState")
	atomic.StoreInt32((*int32)(state.FieldByName("leadershipTransferInProgress").Addr().UnsafePointer()), 1)
	_ = g.leader().log.Transfer(t.Context(), f.node)
	soon(t, "raft is started anew", func() bool { return f.log.node.Load() != before })
	g.write(10)
	soon(t, "it leads", func() bool {
		if now := g.leader(); now != f {
			_ = now.log.Transfer(t.Context(), f.node)
		}
		return f.log.Leads()
	})
	g.agree(10)
}

// Whoever tries again and again to hand over to a node that doesn't answer leaves nothing behind in raft. If raft waited
// for such a node twice, and the leadership were lost meanwhile, it would wait for ever, and this test would panic.
func TestTransferLeavesNothingBehind(t *testing.T) { simulated(t, testTransferLeavesNothingBehind) }

func testTransferLeavesNothingBehind(t *testing.T) {
	g := newGroup(t, 3, standard)
	for range 10 {
		g.agree(5)
		leader, f := g.leader(), g.follower()
		other := g.follower(f.node)
		g.net.hold(leader.node, f.node, true)
		g.write(1)
		require.Error(t, leader.log.Transfer(t.Context(), f.node))
		soon(t, "it takes records", leader.log.Leads)
		second := make(chan error, 1)
		go func() { second <- leader.log.Transfer(t.Context(), f.node) }()
		time.Sleep(10 * time.Millisecond)
		soon(t, "another one leads", func() bool { other.log.Stand(); return other.log.Leads() })
		<-second
		g.net.hold(leader.node, f.node, false)
	}
}

// A raft that can't be started anew, because the disk fails meanwhile, ends the log. It can be closed in order.
func TestRaftIsNotStartedAnew(t *testing.T) { simulated(t, testRaftIsNotStartedAnew) }

func testRaftIsNotStartedAnew(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(10)
	m := g.follower()
	broken := errors.New("broken disk")
	m.log.swap(func() bool { return true }, func() error { return broken })
	require.ErrorIs(t, m.log.Err(), broken)
	require.ErrorIs(t, m.log.Close(), broken)
}

// Who hands over a leadership waits no longer than its context lasts, though raft goes on trying. A log can be closed
// meanwhile.
func TestTransferWithoutEnd(t *testing.T) { simulated(t, testTransferWithoutEnd) }

func testTransferWithoutEnd(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) {
		o.HeartbeatTimeout, o.ElectionTimeout, o.LeaseTimeout = time.Hour, time.Hour, time.Hour
	})
	leader := g.members[1]
	soon(t, "a leader", func() bool { leader.log.Stand(); return leader.log.Leads() })
	g.agree(10)
	g.net.hold(1, 2, true)
	g.write(10)
	trans := leader.log.node.Load().trans
	trans.mu.Lock()
	trans.last[2] = contact{index: leader.log.Status().LastIndex, at: time.Now()} // as if 2 had all, so raft itself tries
	trans.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	begun := time.Now()
	require.ErrorIs(t, leader.log.Transfer(ctx, 2), context.DeadlineExceeded)
	require.ErrorIs(t, leader.append("meanwhile"), ErrNotLeader)
	require.ErrorContains(t, leader.log.Transfer(context.Background(), 3), "under way")
	leader.stop()
	require.Less(t, time.Since(begun), 2*time.Minute)
}

// Raft may end without an answer to a change of the members. The change then ends with it: as long as one is under way,
// no other is made.
func TestChangeEndsWithRaft(t *testing.T) { simulated(t, testChangeEndsWithRaft) }

func testChangeEndsWithRaft(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(5)
	l := g.leader().log
	never, done := make(silence), make(chan error, 1)
	defer close(never)
	go func() { done <- l.change(func(*raft.Raft) raft.IndexFuture { return never }) }()
	soon(t, "the change is under way", func() bool { return l.changes.Load() > 0 })
	l.renew(l.node.Load())
	select {
	case err := <-done:
		require.ErrorContains(t, err, "leadership was lost meanwhile")
	case <-time.After(time.Minute):
		t.Fatal("the change has no end")
	}
	require.Zero(t, l.changes.Load())
	g.agree(5)
}

// Raft drops entries that it has committed and not yet handed back when it is shut down. Who waits for one of them, in
// a goroutine of its own, ends all the same; otherwise this test would panic.
func TestNobodyWaitsForDroppedEntries(t *testing.T) { simulated(t, testNobodyWaitsForDroppedEntries) }

func testNobodyWaitsForDroppedEntries(t *testing.T) {
	busy := make(chan struct{})
	g := newGroup(t, 1, func(o *Options) {
		handBack := o.OnDurable
		o.OnDurable = func(records []*wal.Record) { handBack(records); <-busy }
	})
	leader := g.leader()
	require.NoError(t, leader.append("it takes the owner long"))
	soon(t, "it is handed back", func() bool { return leader.handedBack("it takes the owner long") })
	n := leader.log.node.Load()
	for range 20 {
		go func() { _ = leader.log.await(n, func() raft.Future { return n.raft.Barrier(0) }) }()
		synctest.Wait()
	}
	time.AfterFunc(time.Millisecond, func() { close(busy) }) // raft waits for the owner when it is shut down
	leader.stop()
}

// silence is a change without an answer until it is closed.
type silence chan struct{}

func (s silence) Error() error  { <-s; return nil }
func (s silence) Index() uint64 { return 0 }
