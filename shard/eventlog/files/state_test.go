package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"millrace/shard/eventlog/blocks"
)

// A state of another version is sound, and said to be of that version: who takes it for damaged gives its events up.
func TestStateOfAnotherVersion(t *testing.T) {
	fs := vfs.NewMem()
	text := (&State{Packed: 7}).encode()
	text[len(stateMagic)-1]--
	version := text[len(stateMagic)-1]
	text = binary.LittleEndian.AppendUint64(text[:len(text)-8], xxh3.Hash(text[:len(text)-8]))
	f, err := fs.Create("STATE", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(text)
	require.NoError(t, errors.Join(err, f.Close()))
	_, _, err = Dir{FS: fs}.Read()
	require.NotErrorIs(t, err, blocks.ErrCorrupt)
	require.ErrorContains(t, err, fmt.Sprintf(`"STATE" has version %c, and this program reads version %s`, version, stateMagic[len(stateMagic)-1:]))
}
