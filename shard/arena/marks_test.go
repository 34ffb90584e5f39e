package arena

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// A set of marks has nothing that was not added. It keeps nearly all marks as long as there is room, and otherwise most
// of the marks that came last.
func TestMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	var m Marks
	defer m.Close()
	m.Add(1, 1)
	require.False(t, m.Has(1, 1), "there is no room")

	const rows = 1000
	require.NoError(t, m.Resize(rows*64+10))
	require.Equal(t, int64(rows*64), m.Bytes())
	type added struct{ number, mark uint64 }
	var all []added
	has := func(of []added) (n int) {
		for _, x := range of {
			require.False(t, m.Has(x.number, x.mark+1), "never added")
			if m.Has(x.number, x.mark) {
				n++
			}
		}
		return n
	}
	add := func(n int) {
		for range n {
			x := added{r.Uint64(), r.Uint64()<<1 | 1<<33}
			all = append(all, x)
			m.Add(x.number, x.mark)
			m.Add(x.number, x.mark)
			require.True(t, m.Has(x.number, x.mark))
		}
	}
	add(4 * rows)
	require.Greater(t, has(all), len(all)*95/100)
	add(100 * rows)
	require.LessOrEqual(t, has(all), 8*rows)
	require.Greater(t, has(all[len(all)-rows:]), rows*8/10)

	require.NoError(t, m.Resize(rows*64), "as large as before")
	require.NotZero(t, has(all))
	require.NoError(t, m.Resize(2*rows*64))
	require.Zero(t, has(all), "another size: it begins anew")
}
