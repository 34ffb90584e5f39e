package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/identity"
	"millrace/wal"
)

// testCluster is several nodes in one process: groups with logs in memory, whose appends become durable after a while, whose leaders move whenever a test
// wants it; replicas, real engines on disks in memory, that are closed, or crash, and come again; a front on each node; and a Mesh that takes its time,
// fails before something was done, or after.
type testCluster struct {
	t      *testing.T
	o      clusterOptions
	groups []*testGroup // the first is the control group
	nodes  []*testNode
	stop   chan struct{}
	gone   sync.WaitGroup
	faulty atomic.Bool // calls fail
	held   atomic.Bool // letters are not delivered

	mu sync.Mutex
	r  *rand.Rand // guarded by mu
}

type clusterOptions struct {
	nodes, replicas, groups int
	now                     func() time.Time
	skew                    time.Duration // between the clocks of a node and the next
	littleMemory            bool
	engine                  func(o *Options)
}

type testNode struct {
	c     *testCluster
	i     int
	clock *Clock
	front *Engine

	behind  atomic.Bool  // its replicas get nothing
	fencing atomic.Int32 // fences that wait
}

type testGroup struct {
	c            *testCluster
	number       int
	first, count int

	frozen atomic.Bool // nothing is decided

	mu       sync.Mutex
	records  []memRecord // decided
	position uint64
	pending  []*wal.Record // of the leader
	leader   *testReplica  // whose appends are taken; nil: none
	term     int
	replicas []*testReplica // by node; nil: none there
}

// testReplica is a replica and its log: it is the Log of its engine.
type testReplica struct {
	g    *testGroup
	node *testNode
	fs   *vfs.MemFS
	e    atomic.Pointer[Engine] // nil: it is down

	// Guarded by g.mu.
	up     bool
	marker int    // so many records Replay has
	handed uint64 // position of the last that was handed back
	todo   []func(e *Engine)
	batch  *[]*wal.Record // records of the last of todo that more can be added to
	wake   chan struct{}
	ended  chan struct{} // of the goroutine that does what is to do
}

func openCluster(t *testing.T, seed uint64, o clusterOptions) *testCluster {
	t.Helper()
	c := &testCluster{t: t, o: o, stop: make(chan struct{}), r: rand.New(rand.NewPCG(seed, 77))}
	for i := range o.nodes {
		now := o.now
		if now == nil {
			now = func() time.Time { return time.Now().Add(time.Duration(i) * o.skew) }
		}
		c.nodes = append(c.nodes, &testNode{c: c, i: i, clock: &Clock{Now: now}})
	}
	for number := range o.groups + 1 {
		g := &testGroup{c: c, number: number, count: 1, replicas: make([]*testReplica, o.nodes)}
		if number > 0 {
			g.first, g.count = (number-1)*identity.Partitions/o.groups, identity.Partitions/o.groups
		}
		c.groups = append(c.groups, g)
	}
	for _, g := range c.groups {
		for i := range o.nodes {
			if g.number > 0 && (i+g.number)%o.nodes >= o.replicas {
				continue
			}
			g.replicas[i] = &testReplica{g: g, node: c.nodes[i], fs: vfs.NewCrashableMem(), wake: make(chan struct{}, 1)}
			g.replicas[i].open()
		}
		c.gone.Add(1)
		go g.decide()
		c.move(g, c.anyNode(g))
	}
	for _, n := range c.nodes {
		front := testOptions(nil)
		front.Group = &Group{Secret: testSecret, Mesh: &testMesh{n}, Clock: n.clock}
		front.Now = n.clock.Now
		if o.engine != nil {
			o.engine(&front)
		}
		var err error
		n.front, err = NewFront(front)
		require.NoError(t, err)
	}
	t.Cleanup(c.close)
	return c
}

func (c *testCluster) close() {
	for _, n := range c.nodes {
		require.NoError(c.t, n.front.Close())
	}
	c.faulty.Store(false)
	close(c.stop)
	c.gone.Wait()
	for _, g := range c.groups {
		for _, r := range g.replicas {
			if r != nil {
				r.shut(true)
			}
		}
	}
}

func (c *testCluster) chance(percent int) bool { return c.intN(100) < percent }

func (c *testCluster) intN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.r.IntN(n)
}

// lag takes a while.
func (c *testCluster) lag(most time.Duration) {
	time.Sleep(time.Duration(c.intN(int(most))))
}

func (c *testCluster) anyNode(g *testGroup) int {
	for {
		if i := c.intN(len(c.nodes)); g.replicas[i] != nil {
			return i
		}
	}
}

func (c *testCluster) groupOf(partition uint8) *testGroup {
	return c.groups[1+int(partition)*c.o.groups/identity.Partitions]
}

