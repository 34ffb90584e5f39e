package shard

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal"
)

// memRecord is a record as the nodes of a group have it.
type memRecord struct {
	position uint64
	count    uint32
	payload  []byte
}

// memLog is a group's log in memory, as one node has it: decided elsewhere, with gaps between positions. Its owner
// hands records back by deliver.
type memLog struct {
	mu      sync.Mutex
	records []memRecord
	trimmed uint64 // Trim's
	durable uint64
	holds   map[string]uint64
}

func (l *memLog) add(position uint64, count uint32, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, memRecord{position, count, slices.Clone(payload)})
	l.durable = position
}

// from are the records from a position on.
func (l *memLog) from(position uint64) []memRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.records, position, func(r memRecord, p uint64) int {
		if r.position < p {
			return -1
		}
		return 1
	})
	return slices.Clone(l.records[i:])
}

// clone is a log that has the same.
func (l *memLog) clone() *memLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &memLog{records: slices.Clone(l.records), trimmed: l.trimmed, durable: l.durable}
}

func (l *memLog) Append(*wal.Record) error { return wal.ErrNotLeader }

func (l *memLog) Replay(from uint64, f func(uint64, uint32, []byte) error) error {
	l.mu.Lock()
	gone := from < l.trimmed
	l.mu.Unlock()
	if gone {
		return fmt.Errorf("%w: from %d on", wal.ErrMissing, from)
	}
	return l.Read(from, math.MaxUint64, f)
}

func (l *memLog) Read(from, to uint64, f func(uint64, uint32, []byte) error) error {
	for _, r := range l.from(from) {
		if r.position > to {
			return nil
		}
		if err := f(r.position, r.count, r.payload); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) Hold(name string, from uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == nil {
		l.holds = make(map[string]uint64)
	}
	l.holds[name] = from
}

// Trim lets go what nobody holds.
func (l *memLog) Trim(before uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, from := range l.holds {
		before = min(before, from)
	}
	l.trimmed = max(l.trimmed, before)
	l.records = slices.DeleteFunc(l.records, func(r memRecord) bool { return r.position < before })
	return nil
}

func (l *memLog) FirstPosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) == 0 {
		return l.durable + 1
	}
	return l.records[0].position
}

func (l *memLog) LastPosition() uint64 { return l.DurablePosition() }
func (l *memLog) DurablePosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

func (l *memLog) Bytes() int64                                     { return 0 }
func (l *memLog) Stalled() bool                                    { return false }
func (l *memLog) DiskFull() bool                                   { return false }
func (l *memLog) Close() error                                     { return nil }
func (l *memLog) Image(string, uint64, uint64) ([]wal.File, error) { return nil, nil }
func (r memRecord) record() *wal.Record {
	return &wal.Record{Position: r.position, Count: r.count, Data: append(make([]byte, wal.HeaderBytes), r.payload...)}
}

// deliver hands records back that were made elsewhere, some at a time.
func deliver(e *Engine, records []memRecord, atOnce int) {
	for some := range slices.Chunk(records, max(atOnce, 1)) {
		var batch []*wal.Record
		for _, r := range some {
			batch = append(batch, r.record())
		}
		e.Dispatch(batch)
	}
}

// testSecret is that of the groups of tests.
var testSecret = [32]byte{1, 2, 3}

func replicaOptions(fs vfs.FS, log Log, first, count int) ReplicaOptions {
	o := ReplicaOptions{
		Options: testOptions(fs), First: first, Count: count, Secret: testSecret, MayMake: true, Clock: &stamp.Clock{}, Carrier: &testMesh{},
		OpenLog:   func(*Replica) (Log, error) { return log, nil },
		Readdress: func([]byte) ([]byte, error) { return nil, errors.New("nobody is there") },
		FlushAll:  func() error { return errors.New("nobody is there") },
	}
	o.Workers = 1
	return o
}

func openGroupTest(t *testing.T, o ReplicaOptions) *Engine {
	t.Helper()
	e, err := openGroup(o)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// eventRecord is a record of events of users, by external id, all of them in partitions [first, first+count).
func eventRecord(stamp int64, first, count int, users ...string) []byte {
	h := identity.NewHasher(testSecret)
	var b op.Builder
	b.Reset(0)
	for _, user := range users {
		number := h.Number(1, op.ExternalID, []byte(user))
		if p := int(identity.Partition(number)); p < first || p >= first+count {
			continue
		}
		start := b.Begin()
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000, b.Intern([]byte("bought")), 0)
		b.Buf = append(b.Buf, user...)
		b.End(start, op.Event, op.MakeFlags(0, op.ExternalID), len(user), number)
	}
	if b.Count() == 0 {
		return nil
	}
	return b.Finish(1, 0, stamp)
}

