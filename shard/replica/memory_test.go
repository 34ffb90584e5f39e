package replica

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
)

func TestMemoryThatCannotBeAddressedIsRefused(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.MemoryBytes = 96<<30 + 1
	_, err := openEngine(o)
	require.ErrorContains(t, err, "MemoryBytes 103079215105: at most 103079215104 with 2 workers")
	o.Workers = 3
	openTest(t, o)
}

// When profiles grow, each takes many blocks one after the other. Memory stays within the budget.
func TestMemoryBoundsGrowingProfiles(t *testing.T) {
	testsize.SkipSerial(t)
	const users, perRequest, memory = 6000, 200, 8 << 20
	const spare = 1 << 20 // free blocks: spareBytes of package machine
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 1, memory
	o.addressable = 4 * memory
	e := openTest(t, o)
	var most int64
	for size := 150; size < 2000; size += size / 3 {
		for i := 0; i < users; i += perRequest {
			b := e.NewBatch(1, 0)
			for u := i; u < i+perRequest; u++ {
				testengine.AddAttributes(b, op.ExternalID, fmt.Sprint("user-", u), 0, testengine.LongField(size))
			}
			require.NoError(t, b.Commit())
			b.Release()
			w := e.workers[0]
			w.Lock()
			most = max(most, w.Resident())
			w.Unlock()
		}
	}
	t.Logf("budget %d KiB, most resident %d KiB", memory>>10, most>>10)
	require.LessOrEqual(t, most, int64(memory+memory/8+2*spare))
	for i := range users {
		users, err := e.Find(1, op.ExternalID, []byte(fmt.Sprint("user-", i)))
		require.NoError(t, err)
		require.Len(t, users, 1)
	}
}