// open opens the engine, which replays what is decided by now.
func (r *testReplica) open() {
	g, t := r.g, r.g.c.t
	g.mu.Lock()
	r.marker, r.up, r.todo, r.batch = len(g.records), true, nil, nil
	r.handed = g.position
	g.mu.Unlock()
	o := replicaOptions(r.fs, r, g.first, g.count)
	o.Now = r.node.clock.Now
	o.Group.Clock, o.Group.Mesh = r.node.clock, &testMesh{r.node}
	o.tend, o.patience = 2*time.Millisecond, 300*time.Millisecond
	o.StoreMemTableBytes = 1 << 20
	o.Workers = 1 + g.c.intN(3)
	if g.c.o.littleMemory && g.c.chance(50) {
		o.MemoryBytes = int64(o.Workers) * 2000 // a dozen entries
	}
	if g.c.o.engine != nil {
		g.c.o.engine(&o)
	}
	e, err := Open(o)
	require.NoError(t, err)
	r.ended = make(chan struct{})
	r.e.Store(e)
	go r.run(e)
}

func (r *testReplica) run(e *Engine) {
	defer close(r.ended)
	for {
		r.g.mu.Lock()
		todo, up := r.todo, r.up
		if r.node.behind.Load() {
			todo = nil
		} else {
			r.todo, r.batch = nil, nil
		}
		r.g.mu.Unlock()
		if !up {
			return
		}
		if r.node.behind.Load() {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		for _, do := range todo {
			do(e)
		}
		if len(todo) == 0 {
			<-r.wake
		} else if r.g.c.chance(20) {
			r.g.c.lag(300 * time.Microsecond)
		}
	}
}

// push is for the holder of g.mu.
func (r *testReplica) push(do func(e *Engine)) {
	r.todo, r.batch = append(r.todo, do), nil
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hand gives a decided record to the engine; own is what was appended here.
func (r *testReplica) hand(m memRecord, own *wal.Record) {
	if own == nil {
		own = m.record()
	}
	own.Position = m.position
	if r.batch == nil {
		batch := &[]*wal.Record{}
		r.push(func(e *Engine) {
			g := r.g
			g.mu.Lock()
			r.handed = (*batch)[len(*batch)-1].Position
			g.mu.Unlock()
			e.Dispatch(*batch)
		})
		r.batch = batch
	}
	*r.batch = append(*r.batch, own)
}

// shut ends the engine: by Close, or by a crash of its node. It is down until open.
func (r *testReplica) shut(orderly bool) {
	g := r.g
	g.mu.Lock()
	if g.leader == r || slices.Contains(g.replicas, r) && g.leader == nil {
		g.dethrone(r)
	}
	r.up, r.todo, r.batch = false, nil, nil
	g.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	e := r.e.Swap(nil)
	<-r.ended
	before := r.fs
	if !orderly {
		g.c.mu.Lock()
		r.fs = before.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: g.c.r.IntN(101), RNG: rand.New(rand.NewPCG(g.c.r.Uint64(), 1))})
		g.c.mu.Unlock()
	}
	require.NoError(g.c.t, e.Close())
}

// decide makes what was appended durable, some at a time.
func (g *testGroup) decide() {
	defer g.c.gone.Done()
	for {
		select {
		case <-g.c.stop:
			return
		default:
		}
		g.c.lag(200 * time.Microsecond)
		g.mu.Lock()
		if n := len(g.pending); n > 0 && g.leader != nil && !g.frozen.Load() {
			g.take(1+g.c.intN(n), g.leader)
		}
		g.mu.Unlock()
	}
}

// take decides the first n records that were appended; own is whose they are still.
func (g *testGroup) take(n int, own *testReplica) {
	for _, rec := range g.pending[:n] {
		g.position += uint64(1 + g.c.intN(3))
		if g.c.chance(10) {
			g.position = g.position/65536*65536 + 65536
		}
		m := memRecord{g.position, rec.Count, slices.Clone(rec.Data[wal.HeaderBytes:])}
		g.records = append(g.records, m)
		for _, r := range g.replicas {
			switch {
			case r == nil || !r.up:
			case r == own:
				r.hand(m, rec)
			default:
				r.hand(m, nil)
			}
		}
	}
	g.pending = slices.Delete(g.pending, 0, n)
}

// dethrone ends the leadership of r, if it leads. What it has appended may come to be decided, a part from the first on.
func (g *testGroup) dethrone(r *testReplica) {
	g.term++
	if g.leader != r || r == nil {
		return
	}
	g.leader = nil
	if lost := slices.Clone(g.pending); len(lost) > 0 {
		r.push(func(e *Engine) { e.Lost(lost) })
		for range g.c.intN(len(lost) + 1) {
			g.take(1, nil)
		}
		g.pending = nil
	}
	r.push(func(e *Engine) { e.Follow() })
}

