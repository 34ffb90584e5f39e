package shard

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"millrace/shard/identity"
)

// testMesh is the Mesh of a node.
type testMesh struct{ *testNode }

// patient is how long a call waits for a leader.
const patient = 20 * time.Second

var errLink = errors.New("the connection is gone")

func (m *testMesh) Commit(record []byte, outcomes []Outcome) error {
	parts, err := Split(slices.Clone(record), m.GroupOf, 0)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var deferred []uint64
	var all sync.WaitGroup
	errs := make([]error, len(parts))
	collect := func(x Effects) {
		mu.Lock()
		defer mu.Unlock()
		deferred = append(deferred, x.Deferred...)
		for _, o := range x.Outcomes {
			outcomes[o.Ref] = o.Outcome
		}
	}
	for i, p := range parts {
		all.Go(func() {
			var x Effects
			x, errs[i] = m.commitPart(p, len(outcomes))
			collect(x)
		})
	}
	all.Wait()
	if err := m.joined(errs); err != nil {
		return err
	}
	for len(deferred) > 0 {
		ref := deferred[0]
		deferred = deferred[1:]
		if m.c.faulty.Load() && m.c.chance(3) {
			return ErrUnknown // the front is gone
		}
		x, err := m.retry(m.c.groupOf(identity.Partition(ref)), func(e *Engine) (Effects, error) { return e.Release(ref, nil) })
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		collect(x)
	}
	return nil
}

// joined is nothing done, unknown, or nil.
func (m *testMesh) joined(errs []error) error {
	failed := 0
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		if err != nil {
			failed++
		}
	}
	switch failed {
	case 0:
		return nil
	case len(errs):
		return errs[0]
	}
	return fmt.Errorf("%w: a part was not taken", ErrUnknown)
}

