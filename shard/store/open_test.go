package store

import (
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// Whichever sync fails while the store opens, the error says that it was the disk, and the process ends for that
// reason.
func TestOpenOnADiskThatFails(t *testing.T) {
	for _, again := range []bool{false, true} {
		failures := 0
		for k := int64(1); ; k++ {
			disk := vfs.NewMem()
			open := func(fs vfs.FS) error {
				s, err := Open(Options{FS: fs, Dir: "state", New: true, MemTableBytes: 1 << 20, CacheBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler), OnFailure: func(error) {}})
				if err == nil {
					err = s.Close()
				}
				return err
			}
			require.NoError(t, disk.MkdirAll("state", 0o755))
			if again {
				require.NoError(t, open(disk))
			}
			var syncs atomic.Int64
			failing := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && syncs.Add(1) >= k {
					return syscall.EIO
				}
				return nil
			}))
			err := open(failing)
			if syncs.Load() < k {
				require.NoError(t, err)
				break
			}
			require.ErrorIs(t, err, syscall.EIO, "sync %d", k)
			failures++
		}
		require.Positive(t, failures)
	}
}
