package shard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
	"millrace/wal"
)

// randomRecord is a record of objects for users by external id. Some external ids have the same home number, as if
// their hashes were the same.
func randomRecord(r *rand.Rand, stamp int64) []byte {
	h := identity.NewHasher(testSecret)
	var b op.Builder
	b.Reset(0)
	b.Source, b.MaxArray = op.Source(r.IntN(3)), uint16(r.IntN(3)*2)
	for range 1 + r.IntN(12) {
		user := fmt.Sprint("u", r.IntN(40))
		home := h.Number(1, op.ExternalID, []byte(user))
		if r.IntN(4) == 0 {
			pair := fmt.Sprint("c", r.IntN(1+int(stamp/8000))) // new ones come until the end, when memory is short
			user, home = pair+string("abc"[r.IntN(3)]), h.Number(1, op.ExternalID, []byte(pair))
		}
		flags := op.MakeFlags(0, op.ExternalID)
		if r.IntN(10) == 0 {
			flags |= op.UpdateOnly
		}
		start := b.Begin()
		kind := []op.Kind{op.Attributes, op.Event, op.Event, op.Purchase}[r.IntN(4)]
		name := b.Intern(fmt.Append(nil, "name", r.IntN(5)))
		time := int64(1_700_000_000_000 + r.IntN(1_000_000_000))
		switch kind {
		case op.Event:
			b.Buf = op.AppendEventBody(b.Buf)
			op.PutEvent(b.Buf[start+op.OpHeaderBytes:], time, name, 0)
			b.Buf = append(binary.AppendUvarint(b.Buf, uint64(name)), op.AppendInt(nil, 7)...) // a property
		case op.Purchase:
			b.Buf = op.AppendPurchaseBody(b.Buf)
			op.PutPurchase(b.Buf[start+op.OpHeaderBytes:], time, r.Int64N(1000), 5, uint32(r.IntN(3)), name, 0, [3]byte{'E', 'U', byte('A' + r.IntN(3))})
		default:
			for range 1 + r.IntN(4) {
				b.Buf = append(b.Buf, randomField(r, &b)...)
			}
			if r.IntN(2) == 0 {
				flags |= op.MergeObjects
			}
		}
		b.Buf = append(b.Buf, user...)
		b.End(start, kind, flags, len(user), home)
	}
	return b.Finish(1, uint32(r.IntN(3)), stamp)
}

// randomField is an attribute, of any type and with any operator.
func randomField(r *rand.Rand, b *op.Builder) []byte {
	element := func() []byte { return op.AppendInt(nil, r.Int64N(6)) }
	array := slices.Concat(element(), element(), element())
	member := func(name string) []byte {
		return append(append([]byte{byte(len(name))}, name...), op.AppendInt(nil, r.Int64N(9))...)
	}
	value := [][]byte{
		op.AppendInt(nil, r.Int64N(100)), op.AppendString(nil, fmt.Append(nil, r.Uint64())), {byte(op.Null)}, {byte(op.True)},
		op.AppendBlock(nil, op.Array, array), op.AppendBlock(nil, op.Object, append(member("a"), member(fmt.Sprint("m", r.IntN(9)))...)),
		append([]byte{byte(op.Increment)}, op.AppendInt(nil, r.Int64N(9))[1:]...),
		op.AppendBlock(nil, op.Update, append(op.AppendBlock(nil, op.Array, array), op.AppendBlock(nil, op.Array, element())...)),
	}[r.IntN(8)]
	if r.IntN(4) == 0 {
		return attrField([]byte{op.AttrFirstName, op.AttrLastName, op.AttrPushSubscribe}[r.IntN(3)], "subscribed")
	}
	return append(binary.AppendUvarint(nil, uint64(op.ReservedCodes+b.Intern(fmt.Append(nil, "attr", r.IntN(6))))), value...)
}

