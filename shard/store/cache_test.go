package store

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// The cache has room for blocks of the size that it was given, however much the memtables take, and both together stay
// within what they have.
func TestCacheIsBesideTheMemtables(t *testing.T) {
	const cache, memTable, entry = 4 << 20, 8 << 20, 8 << 10
	for _, shared := range []*Cache{nil, NewCache(cache, memTable, 0)} {
		s, err := Open(Options{
			FS: vfs.NewMem(), Dir: "state", New: true, MemTableBytes: memTable, CacheBytes: cache, Cache: shared,
			Logger: slog.New(slog.DiscardHandler), OnFailure: func(error) {},
		})
		require.NoError(t, err)
		rng, number := testseed.Rand(t), uint64(0)
		for s.DB.Metrics().MemTable.Size < memTable/2 || number*entry < 2*(cache+maxMemTables*memTable) {
			b := s.DB.NewBatch()
			for b.Len() < memTable/4 {
				value := make([]byte, entry)
				for i := range value {
					value[i] = byte(rng.Uint32())
				}
				number++
				require.NoError(t, b.Set(AppendEntryKey(nil, number), value, nil))
			}
			require.NoError(t, b.Commit(pebble.NoSync))
		}
		for n := range number {
			value, err := s.Entry(nil, nil, n+1)
			require.NoError(t, err)
			require.Len(t, value, entry)
		}
		m := s.DB.Metrics()
		require.Greater(t, m.BlockCache.Size, int64(cache))
		require.LessOrEqual(t, m.BlockCache.Size+int64(m.MemTable.Size), int64(cache+maxMemTables*memTable))
		all := caches.sum()
		require.Equal(t, m.BlockCache.Size, all.Size)
		require.GreaterOrEqual(t, all.Hits, m.BlockCache.Hits)
		require.GreaterOrEqual(t, all.Misses, m.BlockCache.Misses)
		require.NotZero(t, m.BlockCache.Misses)
		require.NoError(t, s.Close())
		shared.Close()
		all = caches.sum()
		require.Zero(t, all.Size)
		require.GreaterOrEqual(t, all.Hits, m.BlockCache.Hits, "what was counted stays")
		require.GreaterOrEqual(t, all.Misses, m.BlockCache.Misses)
	}
}
