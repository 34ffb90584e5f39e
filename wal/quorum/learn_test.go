package quorum

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A reader on a follower, once the leader has told the reader what is committed, waits for no further message of the
// leader. Here there would be none for an hour.
func TestLearn(t *testing.T) { simulated(t, testLearn) }

func testLearn(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.CommitTimeout = time.Hour })
	leader := g.leader()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 50 {
		if i%2 == 0 {
			require.NoError(t, leader.append(fmt.Sprint(i)))
		}
		position, err := leader.log.Barrier(ctx)
		require.NoError(t, err)
		index, term := leader.log.Committed()
		begun := time.Now()
		for _, m := range g.members {
			m.log.Learn(index, term)
			require.NoError(t, m.log.Wait(ctx, position), "node %d, round %d", m.node, i)
		}
		require.Zero(t, time.Since(begun))
	}
	soon(t, "the last record", func() bool { return leader.handedBack("48") })
	for _, m := range g.members {
		m.log.Learn(leader.log.Committed())
	}
	g.same()
	f := g.follower()
	f.stop()
	f.start()
	index, term := leader.log.Committed()
	soon(t, "the leader is heard of", func() bool { return f.log.Leader() == leader.node })
	f.log.Learn(index, term)
	require.NoError(t, leader.append("one more"), "so that there is a request of the leader")
	soon(t, "all is there again", func() bool { i, _ := f.log.Committed(); return i >= index })
}

// A commit that is learned before its entry is there holds when the entry comes, although the leader didn't yet know,
// when it sent the entry, that it would be committed.
func TestLearnEarly(t *testing.T) { simulated(t, testLearnEarly) }

func testLearnEarly(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.CommitTimeout = time.Hour })
	g.write(3)
	leader, f := g.leader(), g.follower()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 5 {
		g.net.hold(leader.node, f.node, true)
		text := fmt.Sprint("late ", i)
		require.NoError(t, leader.append(text))
		soon(t, text, func() bool { return leader.handedBack(text) })
		position, err := leader.log.Barrier(ctx)
		require.NoError(t, err)
		f.log.Learn(leader.log.Committed())
		synctest.Wait()
		require.Less(t, f.log.passed.index.Load(), indexOf(position))
		g.net.hold(leader.node, f.node, false)
		begun := time.Now()
		require.NoError(t, f.log.Wait(ctx, position))
		require.Zero(t, time.Since(begun))
	}
	for _, m := range g.members {
		m.log.Learn(leader.log.Committed())
	}
	g.same()
}

// A notification that can't be true of this node's log, of an entry that is not there or is of another term, has no
// effect.
func TestLearnNothing(t *testing.T) { simulated(t, testLearnNothing) }

func testLearnNothing(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.CommitTimeout = time.Hour })
	g.write(3)
	leader, f := g.leader(), g.follower()
	r := f.log.node.Load().raft
	g.net.partition([]Node{leader.node, f.node}) // f has what the third node lacks
	g.net.hold(f.node, leader.node, true)        // and the leader doesn't hear of it
	require.NoError(t, leader.append("undecided"))
	before := r.LastIndex() // raft is told this with the entry
	synctest.Wait()
	require.Equal(t, before, r.CommitIndex())
	require.Equal(t, before+1, r.LastIndex(), "f has the entry")
	for _, e := range []entryID{{r.LastIndex(), r.CurrentTerm() + 1}, {r.LastIndex(), r.CurrentTerm() - 1}, {r.LastIndex() + 1, r.CurrentTerm()}} {
		f.log.Learn(e.index, e.term)
		synctest.Wait()
		require.Equal(t, before, r.CommitIndex(), "%v", e)
	}
	tr := f.log.node.Load().trans
	require.NotZero(t, tr.hint, "it may come")
}

// The request by which a follower's raft is told is its leader's last one, and goes behind the entries that it is
// about.
func TestCommitNotification(t *testing.T) { simulated(t, testCommitNotification) }

func testCommitNotification(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(3)
	tr := g.follower().log.node.Load().trans
	r := tr.raft.Load()
	far := r.LastIndex() + 1000
	tr.learn(entryID{far, 7})
	tr.learn(entryID{far - 1, 7})
	synctest.Wait()
	require.Equal(t, entryID{far, 7}, tr.hint)
	id := []byte("9")
	a := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id}, Term: 8, Leader: id,
		PrevLogEntry: 5, PrevLogTerm: 4, LeaderCommitIndex: 3, Entries: []*raft.Log{{Index: far - 2}, {Index: far - 1}}}
	tr.note(a)
	require.Nil(t, tr.commitNotification())
	a.Entries = append(a.Entries, &raft.Log{Index: far})
	tr.note(a)
	want := &raft.AppendEntriesRequest{RPCHeader: a.RPCHeader, Term: 8, Leader: id, PrevLogEntry: far, PrevLogTerm: 7, LeaderCommitIndex: far}
	require.Equal(t, want, tr.commitNotification())
	require.Nil(t, tr.commitNotification(), "once")
	tr.learn(entryID{r.CommitIndex(), r.CurrentTerm()})
	require.Nil(t, tr.commitNotification(), "it is known")
}
