package quorum

import (
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A follower that refuses entries now and then, while more of them keep coming, gets them nevertheless.
func TestFollowerThatRefuses(t *testing.T) { simulated(t, testFollowerThatRefuses) }

func testFollowerThatRefuses(t *testing.T) {
	g := emptyGroup(t)
	for _, n := range []Node{1, 2} {
		g.add(n, func(o *Options) { o.Voters = []Node{1, 2, 3} }).start()
	}
	h, err := Listen(HostOptions{Node: 3, Resolve: g.net.resolve, Logger: testLogger(t), sockets: g.net.sockets(3)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	h.SetCluster(testCluster)
	ways, err := h.openGroup(7)
	require.NoError(t, err)
	tr := newTransport(h, 7, ways.raft, new(atomic.Bool), newLogger(testLogger(t)))
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
					r.Respond(nil, errAbsent)
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
