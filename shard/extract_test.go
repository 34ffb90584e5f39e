package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/store"
	"millrace/wal/memlog"
)

// A store is taken apart after a crash in the midst of merges. The parts together have everything that the whole had,
// each piece in its place.
func TestExtract(t *testing.T) {
	seed := testseed.Of(t)
	for round := range uint64(testsize.Of(4, 2, 1)) {
		r := rand.New(rand.NewPCG(seed, round))
		fs := vfs.NewCrashableMem()
		e := openTest(t, crashOptions(fs, r))
		s := &sent{toNumber: map[uint64]int64{}, toAlias: map[string]int64{}, aliases: map[string]bool{}, byName: map[string]int64{}, users: 12}
		s.importUsers(t, e, 12)
		s.makeUsers(t, e, "more", 30)
		require.NoError(t, e.PutDocuments(7, []bodies.DocumentChange{{Key: "ws/1", Doc: []byte("one")}, {Key: "cluster/node/1", Doc: []byte("old")}}, []byte("entry 1")))
		require.NoError(t, e.PutDocuments(8, nil, []byte("entry 2")))
		commitAs(t, e, op.SourceAdmin, func(b *Batch) {
			b.SetAddressStates(op.Email, []byte("m1@example.com"), profile.State{Kind: profile.StateEmail, Value: "unsubscribed"})
		})
		var running sync.WaitGroup
		for c := range 4 {
			x := &mergeClient{sent: s, e: e, name: fmt.Sprint(c), r: rand.New(rand.NewPCG(r.Uint64(), uint64(c)))}
			running.Go(func() {
				for range 15 {
					if err := x.request(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		testengine.Within(t, time.Minute, "clients", running.Wait)
		s.storm(t, e, r)
		before := e
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(seed, 1))})
		o := crashOptions(fs, r)
		o.SweepInterval = time.Hour
		e = openTest(t, o)
		require.NoError(t, before.Close())

		require.NoError(t, e.Settle(context.Background()))
		s.check(t, e)
		require.NoError(t, e.Checkpoint())
		groups := []int{1, 4, 5, testsize.Short(256, 5)}[r.IntN(4)] // one after the other: more of them are the same again
		position := e.AppliedPosition() + uint64(r.IntN(1000))
		reported := 0
		fs = requireExtracted(t, fs, e, groups, position, func(uint8) { reported++ })
		require.Equal(t, identity.Partitions+1, reported)
		err := e.Extract(context.Background(), replica.Extract{FS: fs, Dir: "parts/1", Count: 1, Position: position})
		require.ErrorContains(t, err, "not empty")
		err = e.Extract(context.Background(), replica.Extract{FS: fs, Dir: "parts/late", Count: 1, Position: e.AppliedPosition() - 1})
		require.ErrorContains(t, err, "ahead")
		require.NoError(t, e.Close())
	}
}

// requireExtracted extracts so many groups and a control group, loses power, and compares. It returns the file system
// that is left.
func requireExtracted(t *testing.T, fs *vfs.MemFS, e *Engine, groups int, position uint64, progress func(uint8)) *vfs.MemFS {
	ctx := context.Background()
	bounds := func(g int) int { return g * identity.Partitions / groups }
	for g := range groups {
		require.NoError(t, e.Extract(ctx, replica.Extract{FS: fs, Dir: path.Join("parts", fmt.Sprint(g+1)), First: bounds(g), Count: bounds(g+1) - bounds(g),
			Position: position, Progress: progress}))
	}
	require.NoError(t, e.Extract(ctx, replica.Extract{FS: fs, Dir: "parts/0", Count: 1, Control: true, WithoutDocuments: "cluster/",
		Documents: map[string][]byte{"cluster/node/2": []byte("new")}, Position: position, Progress: progress}))
	fs = fs.CrashClone(vfs.CrashCloneCfg{})

	open := func(g, first, count int, documents map[string]string) *Engine {
		o := replicaOptions(fs, memlog.After(position), first, count)
		o.Dir, o.Secret = path.Join("parts", fmt.Sprint(g)), e.Secret()
		o.OnDocument = func(key string, doc []byte) { documents[key] = string(doc) }
		part := openGroupTest(t, o)
		require.GreaterOrEqual(t, part.clock.Last(), e.clock.Last(), "stamps go on")
		return part
	}
	documents := map[string]string{}
	control := open(0, 0, 1, documents)
	delete(documents, renamedKey(1)) // which there is when one was renamed
	require.Equal(t, map[string]string{"ws/1": "one", "cluster/node/2": "new"}, documents)
	require.Equal(t, auditOf(t, e, 1), auditOf(t, control, 1))
	entries, err := control.VerifyAudit()
	require.NoError(t, err)
	require.EqualValues(t, 2, entries)
	require.Equal(t, 4, keysOf(t, control, 0), "two entries of the audit log, its end, a position, and nothing else")
	require.NoError(t, control.Close())

	for g := range groups {
		documents := map[string]string{}
		part := open(g+1, bounds(g), bounds(g+1)-bounds(g), documents)
		require.Empty(t, documents)
		if g == 0 {
			seq, _ := part.AuditEnd()
			require.Zero(t, seq)
		}
		for p := bounds(g); p < bounds(g+1); p++ {
			requireSamePartition(t, e, part, uint8(p))
		}
		require.NoError(t, part.Close())
	}
	return fs
}

func keysOf(t *testing.T, e *Engine, p uint8) (n int) {
	lower, upper := store.Bounds(p)
	require.NoError(t, e.Store().Scan(lower, upper, func(k, v []byte) error { n++; return nil }))
	return n
}

// requireSamePartition compares everything that the stores of two engines have of a partition, apart from its position
// and the audit log.
func requireSamePartition(t *testing.T, a, b *Engine, p uint8) {
	t.Helper()
	dump := func(e *Engine) map[string]string {
		all := map[string]string{}
		lower, upper := store.Bounds(p)
		require.NoError(t, e.Store().Scan(lower, upper, func(k, v []byte) error {
			if len(k) > 9 {
				switch k[9] {
				case store.BookAudit, store.BookAuditEnd, store.BookDropped, store.BookNoted:
					return nil
				case store.BookApplied:
					v = v[8:]
				}
			}
			all[string(k)] = string(v)
			return nil
		}))
		return all
	}
	want, got := dump(a), dump(b)
	require.Equal(t, want, got, "partition %d", p)
	for k, v := range want {
		if len(k) == 9 {
			blob, err := b.Entry(binary.BigEndian.Uint64([]byte(k[1:])))
			require.NoError(t, err)
			require.Equal(t, v, string(blob))
		}
	}
}
