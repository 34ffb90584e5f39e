package placement

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/wal/quorum"
)

// play is a world with its reconcilers and an operator.
type play struct {
	*world
	*Operator
	r *Reconciler
}

func newPlay(t *testing.T, seed uint64, replicas, groups int, nodes ...quorum.Node) *play {
	p := &play{world: newWorld(t, seed)}
	p.bootstrap(nodes...)
	p.Operator = p.world.operator(replicas, groups)
	p.r = p.world.reconciler(p.Operator)
	return p
}

// rounds goes on for so many rounds.
func (p *play) rounds(n int) {
	for range n {
		p.pass(time.Second)
		for n, d := range p.directory().Nodes {
			if p.world.nodes[n] == nil {
				p.start(n)
			}
			if node := p.world.nodes[n]; node.alive && d.Disk == "" {
				_ = p.Claim(context.Background(), n, node.disk, entryOf) // again
			}
		}
		if p.world.groups[0].leader != 0 {
			p.r.round(context.Background())
		}
		require.Empty(p.t, p.faulty)
	}
}

func (p *play) directory() *Directory {
	d, _ := p.world.documents.Get()
	return d
}

func entryOf(e Entry) []byte { return []byte(e.What) }

// join adds a node and starts it.
func (p *play) join(n quorum.Node) {
	require.NoError(p.t, p.Add(context.Background(), n, fmt.Sprintf("10.0.0.%d:7000", n), entryOf))
	p.start(n)
}

func (p *play) state(n quorum.Node) NodeState { return p.directory().Nodes[n].State }

// until goes on until the cluster is as it should be.
func (p *play) until(rounds int) {
	p.t.Helper()
	var why string
	for range rounds {
		p.rounds(1)
		if why = p.unfinished(); why == "" {
			return
		}
	}
	for n, node := range p.world.nodes {
		p.t.Log("node", n, p.state(n), "alive", node.alive)
	}
	for id, g := range p.world.groups {
		p.t.Log("group", id, g.members, "leader", g.leader, p.directory().Groups[id])
	}
	require.Empty(p.t, why, "after %d rounds", rounds)
}

// unfinished says what is not yet as it should be, or "" when everything is.
func (p *play) unfinished() string {
	d := p.directory()
	active := []quorum.Node{}
	for n, doc := range d.Nodes {
		if doc.State == Active {
			active = append(active, n)
		}
		if doc.State == Joining || doc.State == Draining {
			return fmt.Sprintf("node %d is %s", n, doc.State)
		}
	}
	holds, leads := map[quorum.Node]int{}, map[quorum.Node]int{}
	for id := uint32(1); int(id) <= p.Operator.Groups; id++ {
		placed, g := d.Groups[id], p.world.groups[id]
		switch {
		case len(placed.Replicas) != min(p.Operator.Replicas, len(active)) || len(placed.Leaving) > 0 || len(placed.MadeOf) > 0:
			return fmt.Sprintf("group %d: %v", id, placed)
		case g == nil || g.leader == 0:
			return fmt.Sprintf("group %d has no leader", id)
		case len(g.members) != len(placed.Replicas):
			return fmt.Sprintf("group %d: members %v", id, g.members)
		}
		for _, m := range g.members {
			if !m.Voter || !slices.Contains(placed.Replicas, m.Node) || !slices.Contains(active, m.Node) {
				return fmt.Sprintf("group %d: member %v", id, m)
			}
			holds[m.Node]++
		}
		leads[g.leader]++
	}
	for _, counts := range []map[quorum.Node]int{holds, leads} {
		least, most := counts[active[0]], 0
		for _, n := range active {
			least, most = min(least, counts[n]), max(most, counts[n])
		}
		if most-least > 1 {
			return fmt.Sprintf("uneven: %v", counts)
		}
	}
	voters, could := 0, len(active)
	for _, m := range p.world.groups[0].members {
		if m.Voter {
			voters++
			if d.Nodes[m.Node].State == Drained { // a drained node votes until it is removed, or another one can vote
				could++
			}
			if !slices.Contains(active, m.Node) && d.Nodes[m.Node].State != Drained {
				return fmt.Sprintf("control group: voter %v", m)
			}
		}
		if d.Nodes[m.Node].State == Removed {
			return fmt.Sprintf("control group: member %v", m)
		}
	}
	members := 0
	for _, doc := range d.Nodes {
		if doc.State != Removed {
			members++
		}
	}
	if voters != WantedVoters(could) || members != len(p.world.groups[0].members) {
		return fmt.Sprintf("control group: %v, %d nodes", p.world.groups[0].members, members)
	}
	for n, node := range p.world.nodes {
		for id := range node.open {
			if id != 0 && !d.Groups[id].Holds(n) && node.alive {
				return fmt.Sprintf("node %d still has group %d", n, id)
			}
		}
	}
	return ""
}

