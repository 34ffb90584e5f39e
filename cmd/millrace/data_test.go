package main

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The data directory is made for its owner alone; one that is there stays as it is, and is told of when others have a
// right to it.
func TestDataDirectoryIsTheOwnersAlone(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	dir := filepath.Join(t.TempDir(), "lib", "millrace")
	require.NoError(t, makeData(dir+"/", logger))
	mode := func(dir string) fs.FileMode {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	require.Equal(t, fs.FileMode(0o700), mode(dir))
	require.NoError(t, makeData(dir, logger))
	require.Empty(t, log.String())
	for _, open := range []fs.FileMode{0o755, 0o710, 0o704} {
		log.Reset()
		require.NoError(t, os.Chmod(dir, open))
		require.NoError(t, makeData(dir, logger))
		require.Equal(t, open, mode(dir))
		require.Contains(t, log.String(), "accessible to other users")
		require.Contains(t, log.String(), dir)
	}

	// Nothing in it is for others either, but what streams write.
	require.NoError(t, os.Chmod(dir, 0o700))
	n := openNodeAt(t, dir, 0, logger)
	require.NoError(t, n.close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, e := range entries {
		if e.IsDir() {
			require.Equal(t, fs.FileMode(0o700), mode(filepath.Join(dir, e.Name())), e.Name())
		}
	}
}
