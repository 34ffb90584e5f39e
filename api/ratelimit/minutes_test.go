package ratelimit

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMinutes(t *testing.T) {
	b := NewMinutes()
	a6 := netip.MustParseAddr("2001:db8::1")
	for i := range 3 {
		require.Equal(t, i < 2, b.Allow(a6, 0, 2))
	}
	require.False(t, b.Allow(netip.MustParseAddr("2001:db8::2"), 0, 2), "one /64 is one caller")
	require.False(t, b.Allow(a6, 59_999, 2))
	require.True(t, b.Allow(a6, 60_000, 2))
	require.True(t, b.Allow(a6, 0, 2), "a clock that goes back blocks nobody")
}
