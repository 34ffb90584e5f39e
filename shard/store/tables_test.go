package store

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// A table has what was written to it, in order, in few pieces, and all of it survives a loss of power after a sync. A
// write that fails is reported by the next call.
func TestTablesAreWrittenInLargePieces(t *testing.T) {
	rng := testseed.Rand(t)
	for range 15 {
		mem, writes, fail := vfs.NewCrashableMem(), 0, -1
		fs := tableFS{errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind != errorfs.OpFileWrite {
				return nil
			}
			if writes++; writes-1 == fail {
				return errorfs.ErrInjected
			}
			return nil
		}))}
		f, err := fs.Create("000007.sst", "test")
		require.NoError(t, err)
		if rng.IntN(4) == 0 {
			fail = rng.IntN(3)
		}
		var want []byte
		for range 1 + rng.IntN(60) {
			p := make([]byte, rng.IntN([]int{10, 20_000, 700_000}[rng.IntN(3)]))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			want = append(want, p...) // at once: under the race detector the file in memory spoils p
			var n int
			if n, err = f.Write(p); err != nil {
				break
			}
			require.Equal(t, len(p), n)
		}
		sync := []func() error{f.Sync, f.SyncData}[rng.IntN(2)]
		if err = errors.Join(err, sync()); fail >= 0 && writes > fail {
			require.ErrorIs(t, err, errorfs.ErrInjected)
			require.ErrorIs(t, sync(), errorfs.ErrInjected, "nor is it durable at a second try")
			require.ErrorIs(t, f.Close(), errorfs.ErrInjected)
			continue
		}
		require.NoError(t, err)
		fail = -1
		require.LessOrEqual(t, writes, len(want)/tableWrite+1)
		dir, err := mem.OpenDir("")
		require.NoError(t, err)
		require.NoError(t, dir.Sync())
		lost, err := mem.CrashClone(vfs.CrashCloneCfg{}).Open("000007.sst")
		require.NoError(t, err)
		got, err := io.ReadAll(lost)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		_, err = f.Write([]byte("more"))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		info, err := mem.Stat("000007.sst")
		require.NoError(t, err)
		require.EqualValues(t, len(want)+4, info.Size())
	}
	f, err := tableFS{vfs.NewMem()}.Create("MANIFEST-000001", "test")
	require.NoError(t, err)
	_, isTable := f.(*tableFile)
	require.False(t, isTable)
}
