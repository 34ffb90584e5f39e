package quorum

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/wal/quorum/host"
	"millrace/wal/quorum/host/testnet"
)

// A follower that refuses entries now and then, while more of them keep coming, gets them nevertheless.
func TestFollowerThatRefuses(t *testing.T) { simulated(t, testFollowerThatRefuses) }

func testFollowerThatRefuses(t *testing.T) {
	g := emptyGroup(t)
	for _, n := range []Node{1, 2} {
		g.add(n, func(o *Options) { o.Voters = []Node{1, 2, 3} }).start()
	}
	h, err := host.Listen(host.Options{Node: 3, Resolve: g.net.resolve, Logger: testLogger(t), Sockets: g.net.sockets(3)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	h.SetCluster(testCluster)
	ways, err := h.OpenGroup(7)
	require.NoError(t, err)
	tr := newTransport(h, 7, ways.Raft, new(atomic.Bool), noMarker, newLogger(testLogger(t)))
	t.Cleanup(tr.close)

	var refused atomic.Int64
	go func() { // the third node's raft
		taken := 0
		for {
			select {
			case <-tr.done:
				return
			case r := <-tr.Consumer():
				switch c := r.Command.(type) {
				case *raft.AppendEntriesRequest:
					resp := &raft.AppendEntriesResponse{Term: c.Term, LastLog: c.PrevLogEntry + uint64(len(c.Entries)), Success: true}
					if taken += min(len(c.Entries), 1); taken%5 == 4 {
						taken++
						refused.Add(1)
						resp.Success, resp.NoRetryBackoff, resp.LastLog = false, true, c.PrevLogEntry
					}
					r.Respond(resp, nil)
				case *raft.RequestVoteRequest:
					r.Respond(&raft.RequestVoteResponse{Term: c.Term}, nil)
				case *raft.RequestPreVoteRequest:
					r.Respond(&raft.RequestPreVoteResponse{Term: c.Term}, nil)
				default:
					r.Respond(nil, errors.New("not of raft"))
				}
			}
		}
	}()
	leader := g.leader()
	soon(t, "it has refused often", func() bool {
		for range 20 {
			_ = leader.append(g.text())
		}
		return refused.Load() > 200
	})
}

func noMarker() entryID { return entryID{} }

// A node whose state is newer than the log that it has takes the entries of a leader that doesn't know that.
func TestEntriesBeforeTheMarker(t *testing.T) { simulated(t, testEntriesBeforeTheMarker) }

func testEntriesBeforeTheMarker(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(50)
	away := g.follower()
	away.kill()
	g.write(200)
	g.trimAll()
	away.start()
	soon(t, "the state came", func() bool { return away.log.metrics.restores.Get() > 0 })
	for range 8 {
		g.write(1)
	}
	g.same()

	leader := g.leader().log
	n, marker := leader.node.Load(), away.log.marked()
	entry := func(index uint64) *raft.Log {
		e := &raft.Log{Index: index} // the leader may have let go what is before the marker
		if index >= marker.index {
			require.NoError(t, leader.store.GetLog(index, e))
		}
		return e
	}
	for from := marker.index - 3; from <= marker.index+1; from++ {
		for _, count := range []uint64{0, 1, 3, 5} {
			request := &raft.AppendEntriesRequest{RPCHeader: n.trans.summons().RPCHeader, Term: leader.Term(),
				Leader: []byte(idOf(leader.self)), PrevLogEntry: from, PrevLogTerm: entry(from).Term, LeaderCommitIndex: n.raft.CommitIndex()}
			for i := range count {
				request.Entries = append(request.Entries, entry(from+1+i))
			}
			var answer raft.AppendEntriesResponse
			require.NoError(t, n.trans.AppendEntries(idOf(away.node), addressOf(away.node), request, &answer))
			require.True(t, answer.Success, "%d entries after %d, with the marker at %d", count, from, marker.index)
		}
	}
	g.agree(5)
}

// Of a request that is skipped in part, what isn't in it isn't taken for committed.
func TestSkip(t *testing.T) {
	for _, c := range []struct{ before, count, commit, wantBefore, wantCount, wantCommit uint64 }{
		{before: 0, count: 0, commit: 99, wantBefore: 0, wantCount: 0, wantCommit: 99}, // a heartbeat
		{before: 0, count: 5, commit: 99, wantBefore: 20, wantCount: 0, wantCommit: 20},
		{before: 10, count: 5, commit: 12, wantBefore: 20, wantCount: 0, wantCommit: 12},
		{before: 10, count: 15, commit: 99, wantBefore: 20, wantCount: 5, wantCommit: 25},
		{before: 20, count: 5, commit: 99, wantBefore: 20, wantCount: 5, wantCommit: 99},
		{before: 30, count: 5, commit: 99, wantBefore: 30, wantCount: 5, wantCommit: 99},
	} {
		a := &raft.AppendEntriesRequest{PrevLogEntry: c.before, PrevLogTerm: 3, LeaderCommitIndex: c.commit}
		for i := range c.count {
			a.Entries = append(a.Entries, &raft.Log{Index: c.before + 1 + i, Term: 4})
		}
		(&transport{marker: func() entryID { return entryID{index: 20, term: 4} }}).skip(a)
		require.Equal(t, []uint64{c.wantBefore, c.wantCount, c.wantCommit},
			[]uint64{a.PrevLogEntry, uint64(len(a.Entries)), a.LeaderCommitIndex}, "%+v", c)
		if c.wantCount > 0 {
			require.Equal(t, c.wantBefore+1, a.Entries[0].Index, "%+v", c)
		}
	}
}

func TestGroupOverTLS(t *testing.T) { simulated(t, testGroupOverTLS) }

func testGroupOverTLS(t *testing.T) {
	a := testnet.NewAuthority(t)
	g := emptyGroup(t)
	for n := Node(1); n <= 3; n++ {
		m := g.add(n, func(o *Options) { o.Voters = []Node{1, 2, 3} })
		m.tls = a.Config(t)
		m.start()
	}
	g.write(50)
	f := g.follower()
	f.kill()
	g.write(200)
	g.trimAll()
	f.start()
	g.agree(20)
}

// Of an error that raft logs many times a second a few are written in each minute, and the number of the others.
func TestRaftErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		raftLog := newLogger(slog.New(slog.NewTextHandler(&out, nil)))
		for range 100 {
			raftLog.Error("failed to dial", "peer", hclog.Fmt("node %d", 2))
		}
		raftLog.Error("failed to vote")
		raftLog.Error("failed to heartbeat", "error", errors.Join(host.ErrAbsent))
		raftLog.Error("failed to decode", "error", errors.Join(net.ErrClosed))
		raftLog.Warn("no line: below the level of errors")
		require.Equal(t, 6, strings.Count(out.String(), `level=WARN msg="raft: failed to dial" peer="node 2"`+"\n"))
		require.Equal(t, 7, strings.Count(out.String(), "\n"), out.String())
		time.Sleep(time.Minute)
		raftLog.Error("failed to dial")
		require.Contains(t, out.String(), `msg="raft: failed to dial" left_out=94`)
	})
}
