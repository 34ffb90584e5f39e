package placement

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/wal/quorum"
)

func numbers(n int) (list []quorum.Node) {
	for i := range n {
		list = append(list, quorum.Node(3*i+1)) // numbers have gaps
	}
	return list
}

func TestInitialPlacement(t *testing.T) {
	for nodes := 1; nodes <= 12; nodes++ {
		for _, groups := range []int{1, 2, 5, 16, 32, 256} {
			for replicas := 1; replicas <= 5; replicas++ {
				list := initialPlacement(numbers(nodes), groups, replicas)
				require.Len(t, list, groups)
				holds, leads := map[quorum.Node]int{}, map[quorum.Node]int{}
				for _, p := range list {
					require.Len(t, p.Replicas, min(replicas, nodes))
					require.ElementsMatch(t, p.Replicas, p.MadeOf)
					require.Len(t, slices.Compact(slices.Sorted(slices.Values(p.Replicas))), len(p.Replicas), "a node twice")
					require.Empty(t, p.Leaving)
					leads[p.Replicas[0]]++
					for _, n := range p.Replicas {
						require.Contains(t, numbers(nodes), n)
						holds[n]++
					}
				}
				requireEven(t, holds, numbers(nodes), "%d nodes, %d groups, %d replicas: holds", nodes, groups, replicas)
				requireEven(t, leads, numbers(nodes), "%d nodes, %d groups, %d replicas: leads", nodes, groups, replicas)
				shuffled := numbers(nodes)
				slices.Reverse(shuffled)
				require.Equal(t, list, initialPlacement(shuffled, groups, replicas), "whatever order they are named in")
			}
		}
	}
}

// The groups of a node have their other replicas on many nodes, so that many nodes take over when it fails.
func TestInitialPlacementSpreadsCompany(t *testing.T) {
	company := map[quorum.Node]struct{}{}
	for _, p := range initialPlacement(numbers(9), 16, 3) {
		if slices.Contains(p.Replicas, 1) {
			for _, n := range p.Replicas {
				company[n] = struct{}{}
			}
		}
	}
	require.GreaterOrEqual(t, len(company), 8)
}

func requireEven(t *testing.T, counts map[quorum.Node]int, nodes []quorum.Node, format string, args ...any) {
	t.Helper()
	least, most := counts[nodes[0]], 0
	for _, n := range nodes {
		least, most = min(least, counts[n]), max(most, counts[n])
	}
	require.LessOrEqual(t, most-least, 1, append([]any{format}, args...)...)
}

func TestPartitionsOf(t *testing.T) {
	for groups := 1; groups <= 256; groups++ {
		next := 0
		for g := 1; g <= groups; g++ {
			first, count := PartitionsOf(uint32(g), groups)
			require.Equal(t, next, first)
			require.Positive(t, count)
			for p := first; p < first+count; p++ {
				require.Equal(t, g, 1+p*groups/256)
			}
			next = first + count
		}
		require.Equal(t, 256, next)
	}
}

func TestWantedVoters(t *testing.T) {
	for nodes, want := range []int{0, 1, 2, 3, 3, 5, 5, 5, 5} {
		require.Equal(t, want, WantedVoters(nodes), nodes)
	}
}
