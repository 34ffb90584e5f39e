package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal"
)

// paperLog is a group's log as one node has it. Its records are decided elsewhere, each in an entry of its own.
type paperLog struct {
	mu      sync.Mutex
	records []paperRecord
	first   uint64 // all records from this position on are there
	durable uint64
	holds   map[string]uint64
}

type paperRecord struct {
	position uint64
	count    uint32
	payload  []byte
}

func (l *paperLog) Append(*wal.Record) error { return wal.ErrNotLeader }

func (l *paperLog) Replay(from uint64, f func(uint64, uint32, []byte) error) error {
	return l.Read(from, math.MaxUint64, f)
}

func (l *paperLog) Read(from, to uint64, f func(uint64, uint32, []byte) error) error {
	l.mu.Lock()
	first, records := l.first, l.records
	l.mu.Unlock()
	if from < first {
		return fmt.Errorf("%w: from %d on, the log begins at %d", wal.ErrMissing, from, first)
	}
	for _, r := range records {
		if r.position >= from && r.position <= to {
			if err := f(r.position, r.count, r.payload); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *paperLog) Hold(name string, from uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[name] = from
}

func (l *paperLog) Trim(before uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, from := range l.holds {
		before = min(before, from)
	}
	if before = min(before, l.durable+1); before > l.first {
		l.first = before
		l.records = slices.DeleteFunc(slices.Clone(l.records), func(r paperRecord) bool { return r.position < before })
	}
	return nil
}

func (l *paperLog) FirstPosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *paperLog) DurablePosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

func (l *paperLog) LastPosition() uint64 { return l.DurablePosition() }
func (l *paperLog) Bytes() int64         { return 0 }
func (l *paperLog) Stalled() bool        { return false }
func (l *paperLog) DiskFull() bool       { return false }
func (l *paperLog) Close() error         { return nil }
func (l *paperLog) Image(string, uint64, uint64) ([]wal.File, error) {
	return nil, errors.New("not of a replica")
}

// heldGroup is a group's engine with its event log, as a node has them.
type heldGroup struct {
	node
	log *paperLog
	fs  vfs.FS
}

const replicaPartitions = 64

// oneGroup is a cluster of one node, with one replica.
type oneGroup struct {
	shard.Nodes
	r *replica.Replica
}

func (o *oneGroup) GroupOf(uint8) int               { return 1 }
func (o *oneGroup) Local(uint8) *replica.Replica    { return o.r }
func (o *oneGroup) Control() *replica.Replica       { return o.r }
func (o *oneGroup) Deliver([]replica.Message) error { return replica.ErrUnavailable }

// openReplica opens the replica in a directory, on a log that begins at a position. With byHand only the test packs
// events.
func openReplica(fs vfs.FS, first, durable uint64, byHand ...bool) (*heldGroup, error) {
	interval := time.Millisecond
	if len(byHand) > 0 {
		interval = time.Hour
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	log := &paperLog{first: first, durable: durable, holds: map[string]uint64{}}
	secret, clock, nodes := [32]byte{7}, &stamp.Clock{}, &oneGroup{}
	r, err := replica.Open(replica.Options{
		EngineOptions: replica.EngineOptions{
			FS: fs, Dir: "group", Workers: 1, MemoryBytes: 16 << 20, StoreCacheBytes: 1 << 20, StoreMemTableBytes: 1 << 20, CheckpointInterval: 10 * time.Millisecond,
			Logger: quiet, Clock: clock,
		},
		Count: replicaPartitions, Secret: secret, MayMake: true, Carrier: nodes,
		OpenLog:   func(*replica.Replica) (replica.Log, error) { return log, nil },
		Readdress: func([]byte) ([]byte, error) { return nil, replica.ErrUnavailable },
		FlushAll:  func() error { return replica.ErrUnavailable },
	})
	if err != nil {
		return nil, err
	}
	nodes.r = r
	e := &engine{shard.NewCoordinator(shard.CoordinatorOptions{Secret: secret, Clock: clock, Nodes: nodes}), r}
	l, err := eventlog.Open(e.Replica, eventlog.Options{
		FS: fs, Dir: fs.PathJoin("group", "events"), Group: "1", Interval: interval, BlockBytes: 4 << 10, PackAfter: 10 * time.Millisecond, MaxDuty: 1,
		DeleteWithin: 40 * time.Millisecond, Logger: quiet, Retention: 100 * 365 * 24 * time.Hour,
	})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &heldGroup{node{e, l}, log, fs}, nil
}

func mustOpenReplica(t *testing.T, fs vfs.FS, first, durable uint64) *heldGroup {
	t.Helper()
	r, err := openReplica(fs, first, durable)
	require.NoError(t, err)
	return r
}

// hand gives the engine records of the group.
func (r *heldGroup) hand(records []paperRecord) {
	for _, x := range records {
		r.log.mu.Lock()
		r.log.records, r.log.durable = append(r.log.records, x), x.position
		r.log.mu.Unlock()
		r.e.Dispatch([]*wal.Record{{Position: x.position, Count: x.count, Data: append(make([]byte, wal.HeaderBytes), x.payload...)}})
	}
}

// shows is what the event log gives out, in order, when the engine has applied up to a position.
func (r *heldGroup) shows(t *testing.T, position uint64) (events []string) {
	t.Helper()
	require.NoError(t, r.e.WaitApplied(position))
	require.NoError(t, r.l.Export(context.Background(), eventlog.Query{}, func(e *event.Event) error {
		events = append(events, fmt.Sprintf("%s %s %x", e.AppendID(nil), e.Key, e.Number))
		return nil
	}))
	slices.Sort(events)
	return events
}

// alike requires that two stores hold the same.
func alike(t *testing.T, want, got map[string]string, what any) {
	t.Helper()
	wrong := 0
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[k]; (!ok || v != want[k]) && wrong < 5 {
			wrong++
			t.Errorf("%v: %q is %q instead of %q", what, k, v, want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok && wrong < 10 {
			wrong++
			t.Errorf("%v: %q is there: %q", what, k, got[k])
		}
	}
	if wrong > 0 {
		t.FailNow()
	}
}

// store is what the store of a closed replica holds, without its positions and their times.
func (r *heldGroup) store(t *testing.T) map[string]string {
	t.Helper()
	merger := &pebble.Merger{Name: "millrace.delta.1", Merge: pebble.DefaultMerger.Merge} // the same operands are the same
	db, err := pebble.Open("group/state", &pebble.Options{FS: r.fs, ReadOnly: true, FormatMajorVersion: pebble.FormatNewest, Logger: silent{}, Merger: merger})
	require.NoError(t, err)
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	all := map[string]string{}
	for ok := it.First(); ok; ok = it.Next() {
		k, v := string(it.Key()), string(it.Value())
		switch {
		case k == "sstamp", k == "spacked":
			continue
		case len(k) == 26 && k[9] == 'x': // events without effect, until they are packed
			continue
		case len(k) == 10 && k[9] == 'a': // the applied position
			v = v[8:]
		}
		all[k] = v
	}
	require.NoError(t, errors.Join(it.Close(), db.Close()))
	return all
}

type silent struct{}

func (silent) Infof(string, ...any)      {}
func (silent) Errorf(string, ...any)     {}
func (silent) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// paperRecords are requests for users of the group: events, addresses, events without effect, and users who are tracked
// and then deleted.
func paperRecords(r *rand.Rand, n int) (records []paperRecord) {
	h := identity.NewHasher([32]byte{7})
	user := func(prefix string) (key []byte, number uint64) {
		for {
			key = fmt.Appendf(nil, "%s%d", prefix, r.IntN(1000))
			if number = h.Number(1, op.ExternalID, key); identity.Partition(number) < replicaPartitions {
				return key, number
			}
		}
	}
	var doomed []uint64
	dead := map[uint64]bool{}
	for i := range n {
		var b op.Builder
		b.Reset(0)
		event := func(key []byte, number uint64, flags op.Flags) {
			start := b.Begin()
			b.Buf = op.AppendEventBody(b.Buf)
			op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000+int64(i), b.Intern(fmt.Appendf(nil, "e%d", r.IntN(5))), 0)
			b.Buf = append(b.Buf, key...)
			b.End(start, op.Event, op.MakeFlags(flags, op.ExternalID), len(key), number)
		}
		for range 1 + r.IntN(5) {
			key, number := user("u")
			event(key, number, 0)
		}
		switch key, number := user("m"); r.IntN(4) {
		case 0:
			ghost, at := user("ghost")
			event(ghost, at, op.UpdateOnly)
		case 1:
			u, at := user("u")
			body := op.AppendString([]byte{op.AttrFirstName}, fmt.Appendf(nil, "name %d", i))
			b.Append(op.Attributes, op.MakeFlags(0, op.ExternalID), at, body, u)
		case 2:
			if !dead[number] {
				event(key, number, 0)
				doomed, dead[number] = append(doomed, number), true
			}
		case 3:
			if len(doomed) > 0 { // both numbers of a user who was never deleted before are the same
				body := binary.LittleEndian.AppendUint64(nil, doomed[0])
				body = append(append(body, byte(bodies.ByProfile)), make([]byte, 24)...)
				body = binary.LittleEndian.AppendUint64(body, doomed[0])
				body = append(append(body, byte(bodies.ByIdentifier)), make([]byte, 24)...)
				b.Append(op.Delete, op.MakeFlags(0, op.SvcID), doomed[0], body, nil)
				doomed = doomed[1:]
			}
		}
		payload := b.Finish(1, 0, 1_700_000_000_000_000+int64(i)*1000)
		records = append(records, paperRecord{uint64(i+3) << 16, uint32(b.Count()), payload})
	}
	return records
}

// endOf is the last position of a record's entry.
func endOf(r paperRecord) uint64 { return r.position | 0xffff }

// A replica that goes on all the time sends its state to one that has fallen behind. That one goes on from there, and
// both come to the same state.
func TestSendUnderLoad(t *testing.T) {
	r := testseed.Rand(t)
	records := paperRecords(r, testsize.Short(1500, 600))
	n := len(records)
	sender := mustOpenReplica(t, vfs.NewMem(), 1, 0)
	receiver := mustOpenReplica(t, vfs.NewMem(), 1, 0)
	receiver.hand(records[:n/10])
	sender.hand(records[:n/3])
	for round := range 3 {
		from, to := n*(2+round)/6, n*(3+round)/6
		var load sync.WaitGroup
		load.Go(func() { sender.hand(records[from:to]) })
		time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
		at := records[from-1]
		if i, _ := slices.BinarySearchFunc(records, sender.log.DurablePosition(), func(x paperRecord, p uint64) int { return int(x.position>>16) - int(p>>16) }); i > from {
			at = records[i-1] // the last may not have been dispatched yet
		}
		var archive bytes.Buffer
		require.NoError(t, Send(context.Background(), sender.e.Replica, sender.l, endOf(at), &archive))
		load.Wait()
		about, err := Receive(context.Background(), receiver.fs, "group", bytes.NewReader(archive.Bytes()))
		require.NoError(t, err)
		require.Equal(t, endOf(at), about.Position)
		require.NoError(t, receiver.close())
		_, err = openReplica(receiver.fs, 1, 0)
		require.ErrorContains(t, err, replica.ReceivedMarker)
		require.NoError(t, Finish(receiver.fs, "group"))
		require.NoError(t, Finish(receiver.fs, "group"))
		// The log of the receiver begins behind the position.
		receiver = mustOpenReplica(t, receiver.fs, endOf(at)+1, endOf(at))
		require.NoError(t, receiver.e.WaitApplied(endOf(at)))
		i := slices.IndexFunc(records, func(x paperRecord) bool { return x.position > endOf(at) })
		receiver.hand(records[i:to])
		want := sender.shows(t, records[to-1].position)
		require.True(t, slices.Equal(want, receiver.shows(t, records[to-1].position)))
		require.NotEmpty(t, want)
	}
	require.NoError(t, errors.Join(sender.close(), receiver.close()))
	alike(t, sender.store(t), receiver.store(t), "receiver")
}

// A crash at any step of receiving a state and putting it in place leaves either the old state or the new one as a
// whole. Trying again succeeds.
func TestReceiveCrashes(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	records := paperRecords(r, 300)
	sender := mustOpenReplica(t, vfs.NewMem(), 1, 0)
	sender.hand(records[:200])
	at := records[199]
	var archive bytes.Buffer
	require.NoError(t, Send(context.Background(), sender.e.Replica, sender.l, endOf(at), &archive))
	sender.hand(records[200:])
	end := records[299].position
	want := sender.shows(t, end)
	require.NoError(t, sender.close())
	stored := sender.store(t)

	disk := vfs.NewCrashableMem()
	old := mustOpenReplica(t, disk, 1, 0)
	old.hand(records[:100])
	require.NoError(t, old.e.WaitApplied(records[99].position))
	require.NoError(t, errors.Join(old.e.Checkpoint(), old.l.Pack(), old.close()))
	again := r.IntN(2) == 0
	if again { // after one that was received, and not put in its place
		_, err := Receive(context.Background(), disk, "group", bytes.NewReader(archive.Bytes()))
		require.NoError(t, err)
	}

	steps, marked := 0, false
	outcomes := map[uint64]int{}
	var crash func(op errorfs.Op)
	fs := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && crash != nil {
			crash(op)
		}
		return nil
	}))
	crash = func(op errorfs.Op) {
		steps++
		for _, kept := range testsize.Of([]int{0, 50, 50, 50, 100}, []int{0, 50, 100}, nil) {
			image := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(r.Uint64(), 1))})
			require.NoError(t, Finish(image, "group"), "%v", op)
			names, err := image.List("group")
			require.NoError(t, err)
			for _, name := range names {
				require.False(t, strings.HasSuffix(name, incoming) || name == replica.ReceivedMarker, "%q at %v", name, op)
			}
			// An empty log tells how far the store is, and so which of the two states it is.
			is := mustOpenReplica(t, image, 1, end)
			applied := is.e.AppliedPosition()
			require.NoError(t, is.close())
			outcomes[applied]++
			require.Contains(t, []uint64{records[99].position, endOf(at)}, applied, "%v", op)
			if kept == 0 && !again {
				require.False(t, marked && applied < endOf(at), "back to the old state at %v", op)
				marked = applied == endOf(at)
			}
			first := applied + 1
			if steps%3 == 0 {
				is = mustOpenReplica(t, image, first, first-1)
				i := slices.IndexFunc(records, func(x paperRecord) bool { return x.position >= first })
				is.hand(records[i:])
				require.True(t, slices.Equal(want, is.shows(t, end)), "%v", op)
				require.NoError(t, is.close())
				alike(t, stored, is.store(t), op)
			}
		}
	}
	_, err := Receive(context.Background(), fs, "group", bytes.NewReader(archive.Bytes()))
	require.NoError(t, err)
	require.NoError(t, Finish(fs, "group"))
	crash(errorfs.Op{})
	require.True(t, marked || again)
	t.Logf("%d steps: %v", steps, outcomes)
	require.Greater(t, outcomes[records[99].position], 0)
	require.Greater(t, outcomes[endOf(at)], 0)
}

