package eventlog

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/wal/durable"
)

func TestEverythingOnceBeforeAndAfterPacking(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	for i := range 12 {
		w.setEmail(fmt.Sprint("u", i), fmt.Sprintf("m%d@example.com", i))
	}
	w.commitMore(60, 9)
	w.requireExact()
	_, ids := w.exported(Query{})
	w.pack()
	require.Greater(t, w.l.Stats().Blocks, 2)
	require.Equal(t, w.e.Replica().CheckpointedPosition(), w.l.Stats().Packed)
	w.requireExact()
	_, packed := w.exported(Query{})
	require.Equal(t, ids, packed, "ids and numbers are the same for ever")
	w.commitMore(40, 9)
	w.requireExact()
	w.reopen(manual())
	w.requireExact()
	w.pack()
	w.commitMore(5, 9)
	w.requireExact()
	require.NoError(t, w.l.Verify(context.Background()))
}

// Records that are packed leave the engine's log; records that aren't stay.
func TestLogIsLetGo(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	for range 4 {
		w.commitMore(40, 20)
		w.reopen(manual()) // so that segments are finished
	}
	w.checkpoint()
	require.EqualValues(t, 1, w.e.Replica().FirstPosition())
	w.pack()
	w.checkpoint()
	require.Greater(t, w.e.Replica().FirstPosition(), uint64(100))
	w.requireExact()
}

// Events that reach their user by a message of another partition count once, where they took effect. Events without
// effect never count.
func TestDroppedOpsAreLeftOut(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	// In one request, events follow the attribute that makes their address. So they are deferred and come as messages.
	for i := range 30 {
		o := objectOf(int64(1000 + i))
		o.id, o.key, o.flags, o.lost = op.Email, fmt.Sprintf("late%d@example.com", i), 0, false
		b := w.e.NewBatch(1, 0)
		start := b.Begin()
		b.Buf = append(op.AppendString(append(b.Buf, op.AttrEmail), []byte(o.key)), fmt.Sprint("user", i)...)
		b.End(start, op.Attributes, op.Contact, op.ExternalID, len(fmt.Sprint("user", i)))
		require.True(t, o.write(b))
		ghost := objectOf(1)
		ghost.id, ghost.key, ghost.flags = op.ExternalID, fmt.Sprint("nobody", i), op.UpdateOnly
		require.True(t, ghost.write(b))
		require.NoError(t, b.Commit())
		b.Release()
	}
	check := func() {
		var keys []string
		require.NoError(t, w.l.Export(context.Background(), Query{}, func(e *event.Event) error {
			require.Equal(t, op.Email, e.ID)
			require.True(t, e.Resolved)
			keys = append(keys, string(e.Key))
			return nil
		}))
		var want []string
		for i := range 30 {
			want = append(want, fmt.Sprintf("late%d@example.com", i))
		}
		require.ElementsMatch(t, want, keys)
	}
	check()
	w.pack()
	check()
	require.NoError(t, w.e.Replica().Checkpoint())
	dropped, err := w.e.Replica().Dropped(0, ^uint64(0)-1)
	require.NoError(t, err)
	require.Empty(t, dropped, "what is packed is forgotten")
}

// While requests are committed and packed, every export has everything that was acknowledged before it, and nothing
// twice.
func TestExportWhilePacking(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), busy())
	for i := range 12 {
		w.setEmail(fmt.Sprint("u", i), fmt.Sprintf("m%d@example.com", i))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range testsize.Short(120, 40) {
				if err := w.commit(w.more(7)...); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				b := w.e.NewBatch(1, 0) // addresses move, so that ops are forwarded
				user := fmt.Sprint("u", i%12)
				start := b.Begin()
				b.Buf = append(op.AppendString(append(b.Buf, op.AttrEmail), fmt.Appendf(nil, "m%d@example.com", (i*5)%12)), user...)
				b.End(start, op.Attributes, op.Contact, op.ExternalID, len(user))
				if err := b.Commit(); err != nil {
					t.Error(err)
				}
				b.Release()
				if i%4 == 0 {
					w.checkpoint()
				}
			}
		}
	}()
	for range testsize.Short(25, 10) {
		before := w.snapshot()
		counts, _ := w.exported(Query{})
		for n, c := range counts {
			require.Equal(t, 1, c, "object %d", n)
		}
		for n := range before {
			require.Equal(t, 1, counts[n], "object %d was acknowledged", n)
		}
	}
	close(stop)
	wg.Wait()
	w.checkpoint()
	require.Eventually(t, func() bool { return w.l.Stats().Packed >= w.e.Replica().CheckpointedPosition() }, time.Minute, time.Millisecond)
	w.requireExact()
}

