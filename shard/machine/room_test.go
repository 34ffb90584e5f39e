package machine

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
)

// However much is to be evicted, readers get their turn in between. Each step looks at a bounded number of slots and
// goes on where the step before has ended. All steps together evict everything that can be evicted.
func TestEvictingIsDoneInSteps(t *testing.T) {
	testsize.SkipSerial(t)
	o := testOptions(vfs.NewMem())
	o.Workers = 1
	e := openTest(t, o)
	const users, most = 3000, 5
	b := e.NewBatch(1, 0)
	for i := range users {
		testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
	}
	require.NoError(t, b.Commit())
	b.Release()
	require.NoError(t, e.Checkpoint())
	w := e.workers[0]
	w.Lock()
	defer w.Unlock()
	entries := func() (n int) {
		for _, p := range w.parts {
			for i := range p.Slots {
				if p.Slots[i].Number != 0 {
					n++
				}
			}
		}
		return n
	}
	steps := 0
	for turns := 2 * len(w.parts); turns > 0; steps++ { // in the first round what was used lately stays
		before := entries()
		_, ended, err := w.evict(most)
		require.NoError(t, err)
		require.LessOrEqual(t, before-entries(), most)
		if ended {
			turns--
		}
	}
	require.Zero(t, entries())
	require.Greater(t, steps, users/most)
}
