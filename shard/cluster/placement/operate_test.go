package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// atRest is a cluster of three nodes with all groups at rest.
func atRest(t *testing.T) *play {
	p := newPlay(t, 7, 3, 4, 1, 2, 3)
	p.until(60)
	return p
}

func TestVerbs(t *testing.T) {
	ctx, p := context.Background(), atRest(t)
	before := p.world.puts
	long := "10.0.0.4:7000" + string(bytes.Repeat([]byte("0"), 300))
	for _, c := range []struct {
		do   func() error
		is   error
		says string
	}{
		{func() error { return p.Add(ctx, 0, "a:1", entryOf) }, ErrInvalid, "node 0"},
		{func() error { return p.Add(ctx, 4, "", entryOf) }, ErrInvalid, "an address is required"},
		{func() error { return p.Add(ctx, 4, "a", entryOf) }, ErrInvalid, `address "a": want HOST:PORT`},
		{func() error { return p.Add(ctx, 4, ":7000", entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, "a:0", entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, "a:65536", entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, "a:x", entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, "::1:7000", entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, long, entryOf) }, ErrInvalid, "want HOST:PORT"},
		{func() error { return p.Add(ctx, 4, "10.0.0.3:7000", entryOf) }, ErrRefused, "node 3 is at 10.0.0.3:7000"},
		{func() error { return p.Add(ctx, 2, "10.0.0.3:7000", entryOf) }, ErrRefused, "node 3 is at 10.0.0.3:7000"},
		{func() error { return p.Drain(ctx, 0, entryOf) }, ErrInvalid, "node 0"},
		{func() error { return p.Drain(ctx, 4, entryOf) }, ErrNotFound, "node 4: not found"},
		{func() error { return p.Remove(ctx, 4, true, entryOf) }, ErrNotFound, "node 4: not found"},
		{func() error { return p.Remove(ctx, 3, false, entryOf) }, ErrRefused, "node 3 is active: drain it first"},
		{func() error { return p.Remove(ctx, 3, true, entryOf) }, ErrRefused, "node 3 answers: drain it first, or stop it"},
		{func() error { return p.Claim(ctx, 4, "disk", entryOf) }, ErrNotFound, "add it first"},
		{func() error { return p.Claim(ctx, 3, "another disk", entryOf) }, ErrReplaced, ""},
		{func() error { return p.Claim(ctx, 3, "disk 3", entryOf) }, nil, ""},
		{func() error { return p.Add(ctx, 3, "", entryOf) }, nil, ""},
		{func() error { return p.Add(ctx, 3, "10.0.0.3:7000", entryOf) }, nil, ""},
	} {
		err := c.do()
		require.ErrorIs(t, err, c.is)
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
		}
	}
	require.Equal(t, before, p.world.puts, "none of it changed anything")

	require.NoError(t, p.Add(ctx, 3, "[::1]:7003", entryOf), "another address")
	require.Equal(t, NodeDocument{State: Active, Address: "[::1]:7003", Disk: "disk 3"}, p.directory().Nodes[3])
	require.NoError(t, p.Add(ctx, 4, "10.0.0.4:7000", entryOf))
	require.ErrorContains(t, p.Drain(ctx, 4, entryOf), "has not joined yet")
	require.NoError(t, p.Remove(ctx, 4, false, entryOf), "it never came")
	require.ErrorIs(t, p.Claim(ctx, 4, "disk", entryOf), ErrRemoved)
	require.ErrorIs(t, p.Drain(ctx, 4, entryOf), ErrRefused)
	require.NoError(t, p.Add(ctx, 5, "10.0.0.4:7000", entryOf), "the address is free again")
	require.NoError(t, p.Drain(ctx, 1, entryOf))
	require.NoError(t, p.Drain(ctx, 1, entryOf), "again")
	require.ErrorContains(t, p.Remove(ctx, 1, false, entryOf), "node 1 is draining: wait until it is drained")
	require.NoError(t, p.Drain(ctx, 2, entryOf))
	require.ErrorContains(t, p.Drain(ctx, 3, entryOf), "no other node that is active")

	for _, c := range []struct {
		node          quorum.Node
		address, what string
	}{
		{6, "10.0.0.6:7000", "node added"}, {6, "10.0.0.6:7001", "node's address changed"},
		{1, "", "node's drain taken back"}, {2, "10.0.0.2:7001", "node's drain taken back"},
	} {
		said := ""
		require.NoError(t, p.Add(ctx, c.node, c.address, func(e Entry) []byte {
			said = e.What
			return entryOf(e)
		}))
		require.Equal(t, c.what, said)
	}
}

