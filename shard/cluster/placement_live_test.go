package cluster

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/books"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// exported are the ids of a workspace's events, in the order of an export on a node.
func exported(t *testing.T, n *Node, name string) (ids []string) {
	t.Helper()
	err := n.Export(context.Background(), eventlog.Query{Workspace: testWorkspace, Names: []string{name}}, func(e *event.Event) error {
		ids = append(ids, string(e.AppendID(nil)))
		return nil
	})
	require.NoError(t, err)
	return ids
}

// With more nodes than replicas, a node reads what it doesn't hold at the leader of the group.
func TestFewerReplicasThanNodes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 4, func(o *Options) { o.Replicas, o.Groups = 2, 6 })
	all := users("f", 30)
	for i := range 3 {
		require.NoError(t, track(c.node(quorum.Node(1+i)).Coordinator(), "bought", all...))
	}
	far := 0
	for _, n := range c.all() {
		held := 0
		for i := 1; i < len(n.replicas); i++ {
			if n.group(uint32(i)) != nil {
				held++
			}
		}
		far += 6 - held
		for i, count := range c.counts(n.self, op.ExternalID, all, "bought") {
			require.Equal(t, 3, count, "user %s on node %d", all[i], n.self)
		}
	}
	require.Equal(t, 12, far, "two replicas of each of six groups on four nodes")

	// Contact data, states with their trail, and the block list.
	e := c.node(1).Coordinator()
	b := e.NewBatch(testWorkspace, 3)
	for _, u := range all {
		addAttributes(b, op.ExternalID, u, op.Contact, testengine.AttrField(op.AttrEmail, u+"@example.com"))
	}
	require.NoError(t, b.Commit())
	b.Release()
	for _, u := range all[:6] {
		b := c.node(2).Coordinator().NewBatch(testWorkspace, 3)
		b.SetSource(op.SourceEmailBlocklist)
		b.SetAddressStates(op.Email, []byte(u+"@example.com"), profile.State{Kind: profile.StateBounce, On: true})
		require.NoError(t, b.Commit())
		b.Release()
	}
	for _, n := range c.all() {
		c.eventually(n.Coordinator().Barrier)
		for i, u := range all {
			var trail []books.StateChange
			c.eventually(func() (err error) {
				trail, err = n.Coordinator().AddressTrail(testWorkspace, op.Email, []byte(u+"@example.com"))
				return err
			})
			if i < 6 {
				require.Len(t, trail, 1, "trail of %s on node %d", u, n.self)
			} else {
				require.Empty(t, trail)
			}
		}
		var blocked []string
		for skip := 0; ; skip += 4 {
			var list []shard.SuppressedAddress
			c.eventually(func() (err error) {
				list, err = n.Coordinator().Suppressed(testWorkspace, shard.SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Skip: skip, Most: 4})
				return err
			})
			for _, a := range list {
				blocked = append(blocked, a.Email)
			}
			if len(list) < 4 {
				break
			}
		}
		slices.Sort(blocked)
		require.Equal(t, []string{"f0@example.com", "f1@example.com", "f2@example.com", "f3@example.com", "f4@example.com", "f5@example.com"}, blocked)
	}

	// An export on any node has the events of all nodes, each once, under the same ids.
	want := exported(t, c.node(1), "bought")
	require.Len(t, want, 90)
	slices.Sort(want)
	require.Len(t, slices.Compact(slices.Clone(want)), 90)
	for _, n := range c.all() {
		got := exported(t, n, "bought")
		slices.Sort(got)
		require.Equal(t, want, got, "events on node %d", n.self)
		var out bytes.Buffer
		require.NoError(t, eventlog.Write(context.Background(), n, &out, event.NDJSON, eventlog.Query{Workspace: testWorkspace}, n.Coordinator().AppendSvcID))
		require.Equal(t, 90, strings.Count(out.String(), "\n"))
	}
}