// Changes that nobody has read the profile for come out as if somebody had, over restarts, crashes and checkpoints, and
// of users whose external ids have the same home number, too.
func TestUnreadIsAsIfRead(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(200, 3, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var records []memRecord
		for i := range testsize.Short(300, 120) {
			data := randomRecord(r, int64(1000*(i+1)))
			records = append(records, memRecord{uint64(i + 1), uint32(binary.LittleEndian.Uint32(data[28:])), data})
		}
		var want map[string]string
		for i, shape := range []struct {
			memory  int64
			changes int
		}{{64 << 20, 0}, {2000, -1}, {2000, 0}, {2000, 1}, {4000, 3}, {20_000, 1000}} {
			before := changesUnread.Get()
			got := playShaped(t, rand.New(rand.NewPCG(seed, uint64(round*100+i))), records, func(o *Options) {
				o.MemoryBytes, o.MaxDeltaChanges = shape.memory, shape.changes
			})
			isUnread := changesUnread.Get() > before
			require.Equal(t, shape.memory < 1<<20 && shape.changes >= 0, isUnread, "%+v", shape)
			if want == nil {
				want = got
			}
			alike(t, want, got, fmt.Sprintf("round %d, %+v", round, shape))
		}
	}
}

// playShaped gives records to a replica that is restarted, and crashes, and returns what it comes to when all has been
// read.
func playShaped(t *testing.T, r *rand.Rand, records []memRecord, shape func(o *Options)) map[string]string {
	t.Helper()
	fs, log := vfs.NewCrashableMem(), &memLog{}
	open := func() *Engine {
		o := replicaOptions(fs, log, 0, identity.Partitions)
		o.Workers = 1 + r.IntN(3)
		shape(&o.Options)
		e, err := openGroup(o)
		require.NoError(t, err)
		return e
	}
	e := open()
	homes := map[uint64]bool{}
	for rest := records; len(rest) > 0; {
		n := min(1+r.IntN(30), len(rest))
		for _, m := range rest[:n] {
			log.add(m.position, m.count, m.payload)
			rec, err := op.ParseRecord(m.payload, nil)
			require.NoError(t, err)
			for ops := rec.Ops; len(ops) > 0; {
				var o op.Op
				o, ops = op.Next(ops)
				homes[o.Number()] = true
			}
		}
		deliver(e, rest[:n], 1+r.IntN(10))
		rest = rest[n:]
		switch r.IntN(8) {
		case 0:
			require.NoError(t, e.Close())
			e = open()
		case 1:
			before := e
			log = log.clone()
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(r.Uint64(), 1))})
			e = open()
			require.NoError(t, before.Close())
		case 2, 3, 4:
			require.NoError(t, e.Checkpoint())
		case 5:
			for home := range homes {
				if _, err := e.Entry(home); r.IntN(3) == 0 {
					require.NoError(t, err)
				}
			}
		case 6:
			require.NoError(t, e.store.DB.Compact(t.Context(), []byte("e"), []byte("f"), false))
		}
	}
	require.NoError(t, e.WaitApplied(log.DurablePosition()))
	for home := range homes {
		_, err := e.Entry(home)
		require.NoError(t, err)
	}
	defer func() { require.NoError(t, e.Close()) }()
	return contents(t, e)
}

// While changes are on their way from memory to the store, each counts once: for readers, for ops that need the
// profile, and after a restart.
func TestEachChangeCountsOnce(t *testing.T) {
	seed := testseed.Of(t)
	fs := vfs.NewMem()
	o := testOptions(fs)
	o.MemoryBytes = 4000
	e := openTest(t, o)
	const users, clients = 60, 3
	var sent, acked [users]atomic.Int64
	before := changesUnread.Get()
	stop := make(chan struct{})
	var all, aside sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for range testsize.Of(3000, 40, 20) {
				b := e.NewBatch(1, 0)
				var in []int
				for range 1 + r.IntN(20) {
					u := r.IntN(users)
					flags := op.Flags(0)
					if r.IntN(20) == 0 && acked[u].Load() > 0 {
						flags = op.Resolved // which reads
					}
					sent[u].Add(1)
					in = append(in, u)
					addEvent(b, op.ExternalID, fmt.Sprint("u", u), "e", flags)
				}
				if !assertNoError(t, b.Commit()) {
					return
				}
				b.Release()
				for _, u := range in {
					acked[u].Add(1)
				}
			}
		})
	}
	aside.Go(func() {
		for !isClosed(stop) && assertNoError(t, e.Checkpoint()) {
		}
	})
	for c := range 2 {
		aside.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+c)))
			for !isClosed(stop) {
				u := r.IntN(users)
				least := acked[u].Load()
				n := int64(0)
				err := e.View(1, op.ExternalID, fmt.Append(nil, "u", u), func(_ uint64, blob []byte) {
					s, _ := profile.Event(blob, []byte("e"))
					n = int64(s.Count)
				})
				if most := sent[u].Load(); !assertNoError(t, err) || n < least || n > most {
					t.Errorf("user %d has %d events, of %d to %d", u, n, least, most)
					return
				}
			}
		})
	}
	all.Wait()
	close(stop)
	aside.Wait()
	require.Greater(t, changesUnread.Get(), before)
	for range 2 {
		for u := range users {
			require.EqualValues(t, acked[u].Load(), max(eventCount(t, e, op.ExternalID, fmt.Sprint("u", u), "e"), 0))
		}
		require.NoError(t, e.Close())
		e = openTest(t, o)
	}
}

