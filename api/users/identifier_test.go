package users

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrioritize(t *testing.T) {
	people := func() []person {
		return []person{{1, "a", true, 30}, {number: 2, updated: 20}, {number: 3, updated: 10}}
	}
	for rules, want := range map[string]uint64{"": 0, "identified": 1, "unidentified": 0, "most_recently_updated": 1, "least_recently_updated": 3, "unidentified most_recently_updated": 2, "most_recently_updated unidentified": 1} {
		left := prioritize(people(), rules)
		if want == 0 {
			require.Empty(t, left, rules)
			continue
		}
		require.Len(t, left, 1, rules)
		require.Equal(t, want, left[0].number, rules)
	}
}