// A state may be ahead of the log on its node. Records that come again are skipped, and no event or deletion is lost or
// there twice.
func TestReceivedAheadOfTheLog(t *testing.T) {
	r := testseed.Rand(t)
	records := paperRecords(r, 300)
	sender, err := openReplica(vfs.NewMem(), 1, 0, true)
	require.NoError(t, err)
	sender.hand(records[:250])
	require.NoError(t, sender.e.WaitApplied(records[249].position)) // so that all of them are sent
	at := endOf(records[99])
	var archive bytes.Buffer
	require.NoError(t, Send(context.Background(), sender.e.Replica, sender.l, at, &archive))
	sender.hand(records[250:])
	end := records[299].position
	want := sender.shows(t, end)
	fs := vfs.NewMem()
	_, err = Receive(context.Background(), fs, "group", bytes.NewReader(archive.Bytes()))
	require.NoError(t, err)
	require.NoError(t, Finish(fs, "group"))
	receiver, err := openReplica(fs, at+1, at, true)
	require.NoError(t, err)
	packed := receiver.l.Stats().Packed
	require.Greater(t, packed, at)
	require.Less(t, packed, records[249].position, "blocks are too large for this test")
	require.NoError(t, receiver.e.WaitApplied(records[249].position))
	// Until the log has come that far, only packed events are there.
	first := receiver.shows(t, at)
	require.NotEmpty(t, first)
	for _, e := range want {
		if e < fmt.Sprintf("1-%016x", packed+1) {
			require.Contains(t, first, e)
		}
	}
	require.NoError(t, errors.Join(receiver.e.Checkpoint(), receiver.l.Pack()))
	receiver.hand(records[100:])
	require.True(t, slices.Equal(want, receiver.shows(t, end)))
	require.NoError(t, errors.Join(receiver.e.Checkpoint(), receiver.l.Pack()))
	require.True(t, slices.Equal(want, receiver.shows(t, end)))
	require.NoError(t, errors.Join(sender.close(), receiver.close()))
	alike(t, sender.store(t), receiver.store(t), "receiver")
}

