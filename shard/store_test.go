package shard

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/store"
	"millrace/wal"
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

// Before the first checkpoint all that was acknowledged is in the log. A log directory that is empty although there was
// one, such as a mount that is missing after a restart of the machine, is refused with any state beside it.
func TestLogThatIsGone(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	e := openTest(t, o)
	commitEvent(t, e, op.ExternalID, "user", "event", 0)
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, crashed.RemoveAll(crashed.PathJoin(o.Dir, "log")))
	for range 2 { // the refusal makes no log that would be taken the next time
		_, err := openEngine(testOptions(crashed))
		require.ErrorIs(t, err, wal.ErrMissing)
		require.ErrorContains(t, err, "although there is a state store")
	}
}

// A log of another server is refused, such as one whose mount was mixed up: its records may follow on those that the
// store has, and would be applied to whichever users have their numbers here. A server's own log is found to be that
// also by a store that has only noted that there is one.
func TestLogOfAnotherServer(t *testing.T) {
	fs := vfs.NewMem()
	own, other := testOptions(fs), testOptions(fs)
	own.Dir, other.Dir = "own", "other"
	for i, o := range []Options{own, other} {
		e := openTest(t, o)
		for range i + 1 {
			commitEvent(t, e, op.ExternalID, "user", "event", 0)
		}
		require.NoError(t, e.Close())
	}
	require.NoError(t, fs.Rename("own/log", "kept"))
	require.NoError(t, fs.Rename("other/log", "own/log"))
	for range 2 {
		_, err := openEngine(own)
		require.ErrorIs(t, err, wal.ErrMissing)
		require.ErrorContains(t, err, "of different servers")
	}
	require.NoError(t, fs.Rename("own/log", "other/log"))
	require.NoError(t, fs.Rename("kept", "own/log"))
	e := openTest(t, own)
	require.NoError(t, e.Store().DB.Set([]byte("slog"), []byte{1}, pebble.NoSync))
	require.NoError(t, e.Store().Flush())
	require.NoError(t, e.Close())
	for range 2 {
		e := openTest(t, own)
		id, err := e.Store().Get([]byte("slog"))
		require.NoError(t, err)
		require.Len(t, id, 8)
		require.NoError(t, e.Close())
	}
}
