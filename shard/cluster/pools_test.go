package cluster

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/loadtest/testaddr"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal/quorum"
)

// caller is a node that only makes and serves calls.
func caller(t *testing.T, node quorum.Node, addresses map[quorum.Node]string, requests, services map[string]handler) *Node {
	n := &Node{self: node, log: slog.New(slog.DiscardHandler), clock: &stamp.Clock{}, remotes: xsync.NewMapOf[quorum.Node, *remote]()}
	n.opts.MaxCalls, n.opts.MaxCallsServed, n.opts.DialTimeout = 8, 8*14, patience
	n.opts.EnsureDefaults()
	n.context, n.cancel = context.WithCancel(context.Background())
	n.stop = n.context.Done()
	n.furnished.Store(true)
	var err error
	n.host, err = quorum.Listen(quorum.HostOptions{Node: node, Listen: addresses[node], Logger: n.log,
		Resolve: func(to quorum.Node) (string, bool) { return addresses[to], true }})
	require.NoError(t, err)
	n.host.SetCluster("c")
	n.serveCalls(requests, services)
	t.Cleanup(func() {
		n.cancel()
		require.NoError(t, n.host.Close())
		n.serving.Wait()
	})
	return n
}

// Of fifteen nodes, fourteen have as many requests under way at one as they may, and all of these wait. Messages and
// barriers come through all the same: the requests wait for them.
func TestRequestsOfFifteenNodesLeaveRoom(t *testing.T) {
	t.Parallel()
	const nodes = 15
	addresses := map[quorum.Node]string{}
	for i := range nodes {
		addresses[quorum.Node(i+1)] = testaddr.Free(t)
	}
	open, parked := make(chan struct{}), make(chan struct{})
	wait := func(_ *quorum.Conn, dst, _ []byte) ([]byte, error) {
		parked <- struct{}{}
		<-open
		return dst, nil
	}
	answer := func(_ *quorum.Conn, dst, _ []byte) ([]byte, error) { return dst, nil }
	one := caller(t, 1, addresses, map[string]handler{callCommit: wait}, map[string]handler{callBarrier: answer, callMessages: answer})
	var calls sync.WaitGroup
	var others []*remote
	for node := quorum.Node(2); node <= nodes; node++ {
		r := caller(t, node, addresses, nil, nil).newRemote(1)
		others = append(others, r)
		for range one.opts.MaxCalls {
			calls.Go(func() {
				assert.NoError(t, r.post(r.requests, callCommit, make([]byte, headerBytes), time.Now().Add(patience), nil))
			})
			<-parked
		}
	}
	for _, r := range others {
		for _, call := range []string{callBarrier, callMessages} {
			require.NoError(t, r.post(r.services, call, make([]byte, headerBytes), time.Now().Add(patience), nil))
		}
	}
	r := others[0]
	err := r.post(r.services, callCommit, make([]byte, headerBytes), time.Now().Add(patience), nil)
	require.ErrorContains(t, err, "status 404", "a request does not come in by the other door")
	close(open)
	calls.Wait()
}

// A node that answers nothing ends all calls of it that are under way, once a ping has been in vain, and further ones
// fail at once, until it answers.
func TestSilentNodeEndsCalls(t *testing.T) {
	t.Parallel()
	addresses := map[quorum.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	paused := make(chan struct{})
	var parked sync.WaitGroup
	wait := func(_ *quorum.Conn, dst, _ []byte) ([]byte, error) {
		parked.Done()
		<-paused
		return dst, nil
	}
	ping := func(_ *quorum.Conn, dst, _ []byte) ([]byte, error) {
		<-paused
		return append(dst, "{}"...), nil
	}
	caller(t, 2, addresses, map[string]handler{callCommit: wait}, map[string]handler{callBarrier: wait, callPing: ping})
	n := caller(t, 1, addresses, nil, nil)
	n.opts.PingTimeout = 50 * time.Millisecond
	n.routes = newRoutes(1, 1)
	r := n.newRemote(2)
	r.heard()
	parked.Add(2)
	errs := make(chan error, 2)
	go func() {
		errs <- r.post(r.requests, callCommit, make([]byte, headerBytes), time.Now().Add(time.Hour), nil)
	}()
	go func() {
		errs <- r.post(r.services, callBarrier, make([]byte, headerBytes), time.Now().Add(time.Hour), nil)
	}()
	parked.Wait()
	require.Error(t, r.ping(context.Background()))
	require.False(t, r.up.Load())
	for range 2 {
		require.ErrorIs(t, <-errs, replica.ErrUnknown, "nobody knows what it has done")
	}
	err := r.post(r.requests, callCommit, make([]byte, headerBytes), time.Now().Add(time.Hour), nil)
	require.True(t, wasNotSent(err), "%v", err)
	close(paused)
	for r.succeeding.Load() { // it reads the options
		time.Sleep(time.Millisecond)
	}
	n.opts.PingTimeout = patience
	require.NoError(t, r.ping(context.Background()))
	require.True(t, r.up.Load())
	parked.Add(1)
	require.NoError(t, r.post(r.requests, callCommit, make([]byte, headerBytes), time.Now().Add(patience), nil))
}

// A call that had less time than a ping has says nothing of the node.
func TestShortCallIsNoVerdict(t *testing.T) {
	t.Parallel()
	n := &Node{self: 1, log: slog.New(slog.DiscardHandler)}
	n.opts.EnsureDefaults()
	n.opts.PingTimeout = patience
	r := n.newRemote(2)
	r.heard()
	time.Sleep(time.Millisecond)
	r.lost(time.Now(), fasthttp.ErrTimeout)
	require.True(t, r.up.Load())
	require.Len(t, r.kick, 1, "but a ping is said now")
	r.lost(time.Now().Add(-2*patience), fasthttp.ErrTimeout)
	require.True(t, r.up.Load(), "it has answered since")
	r.answer.Store(0)
	r.lost(time.Now().Add(-2*patience), fasthttp.ErrTimeout)
	require.False(t, r.up.Load())
	require.True(t, r.silent.Load())
	r.heard()
	require.False(t, r.silent.Load())
}
