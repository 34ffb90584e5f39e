package persistent

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// A Map is what a built-in map is after the same changes, and all that it was made from stay as they were.
func TestMap(t *testing.T) {
	random := testseed.Rand(t)
	var m Map[int, int]
	want := map[int]int{}
	type version struct {
		m    Map[int, int]
		want map[int]int
	}
	var versions []version
	for i := range 20_000 {
		key := random.IntN(5000)
		if random.IntN(4) == 0 {
			m = m.Without(key)
			delete(want, key)
		} else {
			m = m.With(key, i)
			want[key] = i
		}
		if i%1000 == 0 {
			versions = append(versions, version{m, maps.Clone(want)})
		}
	}
	for _, v := range append(versions, version{m, want}) {
		require.Equal(t, v.want, maps.Collect(v.m.All()))
		require.Equal(t, len(v.want), v.m.Len())
		for key := range 5000 {
			got, ok := v.m.Get(key)
			value, there := v.want[key]
			require.Equal(t, there, ok)
			require.Equal(t, value, got)
		}
	}
	for range m.All() {
		break
	}
}

// Keys with one hash are told apart: a leaf without bits left holds them all.
func TestCollisions(t *testing.T) {
	var root *node[int, int]
	for i := range 3 * maxEntries {
		root = root.with(7, maxDepth, entry[int, int]{i, i})
	}
	require.Len(t, root.entries, 3*maxEntries)
	root = root.with(7, maxDepth, entry[int, int]{5, 50}).without(7, 6)
	require.Len(t, root.entries, 3*maxEntries-1)
	got, ok := Map[int, int]{root}.Get(5)
	require.True(t, ok)
	require.Equal(t, 50, got)
	_, ok = Map[int, int]{root}.Get(6)
	require.False(t, ok)
}

// What a change copies doesn't grow with the Map, and a look-up allocates nothing.
func TestCosts(t *testing.T) {
	cost := func(n int) float64 {
		var m Map[[32]byte, int]
		for i := range n {
			m = m.With([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, i)
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { m.Get([32]byte{1}) }))
		return testing.AllocsPerRun(100, func() { m.With([32]byte{byte(rand.IntN(256)), 0, 0, 1}, 1) })
	}
	require.Less(t, cost(100_000), 3*cost(100))
}
