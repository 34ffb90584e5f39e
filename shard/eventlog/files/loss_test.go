package files

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManyLostBlocks(t *testing.T) {
	s := Loss{of: 100}
	for i := range uint64(40) {
		s.blocks = append(s.blocks, Block{First: 10 * i, Last: 10*i + 9})
	}
	require.Equal(t, maxTold, strings.Count(s.String(), ".block"))
	require.Contains(t, s.String(), "and 30 more")
}
