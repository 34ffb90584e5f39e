package eventlog

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/eventlog/files"
	"millrace/shard/op"
)

const eventsDir = "data/events"

// packed is a stopped world, all of whose events are in blocks.
func packed(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, vfs.NewCrashableMem(), manual())
	w.commitMore(80, 9)
	w.pack()
	require.Greater(t, len(w.l.blocks), 3)
	w.close()
	return w
}

func (w *world) close() {
	w.t.Helper()
	require.NoError(w.t, w.l.Close())
	require.NoError(w.t, w.e.Close())
}

// openRefused opens engine and event log, and returns why the event log doesn't open.
func (w *world) openRefused() error {
	w.t.Helper()
	e, err := shard.Open(engineOptions(w.fs, w.clock.now))
	require.NoError(w.t, err)
	o := manual()
	o.FS, o.Dir, o.Logger = w.fs, eventsDir, quiet()
	_, err = Open(e.Replica(), o)
	require.Error(w.t, err)
	require.NoError(w.t, e.Close())
	return err
}

func (w *world) accept() { w.write(path.Join(eventsDir, files.AcceptLossName), nil) }

func (w *world) write(path string, text []byte) {
	w.t.Helper()
	require.NoError(w.t, w.fs.MkdirAll(eventsDir, 0o700))
	f, err := w.fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(w.t, err)
	_, err = f.Write(bytes.Clone(text)) // cloned, since MemFS spoils it under the race detector
	require.NoError(w.t, err)
	require.NoError(w.t, f.Sync())
	require.NoError(w.t, f.Close())
	dir, err := w.fs.OpenDir(eventsDir)
	require.NoError(w.t, err)
	require.NoError(w.t, dir.Sync())
	require.NoError(w.t, dir.Close())
}

func (w *world) read(path string) []byte {
	w.t.Helper()
	f, err := w.fs.Open(path)
	require.NoError(w.t, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	require.NoError(w.t, err)
	return text
}

// requireSettled requires that the acceptance is used up, and that the next start reports no loss.
func (w *world) requireSettled() {
	w.t.Helper()
	_, err := w.fs.Stat(path.Join(eventsDir, files.AcceptLossName))
	require.Error(w.t, err)
	counts, _ := w.exported(Query{})
	w.reopen(manual())
	again, _ := w.exported(Query{})
	require.Equal(w.t, counts, again)
}

func TestLostBlock(t *testing.T) {
	testsize.SkipSerial(t)
	w := packed(t)
	lost := w.l.blocks[1]
	require.NoError(t, w.fs.Remove(lost.path))
	for range 2 {
		err := w.openRefused()
		require.ErrorIs(t, err, files.ErrLost)
		require.ErrorContains(t, err, "1 are missing: "+lost.String())
		require.ErrorContains(t, err, path.Join(eventsDir, files.AcceptLossName))
	}
	w.accept()
	before := lostPositions.Get()
	w.open(manual())
	require.EqualValues(t, lost.Last-lost.First+1, lostPositions.Get()-before)
	require.Equal(t, lost.Last, w.l.Expired())
	counts, _ := w.exported(Query{})
	require.Len(t, counts, len(w.acked)-int(lost.Events), "the others are there")
	w.requireSettled()

	// An acceptance holds once, not for ever.
	all := w.l.blocks
	w.close()
	for _, b := range all {
		require.NoError(t, w.fs.Remove(b.path))
	}
	require.ErrorIs(t, w.openRefused(), files.ErrLost)
}

// An acceptance when nothing is lost does not accept later losses.
func TestAcceptanceOfNothing(t *testing.T) {
	testsize.SkipSerial(t)
	w := packed(t)
	w.accept()
	w.open(manual())
	w.requireExact()
	w.requireSettled()
}

// The engine knows that there was an event log and how far it was packed.
func TestLostDirectory(t *testing.T) {
	testsize.SkipSerial(t)
	for _, what := range []string{"STATE", "all"} {
		w := packed(t)
		if what == "all" {
			require.NoError(t, w.fs.RemoveAll(eventsDir))
		} else {
			require.NoError(t, w.fs.Remove(path.Join(eventsDir, files.StateName)))
		}
		err := w.openRefused()
		require.ErrorIs(t, err, files.ErrLost)
		require.ErrorContains(t, err, "STATE is missing")
		w.requireBegunAnew()
	}
}

// An older STATE doesn't know who was deleted since, so no older event may be shown with it.
func TestOlderState(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewCrashableMem(), manual())
	w.commitMore(30, 9)
	w.pack()
	older := w.read(path.Join(eventsDir, files.StateName))
	w.deleteUser(op.ExternalID, "u7")
	w.commitMore(30, 9)
	w.pack()
	w.close()
	newest := w.read(path.Join(eventsDir, files.StateName))
	w.write(path.Join(eventsDir, files.StateName), older)
	err := w.openRefused()
	require.ErrorIs(t, err, files.ErrLost)
	require.ErrorContains(t, err, "STATE ends at position ")

	w.write(path.Join(eventsDir, files.StateName), newest)
	w.open(manual())
	w.requireExact()
	w.close()
	w.write(path.Join(eventsDir, files.StateName), older)
	require.ErrorIs(t, w.openRefused(), files.ErrLost)
	w.requireBegunAnew()
}

// requireBegunAnew accepts the loss of everything that was packed, and requires that what comes from then on is there,
// and nothing else.
func (w *world) requireBegunAnew() {
	w.t.Helper()
	w.accept()
	w.open(manual())
	w.acked = map[int64]bool{}
	w.requireExact()
	w.requireSettled()
	w.commitMore(10, 9)
	w.pack()
	w.requireExact()
	w.requireSettled()
	w.requireExact()
}

