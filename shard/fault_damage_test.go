package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// damaged is the disk of a closed engine, of which copies are damaged, and what the engine must show.
type damaged struct {
	fs    *vfs.MemFS
	users int
	files []string // of the store
}

// damagedEngine has users in several tables. Some were changed after the last checkpoint; their changes are in the log.
// User i has had i%5+1 events.
func damagedEngine(t *testing.T, closed bool) *damaged {
	d := &damaged{fs: vfs.NewCrashableMem(), users: 200}
	o := testOptions(d.fs)
	o.Log.SegmentBytes = 32 << 10
	e, err := openEngine(o)
	require.NoError(t, err)
	for round := range 5 {
		b := e.NewBatch(1, 0)
		for i := range d.users {
			if i%5 >= round {
				addEvent(b, op.ExternalID, d.user(i), "e", 0)
			}
		}
		require.NoError(t, b.Commit())
		b.Release()
		if round < 4 {
			require.NoError(t, e.Checkpoint())
		}
	}
	if closed { // the store has all, and the log little or nothing
		require.NoError(t, e.Close())
	}
	// Otherwise the disk is as a kill leaves it: the log has what the store hasn't.
	d.fs = d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	require.NoError(t, e.Close())
	names, err := d.fs.List("data/state")
	require.NoError(t, err)
	for _, name := range names {
		if info, err := d.fs.Stat("data/state/" + name); err == nil && info.Size() > 0 && !info.IsDir() {
			d.files = append(d.files, "data/state/"+name)
		}
	}
	require.NoError(t, d.read(d.copy(), false))
	return d
}

// manifest is the newest of the store's manifests, the one that counts.
func (d *damaged) manifest() string {
	return slices.Max(slices.DeleteFunc(slices.Clone(d.files), func(name string) bool {
		return !strings.HasPrefix(name, "data/state/MANIFEST-")
	}))
}

func (d *damaged) user(i int) string { return fmt.Sprint("user", i) }

