package shard

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

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
