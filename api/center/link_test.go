package center

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsLocalHost(t *testing.T) {
	for _, good := range []struct {
		host, local string
		port        uint16
	}{
		{"127.0.0.1:8080", "127.0.0.1:8080", 80}, {"127.0.0.1", "127.0.0.1:80", 80}, {"127.0.0.1", "127.0.0.1:443", 443}, {"localhost", "[::1]:443", 443}, {"localhost:8080", "127.1.2.3:8080", 80},
		{"[::1]:8080", "[::1]:8080", 80}, {"[::1]", "[::1]:80", 80}, {"[::ffff:10.0.0.7]:8080", "10.0.0.7:8080", 80}, {"[2001:DB8::7]:8080", "[2001:db8::7]:8080", 80},
	} {
		require.True(t, isLocalHost(good.host, good.port, netip.MustParseAddrPort(good.local)), good)
	}
	for _, bad := range [][2]string{
		{"10.0.0.8:8080", "10.0.0.7:8080"}, {"10.0.0.7:8081", "10.0.0.7:8080"}, {"10.0.0.7", "10.0.0.7:8080"}, {"localhost:8080", "10.0.0.7:8080"}, {"", "10.0.0.7:80"}, {":80", "10.0.0.7:80"},
		{"::1", "[::1]:80"}, {"localhost:", "127.0.0.1:80"}, {"localhost:08080", "127.0.0.1:8080"},
		{"[::ffff:10.0.0.7%made-up]:8080", "10.0.0.7:8080"}, {"[fe80::7%made-up]:8080", "[fe80::7]:8080"},
	} {
		require.False(t, isLocalHost(bad[0], 80, netip.MustParseAddrPort(bad[1])), bad)
	}
	require.False(t, isLocalHost("127.0.0.1:0", 80, netip.AddrPort{}), "not TCP")
}
