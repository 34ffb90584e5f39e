package shard

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/shard/store"
	"millrace/wal"
	"millrace/wal/memlog"
)

// deliver gives an engine records that were made elsewhere, some at a time.
func deliver(e *Engine, records []memlog.Record, atOnce int) {
	for some := range slices.Chunk(records, max(atOnce, 1)) {
		var batch []*wal.Record
		for _, r := range some {
			batch = append(batch, r.Handed())
		}
		e.Dispatch(batch)
	}
}

// testSecret is the secret of the groups in tests.
var testSecret = [32]byte{1, 2, 3}

func replicaOptions(fs vfs.FS, log replica.Log, first, count int) replica.Options {
	o := replica.Options{
		EngineOptions: testOptions(fs), First: first, Count: count, Secret: testSecret, MayMake: true, Carrier: &testMesh{},
		OpenLog:   func(*replica.Replica) (replica.Log, error) { return log, nil },
		Readdress: func([]byte) ([]byte, error) { return nil, errors.New("nobody is there") },
		FlushAll:  func() error { return errors.New("nobody is there") },
	}
	o.Workers = 1
	return o
}

func openGroupTest(t *testing.T, o replica.Options) *Engine {
	t.Helper()
	e, err := openGroup(o)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// eventRecord is a record of events for users by external id, all of them in partitions [first, first+count).
func eventRecord(stamp int64, first, count int, users ...string) []byte {
	h := identity.NewHasher(testSecret)
	var b op.Builder
	b.Reset(0)
	for _, user := range users {
		number := h.Number(1, op.ExternalID, []byte(user))
		if p := int(identity.Partition(number)); p < first || p >= first+count {
			continue
		}
		start := testengine.BeginEvent(&b, "bought")
		b.Buf = append(b.Buf, user...)
		b.End(start, op.Event, op.MakeFlags(0, op.ExternalID), len(user), number)
	}
	if b.Count() == 0 {
		return nil
	}
	return b.Finish(1, 0, stamp)
}

func TestReplicaHoldsItsPartitions(t *testing.T) {
	fs, log := vfs.NewMem(), &memlog.Log{}
	o := replicaOptions(fs, log, 16, 16)
	e := openGroupTest(t, o)
	var users []string
	h := identity.NewHasher(testSecret)
	for i := 0; len(users) < 40; i++ {
		if p := identity.Partition(h.Number(1, op.ExternalID, fmt.Append(nil, "u", i))); p >= 16 && p < 32 {
			users = append(users, fmt.Sprint("u", i))
		}
	}
	const rounds = 1000 // more than the window
	for i := range rounds {
		log.Add(uint64(i+1)*65536+uint64(i%3), uint32(len(users)), eventRecord(int64(i+1)*1e6, 16, 16, users...))
	}
	check := func(e *Engine, want int) {
		t.Helper()
		for _, user := range users {
			require.Equal(t, want, eventCount(t, e, op.ExternalID, user, "bought"))
		}
	}
	all := log.From(0)
	deliver(e, all[:rounds/2], 7)
	require.NoError(t, e.WaitApplied(all[rounds/2-1].Position))
	check(e, rounds/2)
	require.Equal(t, all[rounds/2-1].Position, e.AppliedPosition())
	require.GreaterOrEqual(t, e.clock.Last(), int64(rounds/2)*1e6, "stamps are seen")
	e.Advance(all[rounds/2-1].Position + 7)
	require.NoError(t, e.WaitApplied(all[rounds/2-1].Position+7), "nothing lies there")

	require.NoError(t, e.Checkpoint())
	require.Equal(t, all[rounds/2-1].Position+7, e.CheckpointedPosition())
	deliver(e, all[rounds/2:rounds/2+100], rounds)
	require.NoError(t, e.WaitApplied(all[rounds/2+99].Position))
	require.NoError(t, e.Close())
	deliver(e, all[rounds/2+100:rounds/2+400], 1) // later than that is not its business
	require.Equal(t, all[rounds/2+100].Position, log.FirstPosition(), "what the store has may go")

	e = openGroupTest(t, o)
	require.NoError(t, e.WaitApplied(all[rounds-1].Position))
	check(e, rounds)
	deliver(e, all[rounds-300:], 300) // again
	require.NoError(t, e.WaitApplied(all[rounds-1].Position))
	check(e, rounds)
	require.NoError(t, e.Close())

	o.Secret = [32]byte{9}
	_, err := openGroup(o)
	require.ErrorIs(t, err, store.ErrStore, "another cluster's")
	o.Secret, o.Dir = testSecret, "elsewhere"
	_, err = openGroup(o)
	require.ErrorIs(t, err, wal.ErrMissing, "an empty store, and a log that doesn't begin at its beginning")
}

// A record that can't be applied fails the engine, and nothing else.
func TestReplicaRefusesMalformedRecords(t *testing.T) {
	resume := func() []byte { // with a body that ends too early for apply
		var b op.Builder
		b.Reset(0)
		b.Append(op.Resume, 0, 1<<56|1, []byte{1, 2, 3}, nil)
		return b.Finish(1, 0, 1)
	}()
	elsewhere := eventRecord(1, 0, 256, "u1", "u2", "u3", "u4", "u5", "u6")
	for name, data := range map[string][]byte{
		"cut short": elsewhere[:len(elsewhere)-3], "of another group": elsewhere, "without a record": nil, "body": resume,
	} {
		t.Run(name, func(t *testing.T) {
			e := openGroupTest(t, replicaOptions(vfs.NewMem(), &memlog.Log{}, 0, 2))
			r := memlog.Record{Position: 65536, Count: 1, Payload: data}.Handed()
			if data == nil {
				r.Data = nil
			}
			e.Dispatch([]*wal.Record{r})
			require.ErrorIs(t, e.WaitApplied(65536), replica.ErrFailed)
			require.ErrorIs(t, e.Failed(), op.ErrMalformed)
			e.Dispatch([]*wal.Record{r, r})
			require.ErrorIs(t, e.Close(), replica.ErrFailed)
		})
	}
}

// Replicas of one process share caches and cost little while they are empty.
func TestReplicasShareACache(t *testing.T) {
	cache := store.NewCache(8<<20, 1<<20, 100)
	defer cache.Close()
	before := runtime.NumGoroutine()
	var engines []*Engine
	for i := range 17 {
		o := replicaOptions(vfs.NewMem(), &memlog.Log{}, max(i-1, 0)*16, 16)
		o.Dir, o.StoreCache = fmt.Sprint(i), cache
		e, err := openGroup(o)
		require.NoError(t, err)
		engines = append(engines, e)
	}
	t.Logf("17 replicas have %d goroutines", runtime.NumGoroutine()-before)
	for _, e := range engines {
		require.NoError(t, e.Close())
	}
}
