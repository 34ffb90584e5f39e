package calls

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"millrace/loadtest/testaddr"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal/quorum/host"
)

// patience is how long tests wait for something that must come.
const patience = 4 * time.Minute

func testOptions(h *host.Host) *Options {
	return &Options{
		Host: h, Stamp: func() int64 { return 0 }, Observe: func(int64) error { return nil }, DialTimeout: patience, PingTimeout: patience,
		MaxCalls: 8, MaxCallsServed: 8 * 14, MaxBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	}
}

// testPeer is a node that nobody can reach.
func testPeer() *Peer {
	var nowhere *host.Host
	return testOptions(nowhere).NewPeer(2, func() {})
}

// caller makes and serves calls.
func caller(t *testing.T, node host.Node, addresses map[host.Node]string, requests, services map[string]Handler) *Options {
	h, err := host.Listen(host.Options{Node: node, Listen: addresses[node], Logger: slog.New(slog.DiscardHandler),
		Resolve: func(to host.Node) []string { return []string{addresses[to]} }})
	require.NoError(t, err)
	h.SetCluster("c")
	s := &Server{Requests: requests, Services: services, Admit: func(*host.Conn, string) int { return 0 }, Failed: func(error) {}}
	s.Serve(testOptions(h))
	t.Cleanup(func() {
		require.NoError(t, h.Close())
		s.Wait()
	})
	return s.Options
}

// Calls beyond a bound that was lowered wait, or are refused.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	addresses := map[host.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	const bound = 2
	var served atomic.Int64
	serve := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) {
		defer served.Add(-1)
		assert.LessOrEqual(t, served.Add(1), int64(bound))
		time.Sleep(10 * time.Millisecond) // others would come
		return dst, nil
	}
	handlers := map[string]Handler{"/call": serve}
	caller(t, 1, addresses, handlers, handlers)
	r := caller(t, 2, addresses, nil, nil).NewPeer(1, func() {})
	r.Bound(bound)
	for _, kind := range []Kind{Requests, Services} {
		var calling sync.WaitGroup
		for range 4 * bound {
			calling.Go(func() {
				err := r.Post(kind, "/call", NewBody(0), time.Now().Add(patience), nil)
				assert.True(t, err == nil || errors.Is(err, replica.ErrBusy), "%v", err)
			})
		}
		calling.Wait()
	}
}

// A call whose time is over while it waits for a connection was not sent, and says nothing about the node.
func TestCallThatGetsNoConnection(t *testing.T) {
	t.Parallel()
	addresses := map[host.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	parked, open := make(chan struct{}), make(chan struct{})
	var served atomic.Int64
	wait := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) {
		served.Add(1)
		parked <- struct{}{}
		<-open
		return dst, nil
	}
	caller(t, 1, addresses, map[string]Handler{"/commit": wait}, nil)
	n := caller(t, 2, addresses, nil, nil)
	n.PingTimeout = time.Millisecond
	r := n.NewPeer(1, func() {})
	r.Bound(1)
	r.heard()
	first := make(chan error, 1)
	go func() { first <- r.Post(Requests, "/commit", NewBody(0), time.Now().Add(patience), nil) }()
	<-parked
	for _, left := range []time.Duration{50 * time.Millisecond, -time.Second} {
		err := r.Post(Requests, "/commit", NewBody(0), time.Now().Add(left), nil)
		require.True(t, WasNotSent(err), "%v", err)
		require.ErrorIs(t, err, replica.ErrBusy)
		require.False(t, r.silent.Load())
	}
	close(open)
	require.NoError(t, <-first)
	require.EqualValues(t, 1, served.Load())
}

// Fourteen of fifteen nodes have as many requests under way at the fifteenth as they may, and all of these wait.
// Messages and barriers, for which the requests wait, come through all the same.
func TestRequestsOfFifteenNodesLeaveRoom(t *testing.T) {
	t.Parallel()
	const nodes = 15
	addresses := map[host.Node]string{}
	for i := range nodes {
		addresses[host.Node(i+1)] = testaddr.Free(t)
	}
	open, parked := make(chan struct{}), make(chan struct{})
	wait := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) {
		parked <- struct{}{}
		<-open
		return dst, nil
	}
	answer := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) { return dst, nil }
	one := caller(t, 1, addresses, map[string]Handler{"/commit": wait}, map[string]Handler{"/barrier": answer, "/messages": answer})
	var calling sync.WaitGroup
	var others []*Peer
	for node := host.Node(2); node <= nodes; node++ {
		r := caller(t, node, addresses, nil, nil).NewPeer(1, func() {})
		others = append(others, r)
		for range one.MaxCalls {
			calling.Go(func() {
				assert.NoError(t, r.Post(Requests, "/commit", NewBody(0), time.Now().Add(patience), nil))
			})
			<-parked
		}
	}
	for _, r := range others {
		for _, call := range []string{"/barrier", "/messages"} {
			require.NoError(t, r.Post(Services, call, NewBody(0), time.Now().Add(patience), nil))
		}
	}
	r := others[0]
	err := r.Post(Services, "/commit", NewBody(0), time.Now().Add(patience), nil)
	require.ErrorContains(t, err, "status 404", "a request does not come in by the other door")
	close(open)
	calling.Wait()
}

