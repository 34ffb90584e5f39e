package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func contains(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// A file is replaced as a whole or stays as it is. A link to a file stays a link, also when there is nothing yet where
// it leads.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.Mkdir(path("below"), 0o700))
	for link, to := range map[string]string{"link": "below/file", "second": path("link"), "below/up": "../other",
		"folder": "below"} {
		require.NoError(t, os.Symlink(to, path(link)))
	}
	for _, c := range []struct{ name, leadsTo string }{
		{"file", "file"}, {"link", "below/file"}, {"second", "below/file"}, {"below/up", "other"},
		{"folder/up", "other"}, {"folder/new", "below/new"},
	} {
		for _, want := range []string{"one", "two, longer", ""} {
			require.NoError(t, WriteFile(path(c.name), text(want)), c.name)
			contains(t, path(c.leadsTo), want)
		}
		require.NoError(t, WriteFile(path(c.name), text("before")))
		broken := errors.New("broken")
		require.ErrorIs(t, WriteFile(path(c.name), func(w io.Writer) error {
			return errors.Join(text("half")(w), broken)
		}), broken)
		contains(t, path(c.leadsTo), "before")
	}
	for _, link := range []string{"link", "second", "below/up"} {
		info, err := os.Lstat(path(link))
		require.NoError(t, err)
		require.Equal(t, fs.ModeSymlink, info.Mode().Type(), link)
	}
	for _, in := range []string{"", "below"} {
		left, err := filepath.Glob(filepath.Join(dir, in, ".millrace-*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	require.NoError(t, os.Symlink("loop", path("loop")))
	require.ErrorIs(t, WriteFile(path("loop"), text("")), syscall.ELOOP)
	require.ErrorIs(t, WriteFile(path("file/below"), text("")), syscall.ENOTDIR)
	require.ErrorIs(t, WriteFile(dir, text("")), syscall.EISDIR)
}

// Anything that is not a regular file stays what it is, also behind a link, and so does a file that a process has open.
func TestWriteFileIntoWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.Symlink("pipe", link))
	for _, path := range []string{pipe, link} {
		got := make(chan string)
		go func() {
			text, err := os.ReadFile(pipe)
			got <- fmt.Sprint(string(text), err)
		}()
		require.NoError(t, WriteFile(path, text("through")))
		require.Equal(t, "through<nil>", <-got)
		info, err := os.Stat(pipe)
		require.NoError(t, err)
		require.Equal(t, fs.ModeNamedPipe, info.Mode().Type())
	}

	file := filepath.Join(dir, "file")
	f, err := os.Create(file)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, text("before, ")(f))
	opened := filepath.Join(dir, "opened")
	require.NoError(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), opened))
	for _, path := range []string{fmt.Sprintf("/dev/fd/%d", f.Fd()), opened} {
		require.NoError(t, WriteFile(path, text("more, ")))
	}
	info, err := f.Stat()
	require.NoError(t, err)
	now, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(info, now))
	contains(t, file, "before, more, more, ")
}
