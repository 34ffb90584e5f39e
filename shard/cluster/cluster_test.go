package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// testCluster is several nodes in this process, with real logs, stores and sockets on loopback.
type testCluster struct {
	t       *testing.T
	dir     string
	members map[quorum.Node]string
	change  func(*Options)

	mu     sync.Mutex
	nodes  map[quorum.Node]*Node
	failed map[quorum.Node]error
}

// patience is how long tests wait for something that must come. It is long because nodes under the race detector, on a
// machine that has other work, are slow.
const patience = 4 * time.Minute

// calm is how long nodes wait for one another in tests in which nothing is to fail, because on a machine that has other
// work a node may say nothing for seconds. Nodes that end are noticed at once all the same, and groups without a leader
// find one (succeed.go). Tests of silence have timeouts of their own.
const calm = 15 * time.Second

// newTestCluster makes a cluster that has addresses for so many members, and no node yet.
func newTestCluster(t *testing.T, members int, change func(*Options)) *testCluster {
	c := &testCluster{t: t, dir: t.TempDir(), members: map[quorum.Node]string{}, change: change, nodes: map[quorum.Node]*Node{}, failed: map[quorum.Node]error{}}
	for i := range members {
		c.members[quorum.Node(i+1)] = testaddr.Free(t)
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, n := range c.all() {
			closing.Go(func() { vanish(n) })
		}
		closing.Wait()
	})
	return c
}

func (c *testCluster) options(node quorum.Node) Options {
	out := io.Discard
	if os.Getenv("MILLRACE_TEST_LOG") != "" {
		out = os.Stderr
	}
	o := Options{
		Plan: facts.Plan{Node: node, Dir: filepath.Join(c.dir, fmt.Sprint(node)), Members: c.members, Groups: 4}, Listen: c.members[node],
		Quorum:       quorum.Options{HeartbeatTimeout: calm, MinFreeBytes: -1, MinFreePercent: -1, SegmentBytes: 1 << 20, DiskTimeout: -1},
		Engine:       replica.EngineOptions{MemoryBytes: 64 << 20, StoreCacheBytes: 4 << 20, StoreMemTableBytes: 1 << 20},
		PingInterval: 100 * time.Millisecond, PingTimeout: calm, CommitTimeout: patience, BarrierTimeout: patience, LeaderWait: patience, DialTimeout: calm,
		HandOverTimeout: calm, SpreadTimeout: calm, Pace: placement.Pace{Round: 200 * time.Millisecond, Busy: 20 * time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})).With("on", node),
		OnFailure: func(err error) {
			c.mu.Lock()
			c.failed[node] = err
			c.mu.Unlock()
		},
	}
	if c.change != nil {
		c.change(&o)
	}
	return o
}

// open starts a node and waits until the node belongs to the cluster.
func (c *testCluster) open(node quorum.Node) (*Node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := Open(ctx, c.options(node))
	if err == nil {
		c.mu.Lock()
		c.nodes[node] = n
		c.mu.Unlock()
	}
	return n, err
}

// start starts nodes and waits until each of them serves all groups.
func (c *testCluster) start(nodes ...quorum.Node) {
	c.t.Helper()
	errs := make([]error, len(nodes))
	var opening sync.WaitGroup
	for i, node := range nodes {
		opening.Go(func() { _, errs[i] = c.open(node) })
	}
	opening.Wait()
	require.NoError(c.t, errors.Join(errs...))
	for _, node := range nodes {
		c.ready(node)
	}
}

func (c *testCluster) ready(node quorum.Node) {
	c.t.Helper()
	c.eventually(func() error { return c.node(node).Ready() })
}

// whole waits until each node has its replica of every group, with a vote, in a cluster in which every node has all
// groups. A node that serves a group may still be opening its own replica of it; and while that is a newcomer, the group
// has no leader when another one of three nodes is down.
func (c *testCluster) whole() {
	c.t.Helper()
	c.eventually(func() error {
		for _, n := range c.all() {
			for i := range n.replicas {
				g := n.group(uint32(i))
				if g == nil || g.log.Status().Newcomer {
					return fmt.Errorf("node %d has no replica of group %d yet that votes", n.self, i)
				}
			}
		}
		return nil
	})
}

