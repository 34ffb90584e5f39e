package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/founding"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/quorum"
)

// aloneOptions are the options of a node that is alone, on any file system.
func aloneOptions(fs vfs.FS, dir string) (replica.EngineOptions, eventlog.Options) {
	return replica.EngineOptions{
			FS: fs, Dir: dir, MemoryBytes: 64 << 20, StoreCacheBytes: 1 << 20, StoreMemTableBytes: 1 << 20, Readers: []string{eventlog.HoldName}, Logger: slog.New(slog.DiscardHandler),
			Log: wal.Options{SegmentBytes: 64 << 10, MinFreeBytes: -1, MinFreePercent: -1},
		}, eventlog.Options{
			FS: fs, Dir: dir + "/events", Interval: 3 * time.Millisecond, BlockBytes: 8 << 10, PackAfter: 10 * time.Millisecond, MaxDuty: 1, Logger: slog.New(slog.DiscardHandler),
		}
}

// alone is a node without a cluster.
type alone struct {
	*shard.Coordinator
	events    *eventlog.Log
	documents map[string]string
}

func openAlone(t *testing.T, fs vfs.FS, dir string) *alone {
	t.Helper()
	a := &alone{documents: map[string]string{}}
	eo, lo := aloneOptions(fs, dir)
	eo.OnDocument = func(key string, doc []byte) { a.documents[key] = string(doc) }
	var err error
	a.Coordinator, err = shard.Open(eo)
	require.NoError(t, err)
	a.events, err = eventlog.Open(a.Replica(), lo)
	require.NoError(t, err)
	t.Cleanup(a.close)
	return a
}

func (a *alone) close() {
	_ = a.events.Close()
	_ = a.Close()
}

// crowd is what clients have done to an engine of any kind: what they named, and what was acknowledged.
type crowd struct {
	t *testing.T

	mu      sync.Mutex
	numbers map[uint64]bool
	sent    int // events that were acknowledged
	some    int // events that may have been
}

const crowdNames = 24

func crowdKey(r *rand.Rand) (op.IDKind, string) {
	i := r.IntN(crowdNames)
	switch r.IntN(4) {
	case 0:
		return op.Alias, string(op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", i)))
	case 1:
		return op.Email, fmt.Sprintf("m%d@example.com", i%8)
	default:
		return op.ExternalID, fmt.Sprint("u", i)
	}
}

// copy is a crowd for a store that goes another way from here on.
func (c *crowd) copy() *crowd {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &crowd{t: c.t, numbers: maps.Clone(c.numbers), sent: c.sent, some: c.some}
}

// anyone is the number of somebody, 0 when nobody is known.
func (c *crowd) anyone(r *rand.Rand) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.numbers) == 0 {
		return 0
	}
	all := slices.Sorted(maps.Keys(c.numbers))
	return all[r.IntN(len(all))]
}

// request does something at random. It deletes nobody, since with several clients at work it isn't known what would go.
func (c *crowd) request(e *shard.Coordinator, r *rand.Rand) error {
	b := e.NewBatch(testWorkspace, 0)
	defer b.Release()
	b.SetSource(op.SourceTrack)
	events := 0
	switch r.IntN(10) {
	case 0:
		b.Merge(c.anyone(r), c.anyone(r))
		b.Merge(c.anyone(r), c.anyone(r))
	case 1:
		b.AddAlias(c.anyone(r), []byte("l"), fmt.Append(nil, "a", r.IntN(crowdNames)))
	case 2:
		b.Identify(c.anyone(r), fmt.Append(nil, "u", r.IntN(crowdNames)), profile.MergeIdentify)
	case 3:
		id, key := crowdKey(r)
		b.SetUserStates(id, []byte(key), 0, profile.State{Kind: profile.StateEmail, Value: []string{"subscribed", "unsubscribed", "opted_in"}[r.IntN(3)]})
	case 4:
		b.SetAddressStates(op.Email, fmt.Appendf(nil, "m%d@example.com", r.IntN(8)), profile.State{Kind: profile.StateEmail, Value: "unsubscribed"})
	case 5:
		addAttributes(b, op.ExternalID, fmt.Sprint("u", r.IntN(crowdNames)), op.Contact, testengine.AttrField(op.AttrEmail, fmt.Sprintf("m%d@example.com", r.IntN(8))))
		id, key := crowdKey(r) // perhaps by that email: it has to wait
		addEvent(b, id, key, "late")
		events++
	default:
		for range 1 + r.IntN(8) {
			id, key := crowdKey(r)
			addEvent(b, id, key, fmt.Sprint("e", r.IntN(5)))
			events++
		}
	}
	err := b.Commit()
	if errors.Is(err, replica.ErrBusy) || errors.Is(err, replica.ErrUnavailable) {
		return nil
	}
	c.mu.Lock()
	if c.some += events; err == nil {
		c.sent += events
	}
	c.mu.Unlock()
	if errors.Is(err, replica.ErrUnknown) {
		return nil
	}
	if err == nil {
		id, key := crowdKey(r)
		users, err := e.Find(testWorkspace, id, []byte(key))
		c.mu.Lock()
		for _, u := range users {
			c.numbers[u.Number] = true
		}
		c.mu.Unlock()
		return err
	}
	return err
}

