package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/shard/bodies"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/shard/store"
	"millrace/wal"
	"millrace/wal/quorum"
)

// join adds a node by way of another one, starts it, and waits until it serves.
func (c *testCluster) join(by, node quorum.Node) {
	c.t.Helper()
	address := testaddr.Free(c.t)
	c.eventually(func() error { return c.node(by).Operator().Add(context.Background(), node, address, nil) }) // the control group may be about to change its leader
	c.mu.Lock()
	c.members = maps.Clone(c.members) // the others were started with theirs
	c.members[node] = address
	c.mu.Unlock()
	c.start(node)
}

// settled waits until a node's status shows that everything is as it should be: these nodes are active, and replicas
// and leaders are spread evenly.
func (c *testCluster) settled(by quorum.Node, active ...quorum.Node) (status placement.Status) {
	c.t.Helper()
	c.eventually(func() (err error) {
		if status, err = c.node(by).Operator().Status(context.Background()); err != nil {
			return err
		}
		return unsettled(status, active)
	})
	return status
}

func unsettled(status placement.Status, active []quorum.Node) error {
	holds, leads := map[quorum.Node]int{}, map[quorum.Node]int{}
	var found []quorum.Node
	for _, n := range status.Nodes {
		if n.State == placement.Active {
			found = append(found, n.Node)
		}
		if n.State == placement.Joining || n.State == placement.Draining || n.Problem != "" && n.State != placement.Removed {
			return fmt.Errorf("node %d is %s, problem %q", n.Node, n.State, n.Problem)
		}
	}
	if !slices.Equal(found, active) {
		return fmt.Errorf("active are %v, want %v", found, active)
	}
	for _, g := range append([]placement.GroupStatus{status.Control}, status.Groups...) {
		if g.Leader == 0 || g.Problem != "" || g.Doing != "" {
			return fmt.Errorf("group %d: leader %d, problem %q, doing %q", g.Group, g.Leader, g.Problem, g.Doing)
		}
		if g.Group == 0 {
			continue
		}
		leads[g.Leader]++
		if len(g.Replicas) != min(status.Replicas, len(active)) {
			return fmt.Errorf("group %d: %d replicas", g.Group, len(g.Replicas))
		}
		for _, r := range g.Replicas {
			if !r.Voter || r.Leaving || !slices.Contains(active, r.Node) {
				return fmt.Errorf("group %d: replica %+v", g.Group, r)
			}
			holds[r.Node]++
		}
	}
	for what, count := range map[string]map[quorum.Node]int{"holds": holds, "leads": leads} {
		least, most := count[active[0]], 0
		for _, n := range active {
			least, most = min(least, count[n]), max(most, count[n])
		}
		if most-least > 1 {
			return fmt.Errorf("%s are uneven: %v", what, count)
		}
	}
	return nil
}

// trickle is a small load on given nodes. Each user gets events one after the other.
type trickle struct {
	c     *testCluster
	nodes atomic.Pointer[[]quorum.Node]
	stop  chan struct{}
	done  sync.WaitGroup

	mu           sync.Mutex
	acked, maybe map[string]int
}

func (c *testCluster) trickle(nodes ...quorum.Node) *trickle {
	l := &trickle{c: c, stop: make(chan struct{}), acked: map[string]int{}, maybe: map[string]int{}}
	l.nodes.Store(&nodes)
	for i := range 4 {
		l.done.Go(func() { l.run(i) })
	}
	return l
}

func (l *trickle) run(worker int) {
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		nodes := *l.nodes.Load()
		time.Sleep(3 * time.Millisecond) // a small load: the machine has other tests
		n := l.c.node(nodes[i%len(nodes)])
		user := fmt.Sprintf("w%d-%d", worker, i%50)
		if n == nil {
			continue
		}
		err := track(n.Coordinator(), "ticked", user, "shared")
		l.mu.Lock()
		switch {
		case err == nil:
			l.acked[user]++
			l.acked["shared"]++
		case errors.Is(err, replica.ErrUnknown):
			l.maybe[user]++
			l.maybe["shared"]++
		}
		l.mu.Unlock()
	}
}

