package blocks

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// rowsInOrder are rows in the order of the log.
func rowsInOrder(n int) []Row {
	list := make([]Row, n)
	for i := range list {
		list[i] = Row{Position: uint64(i / 7), Ordinal: uint32(i % 7 / 2), Index: uint32(i % 2), Number: uint64(i)}
	}
	return list
}

func TestRowsSort(t *testing.T) {
	rng := testseed.Rand(t)
	for n := range 200 {
		list := rowsInOrder(n)
		rng.Shuffle(n, func(i, k int) { list[i], list[k] = list[k], list[i] })
		r := Rows{List: slices.Clone(list)}
		r.Sort()
		slices.SortFunc(list, func(a, b Row) int {
			return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Index, b.Index))
		})
		require.Equal(t, list, r.List)
	}
}