func TestTooManyNodes(t *testing.T) {
	p := atRest(t)
	for n := quorum.Node(4); n <= maxNodes; n++ {
		require.NoError(t, p.world.documents.Apply(NodeKey(n), []byte(fmt.Sprintf(`{"state":"joining","address":"a%d:1"}`, n))))
	}
	require.ErrorContains(t, p.Add(context.Background(), 5000, "b:1", entryOf), "which is the limit")
	require.NoError(t, p.Remove(context.Background(), 4, false, entryOf))
	require.NoError(t, p.Add(context.Background(), 5000, "b:1", entryOf))
}

// overtaking is a world in which somebody else changes the document in between.
type overtaking struct {
	*world
	with    []string
	barrier error
}

func (o *overtaking) Barrier(context.Context) error { return o.barrier }

func (o *overtaking) PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error {
	if len(o.with) > 0 {
		doc := o.with[0]
		o.with = o.with[1:]
		_ = o.world.documents.Apply(changes[0].Key, []byte(doc))
	}
	return o.world.PutDocuments(actor, changes, audit)
}

// A verb that is overtaken judges anew, by what is there then, but not for ever.
func TestVerbsAreOvertaken(t *testing.T) {
	ctx, p := context.Background(), atRest(t)
	o := &overtaking{world: p.world, with: []string{`{"state":"active","address":"new:1","disk":"disk 3"}`}}
	p.Operator.Peers = o
	calls := 0
	require.NoError(t, p.Drain(ctx, 3, func(e Entry) []byte {
		calls++
		require.Equal(t, "node to be drained", e.What)
		require.Equal(t, []string{"cluster_node", "3"}, []string{e.Kind, e.ID})
		return e.After
	}))
	require.Equal(t, 2, calls)
	require.Equal(t, NodeDocument{State: Draining, Address: "new:1", Disk: "disk 3"}, p.directory().Nodes[3], "nothing of the other change is lost")

	o.with = []string{`{"state":"removed","address":"new:1","disk":"disk 3"}`}
	require.ErrorIs(t, p.Add(ctx, 3, "", entryOf), ErrRefused)

	for i := range 2 * maxAttempts {
		o.with = append(o.with, fmt.Sprintf(`{"state":"active","address":"a:%d","disk":"disk 2"}`, i+1))
	}
	require.ErrorIs(t, p.Drain(ctx, 2, entryOf), shard.ErrConflict)
	require.Len(t, o.with, maxAttempts)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, p.Drain(ended, 2, entryOf), context.Canceled)
	o.barrier = replica.ErrUnavailable
	require.ErrorIs(t, p.Drain(ctx, 2, entryOf), replica.ErrUnavailable, "nobody judges by what may be old")
}

