package shard

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/identity"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal"
	"millrace/wal/memlog"
)

// testCluster is several nodes in one process. Its groups have logs in memory, whose appends become durable after a
// while, and leaders that move whenever a test wants it. Its replicas are real engines on disks in memory, which are
// closed or crash and come again. Each node has a coordinator. The Mesh between the nodes takes its time, and its calls
// fail before something was done or after.
type testCluster struct {
	t      *testing.T
	o      clusterOptions
	groups []*testGroup // the first is the control group
	nodes  []*testNode
	stop   chan struct{}
	gone   sync.WaitGroup
	faulty atomic.Bool // calls fail
	held   atomic.Bool // messages are not delivered

	mu sync.Mutex
	r  *rand.Rand // guarded by mu
}

type clusterOptions struct {
	nodes, replicas, groups int
	now                     func() time.Time
	skew                    time.Duration // between the clocks of a node and the next
	littleMemory            bool
	engine                  func(o *replica.EngineOptions) // of replicas, and the bounds of coordinators
}

type testNode struct {
	c     *testCluster
	i     int
	clock *stamp.Clock
	coord *Engine
	// coordinator is the node's coordinator, nil until there is one.
	coordinator atomic.Pointer[Coordinator]

	behind atomic.Bool  // its replicas get nothing
	asking atomic.Int32 // barriers that wait
	asked  atomic.Int32 // barriers there were
	alone  atomic.Bool  // its barriers fail
	// behindBarrier is called once, when a barrier of all groups has been given. A test sets it before that.
	behindBarrier func()
}

type testGroup struct {
	c            *testCluster
	number       int
	first, count int

	frozen atomic.Bool // nothing is decided

	mu       sync.Mutex
	records  []memlog.Record // decided
	position uint64
	pending  []*wal.Record // of the leader
	leader   *testReplica  // whose appends are taken; nil: none
	term     int
	replicas []*testReplica // by node; nil: none there
	bag      *testBag       // messages that wait for others
}

// testReplica is a replica and the Log of the replica's engine.
type testReplica struct {
	g    *testGroup
	node *testNode
	fs   *vfs.MemFS
	e    atomic.Pointer[replica.Replica] // nil: it is down
	full atomic.Bool                     // its disk has no room

	// Guarded by g.mu.
	up     bool
	marker int    // how many records Replay has
	handed uint64 // position of the last that was handed back
	todo   []func(e *replica.Replica)
	doing  bool           // work that was in todo is being done
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
		c.nodes = append(c.nodes, &testNode{c: c, i: i, clock: &stamp.Clock{Now: now}})
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
		bounds := testOptions(nil)
		if o.engine != nil {
			o.engine(&bounds)
		}
		n.coord = coord(NewCoordinator(CoordinatorOptions{
			Secret: testSecret, Clock: n.clock, Nodes: &testMesh{n}, CommitTimeout: 3 * patient, LeaderWait: patient,
			MaxInflightBytes: bounds.MaxInflightBytes, MaxMergesWaiting: bounds.MaxMergesWaiting, Logger: bounds.Logger,
		}))
		n.coordinator.Store(n.coord.Coordinator)
	}
	t.Cleanup(c.close)
	return c
}

