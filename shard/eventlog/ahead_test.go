package eventlog

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/wal/durable"
)

// replicaOf is the same log, as another replica of the group has it. It is all there, and what the engine has noted, too.
type replicaOf struct {
	Source
	packed uint64
	noted  bool
}

func (r *replicaOf) HoldLog(string, uint64) {}

func (r *replicaOf) PackedPosition() (uint64, bool, error) { return r.packed, r.noted, nil }

func (r *replicaOf) NotePacked(position uint64, _ bool) error {
	r.packed, r.noted = position, true
	return nil
}

// other returns the world of a second event log of the same engine, in a directory of its own, which follows that of w.
func (w *world) other(fs vfs.FS, o Options) *world {
	w.t.Helper()
	o.FS, o.Dir, o.Logger, o.groupRows = fs, "data/other", quiet(), 20
	f := &world{t: w.t, fs: w.fs, clock: w.clock, e: w.e, acked: w.acked}
	var err error
	f.l, err = Open(&replicaOf{Source: w.e.Replica()}, o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { f.l.Close() })
	return f
}

// follows are options of a log that follows that of w, and doesn't rest.
func (w *world) follows() Options {
	o := manual()
	o.MaxDuty = 1
	o.Ahead = func(from, to uint64) (Ahead, error) { return w.l.AheadFrom(from, to) }
	return o
}

func (w *world) packDue() {
	w.t.Helper()
	require.NoError(w.t, w.l.packDue())
}

// follow takes all that the other log has packed, due or not.
func (w *world) follow() {
	w.t.Helper()
	for packed := true; packed; {
		a := w.l.askAhead()
		w.l.work.Lock()
		w.l.pack.borrow(w.l.opts.Share, false)
		w.l.pack.pace.begin(w.l.stop, 1)
		var err error
		packed, err = w.l.packOne(true, a)
		w.l.pack.giveBack(w.l.opts.Share, false)
		w.l.work.Unlock()
		require.NoError(w.t, err)
	}
}

// held is a world whose log keeps everything, for those that follow, and doesn't rest.
func held(t *testing.T) *world {
	o := manual()
	o.MaxDuty = 1
	w := newWorld(t, vfs.NewMem(), o)
	w.l.src = &replicaOf{Source: w.l.src}
	return w
}

// A log that follows has the same blocks as the one that packs, and the same deletions.
func TestFollowingLogTakesBlocks(t *testing.T) {
	testsize.SkipSerial(t)
	w := held(t)
	f := w.other(w.fs, w.follows())
	w.commitMore(60, 9)
	w.checkpoint()
	w.packDue()
	before := takenBlocks.Get()
	f.packDue()
	require.Positive(t, takenBlocks.Get()-before)
	require.LessOrEqual(t, f.l.Stats().Packed, w.l.Stats().Packed)
	f.follow()
	require.Equal(t, w.l.Stats().Blocks, int(takenBlocks.Get()-before))
	w.deleteUser(op.ExternalID, "u7") // in a later stretch than the events
	w.commitMore(60, 9)
	w.checkpoint()
	w.packDue()
	f.follow()
	require.Greater(t, w.l.Stats().Blocks, 3)
	require.Equal(t, w.l.Stats().Blocks, int(takenBlocks.Get()-before))
	require.Equal(t, w.l.Stats().Packed, f.l.Stats().Packed)
	for i, b := range w.l.blocks {
		own, err := durable.ReadFileOn(w.l.opts.FS, b.path)
		require.NoError(t, err)
		taken, err := durable.ReadFileOn(f.l.opts.FS, f.l.blocks[i].path)
		require.NoError(t, err)
		require.Equal(t, own, taken)
	}
	require.Equal(t, 1, f.l.Stats().Deletions)
	w.requireExact()
	f.requireExact()
	require.Positive(t, f.onDisk("u7"))
	require.NoError(t, f.l.maintain(true))
	require.Zero(t, f.l.Stats().Deletions)
	f.requireExact()
	require.NoError(t, f.l.Verify(context.Background()))
}

