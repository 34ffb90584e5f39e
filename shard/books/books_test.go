package books

import (
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

const partition = 7

func openStore(t *testing.T) *store.Store {
	s, err := store.Open(store.Options{
		FS: vfs.NewMem(), Dir: "state", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), New: true,
		Secret: [32]byte{1}, Limits: &profile.Limits{}, CacheBytes: 1 << 20, MemTableBytes: 1 << 20,
		Note: func(uint64) {}, OnFailure: func(error) {},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// saving fills a batch. The function that it returns does what a checkpoint does once the batch is in the store.
func saving(t *testing.T, s *store.Store, b *Books) (saved func() (freed int64)) {
	batch := s.DB.NewBatch()
	require.NoError(t, b.Save(batch))
	return func() int64 {
		require.NoError(t, batch.Commit(pebble.NoSync))
		require.NoError(t, batch.Close())
		return b.Saved()
	}
}

// load is the books as a start reads them from the store.
func load(t *testing.T, s *store.Store) *Books {
	b := &Books{ID: partition}
	lower, _ := store.Bounds(partition)
	require.NoError(t, s.Scan(lower, store.AppendBookKey(nil, partition, store.BookLazy), func(k, v []byte) error {
		known, err := b.Load(k[store.EntryKeyBytes], k[store.EntryKeyBytes+1:], v)
		require.True(t, known)
		return err
	}))
	return b
}

// number is a number in the partition.
func number(n uint64) uint64 { return partition<<56 | n }

func optedIn(changed int64) profile.StateChange {
	return profile.StateChange{State: profile.State{Kind: profile.StateEmail, Value: "opted_in"}, Changed: changed,
		Actor: 3, Source: op.SourceTrack}
}

func bounced(changed int64) profile.StateChange {
	return profile.StateChange{State: profile.State{Kind: profile.StateBounce, On: true}, Changed: changed}
}

// bounces asks for the whole block list of workspace 1.
var bounces = SuppressedQuery{Workspace: 1, Kind: profile.StateBounce, Below: Suppression{Since: math.MaxInt64}, Most: 100}

// A start reads what must be known without a look, and nothing else.
func TestLoad(t *testing.T) {
	s := openStore(t)
	b := &Books{ID: partition, Positions: Positions{Applied: 5, LastMessage: 6, LastDeferred: 7}}
	b.Take(3, 9)
	b.Take(255, 1<<40)
	b.Deferred.Add(6, 1, []byte("one"))
	b.Deferred.Add(7, 0, []byte("two"))
	b.Apart.Add(number(1), ApartElsewhere)
	b.Apart.Add(number(2), ApartDummy)
	b.Dropped.Add(DroppedOp{1, 2})
	b.Trail.AddChange(Place{1, 0}, number(1), optedIn(1), 1)
	saving(t, s, b)()

	got := load(t, s)
	require.Equal(t, b.Positions, got.Positions)
	require.Equal(t, b.Taken(), got.Taken())
	require.True(t, got.HasTaken(3, 9))
	require.False(t, got.HasTaken(3, 10))
	require.Equal(t, b.Deferred.All(), got.Deferred.All())
	require.Equal(t, b.Apart.Bytes(), got.Apart.Bytes())
	require.True(t, got.Apart.Has(number(2)))
	require.Equal(t, []uint64{number(2)}, got.Apart.TakeDummies())
	require.Empty(t, got.Apart.TakeDummies())
	require.Empty(t, dropped(t, got, nil, 0, 9))
	require.Empty(t, got.Trail.Pending(number(1)))

	require.Nil(t, b.Deferred.Remove(5))
	require.Equal(t, "one", string(b.Deferred.Remove(6).Record))
	require.Nil(t, b.Deferred.Find(6))
	saving(t, s, b)()
	got = load(t, s)
	require.Equal(t, 1, got.Deferred.Len())
	require.EqualValues(t, 7, got.Deferred.All()[0].Seq)

	for kind, value := range map[byte]string{store.BookApplied: "short", store.BookInbox: "\x01\xff", store.BookDeferred: "short"} {
		known, err := new(Books).Load(kind, make([]byte, 8), []byte(value))
		require.True(t, known)
		require.ErrorIs(t, err, store.ErrStore, string(kind))
	}
	known, err := new(Books).Load(store.BookOutbox, make([]byte, 8), nil)
	require.NoError(t, err)
	require.False(t, known, "it is its owner's")
}

// Rows that come while a checkpoint writes are left for the next one. Readers find each row once, before, during and
// after the checkpoint.
func TestBetweenSaveAndSaved(t *testing.T) {
	s := openStore(t)
	b, audit := &Books{ID: partition}, Audit{}
	bytes := int64(0)
	add := func(n uint64) {
		bytes += b.Trail.AddChange(Place{n, 0}, number(1), optedIn(int64(n)), int64(n))
		bytes += b.Suppressed.Move(1, number(n), profile.StateChange{}, bounced(int64(n)))
		b.Answers.Add(KeptAnswer{int64(n), number(n)})
		b.Dropped.Add(DroppedOp{n, 0})
		audit.Add(int64(n), 1, []byte("entry"))
	}
	require3 := func(n int) {
		t.Helper()
		h, err := HistoryOf(s, number(1), b.Trail.Pending(number(1)))
		require.NoError(t, err)
		require.Len(t, h.Changes, n)
		for i, c := range h.Changes {
			require.Equal(t, StateChange{optedIn(0).State, int64(i + 1), 3, op.SourceTrack, int64(i + 1)}, c)
		}
		blocked, next, err := SuppressedPage(s, partition, bounces, b.Suppressed.Pending(bounces))
		require.NoError(t, err)
		require.Zero(t, next)
		require.Len(t, blocked, n)
		page, err := AuditPage(s, 1, audit.Pending())
		require.NoError(t, err)
		require.Len(t, page, n)
		before := [32]byte{}
		for _, a := range page {
			require.Equal(t, a.Chain(before), a.Hash)
			before = a.Hash
		}
		due, err := b.Answers.Due(s, partition, 100)
		require.NoError(t, err)
		require.Len(t, due, n)
	}
	add(1)
	add(2)
	first := bytes
	require3(2)
	saved := saving(t, s, b)
	batch := s.DB.NewBatch()
	require.NoError(t, audit.Save(batch))
	add(3)
	require3(3)
	require.Equal(t, first, saved())
	require.NoError(t, batch.Commit(pebble.NoSync))
	audit.Saved()
	require3(3)
	require.Len(t, b.Trail.Pending(number(1)), 1)
	require.Len(t, b.Suppressed.Pending(bounces), 1)
	require.Len(t, audit.Pending(), 1)
	require.Equal(t, []DroppedOp{{3, 0}}, dropped(t, b, nil, 0, 9))
	require.Zero(t, b.Saved(), "not written yet")
	audit.Saved()
	require3(3)
	require.Equal(t, bytes-first, saving(t, s, b)())
	require3(3)
	require.Equal(t, []DroppedOp{{2, 0}, {3, 0}}, dropped(t, b, ranges(t, s), 2, 3))

	b.Trail.Erase(number(1))
	b.Suppressed.Move(1, number(2), bounced(2), profile.StateChange{State: profile.State{Kind: profile.StateBounce}, Changed: 4})
	saving(t, s, b)()
	h, err := HistoryOf(s, number(1), b.Trail.Pending(number(1)))
	require.NoError(t, err)
	require.Empty(t, h)
	blocked, _, err := SuppressedPage(s, partition, bounces.Behind(Suppression{1, number(1)}), nil)
	require.NoError(t, err)
	require.Equal(t, []Suppression{{3, number(3)}}, blocked)

	end := Audit{}
	require.NoError(t, end.Load(s))
	seq, hash := end.End()
	page, err := AuditPage(s, 2, nil)
	require.NoError(t, err)
	require.Len(t, page, 1, "the third was never written")
	require.Equal(t, page[0].Seq, seq)
	require.Equal(t, page[0].Hash, hash)
}

// A sweep takes the oldest answers, a bounded number at a time, and answers that were swept don't come again.
func TestAnswersAreSwept(t *testing.T) {
	s := openStore(t)
	b := &Books{ID: partition}
	for i := range 3 * MaxSwept {
		b.Answers.Add(KeptAnswer{int64(i + 1), number(uint64(i + 1))})
		if i == MaxSwept {
			saving(t, s, b)()
		}
	}
	for round := range 3 {
		due, err := b.Answers.Due(s, partition, 1<<40)
		require.NoError(t, err)
		require.Len(t, due, MaxSwept)
		require.EqualValues(t, round*MaxSwept+1, due[0].Stamp)
		require.Equal(t, round < 2, b.Answers.More)
		b.Answers.Sweep(due)
		saving(t, s, b)()
	}
	due, err := b.Answers.Due(s, partition, 1<<40)
	require.NoError(t, err)
	require.Empty(t, due)
	require.NoError(t, s.Scan(store.AppendBookKey(nil, partition, store.BookAnswers), store.AppendBookKey(nil, partition, store.BookAnswers+1),
		func([]byte, []byte) error { t.Error("a row is left"); return nil }))
}

// Readers of the log get changes of consent, merges and identifies in order, whole records at a time. Other readers
// don't see merges and identifies.
func TestNoted(t *testing.T) {
	s := openStore(t)
	b := &Books{ID: partition}
	b.Trail.AddChange(Place{1, 1 << 32}, number(1), optedIn(11), 12)
	b.Trail.AddChange(Place{1, 1<<32 | 1}, number(1), profile.StateChange{State: profile.State{Kind: profile.StateBounce, On: true}, Changed: 1}, 1)
	b.Trail.AddMerge(Place{2, 0}, number(1), 13, number(2), []byte("ann"))
	saving(t, s, b)()
	b.Trail.AddIdentify(Place{3, 0}, number(3), 14, []byte("bob"))
	b.Trail.AddStay(Place{3, 1}, number(3), Stay{op.Email, []byte("x@example.com"), 1, 2})
	for i := range uint64(2 * maxNoted) { // of one record
		b.Trail.AddIdentify(Place{4, i}, number(4), 15, nil)
	}
	b.Trail.AddIdentify(Place{5, 0}, number(3), 16, nil)

	noted := func(from, to uint64, s *store.Ranges) ([]Noted, uint64) {
		var lock sync.Mutex
		all, through, err := b.Trail.AppendNoted(nil, s, partition, from, to, &lock)
		require.NoError(t, err)
		return all, through
	}
	all, through := noted(1, 9, ranges(t, s))
	require.EqualValues(t, 9, through)
	require.Len(t, all, 2)
	require.Equal(t, Noted{Position: 1, Ordinal: 1, Number: number(1), StateChange: optedIn(11)}, all[0])
	require.Equal(t, Noted{Position: 2, Number: number(1), Stamp: 13, Gone: number(2), ExternalID: []byte("ann")}, all[1])
	all, through = noted(1, 9, nil)
	require.EqualValues(t, 4, through)
	require.Len(t, all, 1+2*maxNoted)
	require.Equal(t, Noted{Position: 3, Number: number(3), Stamp: 14, ExternalID: []byte("bob")}, all[0])
	all, through = noted(5, 9, nil)
	require.EqualValues(t, 9, through)
	require.Len(t, all, 1)

	h, err := HistoryOf(s, number(3), b.Trail.Pending(number(3)))
	require.NoError(t, err)
	require.Equal(t, History{Stays: []Stay{{op.Email, []byte("x@example.com"), 1, 2}}}, h)

	batch := s.DB.NewBatch()
	require.NoError(t, ForgetLogged(batch, partition, 1))
	require.NoError(t, batch.Commit(pebble.NoSync))
	all, _ = noted(1, 2, ranges(t, s))
	require.Len(t, all, 1)
}

// ranges are the ranges of the store as it is now.
func ranges(t *testing.T, s *store.Store) *store.Ranges {
	r := s.Ranges()
	t.Cleanup(r.Close)
	return r
}

// A list is read in pages of any size, in both directions, between any two entries, whatever part of it is in the store;
// and it is what is left of all changes. A page takes the memory of a page, however much is pending. What changes take
// in memory is counted, and freed when they are in the store.
func TestSuppressedPages(t *testing.T) {
	s := openStore(t)
	b := &Books{ID: partition}
	rng := testseed.Rand(t)
	now := map[uint64]profile.StateChange{}
	states := []profile.State{{Kind: profile.StateEmail, Value: "unsubscribed"}, {Kind: profile.StateEmail, Value: "opted_in"}, {Kind: profile.StateEmail}}
	held := int64(0)
	move := func() {
		for range rng.IntN(20) {
			n := number(1 + rng.Uint64N(30))
			c := profile.StateChange{State: states[rng.IntN(len(states))], Changed: rng.Int64N(40) - 10}
			held += b.Suppressed.Move(1+uint32(n)%2, n, now[n], c)
			now[n] = c
		}
	}
	for round := range 200 {
		move()
		switch rng.IntN(6) {
		case 0:
			held -= saving(t, s, b)()
			require.Zero(t, held)
		case 1: // changes between the two are pending
			saved := saving(t, s, b)
			move()
			held -= saved()
		case 2: // a checkpoint that fails
			batch := s.DB.NewBatch()
			require.NoError(t, b.Save(batch))
			require.NoError(t, batch.Close())
		}
		q := SuppressedQuery{Workspace: 1, Kind: profile.StateEmail, Above: Suppression{rng.Int64N(20) - 15, rng.Uint64N(2) * number(15)},
			Below: Suppression{Since: 10 + rng.Int64N(25)}, Down: round%2 == 0, Most: 1 + rng.IntN(7)}
		if b.Suppressed.pending != nil {
			require.EqualValues(t, held, suppressedBytes*b.Suppressed.pending.Len())
		}
		var want, got []Suppression
		for n, c := range now {
			at := Suppression{c.Changed, n}
			if n%2 == 0 && c.Suppresses() && at.Compare(q.Above) > 0 && at.Compare(q.Below) < 0 {
				want = append(want, at)
			}
		}
		slices.SortFunc(want, q.Compare)
		for rest := q; ; {
			pending := b.Suppressed.Pending(rest)
			require.LessOrEqual(t, len(pending), q.Most)
			page, next, err := SuppressedPage(s, partition, rest, pending)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), q.Most)
			require.LessOrEqual(t, cap(page), 2*q.Most)
			got = append(got, page...)
			if next.Number == 0 {
				break
			}
			rest = rest.Behind(next)
		}
		require.Equal(t, want, got, "%+v", q)
	}
}

// What the event log leaves out is in memory until it is in the store; what comes meanwhile stays in memory.
func TestDroppedWhileSaving(t *testing.T) {
	s := openStore(t)
	b := &Books{ID: partition}
	b.Dropped.Add(DroppedOp{1, 2})
	saved := saving(t, s, b)
	b.Dropped.Add(DroppedOp{3, 0})
	require.Equal(t, []DroppedOp{{1, 2}, {3, 0}}, dropped(t, b, nil, 1, 9))
	saved()
	require.Equal(t, []DroppedOp{{3, 0}}, dropped(t, b, nil, 1, 9))
	require.Equal(t, []DroppedOp{{1, 2}}, dropped(t, b, ranges(t, s), 1, 9))
}

// dropped is what the event log leaves out of some positions, in the store or in memory.
func dropped(t *testing.T, b *Books, s *store.Ranges, from, to uint64) []DroppedOp {
	var lock sync.Mutex
	list, err := b.Dropped.Append(nil, s, partition, from, to, &lock)
	require.NoError(t, err)
	return list
}
