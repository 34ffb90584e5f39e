package shard

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/store"
)

// A store of another format is refused with an error that says so, since it may have other keys for the same users.
func TestStoreOfAnotherFormat(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	facts, err := e.Store().Get([]byte("sfacts"))
	require.NoError(t, err)
	require.NoError(t, e.Close())
	for _, version := range []uint32{1, binary.LittleEndian.Uint32(facts) + 1} {
		db, err := pebble.Open(fs.PathJoin(testOptions(fs).Dir, "state"), &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Merger: store.NewMerger(nil, nil)})
		require.NoError(t, err)
		binary.LittleEndian.PutUint32(facts, version)
		require.NoError(t, db.Set([]byte("sfacts"), facts, pebble.Sync))
		require.NoError(t, db.Close())
		_, err = openEngine(testOptions(fs))
		require.ErrorIs(t, err, store.ErrStore)
		require.ErrorContains(t, err, "for the version that wrote it")
	}
}

// So is a store that was written with another merger than ours.
func TestStoreOfAnotherMerger(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	require.NoError(t, openTest(t, o).Close())
	require.NoError(t, fs.RemoveAll(fs.PathJoin(o.Dir, "state")))
	db, err := pebble.Open(fs.PathJoin(o.Dir, "state"), &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = openEngine(o)
	require.ErrorIs(t, err, store.ErrStore)
	require.ErrorContains(t, err, "for the version that wrote it")
}