// Step by step: what a checkpoint is writing is in memory and perhaps in the store. Whoever reads, or needs the profile,
// at any of these steps, finds each change once.
func TestChangesOnTheirWayCountOnce(t *testing.T) {
	for step := range 5 {
		for users := 1; users <= 2; users++ { // one is looked up, two are read ahead
			t.Run(fmt.Sprintf("step %d, %d users", step, users), func(t *testing.T) {
				fs := vfs.NewMem()
				o := testOptions(fs)
				o.Workers = 1
				e := openTest(t, o)
				w, want := e.workers[0], 0
				commit := func(flags op.Flags) {
					b := e.NewBatch(1, 0)
					for u := range users {
						addEvent(b, op.ExternalID, fmt.Sprint("u", u), "e", flags)
					}
					require.NoError(t, b.Commit())
					b.Release()
					want++
				}
				check := func(what string) {
					for u := range users {
						require.Equal(t, want, eventCount(t, e, op.ExternalID, fmt.Sprint("u", u), "e"), what)
					}
				}
				now := 0
				pass := func(what string) {
					if check(what); now == step {
						commit(op.Resolved)
						check(what + ", and read into memory")
					}
					now++
				}
				commit(0)
				evictAll(t, e)
				before := changesUnread.Get()
				commit(0)
				require.EqualValues(t, users, changesUnread.Get()-before)
				pass("kept")
				view, batch := e.store.View(), e.store.DB.NewBatch()
				each := func(f func(p *partition) error) {
					w.mu.Lock()
					defer w.mu.Unlock()
					for _, p := range w.parts {
						require.NoError(t, f(p))
					}
				}
				each(func(p *partition) error { return w.save(p, batch, view) })
				pass("in a batch")
				commit(0)
				pass("in a batch, and more")
				require.NoError(t, batch.Commit(pebble.NoSync))
				pass("committed")
				each(w.saved)
				view.Close()
				pass("let go")
				evictAll(t, e)
				check("evicted")
				require.NoError(t, e.Close())
				e = openTest(t, o)
				check("after a restart")
			})
		}
	}
}

// A checkpoint between looking what has to be read and reading it.
func TestCheckpointWhileReading(t *testing.T) {
	open := func() (*Engine, *worker) {
		o := testOptions(vfs.NewMem())
		o.Workers = 1
		e := openTest(t, o)
		for n := range 3 {
			b := e.NewBatch(1, 0)
			addEvent(b, op.ExternalID, "ann", "e", 0)
			addEvent(b, op.ExternalID, "bob", "e", 0)
			require.NoError(t, b.Commit())
			b.Release()
			if n < 2 {
				evictAll(t, e)
			}
		}
		return e, e.workers[0]
	}
	t.Run("ahead", func(t *testing.T) {
		e, w := open()
		var b op.Builder
		b.Reset(0)
		for _, user := range []string{"ann", "bob"} {
			b.Append(op.Event, op.MakeFlags(op.Resolved, op.ExternalID), e.hasher.Number(1, op.ExternalID, []byte(user)), nil, []byte(user))
		}
		rec, err := op.ParseRecord(b.Finish(1, 0, 1), nil)
		require.NoError(t, err)
		w.findMissing([]*commit{{rec: rec}})
		require.Len(t, w.missing, 2)
		require.NoError(t, e.Checkpoint())
		_, err = w.readMissing()
		require.NoError(t, err)
		for _, user := range []string{"ann", "bob"} {
			require.Equal(t, 3, eventCount(t, e, op.ExternalID, user, "e"))
		}
	})
	t.Run("for a reader", func(t *testing.T) {
		e, w := open()
		number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
		p := e.partitions[identity.Partition(number)]
		w.mu.Lock()
		x := w.seek(p, p.Find(number), number)
		w.mu.Unlock()
		require.NoError(t, e.Checkpoint())
		_, again, err := w.lendSought(p, x)
		require.NoError(t, err)
		require.True(t, again, "the changes may be in both places")
		require.Equal(t, 3, eventCount(t, e, op.ExternalID, "ann", "e"))
	})
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Errorf("%+v", err)
	}
	return err == nil
}

