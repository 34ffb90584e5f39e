package wal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// Open reads only the last segment. Damage in an earlier one is found by whoever reads it: by Replay, unless the caller
// has everything elsewhere that was there.
func TestDamageBeforeTheLastSegment(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 200, 3000)
	require.Greater(t, len(h.segments), 5)
	damaged := h.segments[2]
	require.NoError(t, h.Close())
	flip(t, fs, damaged.path)

	h = mustOpen(t, fs, nil)
	require.EqualValues(t, 200, h.LastPosition())
	seen := uint64(0)
	count := func(uint64, uint32, []byte) error { seen++; return nil }
	require.ErrorIs(t, h.Replay(0, count), ErrCorrupt)
	require.GreaterOrEqual(t, seen, damaged.first-1)
	require.Less(t, seen, damaged.last)
	require.ErrorIs(t, h.Replay(damaged.last, count), ErrCorrupt)
	seen = 0
	require.NoError(t, h.Replay(damaged.last+1, count))
	require.EqualValues(t, 200-damaged.last, seen)
	h.fill(t, 10, 100)
	require.NoError(t, h.Close())
}

// A segment whose first record can't be read doesn't say where the one before it ends: both are read.
func TestDamageOfAFirstRecord(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 200, 3000)
	damaged := h.segments[2]
	require.NoError(t, h.Close())
	flipAt(t, fs, damaged.path, 100)
	_, err := openHarness(fs, nil)
	require.ErrorIs(t, err, ErrCorrupt)
}

// Where a segment goes on although the next one has begun, files of different times are mixed.
func TestSegmentsOverlap(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 3, 100)
	early := takeImage(t, fs) // as after a kill
	h.fill(t, 2, 100)
	require.NoError(t, h.Close())
	late := takeImage(t, fs)

	fs, err := early.onDisk()
	require.NoError(t, err)
	h = mustOpen(t, fs, nil)
	h.fill(t, 4, 100)
	require.NoError(t, h.Close())
	m := takeImage(t, fs)
	require.Len(t, m.segments(), 2)
	ids, err := m.open()
	require.NoError(t, err)
	require.Len(t, ids, 7)
	_, err = m.with("000001.log", late["000001.log"]).open()
	require.ErrorIs(t, err, ErrCorrupt)
}

// flip changes a byte in the middle of a file.
func flip(t *testing.T, fs vfs.FS, path string) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	flipAt(t, fs, path, info.Size()/2)
}

func flipAt(t *testing.T, fs vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0x20
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