// A replica is made in a place from which an earlier one was removed only partially. A node that starts removes such
// remains.
func TestReplicaIsMadeInThePlaceOfRemains(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, func(o *Options) { o.Replicas, o.Groups = 1, 4 })
	n := c.node(1)
	var held, other uint32
	for id := range uint32(5) {
		switch {
		case id == shard.ControlGroup:
		case n.group(id) != nil:
			held = id
		default:
			other = id
		}
	}
	require.NotZero(t, held)
	require.NotZero(t, other)
	c.stop(1)
	remains := filepath.Join(t.TempDir(), "remains")
	require.NoError(t, os.CopyFS(remains, os.DirFS(facts.GroupDir(c.options(1).Dir, held))))
	var left []string
	for _, suffix := range []string{"", ".gone"} {
		left = append(left, facts.GroupDir(c.options(1).Dir, other)+suffix)
		require.NoError(t, os.CopyFS(left[len(left)-1], os.DirFS(remains)))
	}
	c.start(1)
	for _, dir := range left {
		require.NoDirExists(t, dir)
	}
	n = c.node(1)
	n.changing.Lock()
	defer n.changing.Unlock()
	for _, gone := range []string{"events", "state", "log"} { // in the order of their listing, or in any other
		require.NoError(t, os.RemoveAll(filepath.Join(remains, gone)))
		require.NoError(t, os.RemoveAll(facts.GroupDir(n.opts.Dir, other)))
		require.NoError(t, os.CopyFS(facts.GroupDir(n.opts.Dir, other), os.DirFS(remains)))
		require.NoError(t, n.openGroup(other, nil), "without %s", gone)
		require.NoError(t, n.closeGroup(other))
		require.NoDirExists(t, facts.GroupDir(n.opts.Dir, other))
	}
}

// A node that was away for longer than the others keep their logs gets the state, while load goes on. Then it has what
// everybody has.
func TestLaggingNodeGetsTheState(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	c := startCluster(t, 3, func(o *Options) {
		o.Groups = 2
		o.Quorum.KeepBytes, o.Quorum.SegmentBytes = 1, 64<<10
		o.Engine.CheckpointBytes = 1 << 20
	})
	l := startLoad(c, seed, 6, 40)
	l.more(30)
	logs := map[uint32]*quorum.Log{1: c.node(3).group(1).log, 2: c.node(3).group(2).log}
	c.kill(3)
	c.eventually(func() error { // until the others' logs begin behind where it was
		l.more(50)
		for _, n := range c.all() {
			for group, log := range logs {
				if g := n.group(group); g.replica.Load().Checkpoint() != nil || g.events.Load().Pack() != nil || g.log.FirstPosition() <= log.LastPosition() {
					return fmt.Errorf("node %d keeps the log of group %d from %d on", n.self, group, g.log.FirstPosition())
				}
			}
		}
		return nil
	})
	c.start(3)
	n := c.node(3)
	c.eventually(func() error {
		for group := uint32(1); group <= 2; group++ {
			if n.group(group).phase.Load() != current {
				return fmt.Errorf("group %d is not current", group)
			}
		}
		return nil
	})
	l.more(20)
	l.end()
	for node := quorum.Node(1); node <= 3; node++ {
		l.verify(node)
	}
	want := exported(t, c.node(1), loadEvent)
	slices.Sort(want)
	got := exported(t, n, loadEvent)
	slices.Sort(got)
	require.Equal(t, want, got)

	// The state that the node got is on its disk.
	c.kill(3)
	c.start(3)
	l.verify(3)
	got = exported(t, c.node(3), loadEvent)
	slices.Sort(got)
	require.Equal(t, want, got)
}

