package testaddr

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFree(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		address := Free(t)
		require.False(t, seen[address])
		seen[address] = true
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		from, _, _ := net.SplitHostPort(c.LocalAddr().String())
		require.NotEqual(t, host, from, "who dials takes no port of the host")
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
	require.Equal(t, "127.64.0.1", hostOf(1))
	require.Equal(t, "127.127.255.255", hostOf(1<<22-1))
	require.NotEqual(t, hostOf(77), hostOf(78))
}
