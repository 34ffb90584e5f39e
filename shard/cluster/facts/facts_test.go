package facts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/wal/quorum/host"
)

// A cluster has more groups than nodes, whatever it begins with.
func TestDefaultGroups(t *testing.T) {
	for members, groups := range map[int]int{1: 6, 3: 6, 5: 10, 100: 200, 1000: 256} {
		p := Plan{Members: map[host.Node]string{}}
		for i := range members {
			p.Members[host.Node(i+1)] = "127.0.0.1:7000"
		}
		p.EnsureDefaults()
		require.Equal(t, groups, p.Groups, members)
	}
}