// A node waits until it is expected, joins under load, gets replicas, gives them away again, and is gone for good.
func TestNodeJoinsAndLeaves(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	c := startCluster(t, 3, nil)
	l := startLoad(c, seed, 4, 40)
	l.more(20)

	o := c.options(4)
	o.Listen = testaddr.Free(t)
	c.eventually(func() error { // the node has asked the others, which may take a while
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := Open(ctx, o)
		require.Error(t, err)
		if !strings.Contains(err.Error(), "millrace cluster add 4") {
			return err
		}
		return nil
	})

	require.NoError(t, c.node(1).Operator().Add(context.Background(), 4, o.Listen, nil))
	c.change = func(other *Options) {
		if other.Node == 4 {
			other.Listen = o.Listen
		}
	}
	c.start(4)
	// The replicas of a node, however many there are now, share what the node has.
	shared := func(nodes ...quorum.Node) error {
		for _, node := range nodes {
			n := c.node(node)
			for i := 1; i < len(n.replicas); i++ {
				g := n.group(uint32(i))
				if g == nil || g.replica.Load() == nil {
					continue
				}
				want := n.opts.Engine.MemoryBytes / n.share()
				if have := g.replica.Load().MemoryBytes(); have != want {
					return fmt.Errorf("node %d: the replica of group %d has %d bytes of memory instead of %d", node, i, have, want)
				}
			}
		}
		return nil
	}
	first := c.node(1).share()
	c.eventually(func() error { return shared(1, 2, 3) })
	holds := func() (n int) {
		for i := 1; i < len(c.node(4).replicas); i++ {
			if g := c.node(4).group(uint32(i)); g != nil && g.phase.Load() == current {
				n++
			}
		}
		return n
	}
	c.eventually(func() error {
		if n := holds(); n < 3 { // of 12 replicas
			return fmt.Errorf("node 4 has %d replicas", n)
		}
		return nil
	})
	c.eventually(func() error { return shared(1, 2, 3, 4) })
	shares := func() (sum int64) { return c.node(1).share() + c.node(2).share() + c.node(3).share() }
	require.Less(t, shares(), 3*first, "no node has fewer replicas")
	l.more(20)
	require.NoError(t, c.node(4).Coordinator().Barrier())

	// The node's number belongs to its disk now.
	c.stop(4)
	dir := c.options(4).Dir
	require.ErrorIs(t, c.openWithout(4, dir), placement.ErrReplaced)
	c.start(4)

	require.NoError(t, c.node(2).Operator().Drain(context.Background(), 4, nil))
	c.eventually(func() error {
		s, err := c.node(1).Operator().Status(context.Background())
		if err == nil && s.Nodes[3].State != placement.Drained {
			err = fmt.Errorf("node 4 is %s", s.Nodes[3].State)
		}
		return err
	})
	c.eventually(func() error {
		left, err := os.ReadDir(filepath.Join(dir, facts.GroupsDir))
		if err == nil && len(left) != 1 {
			err = fmt.Errorf("node 4 has %d directories of groups still", len(left))
		}
		return err
	})
	c.eventually(func() error {
		if shares() != 3*first {
			return fmt.Errorf("%d replicas instead of %d", shares(), 3*first)
		}
		return shared(1, 2, 3)
	})
	l.more(20)
	require.NoError(t, c.node(3).Operator().Remove(context.Background(), 4, false, nil))
	c.stop(4)
	l.more(20)
	l.end()
	for node := quorum.Node(1); node <= 3; node++ {
		l.verify(node)
	}
	require.NotContains(t, c.node(1).Service("").Nodes(), uint32(4))
	t.Logf("%d requests acknowledged, %d unknown, %d refused", l.acked, l.unknown, l.refused)
}

// A node whose disk is full hands over the groups that it leads, and goes on serving the groups that others lead. When
// all disks are full, writes are refused and reads go on. The first node that has room takes writes again.
func TestFullDiskIsHandedOver(t *testing.T) {
	t.Parallel()
	var full [4]atomic.Bool
	c := startCluster(t, 3, func(o *Options) {
		node := o.Node
		o.Quorum.MinFreeBytes, o.Quorum.MinFreePercent = 0, 0 // the defaults
		o.Quorum.FreeSpace = func(string) (free, total uint64, err error) {
			if total = 1 << 40; !full[node].Load() {
				free = total
			}
			return free, total, nil
		}
	})
	c.whole()
	leaders := func(by func(quorum.Node) bool) error {
		for _, n := range c.all() {
			for g := range n.groups() {
				if g.leads.Load() && !by(n.self) {
					return fmt.Errorf("node %d leads group %d", n.self, g.id)
				}
			}
		}
		return nil
	}
	all := users("full", 20)
	full[1].Store(true)
	c.eventually(func() error { return leaders(func(n quorum.Node) bool { return n != 1 }) })
	c.ready(1)
	c.eventually(func() error { return track(c.node(1).Coordinator(), "a", all...) })

	full[2].Store(true)
	full[3].Store(true)
	c.eventually(func() error {
		for _, n := range c.all() {
			for g := range n.groups() {
				if !g.log.DiskFull() {
					return fmt.Errorf("node %d has room", n.self)
				}
			}
		}
		return nil
	})
	require.ErrorIs(t, track(c.node(1).Coordinator(), "b", all...), replica.ErrDiskFull)
	count, err := events(c.node(1).Coordinator(), op.ExternalID, all[0], "a")
	require.NoError(t, err)
	require.Equal(t, 1, count)

	full[1].Store(false)
	c.eventually(func() error { return leaders(func(n quorum.Node) bool { return n == 1 }) })
	c.eventually(func() error { return track(c.node(2).Coordinator(), "b", all...) })
}
