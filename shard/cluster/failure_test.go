package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/cluster/cut"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/op"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// Leaderships move from node to node under load. Nothing acknowledged is missing, nothing is there twice, and the moves
// make no request fail for good.
func TestLeadershipsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 1))
	c := startCluster(t, 3, nil)
	c.whole()
	l := startLoad(c, seed, 6, 40)
	for range testsize.Of(30, 8, 4) {
		l.more(20)
		group := uint32(r.IntN(5))
		for _, n := range c.all() {
			if g := n.group(group); g.leads.Load() {
				to := quorum.Node(1 + r.IntN(3))
				if to != n.self {
					_ = g.log.Transfer(context.Background(), to) // it may have lost the leadership by itself
				}
			}
		}
	}
	l.more(20)
	l.end()
	for node := quorum.Node(1); node <= 3; node++ {
		l.verify(node)
	}
	t.Logf("%d requests acknowledged, %d unknown, %d refused", l.acked, l.unknown, l.refused)
}

// A replica that was elected leads once it has everything that earlier leaders have decided: until then its log may be
// behind what other nodes know.
func TestLeadsOnceItHasAll(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.whole()
	n := c.node(1)
	g := n.group(1)
	c.eventually(func() error {
		if !n.Replicas()[1].Leads {
			return errors.New("nobody leads")
		}
		return nil
	})
	g.leads.Store(false) // as it is before OnLead
	defer g.leads.Store(true)
	r := n.Replicas()[1]
	require.Equal(t, uint32(1), r.Group)
	require.Equal(t, quorum.Leader, r.Status.Role)
	require.False(t, r.Leads)
}

// A leader that hands over first answers the requests that it has taken. Requests that come meanwhile are for the next
// leader.
func TestHandOverAnswersFirst(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) { o.HandOverTimeout = patience })
	c.whole()
	const requests, token = 60, 7
	var gates []*cut.Gate
	for _, n := range c.all() {
		for i := range n.replicas {
			gates = append(gates, &n.group(uint32(i)).gate)
		}
	}
	for _, g := range gates { // requests with effects in another group wait
		require.NoError(t, g.Hold(context.Background(), token))
	}
	answers := make(chan error, 2*requests)
	ask := func(user string) {
		b := c.node(1).Coordinator().NewBatch(testWorkspace, 0)
		defer b.Release()
		addAttributes(b, op.ExternalID, user, op.Contact, testengine.AttrField(op.AttrEmail, user+"@example.com"))
		answers <- b.Commit()
	}
	for _, u := range users("before", requests) {
		go ask(u)
	}
	time.Sleep(100 * time.Millisecond)
	require.Less(t, len(answers), requests, "none waits for an effect")
	var steps errgroup.Group
	until := time.Now().Add(patience)
	for moved := 0; moved == 0; time.Sleep(10 * time.Millisecond) { // on a busy machine a group may just have no leader
		require.True(t, time.Now().Before(until), "no node leads a group")
		for _, n := range c.all() {
			for i := 1; i < len(n.replicas); i++ {
				if g := n.group(uint32(i)); g.leads.Load() {
					moved++
					steps.Go(func() error { return handOver(n, g, until) })
				}
			}
		}
	}
	for _, u := range users("meanwhile", requests) {
		go ask(u)
	}
	time.Sleep(100 * time.Millisecond)
	for _, g := range gates {
		g.LetGo(token)
	}
	require.NoError(t, steps.Wait())
	for range 2 * requests {
		require.NoError(t, <-answers)
	}
}

// handOver has a group's leader hand the group over to the next node, unless it has stopped leading or the reconciler
// was faster. On a busy machine the next node may be late, and raft gives up.
func handOver(n *Node, g *group, until time.Time) error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		err := n.step(placement.Step{Group: g.id, Verb: placement.Transfer, Node: 1 + n.self%3, Members: g.log.Status().Members, Until: until})
		if err == nil || g.log.Status().Role != quorum.Leader || strings.Contains(err.Error(), "handed over already") {
			return nil
		}
		if time.Now().After(until) {
			return err
		}
	}
}