// move makes the replica on a node the leader, once it has had all that is decided.
func (c *testCluster) move(g *testGroup, node int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dethrone(g.leader)
	r, term := g.replicas[node], g.term
	if r == nil || !r.up {
		return
	}
	r.push(func(e *Engine) {
		g.mu.Lock()
		current := g.term == term
		g.mu.Unlock()
		if !current {
			return
		}
		e.Lead()
		g.mu.Lock()
		if current = g.term == term; current {
			g.leader = r
		}
		g.mu.Unlock()
		if !current {
			e.Follow()
		}
	})
}

// leaderOf waits for a leader.
func (g *testGroup) leaderOf(until time.Time) *Engine {
	for ; time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
		g.mu.Lock()
		r, term := g.leader, g.term
		g.mu.Unlock()
		if r == nil { // none, or one that was about to lead is gone
			time.Sleep(time.Millisecond)
			g.mu.Lock()
			orphan := g.leader == nil && g.term == term && !slices.ContainsFunc(g.replicas, func(r *testReplica) bool { return r != nil && len(r.todo) > 0 })
			g.mu.Unlock()
			if orphan && g.c.chance(5) {
				g.c.move(g, g.c.anyNode(g))
			}
			continue
		}
		if e := r.e.Load(); e != nil {
			return e
		}
	}
	return nil
}

// The Log of a replica.

func (r *testReplica) Append(rec *wal.Record) error {
	if r.g.c.faulty.Load() && r.g.c.chance(2) {
		return wal.ErrBusy
	}
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.g.leader != r {
		return wal.ErrNotLeader
	}
	r.g.pending = append(r.g.pending, rec)
	return nil
}

func (r *testReplica) Replay(from uint64, f func(uint64, uint32, []byte) error) error {
	r.g.mu.Lock()
	records := r.g.records[:r.marker]
	r.g.mu.Unlock()
	for _, m := range records {
		if m.position < from {
			continue
		}
		if err := f(m.position, m.count, m.payload); err != nil {
			return err
		}
	}
	return nil
}

func (r *testReplica) Read(from, to uint64, f func(uint64, uint32, []byte) error) error {
	r.g.mu.Lock()
	records, handed := r.g.records, r.handed
	r.g.mu.Unlock()
	for _, m := range records {
		if m.position < from || m.position > min(to, handed) {
			continue
		}
		if err := f(m.position, m.count, m.payload); err != nil {
			return err
		}
	}
	return nil
}

func (r *testReplica) DurablePosition() uint64 {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.handed
}

func (r *testReplica) Hold(string, uint64)                              {}
func (r *testReplica) Trim(uint64) error                                { return nil }
func (r *testReplica) FirstPosition() uint64                            { return 1 }
func (r *testReplica) LastPosition() uint64                             { return r.DurablePosition() }
func (r *testReplica) Bytes() int64                                     { return 0 }
func (r *testReplica) Stalled() bool                                    { return false }
func (r *testReplica) DiskFull() bool                                   { return false }
func (r *testReplica) Close() error                                     { return nil }
func (r *testReplica) Image(string, uint64, uint64) ([]wal.File, error) { return nil, nil }

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
	err := e.Receive(arrived)
	for _, l := range arrived {
		clear(l.Body) // they were lent
	}
	if err == nil && m.c.faulty.Load() && m.c.chance(5) {
		return errLink
	}
	return err
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

func (m *testMesh) Fence() error {
	m.fencing.Add(1)
	defer m.fencing.Add(-1)
	for _, g := range m.c.groups {
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

func (m *testMesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(identity.Partition(number), func(e *Engine) (err error) {
		blob, err = e.Entry(number)
		return err
	})
	return blob, err
}

func (m *testMesh) TrailOf(number uint64) (all []StateChange, err error) {
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

// disturb does something to the cluster that it must bear.
func (c *testCluster) disturb() {
	g := c.groups[c.intN(len(c.groups))]
	r := g.replicas[c.anyNode(g)]
	switch c.intN(8) {
	case 0, 1, 2:
		c.move(g, c.anyNode(g))
	case 3:
		g.mu.Lock()
		i := slices.Index(g.replicas, g.leader)
		g.mu.Unlock()
		if i >= 0 {
			c.move(g, i) // it loses leadership and gets it again
		}
	case 4:
		r.shut(true)
		r.open()
	case 5:
		r.shut(false)
		r.open()
	default:
		if e := r.e.Load(); e != nil {
			require.NoError(c.t, e.Checkpoint())
		}
	}
}

// disturbing disturbs again and again until stop is called.
func (c *testCluster) disturbing(pause time.Duration) (stop func()) {
	end, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Duration(c.intN(int(pause)))):
				c.disturb()
			}
		}
	}()
	return func() {
		close(end)
		<-gone
	}
}