// The control group's replica, which has no event log, can be sent, too.
func TestSendWithoutEvents(t *testing.T) {
	r := testseed.Rand(t)
	records := paperRecords(r, 50)
	x := mustOpenReplica(t, vfs.NewMem(), 1, 0)
	x.hand(records)
	var archive bytes.Buffer
	require.NoError(t, Send(context.Background(), x.e.Replica, nil, endOf(records[49]), &archive))
	require.NoError(t, x.close())
	y := heldGroup{fs: vfs.NewMem()}
	_, err := Receive(context.Background(), y.fs, "group", &archive)
	require.NoError(t, err)
	require.NoError(t, Finish(y.fs, "group"))
	alike(t, x.store(t), y.store(t), "receiver")
}

// A state that is not whole is refused and changes nothing. So is a backup of a node.
func TestReceiveRefuses(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	records := paperRecords(r, 100)
	fs := vfs.NewMem()
	x := mustOpenReplica(t, fs, 1, 0)
	x.hand(records)
	var archive bytes.Buffer
	require.NoError(t, Send(context.Background(), x.e.Replica, x.l, endOf(records[99]), &archive))
	require.NoError(t, x.close())
	before := contents(t, fs, "group")
	whole := archive.Bytes()
	for k := range 60 {
		damaged := bytes.Clone(whole)
		at := k*len(whole)/60 + r.IntN(len(whole)/60)
		damaged[at] ^= 1 << r.IntN(8)
		_, err := Receive(context.Background(), fs, "group", bytes.NewReader(damaged))
		require.Error(t, err)
		_, err = Receive(context.Background(), fs, "group", bytes.NewReader(whole[:at]))
		require.ErrorIs(t, err, ErrArchive)
		require.True(t, maps.Equal(before, contents(t, fs, "group")))
	}
	_, err := Receive(context.Background(), fs, "group", io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), failing{}))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	backup, _ := someArchive(t)
	_, err = Receive(context.Background(), fs, "group", bytes.NewReader(backup))
	require.ErrorIs(t, err, ErrFormat)
	require.True(t, maps.Equal(before, contents(t, fs, "group")))
	_, err = Restore(context.Background(), vfs.NewMem(), "data", bytes.NewReader(whole))
	require.ErrorIs(t, err, ErrFormat)

	// A state that was received and then overtaken by another one no longer counts.
	_, err = Receive(context.Background(), fs, "group", bytes.NewReader(whole))
	require.NoError(t, err)
	_, err = Receive(context.Background(), fs, "group", bytes.NewReader(whole[:len(whole)-1]))
	require.ErrorIs(t, err, ErrArchive)
	require.NoError(t, Finish(fs, "group"))
	require.True(t, maps.Equal(before, contents(t, fs, "group")))
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Of two receivers and a backup at once, one waits for the other, and each may be ended.
func TestSendWaitsForAnother(t *testing.T) {
	r := testseed.Rand(t)
	records := paperRecords(r, 50)
	x := mustOpenReplica(t, vfs.NewMem(), 1, 0)
	x.hand(records)
	image, err := x.e.BeginImage(context.Background())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, Send(ctx, x.e.Replica, x.l, endOf(records[49]), io.Discard), context.Canceled)
	var released atomic.Bool
	var sent sync.WaitGroup
	sent.Go(func() {
		if err := Send(context.Background(), x.e.Replica, x.l, endOf(records[49]), io.Discard); err != nil || !released.Load() {
			t.Error(err, released.Load())
		}
	})
	released.Store(true)
	require.NoError(t, image.Release())
	sent.Wait()
	require.NoError(t, x.close())
}
