package shard

import (
	"context"
	"errors"
	"slices"
	"time"

	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/replica"
)

// testMesh is the Nodes and the Carrier of a node. The other nodes are in this process. Calls take their time, and fail
// before something was done or after.
type testMesh struct{ *testNode }

var _ interface {
	Nodes
	replica.Carrier
} = (*testMesh)(nil)

// patient is how long a call waits for a leader.
const patient = 20 * time.Second

var errLink = errors.New("the connection is gone")

func (m *testMesh) Self() NodeID { return NodeID(m.i) }

func (m *testMesh) Ready() error { return nil }

func (m *testMesh) Leader(group int, until time.Time, _ bool) (NodeID, error) {
	g := m.c.groups[group]
	r := g.leads(time.Now().Add(time.Nanosecond)) // a leader that is there is found, however late it is
	if r == nil {
		r = g.leads(until)
	}
	if r == nil {
		return 0, replica.ErrUnavailable
	}
	return NodeID(r.node.i), nil
}

func (m *testMesh) Resigned(int, NodeID, uint64) {}

func (m *testMesh) Replica(group int) *replica.Replica { return m.local(m.c.groups[group]) }

func (m *testMesh) Take(node NodeID, parts []*Part, wanted int, until time.Time) {
	m.c.lag(100 * time.Microsecond)
	there := &testMesh{m.c.nodes[node]}
	end, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	for _, p := range parts {
		record := p.Record
		p.Record = slices.Clone(record)
		p.Take(there.Replica(p.Group), wanted)
		clear(p.Record) // it was lent
		p.Record = record
	}
	for _, p := range parts {
		p.Wait(end.Done())
	}
	for _, p := range parts {
		if p.Err == nil && m.c.faulty.Load() && m.c.chance(2) {
			p.Err = replica.ErrUnknown // the answer is lost
		}
	}
}

func (m *testMesh) Release(node NodeID, ref uint64, until time.Time) (effects effect.Effects, err error) {
	end := (<-chan struct{})(nil)
	if node == m.Self() {
		ctx, cancel := context.WithDeadline(context.Background(), until)
		defer cancel()
		end = ctx.Done()
	} else {
		if m.c.faulty.Load() && m.c.chance(3) {
			return effects, replica.ErrUnknown // the coordinator is gone
		}
		m.c.lag(100 * time.Microsecond)
	}
	r := (&testMesh{m.c.nodes[node]}).Replica(m.GroupOf(identity.Partition(ref)))
	if r == nil {
		return effects, replica.ErrNotLeader
	}
	return r.Release(ref, end)
}