// leaders are the engines that lead the groups of users.
func (c *testCluster) leaders() (all []*Engine) {
	for _, g := range c.groups[1:] {
		e := g.leaderOf(time.Now().Add(patient))
		require.NotNil(c.t, e, "group %d has no leader", g.number)
		all = append(all, e)
	}
	return all
}

// replicas are all engines of groups, those that are up.
func (c *testCluster) replicas() (all []*Engine) {
	for _, g := range c.groups {
		for _, r := range g.replicas {
			if r != nil && r.e.Load() != nil {
				all = append(all, r.e.Load())
			}
		}
	}
	return all
}

// logged is how many records there are, and a number of its own while not all of them are applied everywhere.
func (c *testCluster) logged() (n int) {
	for _, g := range c.groups {
		g.mu.Lock()
		n += len(g.records) + len(g.pending)
		g.mu.Unlock()
	}
	for _, e := range c.replicas() {
		r := e.log.(*testReplica)
		r.g.mu.Lock()
		last := r.g.position
		r.g.mu.Unlock()
		if e.AppliedPosition() < last {
			return -int(time.Now().UnixNano())
		}
	}
	return n
}

// holders are the engines that have the state which e reads: each entry once.
func holders(e *Engine) []*Engine {
	if e.log == nil {
		return e.opts.Group.Mesh.(*testMesh).c.leaders()
	}
	return []*Engine{e}
}

// world is where a test's requests go to: an engine alone, or a cluster.
type world interface {
	engine() *Engine // for the next request; everything that was acknowledged can be read
	disturb()        // a restart, a crash, another leader; nothing is under way
	close()
}

// aloneWorld is an engine alone.
type aloneWorld struct {
	t       *testing.T
	fs      *vfs.MemFS
	r       *rand.Rand
	options func(fs vfs.FS) Options
	e       *Engine
}

func openAlone(t *testing.T, r *rand.Rand, options func(fs vfs.FS) Options) *aloneWorld {
	w := &aloneWorld{t: t, fs: vfs.NewCrashableMem(), r: r, options: options}
	w.e = openTest(t, options(w.fs))
	return w
}

func (w *aloneWorld) engine() *Engine { return w.e }

func (w *aloneWorld) disturb() {
	switch w.r.IntN(3) {
	case 0:
		require.NoError(w.t, w.e.Close())
		w.e = openTest(w.t, w.options(w.fs))
	case 1:
		before := w.e
		w.fs = w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.r.IntN(101), RNG: rand.New(rand.NewPCG(w.r.Uint64(), 1))})
		w.e = openTest(w.t, w.options(w.fs))
		require.NoError(w.t, before.Close())
	default:
		require.NoError(w.t, w.e.Checkpoint())
	}
}

func (w *aloneWorld) close() { require.NoError(w.t, w.e.Close()) }

// clusterWorld is a cluster: each request goes to any node.
type clusterWorld struct{ *testCluster }

func (w clusterWorld) engine() *Engine {
	e := w.nodes[w.intN(len(w.nodes))].front
	require.NoError(w.t, e.Fence())
	return e
}

func (w clusterWorld) disturb() {
	for range 1 + w.intN(3) {
		w.testCluster.disturb()
	}
}

// close holds the replicas against one another: apply is a pure function.
func (w clusterWorld) close() {
	settle(w.t, w.engine())
	for _, g := range w.groups {
		var want map[string]string
		for _, r := range g.replicas {
			if r == nil {
				continue
			}
			e, got := r.e.Load(), map[string]string{}
			require.NoError(w.t, e.Checkpoint())
			require.NoError(w.t, e.store.scan([]byte("c"), []byte("f"), func(k, v []byte) error {
				if len(k) > 9 && k[0] == 'e' && (k[9] == bookOutbox || k[9] == bookDeferred) { // until the next checkpoint
					return nil
				}
				if len(k) > 9 && k[0] == 'e' && k[9] == bookApplied {
					v = v[8:] // without the position
				}
				got[fmt.Sprintf("%x", k)] = fmt.Sprintf("%x", v)
				return nil
			}))
			if want == nil {
				want = got
			}
			require.Equal(w.t, want, got, "group %d, node %d", g.number, r.node.i)
		}
	}
}

// anyCluster is a cluster of random shape.
func anyCluster(t *testing.T, r *rand.Rand, change func(o *clusterOptions)) clusterWorld {
	o := clusterOptions{
		nodes: 3 + r.IntN(2), replicas: 2 + r.IntN(2), groups: []int{2, 4, 8}[r.IntN(3)],
		littleMemory: r.IntN(2) == 0,
	}
	if change != nil {
		change(&o)
	}
	return clusterWorld{openCluster(t, r.Uint64(), o)}
}
