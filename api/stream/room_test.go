package stream

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/admin/answers"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/wal"
)

// A stream into a directory whose disk has no room leaves nothing there and says why; when there is room it goes on.
// That room goes while a file is written makes no difference.
func TestDirectoryWithoutRoom(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 40, 50)
	o := w.options()
	o.FileBytes = 1 << 20
	asked, left := 0, 0
	o.HasRoom = func(dir string) error {
		require.Equal(t, filepath.Join(w.dir, "shop", "all"), dir)
		if asked++; left == 0 {
			return fmt.Errorf("%w: test", wal.ErrDiskFull)
		}
		left--
		return nil
	}
	for left = range 4 { // two files are begun, then ended
		before := left
		require.ErrorIs(t, w.turns(o, s), wal.ErrDiskFull, "with room for %d writes", before)
		_, files := w.written("all")
		unfinished, err := os.ReadDir(filepath.Join(w.dir, "shop", "all", unfinishedDir))
		require.NoError(t, err)
		require.Empty(t, unfinished)
		if before < 3 {
			require.Empty(t, files)
		}
	}

	left, o.RetryAfter, o.MaxRetryAfter, o.Interval = 0, time.Millisecond, time.Millisecond, time.Millisecond
	full := make(chan bool, 1)
	o.HasRoom = func(string) error {
		select {
		case <-full:
			return nil
		default:
			return fmt.Errorf("%w: test", wal.ErrDiskFull)
		}
	}
	m, err := New(o)
	require.NoError(t, err)
	defer m.Close()
	state := func() answers.StreamStatus { return m.Status("shop", s) }
	require.Eventually(t, func() bool { return state().State == "failing" }, time.Minute, time.Millisecond)
	require.Contains(t, state().Error, wal.ErrDiskFull.Error())
	close(full)
	require.Eventually(t, func() bool { s := state(); return s.State == "running" && s.LagEvents == 0 }, time.Minute, time.Millisecond)
	got, _ := w.written("all")
	require.Equal(t, w.exported(eventlog.Query{}), got)
}

// A floor of a disk is one for the directories on it.
func TestFloorOfADirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, wal.Floor{MinFreeBytes: 1, MinFreePercent: -1}.Check(dir))
	require.ErrorIs(t, wal.Floor{MinFreeBytes: 1 << 60}.Check(dir), wal.ErrDiskFull)
	require.ErrorIs(t, wal.Floor{MinFreePercent: 101}.Check(dir), wal.ErrDiskFull)
	require.NoError(t, wal.Floor{}.Check(filepath.Join(dir, "not there")))
}
