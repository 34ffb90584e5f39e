package shard

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/books"
	"millrace/shard/replica"
	"millrace/shard/store"
)

// world is where a test's requests go: an engine alone, or a cluster.
type world interface {
	engine() *Engine // for the next request; everything that was acknowledged can be read
	disturb()        // a restart, a crash, another leader; nothing is under way
	// interrupt has a request sent while something of that kind happens. Whether the request has an effect is unknown.
	interrupt(send func(e *Engine) error)
	close()
}

// aloneWorld is an engine alone.
type aloneWorld struct {
	t       *testing.T
	fs      *vfs.MemFS
	r       *rand.Rand
	options func(fs vfs.FS) replica.EngineOptions
	e       *Engine
	cut     *cutter
}

func openAlone(t *testing.T, r *rand.Rand, options func(fs vfs.FS) replica.EngineOptions) *aloneWorld {
	w := &aloneWorld{t: t, fs: vfs.NewCrashableMem(), r: r, options: options}
	w.open()
	return w
}

func (w *aloneWorld) open() {
	w.cut = &cutter{fs: w.fs, how: w.crash()}
	w.e = openTest(w.t, w.options(errorfs.Wrap(w.fs, w.cut)))
}

// crash draws the share of unsynced data that a crash leaves on the disk.
func (w *aloneWorld) crash() vfs.CrashCloneCfg {
	return vfs.CrashCloneCfg{UnsyncedDataPercent: w.r.IntN(101), RNG: rand.New(rand.NewPCG(w.r.Uint64(), 1))}
}

func (w *aloneWorld) engine() *Engine { return w.e }

// cutter loses power just before one of the next syncs of the log: the left-th from now on.
type cutter struct {
	fs    *vfs.MemFS
	how   vfs.CrashCloneCfg
	left  atomic.Int64
	image atomic.Pointer[vfs.MemFS] // the disk as it was then
}

func (c *cutter) String() string { return "power is lost" }

func (c *cutter) MaybeError(o errorfs.Op) error {
	switch o.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		if strings.Contains(o.Path, "/log/") && c.left.Add(-1) == 0 {
			c.image.Store(c.fs.CrashClone(c.how))
		}
	}
	return nil
}

// interrupt loses power before one of the syncs that the request needs, or behind all of them.
func (w *aloneWorld) interrupt(send func(e *Engine) error) {
	before, cut := w.e, w.cut
	cut.left.Store(int64(1 + w.r.IntN(6)))
	require.NoError(w.t, send(before))
	if w.fs = cut.image.Load(); w.fs == nil {
		w.fs = cut.fs.CrashClone(cut.how)
	}
	cut.left.Store(0)
	require.NoError(w.t, before.Close())
	w.open() // last: who sends again is faster than what the engine takes up
}

func (w *aloneWorld) disturb() {
	switch w.r.IntN(3) {
	case 0:
		require.NoError(w.t, w.e.Close())
		w.open()
	case 1:
		before := w.e
		w.fs = w.fs.CrashClone(w.crash())
		w.open()
		require.NoError(w.t, before.Close())
	default:
		require.NoError(w.t, w.e.Checkpoint())
	}
}

func (w *aloneWorld) close() { require.NoError(w.t, w.e.Close()) }

// clusterWorld is a cluster: each request goes to any node.
type clusterWorld struct{ *testCluster }

func (w clusterWorld) engine() *Engine {
	e := w.nodes[w.intN(len(w.nodes))].coord
	require.NoError(w.t, e.Barrier())
	return e
}

func (w clusterWorld) disturb() {
	for range 1 + w.intN(3) {
		w.testCluster.disturb()
	}
}

// interrupt has the cluster disturbed and calls fail until the request is sent.
func (w clusterWorld) interrupt(send func(e *Engine) error) {
	e := w.engine()
	w.faulty.Store(true)
	stop := w.disturbing(3 * time.Millisecond)
	_ = send(e)
	stop()
	w.faulty.Store(false)
}

// close compares the replicas with one another, since apply is a pure function.
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
			require.NoError(w.t, e.Store().Scan([]byte("c"), []byte("f"), func(k, v []byte) error {
				if len(k) > 9 && k[0] == 'e' && (k[9] == store.BookOutbox || k[9] == store.BookDeferred) { // until the next checkpoint
					return nil
				}
				if len(k) > 9 && k[0] == 'e' && k[9] == store.BookApart && books.ApartReason(v[0]) != books.ApartElsewhere {
					return nil
				}
				if len(k) > 9 && k[0] == 'e' && k[9] == store.BookApplied {
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
