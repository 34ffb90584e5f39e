package replica

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/books"
	"millrace/shard/op"
	"millrace/shard/stamp"
)

// A sweep takes at most books.MaxSwept kept answers at a time, the oldest first, also when a checkpoint saves answers
// and removals in between.
func TestSweepIsBounded(t *testing.T) {
	now := time.Now()
	o := testOptions(vfs.NewMem())
	o.Clock = &stamp.Clock{Now: func() time.Time { return now }}
	e := openTest(t, o)
	const each = 30
	h := e.Hasher()
	var keys [][]byte
	for i := 0; len(keys) < 3*books.MaxSwept; i++ {
		if key := fmt.Append(nil, "k", i); h.Number(1, op.NoID, key)>>56 == 7 {
			keys = append(keys, key)
		}
	}
	for i := 0; i < len(keys); i += each {
		for _, key := range keys[i:min(i+each, len(keys))] {
			testengine.Commit(t, e, func(b *testengine.Batch) { b.KeepAnswer(key, [32]byte{}, 200, nil) })
		}
		if i == len(keys)/2/each*each {
			require.NoError(t, e.Checkpoint())
		}
	}
	left := func() (n int) {
		e.Owner(7).Lock()
		defer e.Owner(7).Unlock()
		return e.Partition(7).Count
	}
	require.Equal(t, len(keys), left())
	now = now.Add(25 * time.Hour)
	for swept := books.MaxSwept; swept <= len(keys); swept += books.MaxSwept {
		require.NoError(t, e.sweep(e.Held()[7:8]))
		require.Equal(t, len(keys)-swept, left())
		require.Equal(t, swept < len(keys), e.Partition(7).Answers.More)
		if swept == 2*books.MaxSwept {
			require.NoError(t, e.Checkpoint())
		}
		for i, key := range keys { // the oldest first
			blob, err := e.Entry(h.Number(1, op.NoID, key)) // no two keys have the same number
			require.NoError(t, err)
			require.Equal(t, i >= swept, blob != nil, "%d, after %d", i, swept)
		}
	}
}