func TestMake(t *testing.T) {
	for nodes := 1; nodes <= 7; nodes++ {
		p := newPlay(t, testseed.Of(t), 3, 16, numbers(nodes)...)
		p.until(40)
		for id, placed := range p.directory().Groups {
			require.Empty(t, placed.MadeOf, id)
			require.True(t, slices.IsSorted(placed.Replicas))
		}
		for _, doc := range p.directory().Nodes {
			require.Equal(t, Active, doc.State)
		}
	}
}

// The documents are not written before all members are there.
func TestMakeWaitsForAll(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 16, 1, 2, 3)
	p.world.nodes[3].alive = false
	p.rounds(20)
	require.Empty(t, p.directory().raw)
	p.world.nodes[3].alive = true
	p.until(40)
}

// Three nodes become four and then five. One node is drained and removed, and one dies and is replaced.
func TestGrowDrainReplace(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 16, 1, 2, 3)
	ctx := context.Background()
	p.until(40)
	for _, n := range []quorum.Node{4, 5} {
		p.join(n)
		require.Equal(t, Joining, p.state(n))
		p.until(400)
		require.Equal(t, Active, p.state(n))
	}
	require.NoError(t, p.Drain(ctx, 1, entryOf))
	require.ErrorIs(t, p.Remove(ctx, 1, false, entryOf), ErrRefused, "it is not drained yet")
	p.until(400)
	require.Equal(t, Drained, p.state(1))
	gauges := func() int {
		return len(slices.DeleteFunc(p.r.metrics.ListMetricNames(), func(name string) bool { return !strings.Contains(name, `{node="1"}`) }))
	}
	require.Equal(t, 3, gauges())
	require.NoError(t, p.Remove(ctx, 1, false, entryOf))
	p.until(100)
	require.Zero(t, gauges(), "of a node that is removed")
	require.ErrorIs(t, p.Add(ctx, 1, "10.0.0.1:7000", entryOf), ErrRefused)

	p.world.nodes[2].alive = false
	p.rounds(200)
	require.Equal(t, Active, p.state(2), "a dead node is not removed by itself")
	for id, placed := range p.directory().Groups {
		require.Empty(t, placed.Leaving, "group %d", id)
	}
	require.ErrorIs(t, p.Remove(ctx, 2, false, entryOf), ErrRefused)
	p.join(6)
	p.rounds(50)
	require.NoError(t, p.Remove(ctx, 2, true, entryOf))
	p.until(400)
}

// With fewer nodes than replicas, groups stay where they are, and the status says so. With the next node everything
// comes right.
func TestTooFewNodes(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 4, 1, 2, 3)
	ctx := context.Background()
	p.until(40)
	require.NoError(t, p.Drain(ctx, 3, entryOf))
	p.rounds(100)
	require.Equal(t, Draining, p.state(3))
	status, err := p.Status(ctx)
	require.NoError(t, err)
	for _, g := range status.Groups {
		require.Equal(t, "node 3 is draining, and there is no node to take its place", g.Problem)
		require.NotEqual(t, quorum.Node(3), g.Leader, "it leads nothing any more")
	}
	require.NoError(t, p.Add(ctx, 3, "", entryOf), "it stays after all")
	require.Equal(t, Active, p.state(3))
	require.NoError(t, p.Drain(ctx, 3, entryOf))
	p.join(4)
	p.until(200)
	require.Equal(t, Drained, p.state(3))
}