func (c *testCluster) eventually(f func() error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	require.NoError(c.t, err)
}

func (c *testCluster) node(node quorum.Node) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node]
}

func (c *testCluster) all() (list []*Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		list = append(list, n)
	}
	return list
}

// stop closes a node in order.
func (c *testCluster) stop(node quorum.Node) {
	c.t.Helper()
	require.NoError(c.t, c.node(node).Close())
	c.mu.Lock()
	delete(c.nodes, node)
	c.mu.Unlock()
}

func startCluster(t *testing.T, members int, change func(*Options)) *testCluster {
	t.Helper()
	c := newTestCluster(t, members, change)
	var all []quorum.Node
	for node := range c.members {
		all = append(all, node)
	}
	c.start(all...)
	return c
}

const testWorkspace = 1

func addEvent(b *shard.Batch, id op.IDKind, key, name string) {
	testengine.AddEvent(&testengine.Batch{Builder: &b.Builder, Request: b}, id, key, name, 0)
}

func addAttributes(b *shard.Batch, id op.IDKind, key string, flags op.Flags, fields ...[]byte) {
	testengine.AddAttributes(&testengine.Batch{Builder: &b.Builder, Request: b}, id, key, flags, fields...)
}

// track commits one event for each user, in one request.
func track(e *shard.Coordinator, name string, users ...string) error {
	b := e.NewBatch(testWorkspace, 0)
	defer b.Release()
	for _, u := range users {
		addEvent(b, op.ExternalID, u, name)
	}
	return b.Commit()
}

// events is how often a user has had an event, as a read on this node sees it after a barrier.
func events(e *shard.Coordinator, id op.IDKind, key, name string) (int, error) {
	if err := e.Barrier(); err != nil {
		return 0, err
	}
	return eventsBehind(e, id, key, name)
}

// eventsBehind is events, behind a barrier that the caller has asked for.
func eventsBehind(e *shard.Coordinator, id op.IDKind, key, name string) (int, error) {
	users, err := e.Find(testWorkspace, id, []byte(key))
	if err != nil || len(users) == 0 {
		return 0, err
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int(s.Count), nil
}

// counts are the events of many users as a node sees them behind one barrier, as in one request. It waits until the
// node can be asked, since a leadership may be on its way to another node.
func (c *testCluster) counts(on quorum.Node, id op.IDKind, keys []string, name string) (list []int) {
	c.t.Helper()
	e := c.node(on).Coordinator()
	c.eventually(func() error {
		list = nil
		if err := e.Barrier(); err != nil {
			return err
		}
		for _, key := range keys {
			n, err := eventsBehind(e, id, key, name)
			if err != nil {
				return err
			}
			list = append(list, n)
		}
		return nil
	})
	return list
}

func users(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// What one node has acknowledged, the next read on every other node sees.
func TestAnyNodeTakesAndShowsAnything(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	all := users("u", 40)
	for round := 1; round <= 6; round++ {
		writer := c.node(quorum.Node(1 + round%3))
		require.NoError(t, track(writer.Coordinator(), "bought", all...))
		for node := quorum.Node(1); node <= 3; node++ {
			for _, u := range all[:8] {
				n, err := events(c.node(node).Coordinator(), op.ExternalID, u, "bought")
				require.NoError(t, err)
				require.Equal(t, round, n, "user %s on node %d, written on %d", u, node, writer.self)
			}
		}
	}
	// Contact data crosses groups, and is visible under every identifier when the request is acknowledged.
	for i, u := range all[:10] {
		writer, reader := c.node(quorum.Node(1+i%3)), c.node(quorum.Node(1+(i+1)%3))
		b := writer.Coordinator().NewBatch(testWorkspace, 0)
		addAttributes(b, op.ExternalID, u, op.Contact, testengine.AttrField(op.AttrEmail, u+"@example.com"))
		require.NoError(t, b.Commit())
		b.Release()
		n, err := events(reader.Coordinator(), op.Email, u+"@example.com", "bought")
		require.NoError(t, err)
		require.Equal(t, 6, n)
	}
}
