package eventlog

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/op"
)

// stepFS calls step before everything that changes the file system.
type stepFS struct {
	vfs.FS
	step func(what string) error
}

func (fs stepFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.step("create"); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	return stepFile{f, fs.step}, err
}

func (fs stepFS) Rename(from, to string) error {
	if err := fs.step("rename"); err != nil {
		return err
	}
	return fs.FS.Rename(from, to)
}

func (fs stepFS) Remove(name string) error {
	if err := fs.step("remove"); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

func (fs stepFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	return stepFile{f, fs.step}, err
}

type stepFile struct {
	vfs.File
	step func(what string) error
}

func (f stepFile) Write(p []byte) (int, error) {
	if err := f.step("write"); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f stepFile) Sync() error {
	if err := f.step("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

// oneOf is one in so many of the disks, chosen at random.
func oneOf(r *rand.Rand, many int, disks []*vfs.MemFS) []*vfs.MemFS {
	var chosen []*vfs.MemFS
	for i := r.IntN(many); i < len(disks); i += many {
		chosen = append(chosen, disks[i])
	}
	return chosen
}

// filled is a world with packed blocks, an unpacked tail, and deleted users who have events in both. The event log does
// nothing by itself.
func filled(t *testing.T, step func(w *world, what string) error) *world {
	o := manual()
	fs := vfs.NewCrashableMem()
	var w *world
	o.FS = stepFS{fs, func(what string) error { return step(w, what) }}
	w = newWorld(t, fs, o)
	w.commitMore(30, 9)
	w.pack()
	w.commitMore(30, 9)
	w.deleteUser(op.ExternalID, "u3")
	w.commitMore(10, 9)
	w.deleteUser(op.ExternalID, "u4")
	w.checkpoint()
	return w
}

// Power is lost before every single change of the file system while blocks are packed and rewritten. Afterwards all
// events are there, each once.
func TestCrashAtEveryStep(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	var clones []*vfs.MemFS
	on := false
	w := filled(t, func(w *world, _ string) error {
		if on {
			clones = append(clones, w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r}))
		}
		return nil
	})
	w.requireExact()
	on = true
	require.NoError(t, w.l.Pack())
	require.NoError(t, w.l.maintain(true))
	on = false
	w.requireExact()
	require.Zero(t, w.l.Stats().Deletions)
	require.Greater(t, len(clones), 30)
	clones = append(oneOf(r, testsize.Of(1, 6, 6), clones), w.fs.CrashClone(vfs.CrashCloneCfg{}))
	for _, clone := range clones {
		c := &world{t: t, fs: clone, clock: w.clock, acked: w.acked}
		c.open(manual())
		c.requireExact()
		require.NoError(t, c.l.Pack())
		require.NoError(t, c.l.maintain(true))
		c.requireExact()
		require.Zero(t, c.l.Stats().Deletions)
		require.NoError(t, c.l.Verify(context.Background()))
		require.NoError(t, c.l.Close())
		require.NoError(t, c.e.Close())
	}
	t.Logf("%d moments", len(clones))
}

// A block that goes as a whole doesn't come back once its deletion is forgotten.
func TestCrashWhileBlockGoes(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	var clones []*vfs.MemFS
	on := false
	fs := vfs.NewCrashableMem()
	o := manual()
	o.FS = stepFS{fs, func(string) error {
		for range 8 {
			if on {
				clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: r}))
			}
		}
		return nil
	}}
	w := newWorld(t, fs, o)
	only := objectOf(1)
	only.id, only.key, only.lost, only.flags = op.ExternalID, "only", false, 0
	require.NoError(t, w.commit(only))
	w.pack()
	w.deleteUser(op.ExternalID, "only")
	w.pack()
	w.acked = map[int64]bool{}
	on = true
	require.NoError(t, w.l.maintain(true))
	on = false
	require.Equal(t, 1, w.l.Stats().Blocks, "that of the deletion")
	require.Empty(t, w.onDiskNames())
	for _, clone := range clones {
		c := &world{t: t, fs: clone, clock: w.clock, acked: w.acked}
		c.open(manual())
		c.requireExact()
		require.NoError(t, c.l.Close())
		require.NoError(t, c.e.Close())
	}
}

