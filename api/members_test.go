package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/census"
	"millrace/api/ratelimit"
	"millrace/api/store"
	"millrace/loadtest/testaddr"
	"millrace/shard"
	"millrace/shard/cluster"
	"millrace/shard/cluster/facts"
	"millrace/wal/quorum"
)

// members is how many nodes openEngine starts: the whole suite runs on a cluster with MILLRACE_NODES=3 go test ./api,
// each request at any node. Without it, a part does (TestOnACluster).
var members = func() int {
	n, _ := strconv.Atoi(os.Getenv("MILLRACE_NODES"))
	return n
}()

// clusterPatience is how long a cluster has to come up. Nothing depends on how fast it is.
const clusterPatience = 4 * time.Minute

// calm is how long nodes wait for one another: on a machine that has other work one may say nothing for seconds.
const calm = 15 * time.Second

// aloneOnly skips what looks behind the door at a single engine.
func aloneOnly(t *testing.T) {
	if members > 1 {
		t.Skip("it is about one node")
	}
}

// TestOnACluster is the API on three nodes, as it is on one: the same tests. Here are those that go through all of the
// API, and those of what two nodes may do at the same time; MILLRACE_NODES=3 runs all.
func TestOnACluster(t *testing.T) {
	if members > 1 {
		t.Skip("all tests run so")
	}
	members = 3
	t.Cleanup(func() { members = 0 }) // when the last of them has ended
	for i, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"EndToEnd", TestEndToEnd},
		{"RequestExamplesWork", TestRequestExamplesWork},
		{"PermissionMatrix", TestPermissionMatrix},
		{"IdempotencyOnTheEngine", TestIdempotencyOnTheEngine},
		{"UnmetOperators", TestUnmetOperators},
		{"ExternalIDs", TestExternalIDs},
		{"MergeUsers", TestMergeUsers},
		{"ConcurrentSetsConverge", TestConcurrentSetsConverge},
		{"SCIMConcurrentCreation", TestSCIMConcurrentCreation},
		{"SCIMConcurrentMembers", TestSCIMConcurrentMembers},
		{"PreferenceCenterConcurrency", TestPreferenceCenterConcurrency},
		{"Census", TestCensus},
		{"LinkAfterARestart", TestLinksAfterARestart},
	} {
		if i < 2 || !testing.Short() {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel() // most of the time a cluster starts, and waits
				test.run(t)
			})
		}
	}
}

// ports keeps the addresses of a cluster's nodes from start to start: they are a part of it.
var ports sync.Map // data directory → map[quorum.Node]string

func addressesOf(t *testing.T, dir string) map[quorum.Node]string {
	if list, ok := ports.Load(dir); ok {
		return list.(map[quorum.Node]string)
	}
	list := map[quorum.Node]string{}
	for node := range quorum.Node(members) {
		list[node+1] = testaddr.Free(t)
	}
	ports.Store(dir, list)
	return list
}

// openCluster is openEngine of several nodes.
func openCluster(t *testing.T, dir string, edit []func(*Options)) *door {
	addresses := addressesOf(t, dir)
	doors, nodes, errs := make([]*door, members), make([]*cluster.Node, members), make([]error, members)
	served, edits := make([]chan error, members), make([][]func(*Options), members)
	closing := func() {
		var group sync.WaitGroup
		for _, n := range nodes {
			if n != nil {
				group.Go(func() { _ = n.Close() })
			}
		}
		group.Wait()
	}
	var group sync.WaitGroup
	for i := range members {
		d := newDoor(t)
		doors[i] = d
		self := quorum.Node(i + 1)
		var limiter atomic.Pointer[ratelimit.Limiter]
		var counter atomic.Pointer[census.Counter]
		o := cluster.Options{
			Plan: facts.Plan{Node: self, Dir: filepath.Join(dir, fmt.Sprint(self)), Members: addresses, Groups: 3, Replicas: 2}, Listen: addresses[self],
			Quorum: quorum.Options{HeartbeatTimeout: calm, MinFreeBytes: -1, MinFreePercent: -1, SegmentBytes: 1 << 20, DiskTimeout: -1},
			Engine: shard.Options{MemoryBytes: 64 << 20, StoreCacheBytes: 4 << 20, StoreMemTableBytes: 1 << 20, Tap: d.live}, PingInterval: 100 * time.Millisecond,
			// A busy machine is no reason to give up.
			PingTimeout: calm, DialTimeout: calm, CommitTimeout: clusterPatience, BarrierTimeout: clusterPatience, LeaderWait: clusterPatience, SpreadTimeout: clusterPatience,
			CloseTimeout: 1, // all end at once: there is nobody to hand over to
			OnDocument:   d.control.Apply, Logger: d.logger(),
			Services: map[string]func([]byte) ([]byte, error){
				"ratelimit": func(body []byte) ([]byte, error) {
					if l := limiter.Load(); l != nil {
						return l.Serve(body)
					}
					return nil, errors.New("not open yet")
				},
				"census": func(body []byte) ([]byte, error) {
					if c := counter.Load(); c != nil {
						return c.Serve(body)
					}
					return nil, errors.New("not open yet")
				},
			},
		}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), clusterPatience)
			defer cancel()
			n, err := cluster.Open(ctx, o)
			if errs[i] = err; err != nil {
				return
			}
			nodes[i] = n
			limiter.Store(ratelimit.NewLimiter(n.Service("ratelimit"), systemClock))
			c, err := census.New(census.Options{Store: n.Coordinator(), Share: 1, Peers: n.Service("census"), Logger: d.logger()})
			counter.Store(c)
			d.control.Start(store.Control(n.Coordinator()))
			errs[i] = eventually(func() error { return errors.Join(err, settled(n), d.bootstrap()) })
		})
		edits[i] = append([]func(*Options){func(o *Options) { o.Limiter, d.operator.Census = limiter.Load(), counter.Load() }}, edit...)
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		closing()
		require.NoError(t, err, doors[0].logged())
	}
	for i, d := range doors {
		if i > 0 { // requests have the first one's Host, whomever they are sent to, so that links do
			edits[i] = append(edits[i], func(o *Options) { o.PublicHosts = append(slices.Clip(o.PublicHosts), doors[0].addr) })
		}
		served[i] = d.openDoor(store.Engine(nodes[i].Coordinator()), edits[i])
	}
	first := doors[0]
	first.others = doors[1:]
	first.endBy(func() {
		for i, d := range doors {
			group.Go(func() { d.closeDoor(served[i]) })
		}
		group.Wait()
		for _, d := range doors {
			require.NoError(t, d.control.FlushUsage())
			if d.operator.Census != nil {
				require.NoError(t, d.operator.Census.Close())
			}
		}
		closing()
	})
	return first
}

func eventually(f func() error) (err error) {
	for end := time.Now().Add(clusterPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			break
		}
	}
	return err
}

// settled is nil when all groups are served, and led by the nodes that are to lead them: a request that is under way
// while a group is handed over may get a 503.
func settled(n *cluster.Node) error {
	if err := n.Ready(); err != nil {
		return err
	}
	status, err := n.Operator().Status(context.Background())
	for _, g := range append(status.Groups, status.Control) {
		if g.Leader == 0 || g.Doing != "" || g.Problem != "" {
			return fmt.Errorf("group %d: leader %d, %s %s", g.Group, g.Leader, g.Doing, g.Problem)
		}
	}
	return err
}