// Events that an export has read from the log are packed while the export goes on, into a block that begins before the
// export's place and ends behind it. The export has each event once.
func TestPackedInTheMiddleOfAnExport(t *testing.T) {
	o := manual()
	o.BlockBytes, o.tailBytes = 1<<20, 4<<10
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(60, 9)
	want := map[int64]int{}
	for n := range w.snapshot() {
		want[n] = 1
	}
	got := map[int64]int{}
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(e *event.Event) error {
		got[judge(t, e)]++
		if len(got) == 100 {
			w.commitMore(10, 9)
			w.pack()
			require.Equal(t, 1, w.l.Stats().Blocks)
		}
		return nil
	}))
	require.Equal(t, want, got)
	w.requireExact()
}

// laggard is an engine one of whose workers is behind for some calls. Events that this worker hasn't applied aren't
// known as dropped either.
type laggard struct {
	Source
	ahead, behind int // calls that are answered as if everything were applied, and then as if it weren't
}

func (s *laggard) AppliedPosition() uint64 {
	p := s.Source.AppliedPosition()
	if s.ahead > 0 {
		s.ahead--
	} else if s.behind > 0 {
		s.behind--
		return p - 30
	}
	return p
}

func (s *laggard) Dropped(from, to uint64) ([]books.DroppedOp, error) {
	if s.behind > 0 {
		return nil, nil
	}
	return s.Source.Dropped(from, to)
}

func TestExportWaitsForTheEngine(t *testing.T) {
	for ahead := range 3 {
		w := newWorld(t, vfs.NewMem(), manual())
		w.commitMore(60, 9)
		w.l.src = &laggard{w.e.Replica(), ahead, 5}
		w.requireExact()
	}
}

// After a loss of power at any moment, everything that was acknowledged is there once.
func TestCrash(t *testing.T) {
	r := testseed.Rand(t)
	w := newWorld(t, vfs.NewCrashableMem(), busy())
	for range testsize.Short(12, 3) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range 80 {
					select {
					case <-stop:
						return
					case <-time.After(200 * time.Microsecond):
						if err := w.commit(w.more(5)...); err != nil {
							t.Error(err)
							return
						}
					}
				}
			}()
		}
		for range r.IntN(4) {
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			w.checkpoint()
		}
		time.Sleep(time.Duration(r.IntN(15)) * time.Millisecond)
		before := w.snapshot()
		crashed := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		close(stop)
		wg.Wait()
		require.NoError(t, w.l.Close())
		require.NoError(t, w.e.Close())
		w.fs = crashed
		w.open(busy())
		counts, _ := w.exported(Query{})
		for n, c := range counts {
			require.Equal(t, 1, c, "object %d", n)
		}
		for n := range before {
			require.Equal(t, 1, counts[n], "object %d was acknowledged", n)
			require.Equal(t, 1, counts[n], "object %d was acknowledged", n)
		}
		w.mu.Lock() // requests that were under way at the crash are there or aren't
		w.acked = map[int64]bool{}
		for n := range counts {
			w.acked[n] = true
		}
		w.mu.Unlock()
	}
	w.checkpoint()
	require.NoError(t, w.l.Pack())
	w.requireExact()
	require.NoError(t, w.l.Verify(context.Background()))
	names, err := w.fs.List("data/events")
	require.NoError(t, err)
	for _, name := range names {
		require.False(t, strings.HasSuffix(name, durable.Temporary), name)
	}
}