// A log that hears nothing of the one that packs for it packs by itself, but later. When it hears of it again, it packs
// up to the end of the block that it is in, and takes those that follow.
func TestFollowingLogPacksByItself(t *testing.T) {
	testsize.SkipSerial(t)
	w := held(t)
	silent := true
	o := w.follows()
	o.Ahead = func(from, to uint64) (Ahead, error) {
		if silent {
			return Ahead{}, errors.New("it doesn't answer")
		}
		return w.l.AheadFrom(from, to)
	}
	f := w.other(w.fs, o)
	isDue := func() bool {
		due, err := f.l.isDue()
		require.NoError(t, err)
		return due
	}
	f.l.pack.eventBytes.set(1)
	w.commitMore(5, 9)
	w.checkpoint()
	f.packDue()
	for f.l.pack.eventBytes.set(float64(o.BlockBytes) / 10); !isDue(); {
		w.commitMore(1, 9)
		w.checkpoint()
	}
	f.packDue()
	require.Zero(t, f.l.Stats().Packed, "the other log may still come")
	w.commitMore(patienceBlocks*10, 9)
	w.checkpoint()
	f.packDue()
	require.Positive(t, f.l.Stats().Packed)
	w.l.opts.BlockBytes /= 3
	w.packDue()
	require.NotEqual(t, w.l.Stats().Packed, f.l.Stats().Packed)

	silent = false
	before := takenBlocks.Get()
	w.commitMore(60, 9)
	w.checkpoint()
	w.packDue()
	f.packDue()
	require.Greater(t, takenBlocks.Get(), before)
	f.follow()
	require.Equal(t, w.l.Stats().Packed, f.l.Stats().Packed)
	f.requireExact()

	silent = true
	w.commitMore(1, 9)
	w.checkpoint()
	w.clock.move(o.PackAfter + patience/2)
	f.packDue()
	require.Equal(t, w.l.Stats().Packed, f.l.Stats().Packed, "what is old can wait, too")
	w.clock.move(patience)
	f.packDue()
	require.Greater(t, f.l.Stats().Packed, w.l.Stats().Packed)
	f.requireExact()
}

// lagging is a replica whose engine has checkpointed less.
type lagging struct {
	Source
	to uint64
}

func (r *lagging) CheckpointedPosition() uint64 { return min(r.to, r.Source.CheckpointedPosition()) }

// A log asks again and again while its engine has not checkpointed as far as the block goes. It is sent the block once.
func TestBlockIsSentWhenItCanBeTaken(t *testing.T) {
	w := held(t)
	o := w.follows()
	sent, meanwhile := 0, func() {}
	ask := o.Ahead
	o.Ahead = func(from, to uint64) (Ahead, error) {
		a, err := ask(from, to)
		if a.Block != nil {
			sent++
		}
		meanwhile()
		return a, err
	}
	f := w.other(w.fs, o)
	w.commitMore(60, 9)
	w.checkpoint()
	w.packDue()
	r := &lagging{Source: f.l.src, to: w.l.blocks[0].Last - 1}
	f.l.src = r
	f.l.pack.eventBytes.set(2 * float64(o.BlockBytes) / float64(r.to))
	for range 5 {
		f.packDue()
	}
	require.Zero(t, sent)
	meanwhile = func() { r.to = w.l.blocks[0].Last } // it is too late for this answer
	f.packDue()
	f.packDue()
	require.Equal(t, 1, sent)
	require.Equal(t, r.to, f.l.Stats().Packed)
}

