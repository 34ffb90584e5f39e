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
)

// TestWriterAgainstPebble: a segment has the same bytes that Pebble's writer makes of the same records, whatever their
// sizes and whenever they are synced, through the page cache, past it and in memory. Behind these bytes the last page
// is zeros.
func TestWriterAgainstPebble(t *testing.T) {
	rng := testseed.Rand(t)
	for i := range 9 {
		fs, path := vfs.Default, filepath.Join(t.TempDir(), "segment")
		if i%3 == 0 {
			fs = vfs.NewMem()
			require.NoError(t, fs.MkdirAll(filepath.Dir(path), 0o700))
		}
		file, err := fs.Create(path, writeCategory)
		require.NoError(t, err)
		if i%3 == 1 && !writeDirect(file) {
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
		padding := -theirs.Len() & (pageBytes - 1)
		theirs.Write(make([]byte, padding))
		require.True(t, bytes.Equal(theirs.Bytes(), text), "%d bytes of Pebble's, %d of ours", theirs.Len(), len(text))
	}
}
