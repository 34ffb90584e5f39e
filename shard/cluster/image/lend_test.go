package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/calls"
	"millrace/wal/quorum/host"
)

// folder is an image of the content of a directory.
type folder struct {
	dir   string
	files []File
}

func (f *folder) End(uint64) (err error) {
	f.files, err = FilesOf(f.dir)
	return err
}
func (f *folder) Files() []File { return f.files }
func (f *folder) Open(file int) (io.ReadCloser, error) {
	return os.Open(filepath.Join(f.dir, f.files[file].Name))
}
func (f *folder) Release() error { return os.RemoveAll(f.dir) }

// Once an image has its end, a file of another node is the same here as there, however large. When the image is let go,
// all of it is gone.
func TestFarImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "state"), 0o700))
	want := map[string][]byte{"empty": {}, "small": []byte("small"), "state/large": make([]byte, 2*partBytes+partBytes/2)}
	_, _ = rand.Read(want["state/large"])
	for name, content := range want {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	lender := NewLender(context.Background(), func(context.Context, uint32) (Image, error) { return &folder{dir: dir}, nil }, slog.New(slog.DiscardHandler))
	ask := func(body calls.Body, _ time.Time) ([]byte, error) {
		return lender.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(body[len(calls.NewBody(0)):]))
	}
	i, err := BeginFar(ask, 1)
	require.NoError(t, err)
	_, err = ask(i.(*far).call(read).U32(0).U64(0), time.Time{})
	require.ErrorIs(t, err, calls.ErrMalformed, "it has no files yet")
	require.NoError(t, i.End(7))
	require.Len(t, i.Files(), len(want))
	for n, file := range i.Files() {
		f, err := i.Open(n)
		require.NoError(t, err)
		got, err := io.ReadAll(f)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[file.Name], got), file.Name)
	}
	require.NoError(t, os.Truncate(filepath.Join(dir, "small"), 1))
	for n, file := range i.Files() {
		if file.Name == "small" {
			f, err := i.Open(n)
			require.NoError(t, err)
			_, err = io.ReadAll(f)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "there is less than the other node has said")
		}
	}
	require.NoError(t, i.Release())
	require.ErrorIs(t, i.End(7), ErrGone)
	require.NoDirExists(t, dir)
}
