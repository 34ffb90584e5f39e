package eventlog

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/files"
	"millrace/shard/op"
)

// writtenFS adds up the bytes that are written to files.
type writtenFS struct {
	vfs.FS
	bytes *int
}

func (fs writtenFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if strings.Contains(name, files.BlockSuffix) {
		return f, err
	}
	return writtenFile{f, fs.bytes}, err
}

type writtenFile struct {
	vfs.File
	bytes *int
}

func (f writtenFile) Write(p []byte) (int, error) {
	*f.bytes += len(p)
	return f.File.Write(p)
}

// deleteMore makes users with an event each, packs, and deletes them.
func (w *world) deleteMore(round, users int) {
	w.t.Helper()
	for i := range users {
		w.track(op.ExternalID, fmt.Sprintf("more %d %d", round, i), 0, "a")
	}
	w.pack()
	for i := range users {
		w.deleteUser(op.ExternalID, fmt.Sprintf("more %d %d", round, i))
	}
}

// What packing writes for deletions doesn't grow with those that are there already.
func TestDeletionsArePackedOnce(t *testing.T) {
	testsize.SkipSerial(t)
	fs, written := vfs.NewMem(), 0
	o := manual()
	o.FS = writtenFS{fs, &written}
	w := newWorld(t, fs, o)
	const rounds, users = 30, 40
	for round := range rounds {
		w.deleteMore(round, users)
		w.pack()
	}
	require.Equal(t, rounds*users, w.l.Stats().Deletions)
	t.Logf("%d bytes written for each deletion", written/(rounds*users))
	require.Less(t, written, 300*rounds*users)
}

// When deletions take too much memory, blocks are rewritten at once. What a damaged block has kept then doesn't make
// that due again.
func TestDeletionsAreBounded(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(60, 9)
	w.deleteMore(0, 30)
	w.pack()
	require.Equal(t, 30, w.l.Stats().Deletions)
	require.NoError(t, w.l.maintain(false))
	require.Equal(t, 30, w.l.Stats().Deletions, "not due")
	require.Less(t, w.l.Stats().DeletionBytes, int64(30*100))

	w.l.opts.MaxDeletedBytes = w.l.Stats().DeletionBytes
	require.NoError(t, w.l.maintain(false))
	require.Zero(t, w.l.Stats().Deletions)
	require.NotContains(t, w.onDiskNames(), "a")
	w.requireExact()
	files, err := w.fs.List(eventsDir)
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(files, func(name string) bool { return path.Ext(name) == erased.Suffix }))

	b := w.l.blocks[0]
	flip(t, w.fs, b.path, b.info.Bytes-20)
	w.reopen(Options{Interval: time.Hour, BlockBytes: 16 << 10, PackAfter: time.Hour, MaxDeletedBytes: 1})
	w.deleteMore(1, 5)
	w.pack()
	require.True(t, w.l.isCrowded())
	require.ErrorIs(t, w.l.maintain(false), ErrCorrupt)
	require.Equal(t, 5, w.l.Stats().Deletions)
	require.False(t, w.l.isCrowded())
	w.deleteMore(2, 5)
	w.pack()
	require.True(t, w.l.isCrowded())
}

// The background worker sees to it by itself, between stretches.
func TestDeletionsAreBoundedByTheWorker(t *testing.T) {
	testsize.SkipSerial(t)
	o := busy()
	o.MaxDeletedBytes = 1
	w := newWorld(t, vfs.NewMem(), o)
	w.deleteMore(0, 30)
	w.checkpoint()
	require.Eventually(t, func() bool {
		s := w.l.Stats()
		return s.BacklogPositions == 0 && s.Deletions == 0
	}, time.Minute, time.Millisecond)
	require.Empty(t, w.onDiskNames())
}

// Of the logs of a node, those see to it that have more than their part.
func TestDeletionsOfSharedLogs(t *testing.T) {
	s := NewShare()
	s.join(100)
	s.join(20)
	require.False(t, s.isCrowded(100, 121))
	require.True(t, s.isCrowded(100, 120))
	require.False(t, s.isCrowded(20, 120))
	s.count(30)
	require.True(t, s.isCrowded(70, 140))
	s.leave(130)
	require.False(t, s.isCrowded(20, 21))
	require.True(t, s.isCrowded(20, 20))
}

