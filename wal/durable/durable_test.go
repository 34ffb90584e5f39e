package durable

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

func TestReplaceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path+Temporary, []byte("what a crash has left, and longer than what comes"), 0o600))
	for _, text := range []string{"one", "two, longer", ""} {
		require.NoError(t, ReplaceFile(path, []byte(text), 0o600))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		require.NoFileExists(t, path+Temporary)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())

	require.NoError(t, os.WriteFile(path, []byte("before"), 0o600))
	require.NoError(t, os.Mkdir(path+Temporary, 0o700)) // nothing can be written there
	require.Error(t, ReplaceFile(path, []byte("after"), 0o600))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "before", string(got))
	require.ErrorIs(t, ReplaceFile(filepath.Join(path, "below"), nil, 0o600), syscall.ENOTDIR)
}

// A directory that was made is there after a loss of power, and so is each parent that was missing.
func TestMakeDir(t *testing.T) {
	disk := vfs.NewCrashableMem()
	for _, dir := range []string{"/data", "/srv/millrace/1", "/srv/millrace/2"} {
		require.NoError(t, MakeDir(disk, dir, 0o700))
		after := disk.CrashClone(vfs.CrashCloneCfg{})
		_, err := after.Stat(dir)
		require.NoError(t, err)
	}
	for _, dir := range []string{"/killed", "/killed-too/"} {
		require.NoError(t, disk.MkdirAll(dir, 0o700)) // before it could sync the name
		require.NoError(t, MakeDir(disk, dir, 0o700))
		_, err := disk.CrashClone(vfs.CrashCloneCfg{}).Stat(dir)
		require.NoError(t, err)
	}

	at := filepath.Join(t.TempDir(), "srv", "millrace")
	for range 2 {
		require.NoError(t, MakeDir(nil, at, 0o750))
	}
	info, err := os.Stat(filepath.Dir(at))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o750), info.Mode().Perm())
	require.NoError(t, os.WriteFile(filepath.Join(at, "file"), nil, 0o600))
	for _, dir := range []string{"file", "file/below", "file/below/it"} {
		require.ErrorIs(t, MakeDir(nil, filepath.Join(at, dir), 0o750), syscall.ENOTDIR)
	}
}

// A text in which any bit is changed, or any byte is missing, is refused.
func TestSealText(t *testing.T) {
	type facts struct{ Name string }
	whole := SealText(facts{"a"})
	var got facts
	require.NoError(t, UnsealText(whole, &got))
	require.Equal(t, facts{"a"}, got)
	for at := range whole {
		require.Error(t, UnsealText(whole[:at], &got), "cut at %d", at)
		for bit := range 8 {
			changed := append([]byte(nil), whole...)
			changed[at] ^= 1 << bit
			require.Error(t, UnsealText(changed, &got), "bit %d of byte %d", bit, at)
		}
	}
}
