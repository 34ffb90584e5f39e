package machine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// While changes are on their way from memory to the store, each of them counts once: for readers, for ops that need the
// profile, and after a restart.
func TestEachChangeCountsOnce(t *testing.T) {
	seed := testseed.Of(t)
	o := testOptions(vfs.NewMem())
	o.MemoryBytes = 4000
	e := openTest(t, o)
	const users, clients = 120, 3
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
						flags = op.Resolved // such an op reads the profile
					}
					sent[u].Add(1)
					in = append(in, u)
					testengine.AddEvent(b, op.ExternalID, fmt.Sprint("u", u), "e", flags)
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
				l, err := e.Lend(e.hasher.Number(1, op.ExternalID, fmt.Append(nil, "u", u)), Use(c == 1))
				if err == nil && l.Blob != nil {
					s, _ := profile.Event(l.Blob, []byte("e"))
					n = int64(s.Count)
					l.Back()
				}
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
			require.EqualValues(t, acked[u].Load(), max(testengine.EventCount(t, e, op.ExternalID, fmt.Sprint("u", u), "e"), 0))
		}
		require.NoError(t, e.Close())
		e = openTest(t, o)
	}
}

// Changes that a checkpoint is writing are in memory and perhaps also in the store. A reader, or an op that needs the
// profile, finds each change once at every step of the checkpoint.
func TestChangesOnTheirWayCountOnce(t *testing.T) {
	for step := range 5 {
		for users := 1; users <= 2; users++ { // one is looked up, two are read ahead
			t.Run(fmt.Sprintf("step %d, %d users", step, users), func(t *testing.T) {
				o := testOptions(vfs.NewMem())
				o.Workers = 1
				e := openTest(t, o)
				w, want := e.workers[0], 0
				commit := func(flags op.Flags) {
					b := e.NewBatch(1, 0)
					for u := range users {
						testengine.AddEvent(b, op.ExternalID, fmt.Sprint("u", u), "e", flags)
					}
					require.NoError(t, b.Commit())
					b.Release()
					want++
				}
				check := func(what string) {
					for u := range users {
						require.Equal(t, want, testengine.EventCount(t, e, op.ExternalID, fmt.Sprint("u", u), "e"), what)
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
				each := func(f func(p *Partition) error) {
					w.Lock()
					defer w.Unlock()
					for _, p := range w.parts {
						require.NoError(t, f(p))
					}
				}
				each(func(p *Partition) error { return w.save(p, batch, view) })
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

// A checkpoint may come between finding what has to be read and reading it. Each change counts once then, too.
func TestCheckpointWhileReading(t *testing.T) {
	open := func() (*Engine, *Worker) {
		e := openSingle(t)
		for n := range 3 {
			b := e.NewBatch(1, 0)
			testengine.AddEvent(b, op.ExternalID, "ann", "e", 0)
			testengine.AddEvent(b, op.ExternalID, "bob", "e", 0)
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
		w.findMissing([]*Commit{{Rec: rec}})
		require.Len(t, w.missing, 2)
		require.NoError(t, e.Checkpoint())
		_, err = w.readMissing(math.MaxInt64)
		require.NoError(t, err)
		for _, user := range []string{"ann", "bob"} {
			require.Equal(t, 3, testengine.EventCount(t, e, op.ExternalID, user, "e"))
		}
	})
	t.Run("for a reader", func(t *testing.T) {
		e, w := open()
		number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
		p := e.partitions[identity.Partition(number)]
		w.Lock()
		x := w.seek(p, p.Find(number), number)
		w.Unlock()
		require.NoError(t, e.Checkpoint())
		_, again, err := w.lendSought(p, x, ToRead)
		require.NoError(t, err)
		require.True(t, again, "the changes may be in both places")
		require.Equal(t, 3, testengine.EventCount(t, e, op.ExternalID, "ann", "e"))
	})
	t.Run("for an op", func(t *testing.T) {
		e, w := open()
		number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
		p := e.partitions[identity.Partition(number)]
		evictAll(t, e) // the changes are in the store
		w.Lock()
		x := w.seek(p, nil, number)
		w.Unlock()
		value, err := e.store.Entry(nil, nil, number)
		require.NoError(t, err)
		testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
		require.NoError(t, e.Checkpoint())
		l, again, err := w.lendRead(p, &x, value, ToChange)
		require.NoError(t, err)
		l.Back()
		require.False(t, again, "it was so when the reader began")
		require.Equal(t, 4, testengine.EventCount(t, e, op.ExternalID, "ann", "e"), "but the store has more by now")
	})
}

// What was read for an op that is about to come stays in memory, as far as there is room; what was read for a reader
// doesn't.
func TestWhatIsLentToChangeStays(t *testing.T) {
	e := openSingle(t)
	number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
	resident := func() (is bool) {
		e.Resident([]uint64{number}, func(int, []byte) { is = true })
		return is
	}
	testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
	evictAll(t, e)
	lend := func(use Use) {
		l, err := e.Lend(number, use)
		require.NoError(t, err)
		defer l.Back()
		s, _ := profile.Event(l.Blob, []byte("e"))
		require.EqualValues(t, 1, s.Count)
	}
	lend(ToRead)
	require.False(t, resident())
	full := e.MemoryBytes()
	require.NoError(t, e.SetMemoryBytes(1))
	lend(ToChange)
	require.False(t, resident(), "there is no room")
	require.NoError(t, e.SetMemoryBytes(full))
	before := readBacks.Get()
	lend(ToChange)
	require.True(t, resident())
	testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", op.Resolved)
	require.EqualValues(t, 1, readBacks.Get()-before, "the op has it in memory")
	require.Equal(t, 2, testengine.EventCount(t, e, op.ExternalID, "ann", "e"))
}

// eventsOf is a record of one event for each user.
func eventsOf(t *testing.T, e *Engine, users ...string) *Commit {
	b := e.NewBatch(1, 0)
	defer b.Release()
	for _, user := range users {
		testengine.AddEvent(b, op.ExternalID, user, "e", 0)
	}
	return commitOf(t, b)
}

// commitOf is a batch as workers get it.
func commitOf(t *testing.T, b *testengine.Batch) *Commit {
	rec, err := op.ParseRecord(slices.Clone(b.Finish(1, 0, 1)[wal.HeaderBytes:]), nil)
	require.NoError(t, err)
	return &Commit{Rec: rec}
}

// The entries that several turns need are read at once, as many as fit.
func TestReadAheadReadsForManyRecords(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MaxDeltaChanges = 1, -1
	e := openTest(t, o)
	var users []string
	var items []*Commit
	for i := range 64 {
		users = append(users, fmt.Sprint("user", i))
		testengine.CommitEvent(t, e, op.ExternalID, users[i], "e", 0)
		items = append(items, eventsOf(t, e, users[i]))
	}
	w := e.workers[0]
	resident := func() (n int) {
		w.Lock()
		defer w.Unlock()
		for _, user := range users {
			number := e.hasher.Number(1, op.ExternalID, []byte(user))
			if e.partitions[identity.Partition(number)].Find(number) != nil {
				n++
			}
		}
		return n
	}
	evictAll(t, e)
	require.Zero(t, resident())
	require.NoError(t, w.ReadAhead(items))
	require.Equal(t, len(users), resident())

	evictAll(t, e)
	e.memory.Store(8 * 64) // of which an eighth is little
	require.NoError(t, w.ReadAhead(items))
	require.Positive(t, resident())
	require.Less(t, resident(), len(users)/2)
}

// Ops with operators need the profile, since their outcomes are answered. So these profiles are read ahead like others.
func TestReadAheadReadsForOperators(t *testing.T) {
	e := openSingle(t)
	b := e.NewBatch(1, 0)
	for i := range 8 {
		testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
	}
	require.NoError(t, b.Commit())
	b.Release()
	evictAll(t, e)
	b = e.NewBatch(1, 0)
	defer b.Release()
	for i := range 8 {
		fields := [][]byte{testengine.AttrField(op.AttrFirstName, "x"), testengine.AttrField(op.AttrOperators, "")}
		testengine.AddAttributes(b, op.ExternalID, fmt.Sprint("user", i), 0, fields[:1+i%2]...)
	}
	w := e.workers[0]
	require.NoError(t, w.Prefetch([]*Commit{commitOf(t, b)}))
	w.Lock()
	defer w.Unlock()
	resident := 0
	for _, p := range w.parts {
		resident += p.Count
	}
	require.Equal(t, 4, resident, "each second one has an operator")
}

// A user whom reading ahead hasn't found may have come, been saved and been evicted again by the turn that asks for
// this user. The user is found then.
func TestReadAheadForgetsWhoIsAbsent(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MaxDeltaChanges = 1, -1
	e := openTest(t, o)
	testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
	evictAll(t, e)
	w := e.workers[0]
	require.NoError(t, w.ReadAhead([]*Commit{eventsOf(t, e, "bob", "cid")}))
	ann, err := e.Entry(e.hasher.Number(1, op.ExternalID, []byte("ann")))
	require.NoError(t, err)
	number := e.hasher.Number(1, op.ExternalID, []byte("bob"))
	p := e.partitions[identity.Partition(number)]
	w.Lock()
	_, err = w.insert(p, number, ann)
	w.Unlock()
	require.NoError(t, err)
	evictAll(t, e)
	w.Lock()
	s, err := w.lookup(p, number)
	w.Unlock()
	require.NoError(t, err)
	require.NotNil(t, s)
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Errorf("%+v", err)
	}
	return err == nil
}

// A user with many changes is read once and is in memory from then on.
func TestUserWithManyChangesIsRead(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MaxDeltaChanges = 1, 3
	e := openTest(t, o)
	w := e.workers[0]
	testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
	evictAll(t, e)
	isDelta := func() bool {
		w.Lock()
		defer w.Unlock()
		number := e.hasher.Number(1, op.ExternalID, []byte("ann"))
		s := e.partitions[identity.Partition(number)].Find(number)
		return profile.Kind(w.entryOf(s)) == entries.KindDelta
	}
	for n := 2; n < 10; n++ {
		testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
		require.Equal(t, n <= 4, isDelta(), n)
		require.Equal(t, n, testengine.EventCount(t, e, op.ExternalID, "ann", "e"))
	}
}

// evictAll evicts all entries, and has the engine keep changes unread from now on where it can, as if its memory were
// full.
func evictAll(t *testing.T, e *Engine) {
	t.Helper()
	require.NoError(t, e.Checkpoint())
	for _, w := range e.workers {
		w.Lock()
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
		w.Unlock()
	}
}

// The numbers at which an op is sent on, or at which a user was, are known without a look, also after a restart.
func TestNumbersSetApart(t *testing.T) {
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	home := func(key string) uint64 { return e.hasher.Number(1, op.ExternalID, []byte(key)) }
	for _, user := range []string{"deleted", "gone", "kept"} {
		testengine.CommitEvent(t, e, op.ExternalID, user, "e", 0)
	}
	alias := string(op.AppendAliasKey(nil, []byte("l"), []byte("n")))
	testengine.CommitEvent(t, e, op.Alias, alias, "e", 0)
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
			testengine.CommitEvent(t, e, op.ExternalID, user, "again", 0)
			evictAll(t, e)
		}
		require.Equal(t, before, changesUnread.Get())
		testengine.CommitEvent(t, e, op.ExternalID, "kept", "again", 0)
		require.Equal(t, before+1, changesUnread.Get())
		require.NoError(t, e.Close())
		e = openTest(t, o)
	}
	require.Equal(t, 2, testengine.EventCount(t, e, op.Alias, alias, "again"), "it went to who has the external id")
	for _, user := range []string{"deleted", "gone", "kept"} {
		require.Equal(t, 2, testengine.EventCount(t, e, op.ExternalID, user, "again"), user)
	}
}

// After a restart the door knows the dummy users who are not in memory, and takes nobody else for one.
func TestDummyUsersAreKnownUnread(t *testing.T) {
	o := testOptions(vfs.NewMem())
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
	require.Negative(t, e.opts.MaxDeltaChanges, "changes that go unread might pass so low a limit")
	testengine.Commit(t, e, func(b *testengine.Batch) { b.Delete(e.hasher.Number(1, op.ExternalID, []byte("dummy"))) })
	require.NoError(t, e.Close())
	e = openTest(t, o)
	require.True(t, commitEventIfTaken(t, e, "dummy", "e"), "deleted since")
}

func commitEventIfTaken(t *testing.T, e *Engine, user, name string) bool {
	t.Helper()
	b := e.NewBatch(1, 0)
	defer b.Release()
	if !testengine.AddEvent(b, op.ExternalID, user, name, 0) {
		return false
	}
	require.NoError(t, b.Commit())
	return true
}

// Changes that are kept unread count against the memory budget and make room when they are written.
func TestUnreadChangesAreBounded(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 1, 1<<20
	o.SegmentBytes = 8 << 20
	e := openTest(t, o)
	w := e.workers[0]
	before, most := changesUnread.Get(), int64(0)
	for i := range 300 {
		b := e.NewBatch(1, 0)
		for u := range 100 {
			testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user-", i*100+u), "e", 0)
		}
		require.NoError(t, b.Commit())
		b.Release()
		w.Lock()
		most = max(most, w.Used())
		w.Unlock()
	}
	require.Greater(t, changesUnread.Get(), before+5_000)
	require.LessOrEqual(t, most, o.MemoryBytes*5/4)
	require.NoError(t, e.Checkpoint())
	w.Lock()
	defer w.Unlock()
	require.Zero(t, w.deltas)
	checkArena(t, w)
}

// Resident gives only whole entries, each with its index in the list, and no deltas that nobody has folded into what
// the store has.
func TestResidentAreWholeEntries(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.MemoryBytes = 4000
	e := openTest(t, o)
	var numbers []uint64
	for i := range 40 {
		user := fmt.Sprint("u", i)
		testengine.CommitEvent(t, e, op.ExternalID, user, "e", 0)
		numbers = append(numbers, e.hasher.Number(1, op.ExternalID, []byte(user)))
	}
	require.NoError(t, e.Checkpoint())
	for i := range 40 {
		testengine.CommitEvent(t, e, op.ExternalID, fmt.Sprint("u", i), "again", 0)
	}
	numbers = append(numbers, 0)
	seen := 0
	e.Resident(numbers, func(i int, blob []byte) {
		require.EqualValues(t, profile.KindUser, profile.Kind(blob))
		require.Equal(t, fmt.Sprint("u", i), string(profile.ExternalID(blob)))
		seen++
	})
	require.Less(t, seen, 40)
	l, err := e.Lend(numbers[7], ToRead)
	require.NoError(t, err)
	l.Back()
}

// TestSavedChangesMakeRoom: a delta that got a change while a checkpoint wrote the others keeps that one, in a block of
// its size, and what deltas take is counted.
func TestSavedChangesMakeRoom(t *testing.T) {
	r := testseed.Rand(t)
	w := bareWorker(t, 1, 1<<30)
	p := w.parts[0]
	d := entries.AppendDelta(nil, 3, op.ExternalID, []byte("ann"))
	saved, last := 0, 0
	for changes := 0; len(d) < 400; changes++ {
		o, rec := randomUserOp(t, r, int64(changes))
		saved, last = len(d), changes
		more, ok := entries.AppendChange(d, o, rec, profile.Place{})
		require.True(t, ok)
		d = more
		entries.Delta(d).SetSize(changes + 1)
	}
	d = slices.Clone(d)
	entries.Delta(d).SetSaving(last, saved)
	want := slices.Clone(entries.Delta(slices.Clone(d)).Saved())
	s, err := w.insert(p, 7, d)
	require.NoError(t, err)
	before := w.arena.Used
	w.deltas = before
	require.NoError(t, w.forgetDeltas(p))
	require.Equal(t, []byte(want), w.entryOf(s))
	require.Equal(t, 1, entries.Delta(w.entryOf(s)).Changes())
	require.Less(t, w.deltas, before)
	require.Equal(t, w.arena.Used, w.deltas)
	w.dropDelta(p, s)
	require.Zero(t, w.deltas)
	checkArena(t, w)
}
