package testseed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeed(t *testing.T) {
	t.Setenv("MILLRACE_SEED", "7")
	require.EqualValues(t, 7, Of(t))
	require.Equal(t, Rand(t).Uint64(), Rand(t).Uint64())
	require.Equal(t, "./loadtest/testseed", folder())
	t.Setenv("MILLRACE_SEED", "")
	require.NotEqual(t, Of(t), Of(t))
}