func (c *testCluster) close() {
	for _, n := range c.nodes {
		require.NoError(c.t, n.coord.Close())
	}
	c.faulty.Store(false)
	close(c.stop)
	c.gone.Wait()
	for _, g := range c.groups {
		g.mu.Lock()
		g.dethrone(g.leader) // in a test that has failed somebody may wait for what nobody decides any more
		g.mu.Unlock()
	}
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

// lag sleeps for a random time, at most so long.
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

// open opens the engine, which replays the records that are decided by now.
func (r *testReplica) open() {
	g, t := r.g, r.g.c.t
	g.mu.Lock()
	r.marker, r.up, r.todo, r.batch = len(g.records), true, nil, nil
	r.handed = g.position
	g.mu.Unlock()
	o := replicaOptions(r.fs, r, g.first, g.count)
	o.Clock, o.Carrier = r.node.clock, &testMesh{r.node}
	o.Readdress = func(record []byte) ([]byte, error) {
		return r.node.coordinator.Load().Readdress(record)
	}
	o.FlushAll = func() error { return r.node.coordinator.Load().FlushAll() }
	o.OnDocument = func(key string, _ []byte) {
		if c := r.node.coordinator.Load(); c != nil {
			c.TakeDocument(key)
		}
	}
	o.TendInterval, o.Patience = 2*time.Millisecond, 300*time.Millisecond
	o.StoreMemTableBytes = 1 << 20
	o.Workers = 1 + g.c.intN(3)
	if g.c.o.littleMemory && g.c.chance(50) {
		o.MemoryBytes = int64(o.Workers) * 2000 // a dozen entries
		o.MaxDeltaChanges = []int{-1, 0, 2}[g.c.intN(3)]
	}
	if g.c.o.engine != nil {
		g.c.o.engine(&o.EngineOptions)
	}
	e, err := replica.Open(o)
	require.NoError(t, err)
	r.ended = make(chan struct{})
	r.e.Store(e)
	go r.run(e)
}

func (r *testReplica) run(e *replica.Replica) {
	defer close(r.ended)
	for {
		r.g.mu.Lock()
		todo, up, behind := r.todo, r.up, r.node.behind.Load()
		if !behind {
			r.todo, r.batch = nil, nil
		}
		r.doing = !behind && len(todo) > 0
		r.g.mu.Unlock()
		if !up {
			return
		}
		if behind {
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

// push is called with g.mu held.
func (r *testReplica) push(do func(e *replica.Replica)) {
	r.todo, r.batch = append(r.todo, do), nil
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hand gives a decided record to the engine; own is the record if it was appended here.
func (r *testReplica) hand(m memlog.Record, own *wal.Record) {
	if own == nil {
		own = m.Handed()
	}
	own.Position = m.Position
	if r.batch == nil {
		batch := &[]*wal.Record{}
		r.push(func(e *replica.Replica) {
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

// decide makes the appended records durable, some at a time.
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

// take decides the first n appended records; own is the replica to which they still belong.
func (g *testGroup) take(n int, own *testReplica) {
	for _, rec := range g.pending[:n] {
		g.position += uint64(1 + g.c.intN(3))
		if g.c.chance(10) {
			g.position = g.position/65536*65536 + 65536
		}
		m := memlog.Record{Position: g.position, Count: rec.Count, Payload: slices.Clone(rec.Data[wal.HeaderBytes:])}
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

// dethrone ends the leadership of r, if r leads. Of the records that r has appended, some may still be decided: a run
// that begins with the first.
func (g *testGroup) dethrone(r *testReplica) {
	g.term++
	if g.leader != r || r == nil {
		return
	}
	g.leader = nil
	if lost := slices.Clone(g.pending); len(lost) > 0 {
		r.push(func(e *replica.Replica) { e.Lost(lost) })
		for range g.c.intN(len(lost) + 1) {
			g.take(1, nil)
		}
		g.pending = nil
	}
	r.push(func(e *replica.Replica) { e.Follow() })
}

// move makes the replica on a node the leader, once the replica has got everything that is decided.
func (c *testCluster) move(g *testGroup, node int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.move(node)
}

// move is testCluster.move, called with g.mu held.
func (g *testGroup) move(node int) {
	g.dethrone(g.leader)
	r, term := g.replicas[node], g.term
	if r == nil || !r.up {
		return
	}
	r.push(func(e *replica.Replica) {
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

// handOver has a leader hand over and then moves the leadership, or leaves it where it is.
func (c *testCluster) handOver(g *testGroup) {
	g.mu.Lock()
	r := g.leader
	g.mu.Unlock()
	if r == nil {
		return
	}
	e := r.e.Load()
	if e == nil {
		return
	}
	resume, err := e.HandOver(time.Duration(c.intN(20)) * time.Millisecond)
	require.NoError(c.t, err)
	if c.chance(20) {
		resume()
		return
	}
	c.move(g, c.anyNode(g))
}

// leaderOf waits for a leader and returns its replica.
func (g *testGroup) leaderOf(until time.Time) *replica.Replica {
	if r := g.leads(until); r != nil {
		return r.e.Load()
	}
	return nil
}

// leads is leaderOf, but returns the replica with its log.
func (g *testGroup) leads(until time.Time) *testReplica {
	for ; time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
		g.mu.Lock()
		r, term := g.leader, g.term
		g.mu.Unlock()
		if r == nil { // none, or one that was about to lead is gone
			time.Sleep(time.Millisecond)
			g.mu.Lock()
			orphan := g.leader == nil && g.term == term &&
				!slices.ContainsFunc(g.replicas, func(r *testReplica) bool { return r != nil && (r.doing || len(r.todo) > 0) })
			if orphan && g.c.chance(5) { // at once: else it might be one that somebody has found to lead by now
				g.move(g.c.anyNode(g))
			}
			g.mu.Unlock()
			continue
		}
		if r.e.Load() != nil {
			return r
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
	if r.full.Load() && !rec.Urgent {
		return wal.ErrDiskFull
	}
	r.g.pending = append(r.g.pending, rec)
	return nil
}

func (r *testReplica) Replay(from uint64, f func(uint64, uint32, []byte) error) error {
	r.g.mu.Lock()
	records := r.g.records[:r.marker]
	r.g.mu.Unlock()
	for _, m := range records {
		if m.Position < from {
			continue
		}
		if err := f(m.Position, m.Count, m.Payload); err != nil {
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
		if m.Position < from || m.Position > min(to, handed) {
			continue
		}
		if err := f(m.Position, m.Count, m.Payload); err != nil {
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
func (r *testReplica) DiskFull() bool                                   { return r.full.Load() }
func (r *testReplica) Close() error                                     { return nil }
func (r *testReplica) Image(string, uint64, uint64) ([]wal.File, error) { return nil, nil }

// disturb does something to the cluster that the cluster must bear.
func (c *testCluster) disturb() {
	g := c.groups[c.intN(len(c.groups))]
	r := g.replicas[c.anyNode(g)]
	switch c.intN(9) {
	case 0, 1:
		c.move(g, c.anyNode(g))
	case 2:
		c.handOver(g)
	case 3:
		g.mu.Lock()
		i := slices.Index(g.replicas, g.leader)
		g.mu.Unlock()
		if i >= 0 {
			c.move(g, i) // the replica loses leadership and gets it again
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

// leaders are the engines that lead the groups with users.
func (c *testCluster) leaders() (all []*Engine) {
	for _, g := range c.groups[1:] {
		e := g.leaderOf(time.Now().Add(patient))
		require.NotNil(c.t, e, "group %d has no leader", g.number)
		all = append(all, over(e))
	}
	return all
}

// replicas are the engines of all replicas that are up.
func (c *testCluster) replicas() (all []*Engine) {
	for _, g := range c.groups {
		for _, r := range g.replicas {
			if r != nil && r.e.Load() != nil {
				all = append(all, over(r.e.Load()))
			}
		}
	}
	return all
}

// logged is how many records the logs have.
func (c *testCluster) logged() (n int) {
	for _, g := range c.groups {
		g.mu.Lock()
		n += len(g.records) + len(g.pending)
		g.mu.Unlock()
	}
	return n
}

// lags says whether a record that was appended is not decided yet, or a decided record is not applied yet by some
// replica.
func (c *testCluster) lags() bool {
	return slices.ContainsFunc(c.replicas(), func(e *Engine) bool {
		g := e.Log().(*testReplica).g
		g.mu.Lock()
		decided, pending := g.position, len(g.pending)
		g.mu.Unlock()
		return pending > 0 || e.AppliedPosition() < decided
	})
}

// holders are the engines that together have the state that e reads, each entry once.
func holders(e *Engine) []*Engine {
	if e.isCoordinator() {
		return e.nodes.(*testMesh).c.leaders()
	}
	return []*Engine{e}
}