// run has several clients work, each of which sends so many requests.
func (c *crowd) run(seed uint64, clients, requests int, e func() *shard.Coordinator) {
	var running sync.WaitGroup
	for i := range clients {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for range requests {
				if err := c.request(e(), r); err != nil {
					c.t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
}

// view is everything that can be read of a store, as text, from an engine that is alone or from a coordinator.
func (c *crowd) view(e *shard.Coordinator, events eventlog.Exporter) map[string]string {
	t := c.t
	t.Helper()
	require.NoError(t, e.Barrier())
	all := map[string]string{}
	look := func(what string, id op.IDKind, key string) {
		users, err := e.Find(testWorkspace, id, []byte(key))
		require.NoError(t, err)
		var text []string
		for _, u := range users {
			trail, err := e.Trail(testWorkspace, u.Number)
			require.NoError(t, err)
			text = append(text, fmt.Sprintf("%x %x trail %v", u.Number, u.Blob, trail))
		}
		all[what+key] = strings.Join(text, "\n")
	}
	for i := range crowdNames {
		look("user ", op.ExternalID, fmt.Sprint("u", i))
		look("alias ", op.Alias, string(op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", i))))
	}
	for i := range 8 {
		look("email ", op.Email, fmt.Sprintf("m%d@example.com", i))
		trail, err := e.AddressTrail(testWorkspace, op.Email, fmt.Appendf(nil, "m%d@example.com", i))
		require.NoError(t, err)
		all[fmt.Sprint("trail of ", i)] = fmt.Sprint(trail)
	}
	for number := range c.numbers {
		users, err := e.FindNumber(testWorkspace, number)
		require.NoError(t, err)
		all[fmt.Sprintf("number %x", number)] = fmt.Sprint(len(users))
		for _, u := range users {
			all[fmt.Sprintf("number %x", number)] += fmt.Sprintf(" %x", u.Blob)
		}
	}
	for _, kind := range []profile.StateKind{profile.StateBounce, profile.StateEmail} {
		list, err := e.Suppressed(testWorkspace, shard.SuppressionQuery{Kind: kind, Until: math.MaxInt64, Most: 1000})
		require.NoError(t, err)
		for _, a := range list {
			all[fmt.Sprint("suppressed ", kind, a)] = ""
		}
	}
	var lines []string
	require.NoError(t, events.Export(context.Background(), eventlog.Query{}, func(e *event.Event) error {
		e.Group = "" // the place stays the same
		lines = append(lines, string(event.AppendJSON(nil, e, true, nil)))
		return nil
	}))
	slices.Sort(lines)
	all["events"] = strings.Join(lines, "\n")
	return all
}

// known are the users that there are under the names of external ids.
func (c *crowd) known(e *shard.Coordinator) map[string]uint64 {
	all := map[string]uint64{}
	for i := range crowdNames {
		users, err := e.Find(testWorkspace, op.ExternalID, fmt.Append(nil, "u", i))
		require.NoError(c.t, err)
		for _, u := range users {
			all[fmt.Sprint("u", i)] = u.Number
		}
	}
	return all
}

// stillKnown asks a node for some of the known users and fails the test when the node doesn't know one of them. It
// returns an error when the node can't answer.
func (c *crowd) stillKnown(e *shard.Coordinator, known map[string]uint64) error {
	if err := e.Barrier(); err != nil {
		return err
	}
	asked := 0
	for name, number := range known {
		if asked++; asked > 8 {
			break
		}
		users, err := e.Find(testWorkspace, op.ExternalID, []byte(name))
		if err != nil {
			return err
		}
		require.Len(c.t, users, 1, "user %s", name)
		require.Equal(c.t, number, users[0].Number, "user %s", name)
	}
	return nil
}

// counted is how many events all users have, however they are found.
func (c *crowd) counted(e *shard.Coordinator) (n int) {
	t := c.t
	t.Helper()
	require.NoError(t, e.Barrier())
	seen := map[uint64]bool{}
	count := func(users []shard.User, err error) {
		require.NoError(t, err)
		for _, u := range users {
			if seen[u.Number] {
				continue
			}
			seen[u.Number] = true
			for _, name := range []string{"e0", "e1", "e2", "e3", "e4", "late"} {
				if s, ok := profile.Event(u.Blob, []byte(name)); ok {
					n += int(s.Count)
				}
			}
		}
	}
	for i := range crowdNames {
		count(e.Find(testWorkspace, op.ExternalID, fmt.Append(nil, "u", i)))
		count(e.Find(testWorkspace, op.Alias, op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", i))))
	}
	for i := range 8 {
		count(e.Find(testWorkspace, op.Email, fmt.Appendf(nil, "m%d@example.com", i)))
	}
	for number := range c.numbers {
		count(e.FindNumber(testWorkspace, number))
	}
	return n
}

// requireCounted requires that a node has everything that was acknowledged and at most everything that was sent, and
// each event once, in profiles and event log.
func (c *crowd) requireCounted(n *Node) {
	c.t.Helper()
	counted := c.counted(n.Coordinator())
	require.GreaterOrEqual(c.t, counted, c.sent)
	require.LessOrEqual(c.t, counted, c.some)
	require.Equal(c.t, counted, countEvents(c.t, n))
}

// killedAlone is the directory of a node that was killed in the midst of everything.
func killedAlone(t *testing.T, seed uint64) (dir string, c *crowd) {
	fs := vfs.NewCrashableMem()
	a := openAlone(t, fs, "data")
	c = &crowd{t: t, numbers: map[uint64]bool{}}
	require.NoError(t, a.PutDocuments(7, []bodies.DocumentChange{{Key: "workspace/1", Doc: []byte("one")}, {Key: "app/1", Doc: []byte("two")}}, []byte("entry")))
	for phase := range uint64(2) { // some events in blocks, some in the log alone
		c.run(seed+phase, 4, 30, func() *shard.Coordinator { return a.Coordinator })
		if phase == 0 {
			require.NoError(t, a.Replica().Checkpoint())
			require.NoError(t, a.events.Pack())
		}
	}
	r := rand.New(rand.NewPCG(seed, 99))
	b := a.NewBatch(testWorkspace, 0)
	for range 30 { // merges that are under way at the end
		b.Merge(c.anyone(r), c.anyone(r))
	}
	require.NoError(t, b.Commit())
	b.Release()
	fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(seed, 7))})
	dir = filepath.Join(t.TempDir(), "alone")
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	copied, err := vfs.Clone(fs, vfs.Default, "data", dir)
	require.NoError(t, err)
	require.True(t, copied)
	return dir, c
}

// bootstrap are the options by which a test cluster is founded.
func (c *testCluster) bootstrap() founding.Options {
	eo, lo := aloneOptions(nil, "")
	return founding.Options{Plan: facts.Plan{Dir: filepath.Join(c.dir, "1"), Node: 1, Members: c.members, Groups: 4}, Engine: eo, Events: lo, Logger: slog.New(slog.DiscardHandler)}
}

// spread waits until all members are there and each group has three replicas. Between its looks it calls the functions
// of meanwhile.
func (c *testCluster) spread(meanwhile ...func() error) {
	c.t.Helper()
	c.eventually(func() error {
		for _, do := range meanwhile {
			if err := do(); err != nil {
				return err
			}
		}
		d, _ := c.node(1).documents.Get()
		for n := range c.members {
			if d.Nodes[n].State != placement.Active {
				return fmt.Errorf("node %d is %s", n, d.Nodes[n].State)
			}
		}
		for g, p := range d.Groups {
			if len(p.Replicas) != min(3, len(c.members)) || len(p.Leaving) > 0 {
				return fmt.Errorf("group %d is at %v", g, p)
			}
		}
		for i := range c.node(1).replicas {
			s := c.node(1).group(uint32(i))
			if s == nil {
				return fmt.Errorf("group %d is not here", i)
			}
			voters := 0
			for _, m := range s.log.Status().Members {
				if m.Voter {
					voters++
				}
			}
			if voters != min(3, len(c.members)) {
				return fmt.Errorf("group %d has %d voters", i, voters)
			}
		}
		return nil
	})
}

// A node that was alone, and was killed in the midst of merges, becomes a cluster. Everything that can be read is the
// same, first on the one node that has it, then on the nodes that have joined. The new cluster goes on with it as the
// old node would have done.
func TestImport(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	dir, crowd := killedAlone(t, seed)
	c := newTestCluster(t, 3, nil)
	seen := map[quorum.Node]map[string]string{1: {}, 2: {}, 3: {}}
	var mu sync.Mutex
	c.change = func(o *Options) {
		o.OnDocument = func(key string, doc []byte) {
			mu.Lock()
			seen[o.Node][key] = string(doc)
			mu.Unlock()
		}
	}
	var done, total int64
	f := c.bootstrap()
	f.Progress = func(d, of int64) { done, total = d, of }
	founded, err := founding.Import(context.Background(), dir, f)
	require.NoError(t, err)
	require.Equal(t, 4, founded.Groups)
	require.Equal(t, 3, founded.Replicas)
	require.NotZero(t, done)
	require.Equal(t, total, done)
	_, err = founding.Import(context.Background(), dir, f)
	require.ErrorIs(t, err, backup.ErrNotEmpty)

	// The old directory shows what must be there, since the import has only finished what was under way in it.
	a := openAlone(t, nil, dir)
	want := crowd.view(a.Coordinator, a.events)
	require.Equal(t, crowd.sent, crowd.counted(a.Coordinator), "the test knows what there is")
	require.Equal(t, crowd.sent, countEvents(t, a.events))
	auditEnd, auditHash := a.AuditEnd()
	require.EqualValues(t, 1, auditEnd)
	documents := a.documents
	a.close()

	c.start(1)
	require.Equal(t, want, crowd.view(c.node(1).Coordinator(), c.node(1)))
	known := crowd.known(c.node(1).Coordinator())
	require.NotEmpty(t, known)
	c.start(2, 3)
	c.spread(func() error { return crowd.stillKnown(c.node(2).Coordinator(), known) }, func() error { return crowd.stillKnown(c.node(3).Coordinator(), known) })
	for node := quorum.Node(1); node <= 3; node++ {
		require.Equal(t, want, crowd.view(c.node(node).Coordinator(), c.node(node)), "node %d", node)
		control := c.node(node).Coordinator()
		_, err := control.VerifyAudit()
		require.NoError(t, err)
		mu.Lock()
		require.Equal(t, documents, seen[node])
		mu.Unlock()
		require.NoError(t, control.Audit(auditEnd, func(e books.AuditEntry) bool {
			require.Equal(t, auditHash, e.Hash, "the old entries are there, and the new ones behind them")
			return false
		}))
	}

	// The backup is of groups that have taken no record of their own yet.
	restored := newTestCluster(t, 1, nil)
	f = restored.bootstrap()
	f.Groups = 0
	_, _, err = founding.RestoreBackup(context.Background(), bytes.NewReader(c.takeBackup(2)), f)
	require.NoError(t, err)
	restored.start(1)
	require.Equal(t, want, crowd.view(restored.node(1).Coordinator(), restored.node(1)))
	later := crowd.copy()
	later.run(seed+2, 2, 20, func() *shard.Coordinator { return restored.node(1).Coordinator() })
	restored.settle()
	later.requireCounted(restored.node(1)) // new records of the cluster are not taken for ones that it has
	restored.stop(1)

	// The cluster goes on, with merges across groups, and with deletions that find the events from before.
	crowd.run(seed+1, 3, 40, func() *shard.Coordinator { return c.node(2).Coordinator() })
	c.settle()
	for node := quorum.Node(1); node <= 3; node++ {
		crowd.requireCounted(c.node(node))
	}
	requireDeletions(t, c, crowd)
}

// settle waits until no messages are under way between groups.
func (c *testCluster) settle() {
	c.t.Helper()
	c.eventually(func() error {
		for _, n := range c.all() {
			if err := n.Coordinator().Barrier(); err != nil {
				return err
			}
			for _, r := range n.Replicas() {
				if s := r.Engine.Stats(); s.Outbox+s.Deferred+s.MergesWaiting > 0 && r.Status.Role == quorum.Leader {
					return fmt.Errorf("group %d: %+v", r.Group, s)
				}
			}
		}
		return nil
	})
}

func countEvents(t *testing.T, x eventlog.Exporter) (n int) {
	t.Helper()
	require.NoError(t, x.Export(context.Background(), eventlog.Query{}, func(*event.Event) error { n++; return nil }))
	return n
}

// requireDeletions deletes everybody, one after the other. Each time the events that the profile had are gone, and no
// others; in the end there are no events.
func requireDeletions(t *testing.T, c *testCluster, crowd *crowd) {
	t.Helper()
	e := c.node(1).Coordinator()
	left := crowd.counted(e)
	remove := func(id op.IDKind, key []byte) {
		t.Helper()
		users, err := e.Find(testWorkspace, id, key)
		require.NoError(t, err)
		b := e.NewBatch(testWorkspace, 0)
		defer b.Release()
		for _, u := range users {
			b.Delete(u.Number)
		}
		if len(users) > 0 {
			require.NoError(t, b.Commit())
		}
	}
	for i := range crowdNames {
		remove(op.ExternalID, fmt.Append(nil, "u", i))
	}
	for i := range 8 {
		remove(op.Email, fmt.Appendf(nil, "m%d@example.com", i))
	}
	for i := range crowdNames {
		remove(op.Alias, op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", i)))
	}
	c.settle()
	rest := crowd.counted(e)
	require.Less(t, rest, left)
	for node := quorum.Node(1); node <= 3; node++ {
		require.Equal(t, rest, countEvents(t, c.node(node)), "events go with their users, those of before the import, too")
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2, nil)
	empty := t.TempDir()
	_, err := founding.Import(context.Background(), empty, c.bootstrap())
	require.ErrorContains(t, err, "is not the data directory of a node")
	for name, change := range map[string]func(f *founding.Options){
		"is none of the members": func(f *founding.Options) { f.Node = 9 },
		"groups: must be":        func(f *founding.Options) { f.Groups = 257 },
		"replicas: must be":      func(f *founding.Options) { f.Replicas = 8 },
		"are both at":            func(f *founding.Options) { f.Members = map[quorum.Node]string{1: "a:1", 2: "a:1"} },
		"as the others reach it": func(f *founding.Options) { f.Members = map[quorum.Node]string{1: ":1"} },
		"want a number from":     func(f *founding.Options) { f.Members = map[quorum.Node]string{1: "a"} },
	} {
		f := c.bootstrap()
		change(&f)
		_, err := founding.Import(context.Background(), empty, f)
		require.ErrorContains(t, err, name)
	}
	dir, _ := killedAlone(t, 1)
	blocks, err := filepath.Glob(filepath.Join(dir, "events", "*.block"))
	require.NoError(t, err)
	require.NotEmpty(t, blocks)
	whole, err := os.ReadFile(blocks[0])
	require.NoError(t, err)
	flipped := slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	require.NoError(t, os.WriteFile(blocks[0], flipped, 0o600))
	_, err = founding.Import(context.Background(), dir, c.bootstrap())
	require.ErrorIs(t, err, eventlog.ErrCorrupt)
	require.ErrorContains(t, err, blocks[0])
	requireNothing(t, c.bootstrap().Dir)

	ctx, cancel := context.WithCancel(context.Background())
	f := c.bootstrap()
	f.Progress = func(int64, int64) { cancel() }
	require.NoError(t, os.WriteFile(blocks[0], whole, 0o600))
	_, err = founding.Import(ctx, dir, f)
	require.ErrorIs(t, err, context.Canceled)
	requireNothing(t, f.Dir)

	_, err = founding.Import(context.Background(), dir, c.bootstrap()) // as if nothing had been
	require.NoError(t, err)
	_, err = founding.Import(context.Background(), f.Dir, c.bootstrap())
	require.ErrorContains(t, err, "belongs to node 1 of a cluster")
	require.NoError(t, os.WriteFile(filepath.Join(f.Dir, replica.RestoreMarker), nil, 0o600))
	_, err = c.open(1)
	require.ErrorContains(t, err, replica.RestoreMarker)
}

func requireNothing(t *testing.T, dir string) {
	t.Helper()
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}