// Pebble gives operands in any groups, from the newest or from the oldest.
func TestFoldInAnyGroups(t *testing.T) {
	r := testseed.Rand(t)
	limits := profile.DefaultLimits()
	key := store.AppendEntryKey(nil, 7<<56|9)
	merger := store.NewMerger(limits, func(uint64) {})
	fold := func(includesBase bool, values ...[]byte) []byte { // the oldest first
		if r.IntN(2) == 0 {
			m, err := merger.Merge(key, values[0])
			require.NoError(t, err)
			for _, v := range values[1:] {
				require.NoError(t, m.MergeNewer(v))
			}
			v, closer, err := m.Finish(includesBase)
			require.NoError(t, err)
			defer closer.Close()
			return slices.Clone(v)
		}
		m, err := merger.Merge(key, values[len(values)-1])
		require.NoError(t, err)
		for _, v := range slices.Backward(values[:len(values)-1]) {
			require.NoError(t, m.MergeOlder(v))
		}
		v, closer, err := m.Finish(includesBase)
		require.NoError(t, err)
		defer closer.Close()
		return slices.Clone(v)
	}
	for range testsize.Of(5000, 200, 50) {
		var values [][]byte
		if r.IntN(2) == 0 {
			values = append(values, profile.New(nil, 1, op.ExternalID, []byte("u1"), 5))
		}
		for i := range 1 + r.IntN(12) {
			rec, err := op.ParseRecord(randomRecord(r, int64(100*i)), nil)
			require.NoError(t, err)
			for ops := rec.Ops; len(ops) > 0; {
				var o op.Op
				o, ops = op.Next(ops)
				d, ok := entries.AppendChange(entries.AppendDelta(nil, 1, fmt.Append(nil, "u", 1+r.IntN(8)/7)), o, &rec, profile.Place{Position: uint64(i)})
				require.True(t, ok)
				entries.Delta(d).SetSize(1)
				values = append(values, d)
			}
		}
		want := fold(true, values...)
		for len(values) > 1 {
			i := r.IntN(len(values) - 1)
			n := 2 + r.IntN(len(values)-i-1)
			values = slices.Replace(values, i, i+n, fold(i == 0 && r.IntN(2) == 0, values[i:i+n]...))
		}
		require.Equal(t, want, fold(true, values...))
	}
}

// Who has many changes is read, once, and is in memory then.
func TestUserWithManyChangesIsRead(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MaxDeltaChanges = 1, 3
	e := openTest(t, o)
	w := e.workers[0]
	commitEvent(t, e, op.ExternalID, "ann", "e", 0)
	evictAll(t, e)
	isDelta := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
		s := e.partitions[identity.Partition(number)].Find(number)
		return profile.Kind(w.entryOf(s)) == entries.KindDelta
	}
	for n := 2; n < 10; n++ {
		commitEvent(t, e, op.ExternalID, "ann", "e", 0)
		require.Equal(t, n <= 4, isDelta(), n)
		require.Equal(t, n, eventCount(t, e, op.ExternalID, "ann", "e"))
	}
}

// evictAll has an engine keep what it can unread from now on, as if its memory were full.
func evictAll(t *testing.T, e *Engine) {
	t.Helper()
	require.NoError(t, e.Checkpoint())
	for _, w := range e.workers {
		w.mu.Lock()
		w.isTight = true
		for range 2 * len(w.parts) {
			_, _, err := w.evict(1 << 30)
			require.NoError(t, err)
		}
		for _, p := range w.parts {
			require.Zero(t, p.Count)
			p.complete = false
		}
		w.complete.Store(false)
		w.mu.Unlock()
	}
}