// Power is lost before changes of the file system by the event log, each of them, and by the engine, a share of them,
// while blocks are packed, are rewritten, go as a whole and expire, and the engine's log is let go. None of this is
// reported as a loss.
func TestNoLossOverCrashes(t *testing.T) {
	testsize.SkipSerial(t)
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	fs, on := vfs.NewCrashableMem(), false
	var mu sync.Mutex
	var clones []*vfs.MemFS
	step := func(oneOf int) error {
		mu.Lock()
		defer mu.Unlock()
		if on && r.IntN(oneOf) == 0 {
			cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r}
			clones = append(clones, fs.CrashClone(cfg))
		}
		return nil
	}
	watch := func(is bool) {
		mu.Lock()
		defer mu.Unlock()
		on = is
	}
	w := &world{t: t, fs: fs, clock: &clock{}, acked: map[int64]bool{}}
	engine := engineOptions(fs, w.clock.now)
	engine.FS = stepFS{fs, func(string) error { return step(4) }} // the engine makes many changes
	var err error
	w.e, err = shard.Open(engine)
	require.NoError(t, err)
	t.Cleanup(func() { w.e.Close() })
	o := manual()
	o.FS = stepFS{fs, func(string) error {
		if on { // what the engine knows is on disk, and its log is trimmed, as early as can be
			w.checkpoint()
		}
		return step(1)
	}}
	w.openLog(o)
	only := objectOf(1)
	only.id, only.key, only.lost, only.flags = op.ExternalID, "only", false, 0
	require.NoError(t, w.commit(only))
	w.next = 1
	w.pack()
	w.commitMore(20, 9)
	w.pack()
	w.deleteUser(op.ExternalID, "only")
	w.acked = map[int64]bool{}
	w.clock.move(31 * 24 * time.Hour)
	w.commitMore(20, 9)
	w.deleteUser(op.ExternalID, "u3")
	w.checkpoint()
	all := w.e.Replica().CheckpointedPosition() // each step adds to the log
	watch(true)
	require.NoError(t, w.l.PackTo(context.Background(), all))
	require.NoError(t, w.e.Replica().Checkpoint()) // the note
	require.NoError(t, w.l.maintain(true))
	watch(false)
	w.requireExact()
	require.NoError(t, w.l.Close())
	for _, clone := range clones {
		c := &world{t: t, fs: clone, clock: w.clock, acked: w.acked}
		c.open(manual())
		require.NoError(t, c.l.Pack())
		require.NoError(t, c.l.maintain(true))
		c.requireExact()
		require.NoError(t, c.l.Close())
		require.NoError(t, c.e.Close())
	}
	t.Logf("%d moments", len(clones))
	require.Greater(t, len(clones), 30)
}

// Power is lost while a loss is accepted. Afterwards the loss is accepted or is accepted at the next start, and that is
// the end of it.
func TestCrashWhileLossIsAccepted(t *testing.T) {
	testsize.SkipSerial(t)
	for _, what := range []string{"a block", "STATE"} {
		r := rand.New(rand.NewPCG(testseed.Of(t), 0))
		w := packed(t)
		gone := w.l.blocks[0].path
		if what == "STATE" {
			gone = path.Join(eventsDir, files.StateName)
		}
		require.NoError(t, w.fs.Remove(gone))
		w.accept()
		var clones []*vfs.MemFS
		o := manual()
		o.FS = stepFS{w.fs, func(string) error {
			clones = append(clones, w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r}))
			return nil
		}}
		w.open(o)
		counts, _ := w.exported(Query{})
		require.NoError(t, w.l.Close())
		require.Greater(t, len(clones), 5)
		for _, clone := range clones {
			c := &world{t: t, fs: clone, clock: w.clock}
			c.open(manual())
			again, _ := c.exported(Query{})
			require.Equal(t, counts, again)
			c.requireSettled()
			c.close()
		}
	}
}

// linkFS calls before in front of each hard link.
type linkFS struct {
	vfs.FS
	before func()
}

func (fs linkFS) Link(from, to string) error {
	fs.before()
	return fs.FS.Link(from, to)
}

// Blocks that expire while an image is made are not missing from it. A block that is gone for another reason is an
// error.
func TestImageWhileBlocksGo(t *testing.T) {
	for _, what := range []string{"they expire", "they are lost"} {
		var w *world
		before := func() {}
		o := manual()
		fs := vfs.NewMem()
		o.FS = linkFS{fs, func() { before() }}
		w = newWorld(t, fs, o)
		w.commitMore(80, 9)
		w.pack()
		links := 0
		before = func() {
			if links++; links != 2 {
				return
			}
			if what == "they expire" {
				w.clock.move(31 * 24 * time.Hour)
				require.NoError(t, w.l.maintain(true))
				require.Empty(t, w.l.blocks)
				return
			}
			require.NoError(t, fs.Remove(w.l.blocks[1].path))
		}
		_, err := w.l.Image("image")
		if what == "they are lost" {
			require.ErrorContains(t, err, path.Base(w.l.blocks[1].path))
			continue
		}
		require.NoError(t, err)
		s, known, err := files.Dir{FS: fs, Path: "image"}.Read()
		require.NoError(t, err)
		require.True(t, known)
		require.Len(t, s.Blocks, 1, "the one that was copied before")
		_, err = fs.Stat("image/" + files.BlockName(s.Blocks[0].First, s.Blocks[0].Last))
		require.NoError(t, err)
	}
}
