package blocks

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// The counts of a block stay in memory as long as the block is kept, so they take no room for names that have no count.
func TestCountsOfManyNamesAreSmall(t *testing.T) {
	const names, times = 20_000, 32
	rs := &Rows{}
	for i := range names {
		rs.List = append(rs.List, Row{Workspace: 1, Kind: op.Event, Name: rs.Intern([]byte("order " + strconv.Itoa(i)))})
	}
	inUse := func() int64 {
		runtime.GC()
		runtime.GC() // unique names that nobody has any more go with the second one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	var kept [][]Count
	for range times {
		kept = append(kept, countRows(rs))
	}
	each := (inUse() - before) / times
	require.Len(t, kept[0], maxNamedCounts+1)
	require.Less(t, each, int64(names*8), "bytes of a block's counts")
	runtime.KeepAlive(kept)
	runtime.KeepAlive(rs)
}
