package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	f, err := Lock(path)
	require.NoError(t, err)
	_, err = Lock(path)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, f.Close())
	f, err = Lock(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = Lock(filepath.Join(path, "LOCK"))
	require.ErrorAs(t, err, new(*os.PathError))
	require.NotErrorIs(t, err, ErrLocked)
}
