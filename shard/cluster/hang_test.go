package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// fog lies between nodes. What a node that is hidden in the fog sends or is sent doesn't arrive, and nobody is told.
// Each node has an address in front of the fog.
type fog struct {
	mu     sync.Mutex
	hidden quorum.Node
	clear  sync.Cond
}

func newFog() *fog {
	f := &fog{}
	f.clear.L = &f.mu
	return f
}

func (f *fog) hide(node quorum.Node) {
	f.mu.Lock()
	f.hidden = node
	f.mu.Unlock()
	f.clear.Broadcast()
}

// pass waits while one of the two nodes is hidden.
func (f *fog) pass(a, b quorum.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.hidden != 0 && (f.hidden == a || f.hidden == b) {
		f.clear.Wait()
	}
}

// before listens at an address and carries connections to the node's real address.
func (f *fog) before(t *testing.T, node quorum.Node, address, real string) {
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.carry(c, node, real)
		}
	}()
}

const greetingBytes = 24 // of who dials; its number stands at 12 (host.Host)

func (f *fog) carry(from net.Conn, node quorum.Node, real string) {
	defer from.Close()
	greeting := make([]byte, greetingBytes)
	if _, err := io.ReadFull(from, greeting); err != nil {
		return
	}
	dialer := quorum.Node(binary.LittleEndian.Uint32(greeting[12:]))
	f.pass(dialer, node)
	to, err := net.Dial("tcp", real)
	if err != nil {
		return
	}
	defer to.Close()
	if _, err := to.Write(greeting); err != nil {
		return
	}
	copying := func(dst, src net.Conn) {
		defer dst.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := src.Read(b)
			f.pass(dialer, node)
			if err != nil {
				return
			}
			if _, err := dst.Write(b[:n]); err != nil {
				return
			}
		}
	}
	go copying(from, to)
	copying(to, from)
}

// commitOnce commits an event of a user under a key, as a request with an Idempotency-Key.
func commitOnce(e *shard.Coordinator, key, user, name string) error {
	b := e.NewBatch(testWorkspace, 0)
	defer b.Release()
	addEvent(b, op.ExternalID, user, name)
	b.KeepAnswer([]byte(key), [32]byte{}, 201, []byte("done"))
	return b.Commit()
}

// startInFog starts three nodes.
func startInFog(t *testing.T, change func(*Options)) (*testCluster, *fog) {
	f, real := newFog(), map[quorum.Node]string{}
	c := newTestCluster(t, 3, func(o *Options) {
		change(o)
		o.Listen = real[o.Node]
	})
	for node, address := range c.members {
		real[node] = testaddr.Free(t)
		f.before(t, node, address, real[node])
	}
	t.Cleanup(func() { f.hide(0) }) // before nodes are closed
	c.start(1, 2, 3)
	return c, f
}

// another is a node other than node 1 that leads a user group, while node 1 leads one, too.
func (c *testCluster) another() (found quorum.Node) {
	c.t.Helper()
	routes := c.node(1).routes
	c.eventually(func() error {
		one := false
		for i := 1; i < len(c.node(1).replicas); i++ {
			switch leader := routes.Leader(uint32(i)); leader {
			case 0:
			case 1:
				one = true
			default:
				found = leader
			}
		}
		if one && found != 0 {
			return nil
		}
		for _, n := range c.all() {
			if g := n.group(1); !one && n.self != 1 && g.leads.Load() {
				return errors.Join(errors.New("node 1 leads nothing"), g.log.Transfer(context.Background(), 1))
			}
		}
		return errors.New("only node 1 leads")
	})
	return found
}

// Requests that concern groups whose leaders are there do not wait for another group's leader.
func TestBarrierOfOneGroup(t *testing.T) {
	t.Parallel()
	c, f := startInFog(t, func(o *Options) {
		o.PingTimeout, o.CommitTimeout, o.BarrierTimeout, o.LeaderWait = time.Hour, time.Hour, time.Hour, time.Hour
	})
	n, lost := c.node(1), c.another()
	require.NoError(t, n.Coordinator().Barrier()) // so that the replicas here are current, and there are connections
	f.hide(lost)
	for partition := range identity.Partitions {
		if n.routes.Leader(n.routes.GroupOf(uint8(partition))) == 1 {
			require.NoError(t, mesh{n}.BarrierOf(uint8(partition)))
		}
	}
}

// A leader that can't make sure in time that it leads, since no majority answers, says that it is unavailable. No read
// fails with an error that its caller doesn't know.
func TestReadThatTakesTooLong(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.eventually(func() error { // a node without a replica, or with one that isn't open yet, says so
		for _, n := range c.all() {
			for group := range n.replicas {
				if g := n.group(uint32(group)); g == nil || g.replica.Load() == nil {
					return fmt.Errorf("node %d: group %d is not open", n.self, group)
				}
			}
		}
		return nil
	})
	c.eventually(func() error { // a group without a leader is unavailable, too, but not late
		late := 0
		for partition := range identity.Partitions {
			for _, n := range c.all() {
				_, err := n.readHere(nil, question{readEntry, uint8(partition), uint64(partition)<<56 | 1, nil}, time.Now())
				if err != nil {
					require.ErrorIs(t, err, replica.ErrUnavailable)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					late++
				}
			}
		}
		if late == 0 {
			return errors.New("no read was late")
		}
		return nil
	})
}