// retry does something with a leader, and does it again while the replica says that it doesn't lead or is closed.
func (m *testMesh) retry(g *testGroup, do func(e *replica.Replica) error) error {
	until := time.Now().Add(patient)
	for {
		e := g.leaderOf(until)
		if e == nil {
			return replica.ErrUnavailable
		}
		m.c.lag(100 * time.Microsecond)
		err := do(e)
		if err == nil || !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrClosed) {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (m *testMesh) Deliver(messages []replica.Message) error {
	g := m.c.groupOf(identity.Partition(messages[0].Number))
	if m.c.held.Load() || m.c.faulty.Load() && m.c.chance(5) {
		return errLink
	}
	e := g.leaderOf(time.Now().Add(50 * time.Millisecond))
	if e == nil {
		return replica.ErrUnavailable
	}
	m.c.lag(100 * time.Microsecond)
	arrived := make([]replica.Message, len(messages))
	for i, l := range messages {
		if m.c.groupOf(identity.Partition(l.Number)) != g {
			panic("a message for another group")
		}
		arrived[i] = replica.Message{Number: l.Number, Body: slices.Clone(l.Body)}
		if l.Done != nil {
			lost := m.c.faulty.Load() && m.c.chance(1)
			arrived[i].Done = func(x effect.Effects, err error) {
				if lost {
					x, err = effect.Effects{}, replica.ErrUnknown
				}
				go l.Done(x, err)
			}
		}
	}
	err := g.receive(e, arrived)
	for _, l := range arrived {
		clear(l.Body) // they were lent
	}
	if err == nil && m.c.faulty.Load() && m.c.chance(5) {
		return errLink
	}
	return err
}

// receive has a group take in messages, half of the time together with messages that others deliver meanwhile.
func (g *testGroup) receive(e *replica.Replica, messages []replica.Message) error {
	if g.c.chance(50) {
		return e.Receive(messages)
	}
	g.mu.Lock()
	bag := g.bag
	if bag == nil {
		bag = &testBag{done: make(chan struct{})}
		g.bag = bag
	}
	first := len(bag.messages) == 0
	bag.messages = append(bag.messages, messages...)
	g.mu.Unlock()
	if first {
		g.c.lag(2 * time.Millisecond)
		g.mu.Lock()
		g.bag = nil
		g.mu.Unlock()
		bag.err = e.Receive(bag.messages)
		close(bag.done)
	}
	<-bag.done
	return bag.err
}

// testBag is messages of several senders, and their outcome.
type testBag struct {
	messages []replica.Message
	done     chan struct{}
	err      error
}

func (m *testMesh) GroupOf(partition uint8) int { return m.c.groupOf(partition).number }

func (m *testMesh) Local(partition uint8) *replica.Replica { return m.local(m.c.groupOf(partition)) }

func (m *testMesh) local(g *testGroup) *replica.Replica {
	if r := g.replicas[m.i]; r != nil {
		return r.e.Load()
	}
	return nil
}

func (m *testMesh) Control() *replica.Replica {
	for {
		if e := m.local(m.c.groups[0]); e != nil {
			return e
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (m *testMesh) BarrierControl() error { return m.Barrier() }

func (m *testMesh) Spread() {
	g := m.c.groups[0]
	g.mu.Lock()
	position := g.position
	g.mu.Unlock()
	for _, r := range g.replicas {
		if r == nil {
			continue
		}
		if e := r.e.Load(); e != nil {
			_ = e.WaitApplied(position) // a closed replica applies it when it is opened again
		}
	}
}

func (m *testMesh) BarrierOf(partitions ...uint8) error {
	var groups []*testGroup
	for _, p := range partitions {
		if g := m.c.groupOf(p); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	err := m.barrier(groups)
	if f := m.behindBarrier; f != nil && len(groups) == len(m.c.groups) {
		m.behindBarrier = nil
		f()
	}
	return err
}

func (m *testMesh) Barrier() error { return m.barrier(m.c.groups) }

func (m *testMesh) barrier(groups []*testGroup) error {
	m.asked.Add(1)
	m.asking.Add(1)
	defer m.asking.Add(-1)
	if m.alone.Load() {
		return replica.ErrUnavailable
	}
	for _, g := range groups {
		g.mu.Lock()
		position := g.position
		g.mu.Unlock()
		e := m.local(g)
		if e == nil { // the entry is read at the leader of its group
			if e = g.leaderOf(time.Now().Add(patient)); e == nil {
				return replica.ErrUnavailable
			}
			m.clock.Observe(e.Clock().Last())
			continue
		}
		if err := e.WaitApplied(position); err != nil && !errors.Is(err, replica.ErrClosed) {
			return err
		}
	}
	return nil
}

// read reads at the leader of a partition's group, once the leader has applied everything that was acknowledged before.
func (m *testMesh) read(partition uint8, f func(e *replica.Replica) error) error {
	g := m.c.groupOf(partition)
	return m.retry(g, func(e *replica.Replica) error {
		g.mu.Lock()
		position := g.position
		g.mu.Unlock()
		if err := e.WaitApplied(position); err != nil {
			return err
		}
		if !e.Enter() {
			return replica.ErrClosed
		}
		defer e.Leave()
		return f(e)
	})
}

func (m *testMesh) Flush(partition uint8, owner uint64) (waiting []uint64, err error) {
	end, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	err = m.read(partition, func(e *replica.Replica) (err error) {
		waiting, err = e.Flush(owner, end.Done())
		return err
	})
	return waiting, err
}

func (m *testMesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(identity.Partition(number), func(e *replica.Replica) (err error) {
		blob, err = e.Entry(number)
		return err
	})
	return blob, err
}

func (m *testMesh) TrailOf(number uint64) (all books.History, err error) {
	err = m.read(identity.Partition(number), func(e *replica.Replica) (err error) {
		all, err = e.TrailOf(number)
		return err
	})
	return all, err
}

func (m *testMesh) SuppressedPage(partition uint8, q books.SuppressedQuery) (page []books.Suppression, next books.Suppression, err error) {
	err = m.read(partition, func(e *replica.Replica) (err error) {
		page, next, err = e.SuppressedPage(partition, q)
		return err
	})
	return page, next, err
}