func TestStatus(t *testing.T) {
	ctx, p := context.Background(), atRest(t)
	p.join(4)
	p.rounds(1)
	p.world.nodes[2].alive = false
	p.rounds(10)
	require.NoError(t, p.Add(ctx, 5, "10.0.0.5:7000", entryOf))
	status, err := p.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, []any{"c", quorum.Node(1), 3, p.world.time}, []any{status.Cluster, status.Node, status.Replicas, status.Time})
	require.Len(t, status.Nodes, 5)
	require.Len(t, status.Groups, 4)
	problems := map[quorum.Node]string{}
	leads, holds := 0, 0
	for _, n := range status.Nodes {
		problems[n.Node] = n.Problem
		require.Equal(t, n.Node != 2 && n.Node != 5, n.Alive)
		require.Equal(t, n.Alive, !n.Seen.IsZero())
		leads += n.Leads
		holds += n.Holds
	}
	require.Equal(t, map[quorum.Node]string{1: "", 2: "does not answer", 3: "", 4: "", 5: "has not come yet"}, problems)
	require.Equal(t, 4, leads)
	require.Equal(t, 12, holds)
	next := 0
	for _, g := range status.Groups {
		require.Equal(t, next, g.First)
		next += g.Count
		require.Equal(t, "node 2 does not answer", g.Problem)
		require.Equal(t, p.world.groups[g.Group].leader, g.Leader)
		require.Equal(t, p.world.groups[g.Group].term, g.Term)
		for _, r := range g.Replicas {
			require.Equal(t, r.Node != 2, r.Open)
			require.Equal(t, r.Node == g.Leader, r.Role == "leader")
			require.True(t, r.Voter)
		}
	}
	require.Equal(t, 256, next)
	require.Len(t, status.Control.Replicas, 4)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = p.Status(ended)
	require.ErrorIs(t, err, context.Canceled)
}

// skewed is a world in which one node's clock is wrong, and one says that it is another.
type skewed struct{ *world }

func (s skewed) Report(ctx context.Context, n quorum.Node) (Report, error) {
	report, err := s.world.Report(ctx, n)
	switch n {
	case 2:
		report.Now = report.Now.Add(-3 * time.Second)
	case 3:
		report.Node = 2
	}
	report.Heard[3] = s.world.time.Add(-time.Hour)
	return report, err
}

func TestStatusOfStrangeNodes(t *testing.T) {
	p := atRest(t)
	p.Operator.Peers = skewed{p.world}
	status, err := p.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, "has a clock that is -3s off", status.Nodes[1].Problem)
	require.False(t, status.Nodes[2].Alive, "that was another node")
	require.Equal(t, p.world.time.Add(-time.Hour), status.Nodes[2].Seen)
}

func TestStepConditions(t *testing.T) {
	p := atRest(t)
	log := worldLog{p.world, 1, false}
	members := log.Status().Members
	soon := time.Now().Add(time.Minute)
	for _, c := range []struct {
		step Step
		err  error
	}{
		{Step{Group: 1, Verb: Demote, Node: 1, Members: members[:2], Until: soon}, ErrMembers},
		{Step{Group: 1, Verb: Demote, Node: 1, Members: append(members[:2:2], members[1]), Until: soon}, ErrMembers},
		{Step{Group: 1, Verb: Demote, Node: 1, Members: append(members[:2:2], quorum.Member{Node: members[2].Node}), Until: soon}, ErrMembers},
		{Step{Group: 1, Verb: Demote, Node: 1, Members: members, Until: time.Now().Add(-time.Second)}, errLate},
		{Step{Group: 1, Verb: Demote, Node: 1, Members: members}, errLate},
	} {
		require.ErrorIs(t, c.step.Do(log), c.err)
	}
	require.ErrorContains(t, Step{Group: 1, Verb: 77, Node: 1, Members: members, Until: soon}.Do(log), "unknown step")
	require.Equal(t, "unknown verb", Verb(77).String())
	require.Equal(t, members, log.Status().Members)
	swapped := []quorum.Member{members[2], members[0], members[1]}
	require.NoError(t, Step{Group: 1, Verb: Transfer, Node: 1, Members: swapped, Until: soon}.Do(log), "in any order")
}

