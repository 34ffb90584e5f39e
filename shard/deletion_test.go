package shard

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// Between the look-up and the deletion a user may be deleted by somebody else, or merged: then this deletion has not
// removed him.
func TestDeletionSaysWhetherItWas(t *testing.T) {
	e, err := openEngine(testOptions(vfs.NewCrashableMem()))
	require.NoError(t, err)
	defer e.Close()
	stage(t, e)
	settle(t, e)
	c := castOf(t, e)
	begin := func(numbers ...uint64) *Batch {
		b := e.NewBatch(1, 0)
		for ref, number := range numbers {
			require.Equal(t, ref, b.Delete(number))
		}
		return b
	}
	commit := func(b *Batch, want ...Outcome) {
		t.Helper()
		require.NoError(t, b.Commit())
		for ref, outcome := range want {
			require.Equal(t, outcome, b.Outcome(ref), ref)
		}
		b.Release()
	}
	first, second := begin(c.ada, c.eve), begin(c.eve, c.bob)
	merge := e.NewBatch(1, 0)
	merge.Merge(c.ada, c.bob)
	require.NoError(t, merge.Commit())
	merge.Release()
	settle(t, e)
	commit(first, Nobody, Done) // ada is bob's by now
	commit(second, Nobody, Done)
	commit(begin(c.al, c.ada), Done, Nobody)
}