// Each node in turn is closed in order and started again, under load that goes to all nodes that are there.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	c := startCluster(t, 3, nil)
	c.whole()
	l := startLoad(c, seed, 6, 40)
	for node := quorum.Node(1); node <= 3; node++ {
		l.more(20)
		n := c.node(node)
		c.mu.Lock()
		delete(c.nodes, node) // a load balancer takes it out first
		c.mu.Unlock()
		require.NoError(t, n.Close())
		l.more(20)
		c.start(node)
	}
	l.more(20)
	l.end()
	for node := quorum.Node(1); node <= 3; node++ {
		l.verify(node)
	}
	t.Logf("%d requests acknowledged, %d unknown, %d refused", l.acked, l.unknown, l.refused)

	// A node hands over the groups that it leads before it closes, the control group, too.
	n := c.node(1)
	c.eventually(func() error {
		for _, other := range c.all() {
			_ = other.group(shard.ControlGroup).log.Transfer(context.Background(), n.self) // whoever leads it
		}
		if !n.group(shard.ControlGroup).leads.Load() {
			return errors.New("node 1 does not lead the control group yet")
		}
		return nil
	})
	c.eventually(func() error {
		n.handOver()
		for group := range n.replicas {
			if n.group(uint32(group)).leads.Load() {
				return fmt.Errorf("node 1 leads group %d still", group)
			}
		}
		return nil
	})
}

// Nodes vanish under load and come back: one after another, and at last all at once.
func TestNodesVanish(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 1))
	c := startCluster(t, 3, nil)
	c.whole()
	l := startLoad(c, seed, 6, 40)
	for range testsize.Of(6, 2, 1) {
		l.more(20)
		node := quorum.Node(1 + r.IntN(3))
		c.kill(node)
		l.more(20) // the others go on
		c.start(node)
	}
	l.more(20)
	l.end()
	for node := quorum.Node(1); node <= 3; node++ {
		c.kill(node)
	}
	c.start(1, 2, 3)
	for node := quorum.Node(1); node <= 3; node++ {
		l.verify(node)
	}
	t.Logf("%d requests acknowledged, %d unknown, %d refused", l.acked, l.unknown, l.refused)
}

// A minority takes nothing and loses nothing.
func TestMinorityRefuses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) {
		o.Quorum.HeartbeatTimeout, o.PingTimeout = time.Second, time.Second
		o.LeaderWait, o.BarrierTimeout, o.CommitTimeout = 200*time.Millisecond, time.Second, 2*time.Second
	})
	c.whole()
	all := users("m", 20)
	c.eventually(func() error { return track(c.node(1).Coordinator(), "bought", all...) }) // on a busy machine a leader may be lost
	c.kill(2)
	c.kill(3)
	c.eventually(func() error {
		if c.node(1).Ready() == nil {
			return fmt.Errorf("node 1 still says that it is ready")
		}
		return nil
	})
	err := track(c.node(1).Coordinator(), "bought", all...)
	require.Error(t, err)
	_, err = events(c.node(1).Coordinator(), op.ExternalID, all[0], "bought")
	require.Error(t, err, "a read of a minority could be stale")
	c.start(2)
	c.ready(1)
	for _, u := range all {
		n := 0
		c.eventually(func() (err error) { // it may be lost again
			n, err = events(c.node(1).Coordinator(), op.ExternalID, u, "bought")
			return err
		})
		require.GreaterOrEqual(t, n, 1)
	}
	c.start(3)
}

// A number that comes back with an empty disk is refused, and so is a node whose replica is gone.
func TestReplacedDisk(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("w", 20)...))
	c.stop(3)
	require.ErrorIs(t, c.openWithout(3, c.options(3).Dir), placement.ErrReplaced)

	// Only the data of one group is missing.
	err := c.openWithout(3, c.options(3).Dir+"/groups/2")
	require.ErrorIs(t, err, placement.ErrReplaced)
	require.ErrorContains(t, err, "group 2")
	c.start(3)
}

// openWithout is the error of opening a node while a directory of it is away.
func (c *testCluster) openWithout(node quorum.Node, dir string) error {
	c.t.Helper()
	require.NoError(c.t, os.Rename(dir, dir+".kept"))
	_, err := c.open(node)
	require.NoError(c.t, os.RemoveAll(dir))
	require.NoError(c.t, os.Rename(dir+".kept", dir))
	return err
}