// retry does something with a leader until it is none that says so.
func (m *testMesh) retry(g *testGroup, do func(e *Engine) (Effects, error)) (Effects, error) {
	until := time.Now().Add(patient)
	for {
		e := g.leaderOf(until)
		if e == nil {
			return Effects{}, ErrUnavailable
		}
		m.c.lag(100 * time.Microsecond)
		x, err := do(e)
		if err == nil || !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrClosed) {
			return x, err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (m *testMesh) commitPart(p Part, outcomes int) (x Effects, err error) {
	g := m.c.groups[p.Group]
	var pending *Pending
	_, err = m.retry(g, func(e *Engine) (_ Effects, err error) {
		for busy := 0; busy < 3; busy++ {
			record := slices.Clone(p.Record)
			pending, err = e.Take(record, outcomes)
			clear(record) // it was lent
			if !errors.Is(err, ErrBusy) {
				break
			}
		}
		return Effects{}, err
	})
	if err != nil {
		return x, err
	}
	if _, x, err = pending.Wait(nil); err == nil && m.c.faulty.Load() && m.c.chance(2) {
		return Effects{}, ErrUnknown // the answer is lost
	}
	return x, err
}

func (m *testMesh) Deliver(letters []Letter) error {
	g := m.c.groupOf(identity.Partition(letters[0].Number))
	if m.c.held.Load() || m.c.faulty.Load() && m.c.chance(5) {
		return errLink
	}
	e := g.leaderOf(time.Now().Add(50 * time.Millisecond))
	if e == nil {
		return ErrUnavailable
	}
	m.c.lag(100 * time.Microsecond)
	arrived := make([]Letter, len(letters))
	for i, l := range letters {
		if m.c.groupOf(identity.Partition(l.Number)) != g {
			panic("a letter for another group")
		}
		arrived[i] = Letter{Number: l.Number, Body: slices.Clone(l.Body)}
		if l.Done != nil {
			lost := m.c.faulty.Load() && m.c.chance(1)
			arrived[i].Done = func(x Effects, err error) {
				if lost {
					x, err = Effects{}, ErrUnknown
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

// receive has a group take in letters, half of the time together with what others deliver to it meanwhile.
func (g *testGroup) receive(e *Engine, letters []Letter) error {
	if g.c.chance(50) {
		return e.Receive(letters)
	}
	g.mu.Lock()
	bag := g.bag
	if bag == nil {
		bag = &testBag{done: make(chan struct{})}
		g.bag = bag
	}
	first := len(bag.letters) == 0
	bag.letters = append(bag.letters, letters...)
	g.mu.Unlock()
	if first {
		g.c.lag(2 * time.Millisecond)
		g.mu.Lock()
		g.bag = nil
		g.mu.Unlock()
		bag.err = e.Receive(bag.letters)
		close(bag.done)
	}
	<-bag.done
	return bag.err
}

// testBag is letters of several senders, and what becomes of them.
type testBag struct {
	letters []Letter
	done    chan struct{}
	err     error
}

func (m *testMesh) GroupOf(partition uint8) int { return m.c.groupOf(partition).number }

func (m *testMesh) Local(partition uint8) *Engine { return m.local(m.c.groupOf(partition)) }

func (m *testMesh) local(g *testGroup) *Engine {
	if r := g.replicas[m.i]; r != nil {
		return r.e.Load()
	}
	return nil
}

func (m *testMesh) Control() *Engine {
	for {
		if e := m.local(m.c.groups[0]); e != nil {
			return e
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (m *testMesh) FenceControl() error { return m.Fence() }

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
			_ = e.WaitApplied(position) // one that is closed applies it when it is opened again
		}
	}
}

func (m *testMesh) FenceOf(partitions ...uint8) error {
	var groups []*testGroup
	for _, p := range partitions {
		groups = append(groups, m.c.groupOf(p))
	}
	return m.fence(groups)
}

func (m *testMesh) Fence() error { return m.fence(m.c.groups) }

func (m *testMesh) fence(groups []*testGroup) error {
	m.fencing.Add(1)
	defer m.fencing.Add(-1)
	for _, g := range groups {
		g.mu.Lock()
		position := g.position
		g.mu.Unlock()
		e := m.local(g)
		if e == nil { // it is read where it is led
			if e = g.leaderOf(time.Now().Add(patient)); e == nil {
				return ErrUnavailable
			}
			m.clock.Observe(e.clock.Last())
			continue
		}
		if err := e.WaitApplied(position); err != nil && !errors.Is(err, ErrClosed) {
			return err
		}
	}
	return nil
}

func (m *testMesh) Blocked(number uint64) bool {
	e := m.Local(identity.Partition(number))
	return e != nil && e.Blocked(number)
}

// read reads at the leader of a partition's group, which has applied everything that was acknowledged before.
func (m *testMesh) read(partition uint8, f func(e *Engine) error) error {
	g := m.c.groupOf(partition)
	_, err := m.retry(g, func(e *Engine) (Effects, error) {
		g.mu.Lock()
		position := g.position
		g.mu.Unlock()
		if err := e.WaitApplied(position); err != nil {
			return Effects{}, err
		}
		if !e.enter() {
			return Effects{}, ErrClosed
		}
		defer e.usable.RUnlock()
		return Effects{}, f(e)
	})
	return err
}

func (m *testMesh) Flush(partition uint8, owner uint64) (waiting []uint64, err error) {
	err = m.read(partition, func(e *Engine) (err error) {
		waiting, err = e.Flush(owner, nil)
		return err
	})
	return waiting, err
}

func (m *testMesh) Release(ref uint64) (Effects, error) {
	return m.retry(m.c.groupOf(identity.Partition(ref)), func(e *Engine) (Effects, error) { return e.Release(ref, nil) })
}

func (m *testMesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(identity.Partition(number), func(e *Engine) (err error) {
		blob, err = e.Entry(number)
		return err
	})
	return blob, err
}

func (m *testMesh) TrailOf(number uint64) (all Trail, err error) {
	err = m.read(identity.Partition(number), func(e *Engine) (err error) {
		all, err = e.TrailOf(number)
		return err
	})
	return all, err
}

func (m *testMesh) BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error) {
	err = m.read(partition, func(e *Engine) (err error) {
		numbers, more, err = e.BlockedPage(workspace, partition, after)
		return err
	})
	return numbers, more, err
}