// When a node answers nothing and a ping to it was in vain, all calls to it that are under way end, and further ones
// fail at once until it answers.
func TestSilentNodeEndsCalls(t *testing.T) {
	t.Parallel()
	addresses := map[host.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	paused := make(chan struct{})
	var parked sync.WaitGroup
	wait := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) {
		parked.Done()
		<-paused
		return dst, nil
	}
	pong := func(_ *host.Conn, dst Body, _ *Reader) (Body, error) {
		<-paused
		return append(dst, "{}"...), nil
	}
	caller(t, 2, addresses, map[string]Handler{"/commit": wait}, map[string]Handler{"/barrier": wait, "/ping": pong})
	n := caller(t, 1, addresses, nil, nil)
	n.PingTimeout = 50 * time.Millisecond
	r := n.NewPeer(2, func() {})
	ping := func() error { return r.Post(Pings, "/ping", NewBody(0), time.Now().Add(n.PingTimeout), nil) }
	r.heard()
	parked.Add(2)
	errs := make(chan error, 2)
	go func() {
		errs <- r.Post(Requests, "/commit", NewBody(0), time.Now().Add(time.Hour), nil)
	}()
	go func() {
		errs <- r.Post(Services, "/barrier", NewBody(0), time.Now().Add(time.Hour), nil)
	}()
	parked.Wait()
	require.Error(t, ping())
	require.False(t, r.up.Load())
	for range 2 {
		require.ErrorIs(t, <-errs, replica.ErrUnknown, "nobody knows what it has done")
	}
	err := r.Post(Requests, "/commit", NewBody(0), time.Now().Add(time.Hour), nil)
	require.True(t, WasNotSent(err), "%v", err)
	close(paused)
	n.PingTimeout = patience
	require.NoError(t, ping())
	require.True(t, r.up.Load())
	parked.Add(1)
	require.NoError(t, r.Post(Requests, "/commit", NewBody(0), time.Now().Add(patience), nil))
}

// A call that had less time than a ping says nothing about the node.
func TestShortCallIsNoVerdict(t *testing.T) {
	t.Parallel()
	r := testPeer()
	r.heard()
	time.Sleep(time.Millisecond)
	r.failed(time.Now(), fasthttp.ErrTimeout)
	require.True(t, r.up.Load())
	require.Len(t, r.Kick, 1, "but a ping is said now")
	r.failed(time.Now().Add(-2*patience), fasthttp.ErrTimeout)
	require.True(t, r.up.Load(), "it has answered since")
	r.answer.Store(0)
	r.failed(time.Now().Add(-2*patience), fasthttp.ErrTimeout)
	require.False(t, r.up.Load())
	require.True(t, r.silent.Load())
	r.heard()
	require.False(t, r.silent.Load())
}

// A call that was under way when a node was paused does not come through, but the node has been heard since, so it is
// there. A call that began later counts.
func TestCallsFromBeforeAPause(t *testing.T) {
	p := testPeer()
	paused := time.Now()
	time.Sleep(time.Millisecond)
	p.heard()
	p.failed(paused, io.EOF)
	require.True(t, p.up.Load())
	time.Sleep(time.Millisecond)
	p.failed(time.Now(), io.EOF)
	require.False(t, p.up.Load())
	p.heard()
	require.True(t, p.up.Load())
}

// A call from a node whose stamps are too far ahead is refused with an error, and its stamp is not taken. Nor is the
// stamp of an answer of that node. But its pings are answered, and what it answers to a ping is read.
func TestCallsFromTheFutureAreRefused(t *testing.T) {
	t.Parallel()
	addresses := map[host.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	answer := map[string]Handler{"/call": func(_ *host.Conn, dst Body, _ *Reader) (Body, error) { return dst, nil }}
	read := 0
	call := func(from *Options, to host.Node, kind Kind) error {
		return from.NewPeer(to, func() {}).Post(kind, "/call", NewBody(0), time.Now().Add(patience), func(*Reader) error {
			read++
			return nil
		})
	}
	node := func(n host.Node) (*Options, *stamp.Clock) {
		o, clock := caller(t, n, addresses, nil, answer), &stamp.Clock{}
		o.Stamp, o.Observe = clock.Last, clock.Accept
		return o, clock
	}
	one, ahead := node(1)
	two, clock := node(2)
	require.NoError(t, call(one, 2, Services))
	require.NoError(t, call(two, 1, Services))
	ahead.Observe(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	read = 0
	err := call(one, 2, Services)
	require.ErrorIs(t, err, stamp.ErrClock)
	require.ErrorContains(t, err, "20m0s are permitted (twice --max-clock-offset)")
	require.True(t, WasNotSent(err), "a request that needed the call can be tried again, and gets a 503")
	require.ErrorIs(t, call(two, 1, Services), stamp.ErrClock)
	require.Zero(t, read)
	require.NoError(t, call(one, 2, Pings))
	require.ErrorIs(t, call(two, 1, Pings), stamp.ErrClock)
	require.Equal(t, 2, read)
	require.Zero(t, clock.Last())
}
