package document

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSCIMOriginAndAddresses(t *testing.T) {
	s := &SCIM{SCIMSettings: SCIMSettings{RequestOrigin: "https://idp.example.com"}}
	for origin, want := range map[string]bool{"https://idp.example.com": true, "": false, "https://idp.example.com/": false, "https://IDP.example.com": false, "https://idp.example.co": false} {
		require.Equal(t, want, s.AllowsOrigin([][]byte{[]byte(origin)}), origin)
	}
	require.False(t, s.AllowsOrigin(nil))
	require.False(t, s.AllowsOrigin([][]byte{[]byte(s.RequestOrigin), []byte(s.RequestOrigin)}))
	s.RequestOrigin = ""
	require.True(t, s.AllowsOrigin([][]byte{[]byte("x")}))
	require.True(t, s.AllowsOrigin(nil))
}