func TestRetention(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(40, 9)
	w.pack()
	old := w.l.Stats().Blocks
	w.clock.move(20 * 24 * time.Hour)
	w.acked = map[int64]bool{}
	w.commitMore(40, 9)
	w.pack()
	w.clock.move(9 * 24 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	blocks := w.l.Stats().Blocks
	require.Greater(t, blocks, old)
	w.clock.move(36 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, blocks-old, w.l.Stats().Blocks)
	w.requireExact() // the second half
	w.reopen(manual())
	w.requireExact()
	// Events that expire before they are packed never become a block, and the log is let go all the same.
	w.commitMore(10, 9)
	w.clock.move(40 * 24 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	w.pack()
	require.Zero(t, w.l.Stats().Blocks)
	w.acked = map[int64]bool{}
	w.requireExact()
	require.Equal(t, w.e.Replica().CheckpointedPosition(), w.l.Stats().Packed)
	w.reopen(manual())
	w.requireExact()
}

// What grows old does so by the clock of the stamps: when the system's clock jumps ahead, as after a wrong answer about
// the time, nothing is gone that can't be brought back.
func TestNothingExpiresByAClockThatJumps(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.e.Replica().Clock().Steady = func() time.Duration { return 0 } // what the clock moves by is a jump
	w.commitMore(40, 9)
	w.pack()
	w.commitMore(10, 9)
	blocks := w.l.Stats().Blocks
	w.clock.move(365 * 24 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, blocks, w.l.Stats().Blocks)
	w.pack() // and what isn't packed becomes a block all the same
	w.clock.move(-365 * 24 * time.Hour)
	w.requireExact()
}

func TestWorkerPacksWhenItIsDue(t *testing.T) {
	o := busy()
	o.BlockBytes, o.PackAfter = 1<<16, time.Minute
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(10, 9)
	w.checkpoint()
	time.Sleep(30 * time.Millisecond)
	require.Zero(t, w.l.Stats().Packed, "less than a block, and young")
	w.clock.move(2 * time.Minute)
	require.Eventually(t, func() bool { return w.l.Stats().Packed == w.e.Replica().CheckpointedPosition() }, time.Minute, time.Millisecond)
	require.Equal(t, 1, w.l.Stats().Blocks)
	packed := w.l.Stats().Packed
	for w.l.Stats().BacklogBytes < 2*o.BlockBytes { // more than a block
		w.commitMore(50, 60)
	}
	w.checkpoint()
	require.Eventually(t, func() bool { return w.l.Stats().Packed > packed }, time.Minute, time.Millisecond)
	w.requireExact()
}

func TestQuery(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(50, 9)
	w.pack()
	w.commitMore(50, 9)
	since, until := time.UnixMilli(baseTime+3e8), time.UnixMilli(baseTime+6e8)
	for name, c := range map[string]struct {
		q    Query
		want func(o object) bool
	}{
		"time":      {Query{Since: since, Until: until}, func(o object) bool { return o.time >= baseTime+3e8 && o.time < baseTime+6e8 }},
		"names":     {Query{Names: []string{"event 3", "sku-7"}}, func(o object) bool { return o.name == "event 3" || o.name == "sku-7" }},
		"kinds":     {Query{Kinds: []op.Kind{op.Purchase}}, func(o object) bool { return o.kind == op.Purchase }},
		"workspace": {Query{Workspace: 1}, func(o object) bool { return true }},
		"foreign":   {Query{Workspace: 2}, func(o object) bool { return false }},
	} {
		want := map[int64]int{}
		for n := range w.snapshot() {
			if c.want(objectOf(n)) {
				want[n] = 1
			}
		}
		got, _ := w.exported(c.q)
		require.Equal(t, want, got, name)
	}
	var number uint64
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(e *event.Event) error { number = e.Number; return nil }))
	some := 0
	require.NoError(t, w.l.Export(context.Background(), Query{Of: []bodies.Erased{{Number: number, By: bodies.ByProfile}, {Number: number, By: bodies.ByIdentifier}}}, func(e *event.Event) error {
		require.Equal(t, number, e.Number)
		some++
		return nil
	}))
	require.Positive(t, some)

	ctx, cancel := context.WithCancel(context.Background())
	err := w.l.Export(ctx, Query{}, func(*event.Event) error { cancel(); return ctx.Err() })
	require.ErrorIs(t, err, context.Canceled)
}

func TestClosed(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	require.NoError(t, w.l.Close())
	require.NoError(t, w.l.Close())
	require.ErrorIs(t, w.l.Pack(), errClosed)
	require.ErrorIs(t, w.l.maintain(true), errClosed)
}
