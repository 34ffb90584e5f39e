package wal

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// TestWriterAgainstPebble: a segment has the same bytes that Pebble's writer makes of the same records, whatever their
// sizes and whenever they are synced, through the page cache, past it and in memory. Behind these bytes there are zeros,
// up to the end of a page.
func TestWriterAgainstPebble(t *testing.T) {
	testsize.SkipSerial(t)
	rng := testseed.Rand(t)
	for i := range 9 {
		fs, path := vfs.Default, filepath.Join(t.TempDir(), "segment")
		if i%3 == 0 {
			fs = vfs.NewMem()
			require.NoError(t, fs.MkdirAll(filepath.Dir(path), 0o700))
		}
		file, err := fs.Create(path, writeCategory)
		require.NoError(t, err)
		if i%3 == 1 && !passCache(file) {
			t.Log("this file system has no writes past the page cache")
		}
		ours := &writer{file: file, num: 7, buf: pagesOf(writeBytes)[:0], segmentBytes: 1 << 30}
		theirs := &bytes.Buffer{}
		pebble := record.NewLogWriter(theirs, 7, record.LogWriterConfig{WriteWALSyncOffsets: func() bool { return false }})
		for range 100 {
			data := make([]byte, 1+rng.IntN([]int{40, 300, 40_000, 200_000}[rng.IntN(4)]))
			if left := blockBytes - int(ours.end()%blockBytes) - 2*chunkHeaderBytes; left > 0 && rng.IntN(3) == 0 {
				data = make([]byte, left+rng.IntN(2*chunkHeaderBytes)) // ends about where the block does
			}
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			require.NoError(t, ours.append(data))
			at, err := pebble.WriteRecord(data)
			require.NoError(t, err)
			require.Equal(t, at, ours.end())
			if rng.IntN(4) == 0 {
				require.NoError(t, ours.sync())
			}
		}
		require.NoError(t, ours.close())
		require.NoError(t, pebble.Close())
		file, err = fs.Open(path)
		require.NoError(t, err)
		text, err := io.ReadAll(file)
		require.NoError(t, err)
		zeros := len(text) - theirs.Len()
		require.True(t, zeros >= 0 && zeros < marginBytes && len(text)%pageBytes == 0, "%d zeros", zeros)
		theirs.Write(make([]byte, zeros))
		require.True(t, bytes.Equal(theirs.Bytes(), text), "the bytes of Pebble's writer and ours differ")
	}
}

// TestZerosAhead: a file grows by whole margins where little is written at a time, by pages where much is or where the
// segment ends, and not at all where it was used before.
func TestZerosAhead(t *testing.T) {
	fs := vfs.NewMem()
	file, err := fs.Create("segment", writeCategory)
	require.NoError(t, err)
	w := &writer{file: file, num: 7, buf: pagesOf(writeBytes)[:0], segmentBytes: 3*marginBytes - pageBytes}
	write := func(n int) (size int64) {
		require.NoError(t, w.append(make([]byte, n)))
		require.NoError(t, w.sync())
		info, err := file.Stat()
		require.NoError(t, err)
		return info.Size()
	}
	require.EqualValues(t, marginBytes, write(100))
	require.EqualValues(t, marginBytes, write(9000), "what was written ahead is enough")
	require.EqualValues(t, marginBytes+30*pageBytes, write(marginBytes+29*pageBytes-9100), "much")
	require.EqualValues(t, 2*marginBytes, write(2*pageBytes))
	require.EqualValues(t, 2*marginBytes, write(30*pageBytes), "much, but there is room")
	for w.end() <= 2*marginBytes-pageBytes {
		require.EqualValues(t, 2*marginBytes, write(pageBytes/2))
	}
	require.EqualValues(t, 2*marginBytes+pageBytes, write(pageBytes), "a margin would go past the segment's end")

	w.filled = 10 * marginBytes
	require.EqualValues(t, 2*marginBytes+2*pageBytes, write(pageBytes), "used before")
}