// check ends the load and compares what was acknowledged with what a node reads.
func (l *trickle) check(by quorum.Node) {
	l.c.t.Helper()
	close(l.stop)
	l.done.Wait()
	require.NotZero(l.c.t, l.acked["shared"], "the load was no load")
	users := slices.Sorted(maps.Keys(l.acked))
	for i, count := range l.c.counts(by, op.ExternalID, users, "ticked") {
		user := users[i]
		acked := l.acked[user]
		require.GreaterOrEqual(l.c.t, count, acked, "user %s: acknowledged events are missing", user)
		require.LessOrEqual(l.c.t, count, acked+l.maybe[user], "user %s: events are there twice", user)
	}
	l.c.t.Logf("%d events acknowledged, %d unknown", l.acked["shared"], l.maybe["shared"])
}

// Under load, three nodes become four and then five, one node is drained and removed, and one vanishes and is replaced.
// Nothing that was acknowledged is missing.
func TestNodesComeAndGo(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) {
		o.Groups, o.Pace = 4, placement.Pace{Round: 100 * time.Millisecond, Busy: 10 * time.Millisecond, Transfer: 300 * time.Millisecond, Settle: time.Second}
	})
	ctx := context.Background()
	c.settled(1, 1, 2, 3)
	load := c.trickle(1, 2, 3)
	c.join(1, 4)
	status := c.settled(2, 1, 2, 3, 4)
	require.Len(t, status.Control.Replicas, 4)
	rest := []quorum.Node{2, 3, 4, 5}
	c.join(3, 5)
	status = c.settled(4, 1, 2, 3, 4, 5)
	voters := 0
	for _, r := range status.Control.Replicas {
		if r.Voter {
			voters++
		}
	}
	require.Equal(t, placement.WantedVoters(len(status.Nodes)), voters)

	load.nodes.Store(&rest)
	c.eventually(func() error { return c.node(4).Operator().Drain(ctx, 1, nil) })
	c.eventually(func() error {
		d, _ := c.node(4).documents.Get()
		if d.Nodes[1].State != placement.Drained {
			return fmt.Errorf("node 1 is %s", d.Nodes[1].State)
		}
		return nil
	})
	c.stop(1)
	c.eventually(func() error { return c.node(4).Operator().Remove(ctx, 1, false, nil) })
	c.settled(3, rest...)
	load.nodes.Store(&[]quorum.Node{3, 4, 5})
	c.stop(2) // for good
	c.join(3, 6)
	c.eventually(func() error { return c.node(4).Operator().Remove(ctx, 2, true, nil) })
	rest = []quorum.Node{3, 4, 5, 6}
	status = c.settled(4, rest...)
	for _, g := range append(status.Groups, status.Control) {
		for _, r := range g.Replicas {
			require.Contains(t, rest, r.Node, "group %d", g.Group)
		}
	}
	load.check(rest[len(rest)-1])
	for _, n := range c.all() {
		c.eventually(func() error { // the last replicas that left are still being deleted
			for i := uint32(1); int(i) < len(n.replicas); i++ {
				if d, _ := n.documents.Get(); d.Groups[i].Holds(n.self) != (n.group(i) != nil) {
					return fmt.Errorf("group %d on node %d is not as %v", i, n.self, d.Groups[i])
				}
			}
			return nil
		})
	}
}

// Any node tells an operator why a removal is refused, and what is the matter.
func TestRemoveIsRefusedOnAnyNode(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.settled(1, 1, 2, 3)
	c.stop(3)
	c.eventually(func() error {
		err := c.node(1).Operator().Remove(context.Background(), 2, true, nil)
		if !errors.Is(err, placement.ErrRefused) {
			return fmt.Errorf("removed: %w", err)
		}
		return nil
	})
	status, err := c.node(2).Operator().Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, "does not answer", status.Nodes[2].Problem)
	require.False(t, status.Nodes[2].Seen.IsZero(), "it was heard of before")
}