func TestReplicaHoldsItsPartitions(t *testing.T) {
	fs, log := vfs.NewMem(), &memLog{}
	o := replicaOptions(fs, log, 16, 16)
	e := openGroupTest(t, o)
	require.Equal(t, 1, len(e.workers))
	var users []string
	h := identity.NewHasher(testSecret)
	for i := 0; len(users) < 40; i++ {
		if p := identity.Partition(h.Number(1, op.ExternalID, fmt.Append(nil, "u", i))); p >= 16 && p < 32 {
			users = append(users, fmt.Sprint("u", i))
		}
	}
	const rounds = 1000 // more than the window
	for i := range rounds {
		log.add(uint64(i+1)*65536+uint64(i%3), uint32(len(users)), eventRecord(int64(i+1)*1e6, 16, 16, users...))
	}
	check := func(e *Engine, want int) {
		t.Helper()
		for _, user := range users {
			require.Equal(t, want, eventCount(t, e, op.ExternalID, user, "bought"))
		}
	}
	all := log.from(0)
	deliver(e, all[:rounds/2], 7)
	require.NoError(t, e.WaitApplied(all[rounds/2-1].position))
	check(e, rounds/2)
	require.Equal(t, all[rounds/2-1].position, e.AppliedPosition())
	require.GreaterOrEqual(t, e.clock.Last(), int64(rounds/2)*1e6, "stamps are seen")
	e.Advance(all[rounds/2-1].position + 7)
	require.NoError(t, e.WaitApplied(all[rounds/2-1].position+7), "nothing lies there")

	require.NoError(t, e.Checkpoint())
	require.Equal(t, all[rounds/2-1].position+7, e.CheckpointedPosition())
	deliver(e, all[rounds/2:rounds/2+100], rounds)
	require.NoError(t, e.WaitApplied(all[rounds/2+99].position))
	require.NoError(t, e.Close())
	deliver(e, all[rounds/2+100:rounds/2+400], 1) // later than that is not its business
	require.Equal(t, all[rounds/2+100].position, log.FirstPosition(), "what the store has may go")

	e = openGroupTest(t, o)
	require.NoError(t, e.WaitApplied(all[rounds-1].position))
	check(e, rounds)
	deliver(e, all[rounds-300:], 300) // again
	require.NoError(t, e.WaitApplied(all[rounds-1].position))
	check(e, rounds)
	require.NoError(t, e.Close())

	o.Secret = [32]byte{9}
	_, err := openGroup(o)
	require.ErrorIs(t, err, store.ErrStore, "another cluster's")
	o.Secret, o.Dir = testSecret, "elsewhere"
	_, err = openGroup(o)
	require.ErrorIs(t, err, wal.ErrMissing, "an empty store, and a log that doesn't begin at its beginning")
}

// What can't be applied fails the engine, and nothing else.
// A checkpoint that begins when all up to a position is applied comes to that position, although the worker has got more
// to do meanwhile and the position is no record's.
func TestCheckpointReachesWhatIsApplied(t *testing.T) {
	log := &memLog{}
	e := openGroupTest(t, replicaOptions(vfs.NewMem(), log, 0, 256))
	w := e.workers[0]
	for i := range uint64(2) {
		log.add((i+1)*65536, 1, eventRecord(int64(i+1)*1e6, 0, 256, "u"))
	}
	deliver(e, log.from(0)[:1], 1)
	end := uint64(65536 + 7)
	e.Advance(end)
	require.NoError(t, e.WaitApplied(end))

	w.mu.Lock()
	deliver(e, log.from(0)[1:], 1)
	require.Eventually(t, func() bool { // the worker has the second record, and waits for its lock
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		return w.queue.busy
	}, time.Minute, time.Millisecond)
	w.catchUp()
	applied := w.applied
	w.mu.Unlock()
	require.Equal(t, end, applied)
}

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
			e := openGroupTest(t, replicaOptions(vfs.NewMem(), &memLog{}, 0, 2))
			r := memRecord{position: 65536, count: 1, payload: data}.record()
			if data == nil {
				r.Data = nil
			}
			e.Dispatch([]*wal.Record{r})
			require.ErrorIs(t, e.WaitApplied(65536), ErrFailed)
			require.ErrorIs(t, e.Failed(), op.ErrMalformed)
			e.Dispatch([]*wal.Record{r, r})
			require.ErrorIs(t, e.Close(), ErrFailed)
		})
	}
}

// Replicas of one process share caches, and cost little while they are empty.
func TestReplicasShareACache(t *testing.T) {
	cache := store.NewCache(8<<20, 100)
	defer cache.Close()
	before := runtime.NumGoroutine()
	var engines []*Engine
	for i := range 17 {
		o := replicaOptions(vfs.NewMem(), &memLog{}, max(i-1, 0)*16, 16)
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
