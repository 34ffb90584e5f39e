package importer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/wal/durable"
)

// Of two imports with states of their own, only one writes the refused file: each would write over the other's rows.
func TestRefusedFileOfTwoImports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a"+refusedEnding)
	first, err := openRefused(path, new(state))
	require.NoError(t, err)
	second, err := openRefused(path, new(state))
	require.NoError(t, err)
	require.NoError(t, first.open())
	require.ErrorIs(t, second.open(), durable.ErrLocked)
	_, err = first.file.WriteAt([]byte("{}\n"), 0)
	require.NoError(t, err)
	require.NoError(t, second.forget())
	_, err = openRefused(path, new(state)) // or it would cut what the first one is writing
	require.ErrorIs(t, err, durable.ErrLocked)
	require.NoError(t, first.close())
	require.ErrorContains(t, second.open(), "has changed")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "{}\n", string(text))
}
