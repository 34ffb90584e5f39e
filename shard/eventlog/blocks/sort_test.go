package blocks

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// rowsInOrder are rows in the order of the log, with times of which some are the same.
func rowsInOrder(rng *rand.Rand, n int) []Row {
	list := make([]Row, n)
	for i := range list {
		list[i] = Row{Position: uint64(i / 7), Ordinal: uint32(i % 7 / 2), Index: uint32(i % 2), Time: rng.Int64N(int64(n)), Number: uint64(i)}
	}
	return list
}

func TestRowsSort(t *testing.T) {
	rng := testseed.Rand(t)
	for n := range 200 {
		list := rowsInOrder(rng, n)
		rng.Shuffle(n, func(i, k int) { list[i], list[k] = list[k], list[i] })
		r := Rows{List: slices.Clone(list)}
		r.Sort()
		slices.SortFunc(list, func(a, b Row) int {
			return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Index, b.Index))
		})
		require.Equal(t, list, r.List)
	}
}

func BenchmarkRowsSort(b *testing.B) {
	list := rowsInOrder(rand.New(rand.NewPCG(1, 2)), 100_000)
	var r Rows
	for b.Loop() {
		r.List = append(r.List[:0], list...)
		r.Sort()
	}
}