// A node is removed for good only when it leaves a majority behind.
func TestRemoveKeepsMajorities(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 4, 1, 2, 3)
	ctx := context.Background()
	p.until(40)
	p.world.nodes[2].alive = false
	p.rounds(10)
	err := p.Remove(ctx, 3, true, entryOf)
	require.ErrorIs(t, err, ErrRefused)
	require.Contains(t, err.Error(), "the control group would be left without a majority")
	for i := 0; ; i++ { // an election may take some rounds
		if err = p.Remove(ctx, 2, true, entryOf); err == nil {
			break
		}
		require.ErrorContains(t, err, "has no leader, so nothing can be moved")
		require.Less(t, i, 100)
		p.rounds(1)
	}
	p.rounds(50)
	err = p.Remove(ctx, 3, true, entryOf)
	require.ErrorIs(t, err, ErrRefused)
	require.Contains(t, err.Error(), "group 1 would be left without a majority: too few of nodes [1 2] answer")
	p.join(4)
	p.until(200)
	require.NoError(t, p.Drain(ctx, 3, entryOf))
	p.rounds(20)
	p.world.nodes[1].alive, p.world.nodes[4].alive = false, false
	p.rounds(10)
	err = p.Remove(ctx, 4, true, entryOf)
	require.ErrorIs(t, err, ErrRefused)
	require.Contains(t, err.Error(), "has no majority")
}

// When two of five nodes are lost, neither can be removed while a group has lost its majority with them. But they can be
// drained: all other groups find nodes in their places. What is left goes on when one of the two is back.
func TestTwoOfFiveAreLost(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 20, 1, 2, 3, 4, 5)
	ctx := context.Background()
	p.until(40)
	p.rounds(15) // a replica that was opened late knows its members by then
	var stuck []uint32
	for id, g := range p.directory().Groups {
		if g.Holds(4) && g.Holds(5) {
			stuck = append(stuck, id)
		}
	}
	require.NotEmpty(t, stuck)
	require.Less(t, len(stuck), 20)
	p.world.nodes[4].alive, p.world.nodes[5].alive = false, false
	p.rounds(50)
	for _, n := range []quorum.Node{4, 5} {
		err := p.Remove(ctx, n, true, entryOf)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "has no majority: too few of its nodes answer")
		require.NoError(t, p.Drain(ctx, n, entryOf))
	}
	p.rounds(400)
	for id, g := range p.directory().Groups {
		require.Empty(t, g.Leaving, "group %d", id)
		require.Equal(t, slices.Contains(stuck, id), g.Holds(4) && g.Holds(5), "group %d", id)
		require.Equal(t, slices.Contains(stuck, id), g.Holds(4) || g.Holds(5), "group %d", id)
	}
	p.world.nodes[4].alive = true
	p.until(400)
	for _, n := range []quorum.Node{4, 5} {
		require.Equal(t, Drained, p.state(n))
		require.NoError(t, p.Remove(ctx, n, false, entryOf))
	}
	p.until(100)
}

func TestOnlyReplicaIsKept(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 1, 4, 1, 2)
	p.until(40)
	err := p.Remove(context.Background(), 2, true, entryOf)
	require.ErrorIs(t, err, ErrRefused)
	require.Contains(t, err.Error(), "has its only replica on node 2")
}

// Leaders are balanced with time in between, and not towards or from nodes that have just come.
func TestBalanceIsDamped(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 12, 1, 2, 3)
	p.until(40)
	p.rounds(30)
	terms := func() (sum uint64) {
		for _, g := range p.world.groups {
			sum += g.term
		}
		return sum
	}
	before := terms()
	p.rounds(60)
	require.Equal(t, before, terms(), "who is even is left alone")
	p.world.nodes[3].alive = false
	p.rounds(8)
	p.world.nodes[3].alive, p.world.nodes[3].started = true, p.world.time
	before = terms()
	p.rounds(int(p.Pace.Settle/time.Second) - 2)
	require.Equal(t, before, terms(), "node 3 has just come")
	p.rounds(int(p.Pace.Transfer/time.Second) * 2)
	require.InDelta(t, before, terms(), 3, "one at a time")
	p.until(100)
}