// A node whose disk has lost a replica, or a part of it, does not make an empty one in its place. An empty replica
// would vote as if it had never promised anything, or be read as if there were nobody.
func TestALostReplicaIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.whole()
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 20)...))
	c.stop(1)
	for _, lost := range []struct {
		path []string
		want error
	}{
		{[]string{"0"}, placement.ErrReplaced}, {[]string{"1"}, placement.ErrReplaced},
		{[]string{"0", "log"}, wal.ErrCorrupt}, {[]string{"1", "log"}, wal.ErrCorrupt},
		{[]string{"0", "log", "GROUP"}, wal.ErrCorrupt}, {[]string{"1", "log", "GROUP"}, wal.ErrCorrupt},
		{[]string{"0", "state"}, store.ErrStore}, {[]string{"1", "state"}, store.ErrStore},
	} {
		path := filepath.Join(append([]string{c.options(1).Dir, facts.GroupsDir}, lost.path...)...)
		require.NoError(t, os.Rename(path, path+".lost"))
		ctx, cancel := context.WithTimeout(t.Context(), calm) // as long as a node would take that treated the replica as new
		n, err := Open(ctx, c.options(1))
		cancel()
		if err == nil {
			_ = n.Close()
		}
		require.ErrorIs(t, err, lost.want, "%v", lost.path)
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.Rename(path+".lost", path))
	}
	c.start(1)
	n, err := events(c.node(1).Coordinator(), op.ExternalID, "u7", "bought")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A node whose disk was put back to an earlier state has promised more than it knows of. The others have heard these
// promises, so the node ends before it takes part in any group.
func TestADiskThatWasPutBackIsNoticed(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.whole()
	all := users("u", 60) // some in each group
	require.NoError(t, track(c.node(1).Coordinator(), "bought", all...))
	c.stop(3)
	dir, earlier, sound := c.options(3).Dir, filepath.Join(t.TempDir(), "earlier"), filepath.Join(t.TempDir(), "sound")
	require.NoError(t, os.CopyFS(earlier, os.DirFS(dir)))
	c.start(3)
	c.whole()
	require.NoError(t, track(c.node(1).Coordinator(), "bought", all...))
	now := map[uint32]uint64{}
	for i := range c.node(3).replicas {
		now[uint32(i)] = c.node(1).group(uint32(i)).log.Status().CommitIndex
	}
	c.eventually(func() error {
		for group, index := range now {
			if said := c.node(1).remote(3).said.of(group); said < index {
				return fmt.Errorf("node 1 has heard of group %d up to entry %d, not %d", group, said, index)
			}
		}
		return nil
	})
	c.stop(3)
	require.NoError(t, os.Rename(dir, sound))
	require.NoError(t, os.CopyFS(dir, os.DirFS(earlier)))
	_, err := c.open(3)
	require.ErrorIs(t, err, placement.ErrReplaced)

	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Rename(sound, dir))
	c.start(3)
	n, err := events(c.node(3).Coordinator(), op.ExternalID, "u7", "bought")
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