// A log that takes blocks knows how much waits in its own log, however much more comes than when it last packed itself.
func TestFollowingLogKnowsItsBacklog(t *testing.T) {
	testsize.SkipSerial(t)
	w := held(t)
	o := w.follows()
	silent := false
	o.Ahead = func(from, to uint64) (Ahead, error) {
		if silent {
			return Ahead{}, errors.New("it doesn't answer")
		}
		return w.l.AheadFrom(from, to)
	}
	f := w.other(w.fs, o)
	w.commitMore(300, 1)
	w.checkpoint()
	w.packDue()
	f.packDue()
	for range 50 {
		w.commitMore(10, 100) // far more in a record
		w.checkpoint()
		w.packDue()
		f.packDue()
	}
	silent = true
	logged := w.e.Replica().Stats().LoggedBytes
	before := f.l.Stats()
	w.commitMore(10, 100)
	w.checkpoint()
	logged = w.e.Replica().Stats().LoggedBytes - logged
	require.Greater(t, logged, patienceBlocks*o.BlockBytes)
	require.InEpsilon(t, logged, f.l.Stats().BacklogBytes-before.BacklogBytes, 0.5)
	f.packDue()
	require.Greater(t, f.l.Stats().Packed, before.Packed)
}

// The log that packs for the others doesn't ask them.
func TestLogThatPacks(t *testing.T) {
	w := held(t)
	o := manual()
	o.Ahead = func(uint64, uint64) (Ahead, error) { return Ahead{}, ErrPacks }
	f := w.other(w.fs, o)
	w.commitMore(60, 9)
	w.checkpoint()
	f.packDue()
	require.Positive(t, f.l.Stats().Blocks)
	f.requireExact()
}

// A block that is damaged, cut off, or of other positions is not taken: the log packs its stretch by itself.
func TestDamagedBlockIsNotTaken(t *testing.T) {
	testsize.SkipSerial(t)
	w := held(t)
	o := w.follows()
	var spoil func(block []byte) []byte
	o.Ahead = func(from, to uint64) (Ahead, error) {
		a, err := w.l.AheadFrom(from, to)
		if a.Block != nil {
			a.Block = spoil(a.Block)
		}
		return a, err
	}
	f := w.other(w.fs, o)
	r := testseed.Rand(t)
	var last []byte
	before := takenBlocks.Get()
	for _, spoil = range []func([]byte) []byte{
		func(b []byte) []byte { b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b },
		func(b []byte) []byte { return b[:r.IntN(len(b))] },
		func(b []byte) []byte {
			if last == nil {
				last = b
				return nil
			}
			return last
		},
	} {
		w.commitMore(60, 9)
		w.checkpoint()
		w.packDue()
		f.follow()
		require.Equal(t, w.l.Stats().Packed, f.l.Stats().Packed)
		f.requireExact()
	}
	require.Equal(t, before, takenBlocks.Get())
	require.NoError(t, f.l.Verify(context.Background()))
}

// Power is lost before every single change of the file system while blocks are taken. Afterwards all events are there,
// each once, and the log goes on following.
func TestCrashWhileFollowing(t *testing.T) {
	testsize.SkipSerial(t)
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	fs := vfs.NewCrashableMem()
	w := newWorld(t, fs, manual())
	w.l.src = &replicaOf{Source: w.l.src}
	var clones []*vfs.MemFS
	on := false
	f := w.other(stepFS{fs, func(string) error {
		if on {
			clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r}))
		}
		return nil
	}}, w.follows())
	w.commitMore(40, 9)
	w.deleteUser(op.ExternalID, "u3")
	w.commitMore(40, 9)
	w.checkpoint()
	w.packDue()
	on = true
	f.follow()
	on = false
	require.Equal(t, w.l.Stats().Packed, f.l.Stats().Packed)
	require.Greater(t, len(clones), 10)
	for _, clone := range oneOf(r, testsize.Of(1, 6, 6), clones) {
		c := w.other(clone, w.follows())
		c.requireExact()
		c.follow()
		c.requireExact()
		require.Equal(t, w.l.Stats().Packed, c.l.Stats().Packed)
		require.Equal(t, f.l.Stats().Deletions, c.l.Stats().Deletions)
		require.NoError(t, c.l.Verify(context.Background()))
		require.NoError(t, c.l.Close())
	}
	t.Logf("%d moments", len(clones))
}