// A node whose disk is full leads nothing as long as another node can lead, and gets no more replicas. When all disks
// are full, nothing moves. Some time after the node has room again, it has its share.
func TestFullDisk(t *testing.T) {
	const soon = 12 // rounds: who is to lead may have to catch up first, and that fails now and then
	p := newPlay(t, testseed.Of(t), 3, 12, 1, 2, 3)
	p.until(40)
	led := func(n quorum.Node) (groups []uint32) {
		for id, g := range p.world.groups {
			if g.leader == n {
				groups = append(groups, id)
			}
		}
		slices.Sort(groups)
		return groups
	}
	fill := func(full bool, nodes ...quorum.Node) {
		for _, n := range nodes {
			p.world.nodes[n].full = full
		}
	}
	require.NoError(t, worldLog{p.world, 0, false}.Transfer(1)) // the control group is of those that are handed over
	fill(true, 1)
	p.rounds(soon)
	require.Empty(t, led(1), "it leads what others could")
	p.rounds(100)
	require.Empty(t, led(1), "nothing comes back")
	status, err := p.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, "has a disk below the floor of free space", status.Nodes[0].Problem)

	fill(true, 2, 3)
	p.rounds(2)
	before := [][]uint32{led(1), led(2), led(3)}
	p.rounds(100)
	require.Equal(t, before, [][]uint32{led(1), led(2), led(3)}, "nobody is better")

	fill(false, 1)
	p.rounds(soon)
	require.Len(t, led(1), 13, "all come to who has room")
	fill(false, 2, 3)
	p.rounds(int(p.Pace.Settle/time.Second) - 2)
	require.Len(t, led(1), 13, "others have had room for a moment only")
	p.until(200)

	p.join(4)
	p.world.nodes[4].full = true
	p.rounds(100)
	for id, placed := range p.directory().Groups {
		require.False(t, placed.Holds(4), "group %d", id)
	}
	fill(false, 4)
	p.until(400)
}

// A node whose disk does not answer is a problem that operators see, and gets neither groups to lead nor replicas. Some
// time after the disk answers again, it has its share.
func TestHangingDisk(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 12, 1, 2, 3)
	p.until(40)
	problem := func(n int) string {
		status, err := p.Status(context.Background())
		require.NoError(t, err)
		return status.Nodes[n-1].Problem
	}
	leads := func(n quorum.Node) (count int) {
		for _, g := range p.world.groups {
			if g.leader == n {
				count++
			}
		}
		return count
	}
	require.Empty(t, problem(3))
	p.world.nodes[3].hangs = true
	for id, g := range p.world.groups { // it has stood down
		if g.leader == 3 {
			require.NoError(t, worldLog{p.world, id, false}.Transfer(2))
		}
	}
	p.rounds(100)
	require.Zero(t, leads(3), "nothing comes back")
	require.Equal(t, "has a disk that does not answer", problem(3))
	p.world.nodes[3].hangs = false
	p.rounds(int(p.Pace.Settle/time.Second) - 2)
	require.Zero(t, leads(3), "it has answered for a moment only")
	p.until(200)
	require.Empty(t, problem(3))
	require.NotZero(t, leads(3))

	p.join(4)
	p.world.nodes[4].hangs = true
	p.rounds(100)
	for id, placed := range p.directory().Groups {
		require.False(t, placed.Holds(4), "group %d", id)
	}
	p.world.nodes[4].hangs = false
	p.until(400)
}

// Two nodes that don't reach one another lead nothing, and nothing comes back as long as that lasts, nor soon
// afterwards. A moment of it, and a node that nobody reaches, change nothing.
func TestCutOff(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 12, 1, 2, 3)
	p.until(40)
	p.rounds(int(p.Pace.Settle / time.Second)) // all have been there for a while
	led := func(n quorum.Node) (count int) {
		for id, g := range p.world.groups {
			if id != 0 && g.leader == n {
				count++
			}
		}
		return count
	}
	problems := func() (list []string) {
		status, err := p.Status(context.Background())
		require.NoError(t, err)
		for _, n := range status.Nodes {
			list = append(list, n.Problem)
		}
		return list
	}
	cut := func(from, to quorum.Node) { p.world.nodes[from].cut = []quorum.Node{to} }
	cut(2, 3)
	p.rounds(1)
	p.world.nodes[2].cut = nil
	p.rounds(5)
	require.Equal(t, []int{4, 4, 4}, []int{led(1), led(2), led(3)}, "a moment is nothing")

	cut(2, 3)
	require.Equal(t, []string{"", "is cut off from node 3", "is cut off from node 2"}, problems())
	p.rounds(15)
	before := []int{led(1), led(2), led(3)}
	require.Equal(t, []int{12, 0, 0}, before)
	p.rounds(100)
	require.Equal(t, before, []int{led(1), led(2), led(3)}, "and that stays so")
	p.world.nodes[2].cut = nil
	p.rounds(int(p.Pace.Settle/time.Second) - 2)
	require.Equal(t, before, []int{led(1), led(2), led(3)}, "the cut has only just been mended")
	require.Equal(t, []string{"", "", ""}, problems())
	p.until(200)

	p.world.nodes[2].alive = false
	p.world.nodes[2].cut = []quorum.Node{1, 3}
	p.rounds(10)
	require.Equal(t, 12, led(1)+led(3))
	require.Equal(t, []string{"", "does not answer", ""}, problems(), "that is no cut")
	require.NotZero(t, led(1)*led(3))
}