// Power is lost before changes of the file system while deletions are packed in several steps, become part of larger
// runs, and are done. Nobody who was deleted comes back, and nothing is reported as lost.
func TestCrashWhileDeletionsArePacked(t *testing.T) {
	testsize.SkipSerial(t)
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	type moment struct {
		disk  *vfs.MemFS
		acked map[int64]bool
	}
	var moments []moment
	fs, on := vfs.NewCrashableMem(), false
	var w *world
	o := manual()
	o.FS = stepFS{fs, func(string) error {
		if on {
			cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r}
			moments = append(moments, moment{fs.CrashClone(cfg), w.snapshot()})
		}
		return nil
	}}
	w = newWorld(t, fs, o)
	w.commitMore(60, 9)
	w.pack()
	for i := range 5 {
		w.deleteUser(op.ExternalID, fmt.Sprint("u", i))
		w.deleteMore(i, 3)
		w.checkpoint()
		on = true
		require.NoError(t, w.l.Pack())
		on = false
	}
	require.Equal(t, 20, w.l.Stats().Deletions)
	on = true
	require.NoError(t, w.l.maintain(true))
	on = false
	w.requireExactBesides("a")
	share := testsize.Of(1, 6, 6) // one moment of so many
	for i := r.IntN(share); i < len(moments); i += share {
		c := &world{t: t, fs: moments[i].disk, clock: w.clock, acked: moments[i].acked}
		c.open(manual())
		c.requireExactBesides("a")
		require.NoError(t, c.l.Pack())
		require.NoError(t, c.l.maintain(true))
		c.requireExactBesides("a")
		require.Zero(t, c.l.Stats().Deletions)
		c.close()
	}
	t.Logf("%d moments", len(moments))
	require.Greater(t, len(moments), 60)
}

// requireExactBesides is requireExact, and requires that nobody who was deleted has an event of this name.
func (w *world) requireExactBesides(name string) {
	w.t.Helper()
	w.requireExact()
	require.NotContains(w.t, w.exportedNames(), name)
}

// withDeletions is a stopped world that remembers deletions.
func withDeletions(t *testing.T) (w *world, path string) {
	t.Helper()
	w = newWorld(t, vfs.NewCrashableMem(), manual())
	w.commitMore(30, 9)
	w.pack()
	w.deleteUser(op.ExternalID, "u7")
	w.deleteUser(op.ExternalID, "u8")
	w.pack()
	r := w.l.deleted.Load().Packed[0]
	path = w.l.dir.RunPath(r.First, r.Last)
	w.close()
	return w, path
}

func TestLostDeletions(t *testing.T) {
	testsize.SkipSerial(t)
	w, of := withDeletions(t)
	text := w.read(of)
	require.NoError(t, w.fs.Remove(of))
	err := w.openRefused()
	require.ErrorIs(t, err, files.ErrLost)
	require.ErrorContains(t, err, "STATE lists "+path.Base(of)+", which is missing")
	w.write(of, text)
	w.open(manual())
	w.requireExact()
	w.close()
	require.NoError(t, w.fs.Remove(of))
	require.ErrorIs(t, w.openRefused(), files.ErrLost)
	w.requireBegunAnew()
}

func TestDamagedDeletions(t *testing.T) {
	testsize.SkipSerial(t)
	w, of := withDeletions(t)
	for at := range len(w.read(of)) {
		flip(t, w.fs, of, int64(at))
		_, err := erased.Read(w.fs, of)
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		flip(t, w.fs, of, int64(at))
	}
	flip(t, w.fs, of, 0)
	require.ErrorIs(t, w.openRefused(), ErrCorrupt)
	flip(t, w.fs, of, 0)
	w.open(manual())
	w.requireExact()
}

// Deletions that become part of a larger run, or are done, while an image is made are in the image all the same, or
// their events are not.
func TestImageWhileDeletionsAreDone(t *testing.T) {
	testsize.SkipSerial(t)
	for _, done := range []bool{false, true} {
		before := func() {}
		o := manual()
		fs := vfs.NewMem()
		o.FS = linkFS{fs, func() { before() }}
		w := newWorld(t, fs, o)
		w.commitMore(60, 9)
		w.deleteMore(0, 3)
		w.pack()
		links := 0
		before = func() {
			if links++; links == 1 {
				w.deleteMore(1, 3)
				w.pack()
				if done {
					require.NoError(t, w.l.maintain(true))
				}
			}
		}
		packed, err := w.l.Image("image")
		require.NoError(t, err)
		require.Equal(t, w.l.Stats().Packed, packed)
		s, _, err := files.Dir{FS: fs, Path: "image"}.Read()
		require.NoError(t, err)
		require.Len(t, s.Runs, map[bool]int{false: 1, true: 0}[done])
		for _, r := range s.Runs {
			_, err := erased.Read(fs, "image/"+erased.Name(r.First, r.Last))
			require.NoError(t, err)
		}
	}
}