// A node that leads groups falls silent under requests, and nobody closes a connection. One verdict ends all calls to
// that node, long before their own time is over. The next leader does requests with a key, once. Requests without a key
// are done or unknown, and nothing that was acknowledged is lost.
func TestSilentLeader(t *testing.T) {
	t.Parallel()
	c, f := startInFog(t, func(o *Options) {
		o.PingTimeout = time.Second
		o.CommitTimeout, o.BarrierTimeout, o.LeaderWait = time.Hour, time.Hour, time.Hour // nothing ends by itself
	})
	all := users("u", 12)
	keyed, unkeyed := make(chan error, len(all)), make(chan error, len(all))
	lost := c.another()
	coordinator := c.node(1).Coordinator()
	var warm sync.WaitGroup
	for _, u := range all { // so that there are connections
		warm.Go(func() { assert.NoError(t, track(coordinator, "before", u)) })
	}
	warm.Wait()
	f.hide(lost)
	for _, u := range all {
		go func() { keyed <- commitOnce(coordinator, "key-"+u, u, "keyed") }()
		go func() { unkeyed <- track(coordinator, "unkeyed", u) }()
	}
	acked := 0
	for range all {
		if err := <-keyed; err != nil {
			require.ErrorIs(t, err, shard.ErrKept, "done before, by the first try")
		}
		switch err := <-unkeyed; {
		case err == nil:
			acked++
		default:
			require.True(t, errors.Is(err, replica.ErrUnknown) || errors.Is(err, replica.ErrUnavailable), "%v", err)
		}
	}
	f.hide(0)
	total := 0
	for _, u := range all {
		n, err := events(coordinator, op.ExternalID, u, "keyed")
		require.NoError(t, err)
		require.Equal(t, 1, n, u)
		n, err = events(coordinator, op.ExternalID, u, "unkeyed")
		require.NoError(t, err)
		require.LessOrEqual(t, n, 1, u)
		total += n
	}
	require.GreaterOrEqual(t, total, acked)
	t.Logf("of %d requests without a key %d were acknowledged, %d done", len(all), acked, total)
}

// Nodes that are started find leaders for their groups at once, whether the groups are new or not, and also for the
// groups that they led. In make stress the timers would take an hour.
func TestStartedNodesFindLeaders(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) { o.Quorum.HeartbeatTimeout = testsize.Of(time.Hour, calm, calm) })
	all := users("u", 20)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", all...))
	for node := quorum.Node(1); node <= 3; node++ {
		c.kill(node)
	}
	c.start(1, 2, 3)
	require.NoError(t, track(c.node(2).Coordinator(), "bought", all...))
	lost := c.another()
	c.kill(lost)
	c.start(lost)
	for _, n := range c.all() {
		for _, u := range all {
			count, err := events(n.Coordinator(), op.ExternalID, u, "bought")
			require.NoError(t, err)
			require.Equal(t, 2, count, u)
		}
	}
}

// A node can be closed while one of its leaderships is being handed to a node that falls silent before it has the log.
// Raft would go on trying for two hours here.
func TestCloseDuringTransfer(t *testing.T) {
	t.Parallel()
	c, f := startInFog(t, func(o *Options) { o.Quorum.HeartbeatTimeout = time.Hour })
	lost, n := c.another(), c.node(1)
	var g *group
	c.eventually(func() error {
		for i := range n.replicas {
			if g = n.group(uint32(i)); i > 0 && g != nil && g.leads.Load() {
				return nil
			}
		}
		return errors.New("node 1 leads nothing")
	})
	f.hide(lost)
	require.NoError(t, g.replica.Load().Sweep()) // which the silent node lacks
	require.True(t, n.background.start(func() { _ = gently{g.log, g}.Transfer(lost) }))
	c.eventually(func() error {
		if g.log.Leads() {
			return errors.New("it is not being handed over")
		}
		return nil
	})
	closed := make(chan struct{})
	go func() {
		c.kill(1)
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		require.Fail(t, "the node doesn't close")
	}
}

// When the voters that don't reach the leader are a majority, the one of them with most of the log stands for leader;
// of several, the one with the lowest number.
func TestWhoIsNext(t *testing.T) {
	t.Parallel()
	members := []quorum.Member{{Node: 1, Voter: true}, {Node: 2, Voter: true}, {Node: 3, Voter: true}, {Node: 4}}
	for _, of := range []struct {
		self    quorum.Node
		indexes map[quorum.Node]uint64
		next    bool
	}{
		{1, map[quorum.Node]uint64{1: 7}, false}, {1, map[quorum.Node]uint64{1: 7, 2: 7}, true}, {2, map[quorum.Node]uint64{1: 7, 2: 7}, false},
		{2, map[quorum.Node]uint64{1: 7, 2: 8}, true}, {1, map[quorum.Node]uint64{1: 7, 2: 8}, false}, {1, map[quorum.Node]uint64{1: 7, 4: 6}, false},
		{1, map[quorum.Node]uint64{1: 7, 2: 7, 3: led}, false},
	} {
		require.Equal(t, of.next, (&Node{self: of.self}).isNext(members, of.indexes), "%d %v", of.self, of.indexes)
	}
}
