package wal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// Open doesn't read the part of the log that the caller also has elsewhere. Damage in that part is found by whoever
// reads it; damage behind it is found by Open, as usual.
func TestTrusted(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 200, 3000)
	require.Greater(t, len(h.segments), 5)
	damaged, trusted := h.segments[2], h.segments[4].last
	require.NoError(t, h.Close())
	flip(t, fs, damaged.path)

	_, err := openHarness(fs, nil)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = openHarness(fs, func(o *Options) { o.Trusted = damaged.first })
	require.ErrorIs(t, err, ErrCorrupt, "the segment has records that nobody has elsewhere")

	h = mustOpen(t, fs, func(o *Options) { o.Trusted = trusted })
	require.EqualValues(t, 200, h.LastPosition())
	seen := 0
	count := func(uint64, uint32, []byte) error { seen++; return nil }
	require.NoError(t, h.Replay(trusted+1, count))
	require.EqualValues(t, 200-trusted, seen)
	require.ErrorIs(t, h.Read(1, 200, count), ErrCorrupt)
	h.fill(t, 10, 100)
	require.NoError(t, h.Close())
}

// flip changes a byte in the middle of a file.
func flip(t *testing.T, fs vfs.FS, path string) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	var b [1]byte
	at := info.Size() / 2
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0x20
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