// Where an op is sent on, or a user was, is known without a look, also after a restart.
func TestNumbersSetApart(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	e := openTest(t, o)
	home := func(key string) uint64 { return e.hasher.Number(1, op.ExternalID, []byte(key)) }
	for _, user := range []string{"deleted", "gone", "kept"} {
		commitEvent(t, e, op.ExternalID, user, "e", 0)
	}
	alias := string(op.AppendAliasKey(nil, []byte("l"), []byte("n")))
	commitEvent(t, e, op.Alias, alias, "e", 0)
	b := e.NewBatch(1, 0)
	b.Delete(home("deleted"))
	b.Merge(home("gone"), home("kept"))
	b.Identify(first(e.Find(1, op.Alias, []byte(alias)))[0].Number, []byte("late"), profile.MergeIdentify)
	require.NoError(t, b.Commit())
	b.Release()
	settle(t, e)
	for range 2 {
		evictAll(t, e)
		before := changesUnread.Get()
		for _, user := range []string{"deleted", "gone", "late"} {
			require.True(t, e.partitions[identity.Partition(home(user))].Apart.Has(home(user)), user)
			commitEvent(t, e, op.ExternalID, user, "again", 0)
			evictAll(t, e)
		}
		require.Equal(t, before, changesUnread.Get())
		commitEvent(t, e, op.ExternalID, "kept", "again", 0)
		require.Equal(t, before+1, changesUnread.Get())
		require.NoError(t, e.Close())
		e = openTest(t, o)
	}
	require.Equal(t, 2, eventCount(t, e, op.Alias, alias, "again"), "it went to who has the external id")
	for _, user := range []string{"deleted", "gone", "kept"} {
		require.Equal(t, 2, eventCount(t, e, op.ExternalID, user, "again"), user)
	}
}

// The door knows dummy users who are not in memory after a restart, and nobody else.
func TestDummyUsersAreKnownUnread(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	o.Limits.MaxEventNames = 3
	e := openTest(t, o)
	for i := range 5 {
		commitEventIfTaken(t, e, "dummy", fmt.Sprint("e", i))
	}
	require.False(t, commitEventIfTaken(t, e, "dummy", "e"))
	require.True(t, commitEventIfTaken(t, e, "other", "e"))
	require.NoError(t, e.Close())
	o.MemoryBytes = 1 // nothing is loaded
	e = openTest(t, o)
	require.False(t, commitEventIfTaken(t, e, "dummy", "e"))
	require.True(t, commitEventIfTaken(t, e, "other", "e"))
	require.Negative(t, e.Replica.opts.MaxDeltaChanges, "changes that go unread might pass so low a limit")
	b := e.NewBatch(1, 0)
	b.Delete(e.hasher.Number(1, op.ExternalID, []byte("dummy")))
	require.NoError(t, b.Commit())
	b.Release()
	require.NoError(t, e.Close())
	e = openTest(t, o)
	require.True(t, commitEventIfTaken(t, e, "dummy", "e"), "deleted since")
}

func commitEventIfTaken(t *testing.T, e *Engine, user, name string) bool {
	t.Helper()
	b := e.NewBatch(1, 0)
	defer b.Release()
	if !addEvent(b, op.ExternalID, user, name, 0) {
		return false
	}
	require.NoError(t, b.Commit())
	return true
}

// Changes that go unread count to the memory, and make room when they are written.
func TestUnreadChangesAreBounded(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 1, 1<<20
	o.Log = wal.Options{SegmentBytes: 8 << 20, MinFreeBytes: -1, MinFreePercent: -1}
	e := openTest(t, o)
	w := e.workers[0]
	before, most := changesUnread.Get(), int64(0)
	for i := range 300 {
		b := e.NewBatch(1, 0)
		for u := range 100 {
			addEvent(b, op.ExternalID, fmt.Sprint("user-", i*100+u), "e", 0)
		}
		require.NoError(t, b.Commit())
		b.Release()
		w.mu.Lock()
		most = max(most, w.used())
		w.mu.Unlock()
	}
	require.Greater(t, changesUnread.Get(), before+5_000)
	require.LessOrEqual(t, most, o.MemoryBytes*5/4)
	require.NoError(t, e.Checkpoint())
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Zero(t, w.deltas)
	checkArena(t, w)
}