// A node that joins nodes of another version says so, not that they don't answer.
func TestJoinNodesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2, nil)
	o := c.options(1)
	h, err := host.Listen(host.Options{Node: 2, Listen: o.Members[2], Records: op.Version + 1, Logger: slog.New(slog.DiscardHandler),
		Resolve: func(quorum.Node) []string { return nil }})
	require.NoError(t, err)
	defer h.Close()
	const want = "node 2 has records of version"
	for patience := 100 * time.Millisecond; ; patience *= 3 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := Open(ctx, o)
		cancel()
		if patience < time.Minute && !strings.Contains(fmt.Sprint(err), want) { // the machine is busy
			continue
		}
		require.ErrorContains(t, err, want)
		return
	}
}

// The first start needs all members, and the same list of members everywhere. It goes on when all are there.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3, nil)
	for patience := 700 * time.Millisecond; ; patience *= 3 { // it says what is the matter when its time is over
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := Open(ctx, c.options(1))
		cancel()
		_, noFile := os.Stat(c.options(1).Dir + "/" + facts.File)
		if patience < time.Minute && (noFile != nil || !strings.Contains(fmt.Sprint(err), "nodes [2 3] do not answer")) { // the machine is busy
			continue
		}
		require.ErrorContains(t, err, "nodes [2 3] do not answer")
		require.NoError(t, noFile, "the disk has its name from the beginning")
		break
	}
	c.start(1, 2, 3)
	id := c.node(1).facts.Get().Cluster
	for _, n := range c.all() {
		f := n.facts.Get()
		require.Equal(t, id, f.Cluster)
		require.Equal(t, c.node(1).facts.Get().Secret, f.Secret)
		require.Len(t, f.Disks, 3)
	}
	require.ErrorContains(t, facts.CheckAlone(c.options(1).Dir), "node 1 of a cluster")
	require.NoError(t, facts.CheckAlone(t.TempDir()))
}

func TestFirstStartWithDifferentMembers(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3, nil)
	o := c.options(3)
	o.Members = map[quorum.Node]string{1: c.members[1], 3: c.members[3]}
	for patience := 2 * time.Second; ; patience *= 3 { // it says what is the matter when its time is over
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		errs := make(chan error, 2)
		for _, o := range []Options{c.options(2), o} {
			go func() {
				_, err := Open(ctx, o)
				errs <- err
			}()
		}
		_, err := Open(ctx, c.options(1))
		require.Error(t, <-errs)
		require.Error(t, <-errs)
		cancel()
		if patience < time.Minute && !strings.Contains(fmt.Sprint(err), "other --members") { // the machine is busy
			continue
		}
		require.ErrorContains(t, err, "other --members")
		return
	}
}

// A data directory of a node alone is not taken for that of a node of a cluster.
func TestAloneIsRefused(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1, nil)
	require.NoError(t, os.MkdirAll(c.options(1).Dir+"/state", 0o755))
	_, err := Open(context.Background(), c.options(1))
	require.ErrorContains(t, err, "millrace cluster import")

	c = newTestCluster(t, 1, nil)
	c.start(1)
	c.stop(1)
	o := c.options(1)
	o.Node, o.Members = 7, map[quorum.Node]string{7: c.members[1]}
	_, err = Open(context.Background(), o)
	require.ErrorContains(t, err, "belongs to node 1")
}

// One node is a cluster, too.
func TestClusterOfOne(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", "a", "b", "a"))
	n, err := events(c.node(1).Coordinator(), op.ExternalID, "a", "bought")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	c.stop(1)
	c.start(1)
	n, err = events(c.node(1).Coordinator(), op.ExternalID, "a", "bought")
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

// A node that waits for the control group can be stopped, however long it may wait for other nodes.
func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, func(o *Options) { o.BarrierTimeout, o.LeaderWait = time.Hour, time.Hour })
	c.whole()
	c.stop(2)
	c.stop(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		_, err := Open(ctx, c.options(1))
		opened <- err
	}()
	select {
	case err := <-opened:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(patience):
		t.Fatal("the node waits on")
	}
}