// A move to a node that dies goes elsewhere after a while.
func TestMoveIsRedirected(t *testing.T) {
	p := newPlay(t, testseed.Of(t), 3, 4, 1, 2, 3)
	p.until(40)
	p.join(4)
	for p.state(4) != Active {
		p.rounds(1)
	}
	require.NoError(t, p.Drain(context.Background(), 3, entryOf))
	p.rounds(2)
	p.world.nodes[4].alive = false
	p.rounds(10)
	moving := 0
	for _, placed := range p.directory().Groups {
		if len(placed.Leaving) > 0 {
			require.Contains(t, placed.Replicas, quorum.Node(4))
			moving++
		}
	}
	require.Positive(t, moving)
	p.join(5)
	p.rounds(int(p.Pace.Lost/time.Second) + 150)
	for id, placed := range p.directory().Groups {
		require.NotContains(t, append(placed.Leaving, placed.Replicas...), quorum.Node(4), "group %d", id)
	}
	p.world.nodes[4].alive = true
	p.until(400)
}

// Anything happens, in any order, with calls that fail or come late and reconcilers that change in the middle. No group
// loses its majority by what a reconciler does, and when all is quiet everything is where it should be.
func TestRandomLives(t *testing.T) {
	testsize.SkipSerial(t)
	t.Parallel()
	lives := testsize.Of(200, 10, 10)
	seed := testseed.Of(t)
	for life := range uint64(lives) {
		t.Run(fmt.Sprint(life), func(t *testing.T) {
			w := newWorld(t, seed+life)
			p := newPlay(t, seed+life, 1+w.rng.IntN(4), 1+w.rng.IntN(16), numbers(1+w.rng.IntN(6))...)
			p.until(80)
			p.world.faults = []float64{0, 0.1, 0.3}[w.rng.IntN(3)]
			for range 120 {
				p.happen()
				p.rounds(1 + p.rng.IntN(6))
			}
			p.world.faults = 0
			for _, node := range p.world.nodes {
				node.alive, node.full = !node.gone, false
			}
			for p.enough() < p.Operator.Replicas { // nodes for what drains, or has lost a node
				p.join(p.next())
				p.rounds(30)
			}
			p.until(3000)
		})
	}
}

func (p *play) enough() (active int) {
	for _, d := range p.directory().Nodes {
		if d.State == Active {
			active++
		}
	}
	return active
}

func (p *play) next() quorum.Node {
	return slices.Max(slices.Collect(maps.Keys(p.directory().Nodes))) + 1
}

// happen makes something happen.
func (p *play) happen() {
	ctx, nodes := context.Background(), slices.Sorted(maps.Keys(p.world.nodes))
	n := nodes[p.rng.IntN(len(nodes))]
	node := p.world.nodes[n]
	switch p.rng.IntN(12) {
	case 0, 1:
		node.alive = false
	case 2, 3, 4:
		if !node.alive && !node.gone {
			node.alive, node.started = true, p.world.time
		}
	case 5:
		if len(p.directory().Nodes) < 14 {
			if p.Add(ctx, p.next(), "", entryOf) == nil {
				p.t.Fatal("an address is required")
			}
			fresh := p.next()
			if p.Add(ctx, fresh, fmt.Sprintf("10.0.0.%d:7000", fresh), entryOf) == nil {
				p.start(fresh)
			}
		}
	case 6:
		_ = p.Drain(ctx, n, entryOf)
	case 7:
		_ = p.Add(ctx, n, "", entryOf)
	case 8:
		_ = p.Remove(ctx, n, false, entryOf)
	case 9:
		if was := p.state(n); p.Remove(ctx, n, true, entryOf) == nil && was != Removed {
			node.gone = !node.alive
		}
	case 10:
		p.r = p.world.reconciler(p.Operator) // another node leads the control group
	case 11:
		node.full = !node.full
	}
}
