package admin

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestToken(t *testing.T) {
	dir := t.TempDir()
	token, path, err := Token(dir)
	require.NoError(t, err)
	require.Len(t, token, 64)
	again, _, err := Token(dir)
	require.NoError(t, err)
	require.Equal(t, token, again)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(path, []byte("short\n"), 0o600))
	_, _, err = Token(dir)
	require.ErrorContains(t, err, "remove the file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, _, err = Token(dir)
	require.ErrorContains(t, err, "remove the file")
}