func (d *damaged) copy() *vfs.MemFS {
	return d.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

// errSilent means that the engine shows something else than what was acknowledged, without an error.
var errSilent = errors.New("SILENT")

// read opens the disk and compares all users. Any error but errSilent is the damage found.
func (d *damaged) read(fs vfs.FS, littleMemory bool) error {
	o := testOptions(fs)
	o.Log.SegmentBytes = 32 << 10
	if littleMemory {
		o.MemoryBytes = 4000
	}
	e, err := openEngine(o)
	if err != nil {
		return err
	}
	defer e.Close()
	var found error
	for i := range d.users {
		switch n, err := countOf(e, op.ExternalID, d.user(i), "e"); {
		case err != nil:
			found = err
		case n != int64(i%5+1):
			return fmt.Errorf("%w: user %d shows %d events, had %d", errSilent, i, n, i%5+1)
		}
	}
	if n, err := countOf(e, op.ExternalID, "nobody", "e"); err == nil && n != 0 {
		return fmt.Errorf("%w: somebody who never was", errSilent)
	}
	return found
}

func rewrite(t *testing.T, fs vfs.FS, name string, change func([]byte) []byte) {
	f, err := fs.Open(name)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	f, err = fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(change(b))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// F4, F5: bits of the store's files rot, files are cut short or vanish. Opening or reading fails with an error, or
// everything is as it was. Nothing is silently wrong, nothing hangs, and the process lives. (Package wal tests damage
// to the log.)
func TestFaultDamagedStore(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	disks := []*damaged{damagedEngine(t, false), damagedEngine(t, true)}
	flips := testsize.Of(10_000, 60, 60)
	found, harmless := map[string]int{}, map[string]int{}
	for i := range flips {
		d := disks[i%2]
		fs := d.copy()
		name := d.files[r.IntN(len(d.files))]
		what := ""
		switch r.IntN(12) {
		case 0:
			what = "removed"
			require.NoError(t, fs.Remove(name))
		case 1:
			rewrite(t, fs, name, func(b []byte) []byte {
				n := r.IntN(len(b))
				what = fmt.Sprintf("cut to %d of %d bytes", n, len(b))
				return b[:n]
			})
		default:
			rewrite(t, fs, name, func(b []byte) []byte {
				at, bit := r.IntN(len(b)), r.IntN(8)
				if r.IntN(4) == 0 {
					at = max(0, len(b)-1-r.IntN(64)) // footers
				}
				what = fmt.Sprintf("bit %d of byte %d of %d flipped", bit, at, len(b))
				b[at] ^= 1 << bit
				return b
			})
		}
		littleMemory := r.IntN(2) == 0
		var err error
		testengine.Within(t, time.Minute, fmt.Sprintf("damage %d (%s %s, little memory: %v)", i, name, what, littleMemory), func() {
			err = d.read(fs, littleMemory)
		})
		kind := strings.SplitN(strings.TrimPrefix(name, "data/state/"), "-", 2)[0]
		kind = kind[strings.LastIndexByte(kind, '.')+1:]
		switch {
		case errors.Is(err, errSilent):
			t.Errorf("damage %d: %s: %s, little memory: %v: %v", i, name, what, littleMemory, err)
		case err != nil:
			found[kind]++
			require.NotContains(t, err.Error(), "carrier", "the last line that a process prints says what is wrong")
		default:
			harmless[kind]++
		}
	}
	t.Logf("found: %v; without consequence: %v; silent: none", found, harmless)
	require.NotZero(t, found["sst"])

	for _, d := range disks {
		for _, gone := range []string{"data/state", d.manifest()} {
			fs := d.copy()
			require.NoError(t, fs.RemoveAll(gone))
			err := d.read(fs, false)
			require.Error(t, err, gone)
			require.NotErrorIs(t, err, errSilent, gone)
		}
	}
}

// There is much log behind a store that can't be read. The worker that meets the damage ends the start with an error.
// The start doesn't hang, doesn't free memory that other workers still use, and keeps nothing open.
func TestFaultUnreadableStoreUnderReplay(t *testing.T) {
	disk := vfs.NewCrashableMem()
	e, err := openEngine(testOptions(disk))
	require.NoError(t, err)
	key := func(i int) string { return fmt.Sprint("user", i%500) }
	for i := range 500 {
		commitEvent(t, e, op.ExternalID, key(i), "e", 0)
	}
	require.NoError(t, e.Checkpoint())
	for i := range 3000 { // for each worker more than replay keeps under way
		commitEvent(t, e, op.ExternalID, key(i), "e", 0)
	}
	disk = disk.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, e.Close())

	for workers := 1; workers <= 3; workers++ {
		var broken atomic.Bool
		// A start that fails may have made a checkpoint before.
		o := testOptions(errorfs.Wrap(disk.CrashClone(vfs.CrashCloneCfg{}), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return errorfs.ErrInjected
			}
			return nil
		})))
		// Entries are read when apply needs them, and it needs all: otherwise the first one may be in a block that was
		// read with the books, and changes of the others be kept unread from then on.
		o.Workers, o.MemoryBytes, o.StoreCacheBytes, o.MaxDeltaChanges = workers, 4000, 1, -1
		o.Logger = slog.New(whenSaid{slog.DiscardHandler, "state store loaded", func() { broken.Store(true) }})
		testengine.Within(t, time.Minute, fmt.Sprintf("Open with %d workers", workers), func() { e, err = openEngine(o) })
		require.ErrorIs(t, err, replica.ErrFailed)
		require.ErrorIs(t, err, errorfs.ErrInjected)
		require.True(t, broken.Load())
	}
	e = openTest(t, testOptions(disk))
	for i := range 500 {
		require.Equal(t, 7, eventCount(t, e, op.ExternalID, key(i), "e"))
	}
}

// whenSaid is a log handler that calls a function when a message is logged.
type whenSaid struct {
	slog.Handler
	message string
	then    func()
}

func (w whenSaid) Enabled(context.Context, slog.Level) bool { return true }

func (w whenSaid) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.message {
		w.then()
	}
	return nil
}
