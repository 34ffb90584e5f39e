package store

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// A store whose directory is gone tries again now and then, not all the time, and says so in few lines.
func TestRetriesOfAFailedFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const enough = 10_000 // attempts, of which without pauses there is no end
		var isGone atomic.Bool
		var tries atomic.Int64
		disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && isGone.Load() && tries.Add(1) < enough {
				return syscall.ENOENT
			}
			return nil
		}))
		require.NoError(t, disk.MkdirAll("state", 0o755))
		var log bytes.Buffer
		var failures atomic.Int64
		s, err := Open(Options{FS: disk, Dir: "state", New: true, MemTableBytes: 1 << 20, CacheBytes: 1 << 20,
			Logger: slog.New(slog.NewTextHandler(&log, nil)), OnFailure: func(error) { failures.Add(1) }})
		require.NoError(t, err)
		isGone.Store(true)
		require.NoError(t, s.DB.Set([]byte("k"), []byte("v"), pebble.NoSync))
		require.ErrorIs(t, s.Flush(), syscall.ENOENT)
		time.Sleep(time.Hour)
		synctest.Wait()
		tried, begun := tries.Load(), time.Now()
		require.NoError(t, s.Close())
		require.Less(t, time.Since(begun), retryPause, "the pause ends with the store")
		require.EqualValues(t, 1, failures.Load())
		require.Positive(t, tried)
		require.LessOrEqual(t, tried, int64(time.Hour/retryPause)+1)
		lines := strings.Count(log.String(), "\n")
		require.LessOrEqual(t, lines, 61*8+1, "%s", log.String())
	})
}