// Every change of the file system fails once. Readers are not disturbed, no files of deletions are left behind that
// nobody needs, and afterwards, or at the latest after a restart, everything is packed.
func TestEveryStepFails(t *testing.T) {
	testsize.SkipSerial(t)
	broken := errors.New("broken disk")
	share := testsize.Of(1, 6, 6) // one step of so many
	for k := 1 + testseed.Rand(t).IntN(share); ; k += share {
		n, armed, failed := 0, false, ""
		w := filled(t, func(_ *world, what string) error {
			if armed {
				if n++; n == k {
					failed = what
					return broken
				}
			}
			return nil
		})
		armed = true
		err := errors.Join(w.l.Pack(), w.l.maintain(true))
		armed = false
		w.requireExact()
		if n < k {
			require.NoError(t, err)
			t.Logf("%d steps", n)
			return
		}
		require.ErrorIs(t, err, broken, "step %d", k)
		if errors.Is(err, errFailed) {
			require.ErrorIs(t, w.l.Pack(), errFailed)
			require.Error(t, w.l.Stats().Failed)
			w.reopen(manual())
			w.requireExact()
		} else if failed != "remove" {
			w.requireNoMoreRuns()
		}
		require.NoError(t, w.l.Pack())
		require.NoError(t, w.l.maintain(true))
		w.requireExact()
		require.Zero(t, w.l.Stats().Deletions)
		w.reopen(manual())
		w.requireExact()
		require.NoError(t, w.l.Close())
		require.NoError(t, w.e.Close())
	}
}

// requireNoMoreRuns requires that there are no files of runs but those that STATE lists.
func (w *world) requireNoMoreRuns() {
	w.t.Helper()
	names, err := w.l.opts.FS.List(w.l.opts.Dir)
	require.NoError(w.t, err)
	for _, name := range names {
		if strings.HasSuffix(name, erased.Suffix) {
			require.True(w.t, slices.ContainsFunc(w.l.deleted.Load().Packed, func(r *erased.Run) bool {
				return erased.Name(r.First, r.Last) == name
			}), name)
		}
	}
}

// deleteUser deletes a user. Objects that were addressed to the user are not to be exported any more.
func (w *world) deleteUser(id op.IDKind, key string) (number uint64) {
	w.t.Helper()
	users, err := w.e.Find(1, id, []byte(key))
	require.NoError(w.t, err)
	require.Len(w.t, users, 1)
	b := w.e.NewBatch(1, 0)
	b.Delete(users[0].Number)
	require.NoError(w.t, b.Commit())
	b.Release()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.acked {
		if o := objectOf(n); o.id == id && o.key == key {
			delete(w.acked, n)
		}
	}
	return users[0].Number
}

// onDisk counts the events of a user in blocks, deleted or not.
func (w *world) onDisk(key string) (n int) {
	w.t.Helper()
	for _, b := range w.l.blocks {
		require.NoError(w.t, w.l.readBlock(context.Background(), b, func(rs *blocks.Rows) error {
			for i := range rs.List {
				if string(rs.List[i].Key) == key {
					n++
				}
			}
			return nil
		}))
	}
	return n
}

func TestDeletedUsersDisappear(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(60, 9)
	w.pack()
	w.commitMore(60, 9)
	alias := string(op.AppendAliasKey(nil, []byte("device"), []byte("5")))
	require.Positive(t, w.onDisk("u7"))
	require.Positive(t, w.onDisk(alias))
	w.deleteUser(op.ExternalID, "u7")
	w.deleteUser(op.Alias, alias)
	w.deleteUser(op.Email, "m3@example.com")
	w.requireExact() // at once, from blocks and tail
	w.commitMore(30, 9)
	w.requireExact() // the user who came again is another user
	w.reopen(manual())
	w.requireExact() // the deletions are in the log
	w.pack()
	w.requireExact()
	require.Equal(t, 3, w.l.Stats().Deletions)
	w.reopen(manual())
	require.Equal(t, 3, w.l.Stats().Deletions) // and in STATE
	w.requireExact()

	again := 0
	for n := range w.acked {
		if objectOf(n).key == "u7" {
			again++
		}
	}
	require.Positive(t, again)
	require.Greater(t, w.onDisk("u7"), again, "still in old blocks")
	require.NoError(t, w.l.maintain(false))
	require.Greater(t, w.onDisk("u7"), again, "not due yet")
	w.clock.move(13 * time.Hour)
	require.NoError(t, w.l.maintain(false))
	require.Equal(t, again, w.onDisk("u7"))
	require.Zero(t, w.l.Stats().Deletions)
	w.requireExact()
	w.reopen(manual())
	require.Zero(t, w.l.Stats().Deletions)
	w.requireExact()
	require.NoError(t, w.l.Verify(context.Background()))

	// The user who came again goes, too.
	w.deleteUser(op.ExternalID, "u7")
	w.requireExact()
	w.pack()
	require.NoError(t, w.l.maintain(true))
	require.Zero(t, w.onDisk("u7"))
	w.requireExact()
}