func TestDocuments(t *testing.T) {
	d := NewDocuments()
	_, changed := d.Get()
	for key, doc := range map[string]string{
		"cluster/node/x": `{}`, "cluster/node/4294967296": `{}`, "cluster/node/-1": `{}`, "cluster/group/": `{}`, "cluster/other": `{}`, "workspace/demo/": `{}`,
		"cluster/node/5": `[`, "cluster/group/5": `{"replicas":["a"]}`,
	} {
		require.Error(t, d.Apply(key, []byte(doc)), key)
	}
	select {
	case <-changed:
	default:
		t.Fatal("who waits is not told")
	}
	now, _ := d.Get()
	require.Empty(t, now.Nodes)
	require.Empty(t, now.Groups)
	doc := []byte(`{"state":"active","address":"a:1"}`)
	require.NoError(t, d.Apply("cluster/node/7", doc))
	copy(doc, "xxxxxxxxxxx") // the bytes are the caller's
	require.NoError(t, d.Apply("cluster/group/3", []byte(`{"replicas":[7,8],"leaving":[9]}`)))
	old, _ := d.Get()
	require.Equal(t, NodeDocument{State: Active, Address: "a:1"}, old.Nodes[7])
	require.True(t, old.Groups[3].Holds(7) && old.Groups[3].Holds(9) && !old.Groups[3].Holds(10))
	address, ok := old.Address(7)
	require.Equal(t, "a:1", address)
	require.True(t, ok)
	_, ok = old.Address(8)
	require.False(t, ok)
	c := old.change("cluster/node/7", NodeDocument{State: Drained, Address: "a:1"})
	require.Equal(t, bodies.DocumentChange{Key: "cluster/node/7", Doc: []byte(`{"state":"drained","address":"a:1"}`), Check: true, Was: []byte(`{"state":"active","address":"a:1"}`)}, c)
	require.NoError(t, d.Apply("cluster/node/7", nil))
	now, _ = d.Get()
	require.Empty(t, now.Nodes)
	require.Len(t, old.Nodes, 1, "what somebody has got does not change")
	require.EqualValues(t, math.MaxUint32, uint32(adminActor))
}

// A problem is logged once, and so is its end.
func TestProblemsAreLoggedOnce(t *testing.T) {
	p := atRest(t)
	var log bytes.Buffer
	p.Operator.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p.world.nodes[3].alive = false
	p.rounds(1)
	require.NotContains(t, log.String(), "a group has a problem", "it may be over in a moment")
	p.rounds(30)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("node does not answer")))
	require.Equal(t, 5, bytes.Count(log.Bytes(), []byte(`problem="node 3 does not answer"`)), "the control group and four")
	p.world.nodes[3].alive = true
	p.rounds(30)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("node answers again")))
	require.Contains(t, log.String(), "the problem of a group is over")
}

// run waits for the barrier, works, and ends with its context.
func TestReconcilerRuns(t *testing.T) {
	p := newPlay(t, 7, 3, 4, 1, 2, 3)
	o := &overtaking{world: p.world, barrier: errors.New("not yet")}
	p.Operator.Peers = o
	ctx, cancel := context.WithTimeout(context.Background(), 3*p.Pace.Busy)
	defer cancel()
	p.r.Run(ctx)
	require.Empty(t, p.directory().raw, "nothing is decided by documents that may be old")
	o.barrier = nil
	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); p.r.Run(ctx) }()
	require.Eventually(t, func() bool { return len(p.directory().raw) == 7 }, time.Minute, time.Millisecond)
	cancel()
	<-done
}

// A node becomes no member of a group that it is about to delete, however long the step was under way.
func TestStepStands(t *testing.T) {
	d := &Directory{Groups: map[uint32]GroupDocument{5: {Replicas: nodes(1, 2), Leaving: nodes(7)}}}
	for step, want := range map[*Step]error{
		{Group: 5, Verb: AddLearner, Node: 1}: nil,
		{Group: 5, Verb: AddLearner, Node: 7}: errPlaced,
		{Group: 5, Verb: AddLearner, Node: 8}: errPlaced,
		{Group: 6, Verb: AddLearner, Node: 1}: errPlaced,
		{Group: 5, Verb: Remove, Node: 7}:     nil,
		{Group: 0, Verb: AddLearner, Node: 8}: nil,
	} {
		require.ErrorIs(t, step.Stands(d), want, "%+v", step)
	}
}
