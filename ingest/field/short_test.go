package field

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShort(t *testing.T) {
	for value, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abcd…", "ab€": "ab…", "a€": "a€",
		"€€": "€…", "\x80\x80\x80\x80\x80": "…"} {
		require.Equal(t, want, Short(4, value))
		require.Equal(t, want, string(Short(4, []byte(value))))
	}
	require.Equal(t, strings.Repeat("x", 64)+"…", ShortName(strings.Repeat("x", 65)))
}
