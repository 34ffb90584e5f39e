package eventlog

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/wal"
)

func TestDamagedBlockStopsNobodyElse(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(80, 9)
	w.pack()
	require.Greater(t, len(w.l.blocks), 3)
	for _, damage := range []int64{20, -20} { // in a column; in the footer
		w.reopen(manual())
		b := w.l.blocks[1]
		at := damage
		if at < 0 {
			at += b.info.Bytes
		}
		flip(t, w.fs, b.path, at)
		if damage < 0 {
			w.reopen(manual()) // Open tolerates it
		}
		all := map[int64]int{}
		note := func(e *event.Event) error { all[judge(t, e)]++; return nil }
		err := w.l.Export(context.Background(), Query{}, note)
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, b.path)
		require.Len(t, all, w.l.blocks[0].info.Rows, "it stops there")
		_, err = w.l.Follow(b.Last, Query{}, time.Time{}).Read(context.Background(), math.MaxUint64, note)
		require.NoError(t, err)
		missing := 0
		for n := range w.snapshot() {
			if all[n] != 1 {
				require.Zero(t, all[n])
				missing++
			}
		}
		require.Equal(t, b.info.Rows, missing)
		err = w.l.Verify(context.Background())
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, b.path)

		flip(t, w.fs, b.path, at) // restored
		w.reopen(manual())
		w.requireExact()
		require.NoError(t, w.l.Verify(context.Background()))
	}
	// A deletion that concerns a damaged block is kept until the block has expired.
	b := w.l.blocks[1]
	flip(t, w.fs, b.path, b.info.Bytes-20)
	w.reopen(manual())
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	require.ErrorIs(t, w.l.maintain(true), ErrCorrupt)
	require.Equal(t, 1, w.l.Stats().Deletions)
	w.reopen(manual())
	require.Equal(t, 1, w.l.Stats().Deletions)
	require.Equal(t, 1, w.l.Stats().Damaged)
	w.clock.move(31 * 24 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	require.Zero(t, w.l.Stats().Deletions)
	require.Zero(t, w.l.Stats().Blocks)
}

// A damaged segment of the engine's log is counted whenever it is met, and named once.
func TestDamagedLogIsNoted(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(80, 9)
	w.checkpoint()
	flip(t, w.fs, "data/engine/log/000001.log", 1000)
	said := &testlog.Buffer{}
	w.l.opts.Logger = slog.New(slog.NewTextHandler(said, nil))
	before := damagedReads.Get()
	require.ErrorIs(t, w.l.Pack(), wal.ErrCorrupt)
	require.Greater(t, damagedReads.Get(), before)
	require.Contains(t, said.String(), "000001.log")
	before = damagedReads.Get()
	for range 3 {
		require.ErrorIs(t, w.l.Export(t.Context(), Query{}, func(*event.Event) error { return nil }), wal.ErrCorrupt)
	}
	require.GreaterOrEqual(t, damagedReads.Get(), before+3)
	require.Equal(t, 1, strings.Count(said.String(), "the log can't be read"), said.String())
}

// Each of several damages is named once, however often streams meet the one and the other.
func TestDamagesAreNamedOnce(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(80, 9)
	w.pack()
	require.Greater(t, len(w.l.blocks), 2)
	said := &testlog.Buffer{}
	w.l.opts.Logger = slog.New(slog.NewTextHandler(said, nil))
	damaged := w.l.blocks[:2]
	for _, b := range damaged {
		flip(t, w.fs, b.path, 20)
	}
	for range 3 {
		for _, b := range damaged {
			_, err := w.l.Follow(b.First-1, Query{}, time.Time{}).Read(t.Context(), math.MaxUint64,
				func(*event.Event) error { return nil })
			require.ErrorContains(t, err, b.path)
		}
	}
	require.Equal(t, len(damaged), strings.Count(said.String(), "a block can't be read"), said.String())
}

func flip(t *testing.T, fs vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestDamagedState(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(30, 9)
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	require.NoError(t, w.l.Close())
	info, err := w.fs.Stat("data/events/STATE")
	require.NoError(t, err)
	o := manual()
	o.FS, o.Dir, o.Logger = w.fs, "data/events", quiet()
	for at := range info.Size() {
		flip(t, w.fs, "data/events/STATE", at)
		_, err := Open(w.e.Replica(), o)
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		flip(t, w.fs, "data/events/STATE", at)
	}
}