// A node that goes on running after it was removed hears of no change any more. It serves nothing, and says so. It
// doesn't start again, with its disk or another one, and says why.
func TestARemovedNodeServesNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) {
		o.Pace = placement.Pace{Round: 100 * time.Millisecond, Busy: 10 * time.Millisecond, Transfer: 300 * time.Millisecond, Settle: time.Second}
		if o.Node == 4 {
			o.LeaderWait, o.CommitTimeout = time.Second, time.Second
		}
	})
	ctx := context.Background()
	c.join(1, 4)
	c.settled(1, 1, 2, 3, 4)
	require.NoError(t, track(c.node(4).Coordinator(), "bought", "a"))
	c.eventually(func() error { return c.node(1).Operator().Drain(ctx, 4, nil) })
	c.eventually(func() error { return c.node(1).Operator().Remove(ctx, 4, false, nil) }) // once it is drained
	c.eventually(func() error {
		if err := c.node(4).Ready(); !errors.Is(err, placement.ErrRemoved) {
			return fmt.Errorf("it says that it is ready, or why it is not: %w", err)
		}
		return nil
	})
	c.eventually(func() error { // it may have learned that from its documents, before the others refuse it
		if err := c.node(4).Coordinator().BarrierControl(); !errors.Is(err, replica.ErrUnavailable) {
			return fmt.Errorf("the others answer it: %w", err)
		}
		return nil
	})
	require.ErrorIs(t, track(c.node(4).Coordinator(), "bought", "a"), replica.ErrUnavailable)
	c.settled(2, 1, 2, 3)
	n, err := events(c.node(1).Coordinator(), op.ExternalID, "a", "bought")
	require.NoError(t, err)
	require.Equal(t, 1, n)

	c.stop(4)
	for _, disk := range []string{"its own", "another"} {
		_, err := c.open(4)
		require.ErrorIs(t, err, placement.ErrRemoved, disk)
		require.NoError(t, os.RemoveAll(c.options(4).Dir))
	}
}

// A node that was removed by force and comes back while its groups have found no other node goes on in these groups. It
// says that it was removed, and hears of changes of control documents, so that nobody gets in by a key that was revoked.
func TestARemovedNodeThatIsNeededHearsOfChanges(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	ctx := context.Background()
	c.settled(1, 1, 2, 3)
	c.stop(3)
	c.eventually(func() error { return c.node(1).Operator().Remove(ctx, 3, true, nil) })
	c.eventually(func() error {
		if status, err := c.node(1).Operator().Status(ctx); err != nil || len(status.Control.Replicas) > 2 {
			return fmt.Errorf("the control group: %v, %w", status.Control.Replicas, err)
		}
		return nil
	})
	_, err := c.open(3)
	require.NoError(t, err)
	c.eventually(func() error {
		return c.node(1).Coordinator().PutDocuments(7, []bodies.DocumentChange{{Key: "workspace/1", Doc: []byte("new")}}, nil)
	})
	c.eventually(func() error {
		if doc := c.node(3).Coordinator().Document("workspace/1"); string(doc) != "new" {
			return fmt.Errorf("it has %q", doc)
		}
		return nil
	})
	require.ErrorIs(t, c.node(3).Ready(), placement.ErrRemoved)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 20)...))
}

// After a whole cluster was moved, its nodes find one another by the addresses with which they are started, although
// the documents have the old addresses, at which other nodes are by now.
func TestAllNodesGetNewAddresses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.eventually(func() error {
		if d, _ := c.node(1).documents.Get(); len(d.Nodes) < 3 {
			return fmt.Errorf("%d nodes are documented", len(d.Nodes))
		}
		return nil
	})
	require.NoError(t, track(c.node(1).Coordinator(), "bought", "ann"))
	for _, n := range c.all() {
		c.stop(n.self)
	}
	c.mu.Lock()
	c.members = map[quorum.Node]string{1: c.members[2], 2: c.members[3], 3: c.members[1]}
	c.mu.Unlock()
	c.start(1, 2, 3)
	require.NoError(t, track(c.node(2).Coordinator(), "bought", "ann"))
	for _, n := range c.all() {
		count, err := events(n.Coordinator(), op.ExternalID, "ann", "bought")
		require.NoError(t, err)
		require.Equal(t, 2, count)
	}

	address := testaddr.Free(t) // and then the documents are told
	c.eventually(func() error { return c.node(1).Operator().Add(context.Background(), 3, address, nil) })
	c.eventually(func() error {
		if at := c.node(2).resolve(3); !slices.Equal(at, []string{address, c.members[3]}) {
			return fmt.Errorf("node 3 may be at %v", at)
		}
		return nil
	})
}
