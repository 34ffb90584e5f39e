package cluster

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/stamp"
	"millrace/wal/pause"
	"millrace/wal/quorum"
)

// A node whose clock is years ahead doesn't get into a running cluster, and leaves no stamp there.
func TestWrongClockIsRefused(t *testing.T) {
	t.Parallel()
	var wrong quorum.Node
	c := newTestCluster(t, 3, nil)
	c.change = func(o *Options) {
		if o.Node == wrong {
			o.Engine.Clock = &stamp.Clock{Now: func() time.Time { return time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC) }}
		}
	}
	c.start(1, 2, 3)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 20)...))
	for group := range uint32(5) {
		if g := c.node(1).group(group); g != nil {
			require.Same(t, c.node(1).clock, g.replica.Load().Clock(), "group %d", group)
		}
	}
	c.stop(3)
	wrong = 3
	_, err := c.open(3)
	require.ErrorIs(t, err, stamp.ErrClock)
	require.ErrorContains(t, err, "ahead of those of most of the nodes")
	for _, node := range []quorum.Node{1, 2} {
		require.NoError(t, track(c.node(node).Coordinator(), "bought", users("u", 20)...))
		require.Less(t, time.UnixMicro(c.node(node).clock.Last()).Year(), 2099)
	}
	wrong = 0
	c.start(3)
}

// A node starts again with what it took from the others: stamps that are ahead of its clock by up to twice the bound.
func TestStartWithStampsOfOthers(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3, nil)
	c.start(1, 2, 3)
	require.NoError(t, c.node(3).observe(time.Now().Add(3*stamp.DefaultMaxClockOffset/2).UnixMicro()))
	c.stop(3)
	c.start(3)
	require.NoError(t, track(c.node(3).Coordinator(), "bought", users("u", 20)...))
}

// A node that fails while it waits for its cluster ends. Here it has opened its replicas when it learns, from the only
// other node that comes, that its clock is wrong.
func TestNodeFailsWhileItWaits(t *testing.T) {
	t.Parallel()
	var wrong quorum.Node
	opened := make(chan struct{})
	c := newTestCluster(t, 5, nil)
	c.change = func(o *Options) {
		if wrong != 0 {
			o.BarrierTimeout, o.LeaderWait = 100*time.Millisecond, 100*time.Millisecond // the wait ends between two barriers
		}
		if o.Node == wrong {
			o.Engine.Clock = &stamp.Clock{Now: func() time.Time { return time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC) }}
			o.Quorum.MinFreeBytes, o.Quorum.MinFreePercent = 0, 0 // the defaults, so that room is looked for
			open := sync.OnceFunc(func() { close(opened) })
			o.Quorum.FreeSpace = func(string) (free, total uint64, err error) {
				open()
				return 1 << 40, 1 << 40, nil
			}
		}
	}
	c.start(1, 2, 3, 4, 5)
	for _, n := range c.all() {
		c.stop(n.self)
	}
	wrong = 3
	ended := make(chan error, 1)
	go func() {
		_, err := c.open(3)
		ended <- err
	}()
	<-opened
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() { _, _ = Open(ctx, c.options(1)) }) // the two are no majority
	require.ErrorIs(t, <-ended, stamp.ErrClock)
	require.ErrorIs(t, c.failed[3], stamp.ErrClock)
	cancel()
	waiting.Wait()
}

// A node that refuses another node's stamp names itself in the error, and doesn't take the stamp.
func TestStampsFromTheFutureAreRefused(t *testing.T) {
	n := &Node{self: 2, clock: &stamp.Clock{}, log: slog.New(slog.DiscardHandler)}
	now := time.Now().UnixMicro()
	require.NoError(t, n.observe(now))
	err := n.observe(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	require.ErrorIs(t, err, stamp.ErrClock)
	require.ErrorContains(t, err, "node 2 refuses the call")
	require.Equal(t, now, n.clock.Last())
}

// A node whose clock runs away ends, and no other does, though under load there are stamps that are refused: those of
// all others on a node whose clock is behind, and those of a node whose clock is ahead, which the logs of its groups
// bring to all others.
func TestClockRunsAway(t *testing.T) {
	t.Parallel()
	const bound = stamp.DefaultMaxClockOffset
	for _, to := range []time.Duration{bound, -bound} {
		var off atomic.Int64
		begin := time.Now()
		c := newTestCluster(t, 3, nil)
		c.change = func(o *Options) {
			if o.Node == 3 {
				o.Engine.Clock = &stamp.Clock{
					Now:    func() time.Time { return time.Now().Add(time.Duration(off.Load())) },
					Steady: func() time.Duration { return time.Since(begin) + time.Duration(off.Load()) },
				}
			}
		}
		c.start(1, 2, 3)
		c.whole()
		stop := make(chan struct{})
		var load sync.WaitGroup
		for on := range 4 {
			e := c.node(quorum.Node(on%2*2 + 1)).Coordinator()
			load.Go(func() {
				for range pause.Every(5*time.Millisecond, stop) {
					_ = track(e, "bought", users("u", 20)...)
				}
			})
		}
		failed := func() map[quorum.Node]error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return maps.Clone(c.failed)
		}
		for step := 9 * to / 10; len(failed()) == 0 && step.Abs() < 2*bound; step += to / 600 {
			off.Store(int64(step))
			time.Sleep(10 * time.Millisecond)
		}
		require.Eventually(t, func() bool { return len(failed()) > 0 }, time.Minute, time.Millisecond)
		close(stop)
		load.Wait()
		require.Len(t, failed(), 1)
		require.ErrorIs(t, failed()[3], stamp.ErrClock)
	}
}

// The majority of nodes decides whose clock is wrong; of two nodes, the clock that is ahead is wrong.
func TestWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	const far, near = time.Hour, time.Second
	for _, of := range []struct {
		ahead []time.Duration // the others' clocks
		wrong bool
	}{
		{nil, false}, {[]time.Duration{near}, false}, {[]time.Duration{far}, false}, {[]time.Duration{-far}, true},
		{[]time.Duration{far, near}, false}, {[]time.Duration{-far, near}, false}, {[]time.Duration{-far, -far}, true}, {[]time.Duration{far, far}, true},
		{[]time.Duration{far, -far, near, near}, false}, {[]time.Duration{-far, -far, -far, near}, true},
	} {
		require.Equal(t, of.wrong, judgeClock(of.ahead, stamp.DefaultMaxClockOffset) != nil, "%v", of.ahead)
	}
}
