package cluster

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/image"
	"millrace/shard/cluster/promise"
	"millrace/shard/cluster/routes"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// Whatever another node sends, nothing panics.
func FuzzCalls(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add([]byte(calls.Body{}.Effects(effect.Effects{Deferred: []uint64{1}})))
	f.Add([]byte(calls.Body{}.U32(3).Sized([]byte("record"))))
	f.Add(append([]byte(`{"disk":"x"}`), 0))
	f.Add([]byte(calls.Body{}.U32(1).U16(1).U32(0).Sized(nil))) // a part for a group that there is
	n := &Node{self: 1, opts: Options{BarrierTimeout: time.Millisecond}}
	n.opts.EnsureDefaults()
	n.replicas = nil // without replicas, the node refuses every call once it is read
	n.context, n.cancel = context.WithCancel(context.Background())
	n.routes = routes.New(1, 4, routes.Node{Reaches: n.reaches, Status: n.statusOf, Stop: n.context.Done()})
	n.draining = make(chan struct{})
	close(n.draining)
	n.owed, n.remotes = promise.NewOwed(1, n.draining), xsync.NewMapOf[quorum.Node, *remote]()
	n.images, n.cuts.Here = image.NewLender(n.context, n.beginImage, n.log), n.gateOf
	n.facts.Plan = &facts.Plan{Node: 1, Dir: f.TempDir()}
	require.NoError(f, n.facts.Open())
	f.Fuzz(func(t *testing.T, body []byte) {
		from := &host.Conn{Node: 2, Cluster: "c"}
		for _, h := range []calls.Handler{n.serveCommit, n.serveRelease, n.serveMessages, n.owed.Serve, n.serveBarrier, n.serveEntry, n.serveSpread, n.serveStep, n.facts.Serve,
			n.cuts.Serve, n.images.Serve, n.serveLost} {
			_, _ = h(from, nil, calls.NewReader(body))
		}
	})
}

func TestCalls(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.node(1)

	// A node of another cluster is refused. A node that knows no cluster yet may ask for facts, and for nothing else.
	t.Run("unauthenticated", func(t *testing.T) {
		unauthenticated := func(cluster string) *host.Host {
			h, err := host.Listen(host.Options{Node: 9, Listen: "127.0.0.1:0", Records: op.Version, Logger: n.log, Resolve: func(quorum.Node) []string { return nil }})
			require.NoError(t, err)
			t.Cleanup(func() { _ = h.Close() })
			h.SetCluster(cluster)
			return h
		}
		_, err := unauthenticated("another").DialAddress(c.members[1], patience)
		require.ErrorIs(t, err, host.ErrUnauthenticated)

		fresh := unauthenticated("")
		for path, want := range map[string]string{callFacts: "", callPing: "status 403", callCommit: "status 403", callImage: "status 403", "/nothing": "status 403"} {
			conn, err := fresh.DialAddress(c.members[1], patience)
			require.NoError(t, err)
			err = n.callOptions().Once(conn, path, append(calls.NewBody(0), `{"disk":"new"}`...), time.Now().Add(patience), 1<<20, nil)
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
			_ = conn.Close()
		}
	})

	// A node that takes connections and says nothing does not hold a call for longer than the call's time.
	t.Run("silence", func(t *testing.T) {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		h, err := host.Listen(host.Options{Node: 9, Listen: "127.0.0.1:0", Records: op.Version, Logger: n.log,
			Resolve: func(quorum.Node) []string { return []string{silent.Addr().String()} }})
		require.NoError(t, err)
		defer h.Close()
		h.SetCluster("any")
		alone := &Node{host: h, log: n.log, clock: n.clock, context: n.context}
		alone.opts.DialTimeout, alone.opts.MaxCalls = time.Hour, 1
		took := time.Hour
		for tries := 0; took >= 4*time.Second && tries < 20; tries++ { // the machine may have other work
			begun := time.Now()
			_, err = alone.newRemote(8).Ask(callService+"limits", calls.NewBody(0), begun.Add(20*time.Millisecond))
			require.True(t, calls.WasNotSent(err), "%v", err)
			took = time.Since(begun)
		}
		require.Less(t, took, 4*time.Second, "the other side's introduction has 5 s")
	})

	// An image can be ended once, and an image that was released is not there any more.
	t.Run("images", func(t *testing.T) {
		far, err := image.BeginFar(func(body calls.Body, _ time.Time) ([]byte, error) {
			return n.images.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(body[8:]))
		}, 1)
		require.NoError(t, err)
		positions, err := n.cuts.Take(context.Background(), len(n.replicas))
		require.NoError(t, err)
		require.NoError(t, far.End(positions[1]))
		require.ErrorIs(t, far.End(positions[1]), image.ErrGone)
		tail := slices.IndexFunc(far.Files(), func(f image.File) bool { return f.Name == "log/TAIL" })
		require.NotEqual(t, -1, tail)
		f, err := far.Open(tail)
		require.NoError(t, err)
		read, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Len(t, read, int(far.Files()[tail].Size))
		require.NoError(t, far.Release())
		require.ErrorIs(t, far.End(positions[1]), image.ErrGone)
		f, err = far.Open(tail)
		require.NoError(t, err)
		_, err = io.ReadAll(f)
		require.ErrorIs(t, err, image.ErrGone)
	})
}

// All calls together stay within their part of the connections, until nodes are so many that each has the least.
func TestConnectionsAreDividedAmongNodes(t *testing.T) {
	o := Options{CallConns: 128}
	o.EnsureDefaults()
	require.Equal(t, 128/4+spareCalls, o.MaxCallsServed)
	for peers, calls := range map[int]int{0: 32, 1: 32, 2: 16, 3: 10, 4: 8, 5: leastCalls, 100: leastCalls} {
		require.Equal(t, calls, o.callsTo(peers), peers)
		if calls > leastCalls {
			require.LessOrEqual(t, 4*peers*calls, o.CallConns)
		}
	}
	o.CallConns = 1 << 20
	require.Equal(t, o.MaxCalls, o.callsTo(2))
	o.CallConns = 0
	require.Equal(t, o.MaxCalls, o.callsTo(100))
}

// However much there is to ask, a node has no more calls under way to another one than the connections allow.
func TestCallsAreBoundedByConnections(t *testing.T) {
	var served, most atomic.Int64
	c := startCluster(t, 3, func(o *Options) {
		o.CallConns = 4 * 2 * leastCalls
		o.Services = map[string]func([]byte) ([]byte, error){"slow": func([]byte) ([]byte, error) {
			defer served.Add(-1)
			if n := served.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(10 * time.Millisecond) // others would come
			return nil, nil
		}}
	})
	slow := c.node(1).Service("slow")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a call that is given up is still served
	defer cancel()
	var calling sync.WaitGroup
	for range 16 * leastCalls {
		calling.Go(func() { _, _ = slow.Call(ctx, 2, nil) }) // some are refused on a busy machine
	}
	calling.Wait()
	require.Positive(t, most.Load())
	require.LessOrEqual(t, most.Load(), int64(leastCalls))
}
