package machine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// A record with more ops than touch loads at once has the others loaded when apply comes to them.
func TestLargeRecordIsTouchedInParts(t *testing.T) {
	w, shape, at := benchWorker(t), &benchShape{events: 4, products: 4, attributes: 6, ops: 3}, benchNow
	fill(t, w, shape, 50)
	for _, n := range []int{GroupOps - 1, GroupOps, GroupOps + 1, 2 * GroupOps, 3*GroupOps - 10} {
		c := shape.record(t, rand.New(rand.NewPCG(1, 2)), n, 50, &at)
		c.At = w.Applied + 1
		w.Lock()
		err := w.Apply([]*Commit{c})
		w.Unlock()
		require.NoError(t, err)
		last := (n - 1) % GroupOps
		require.Equal(t, opAt(c, n-1), w.touching[last].Op, n)
		require.Equal(t, opAt(c, n-1-last), w.touching[0].Op, n)
	}
}

// opAt is the op of a record at an index.
func opAt(c *Commit, i int) (o op.Op) {
	rest := c.Rec.Ops
	for range i + 1 {
		o, rest = op.Next(rest)
	}
	return o
}