// Events that are deleted before they are packed never get into a block.
func TestDeletedBeforePacking(t *testing.T) {
	o := manual()
	o.BlockBytes = 1 << 20 // one block
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(60, 9)
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	require.Zero(t, w.onDisk("u7"))
	w.requireExact()
}

// A block of which nothing is left goes as a whole.
func TestBlockOfDeletedUserGoes(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	o := objectOf(1)
	o.id, o.key, o.lost, o.flags = op.ExternalID, "only", false, 0
	require.NoError(t, w.commit(o))
	w.pack()
	require.Equal(t, 1, w.l.Stats().Blocks)
	w.deleteUser(op.ExternalID, "only")
	w.acked = map[int64]bool{}
	w.pack()
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, 1, w.l.Stats().Blocks, "that of the deletion")
	require.Empty(t, w.onDiskNames())
	w.requireExact()
	w.reopen(manual())
	w.requireExact()
}

// A clock that is put back doesn't put off what is due: neither packing, nor the deletions.
func TestUpkeepWhenTheClockIsPutBack(t *testing.T) {
	w := &world{t: t, fs: vfs.NewMem(), clock: &clock{}, acked: map[int64]bool{}}
	begin, back := time.Now(), atomic.Int64{}
	eo := engineOptions(w.fs, func() time.Time { return w.clock.now().Add(-time.Duration(back.Load())) })
	eo.Clock.Steady = func() time.Duration { return w.clock.now().Sub(begin) }
	var err error
	w.e, err = shard.Open(eo)
	require.NoError(t, err)
	defer w.e.Close()
	w.openLog(manual())
	w.commitMore(60, 9)
	w.pack()
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	back.Store(int64(w.l.opts.DeleteWithin))
	w.commitMore(1, 9)
	w.checkpoint()
	_, isOld, err := w.l.toPack(false)
	require.NoError(t, err)
	require.False(t, isOld)
	w.clock.move(w.l.opts.DeleteWithin * 5 / 8)
	_, isOld, err = w.l.toPack(false)
	require.NoError(t, err)
	require.True(t, isOld)
	isDue, err := w.l.expireFirst(false)
	require.NoError(t, err)
	require.True(t, isDue)
}

// While blocks are rewritten, which may take hours, no more of the log waits to be packed than otherwise. A deletion
// that is packed meanwhile is done the next time.
func TestPackingGoesOnWhileBlocksAreRewritten(t *testing.T) {
	o := manual()
	o.MaxBacklogBytes = 1
	w := newWorld(t, vfs.NewMem(), o)
	w.commitMore(60, 9)
	w.pack()
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	packed := w.l.Stats().Packed
	w.clock.move(w.l.opts.DeleteWithin * 5 / 8)
	w.deleteUser(op.ExternalID, "u5")
	w.commitMore(60, 9)
	w.checkpoint()
	require.NoError(t, w.l.maintain(true))
	require.Greater(t, w.l.Stats().Packed, packed)
	require.Equal(t, 1, w.l.Stats().Deletions)
	require.False(t, w.l.waited(w.l.opts.DeleteWithin/2), "it is as old as itself, not as those that are done")
	require.Negative(t, w.l.pack.deletedBefore.Load()-w.l.deletedBytes(), "nothing was left behind")
	w.requireExact()

	// A deletion whose time is nearly up doesn't wait for packing.
	w.clock.move(w.l.opts.DeleteWithin * 3 / 4)
	w.commitMore(60, 9)
	w.checkpoint()
	packed = w.l.Stats().Packed
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, packed, w.l.Stats().Packed)
	require.Zero(t, w.l.Stats().Deletions)
	w.requireExact()
	w.reopen(o)
	w.requireExact()
}
