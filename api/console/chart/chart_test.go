package chart

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNiceTop(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, 0.3: 0.4, 3: 4, 5: 6, 7: 10, 1000: 1000, 1001: 2000} {
		require.InDelta(t, want, niceTop(v), 1e-9, v)
	}
}
