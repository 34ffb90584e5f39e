package admin

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageIsSought: a page costs what is on it, however long the list before it is.
func TestPageIsSought(t *testing.T) {
	var list []string
	for i := range 5000 {
		list = append(list, fmt.Sprintf("%05d", i))
	}
	looks := 0
	key := func(v string) string {
		looks++
		return v
	}
	page, err := pageOf(httptest.NewRequest("GET", "/?limit=2&cursor=04000", nil), "list", list, key,
		func(v string) any { return v })
	require.NoError(t, err)
	require.Len(t, page.(map[string]any)["list"], 2)
	require.Equal(t, "04002", page.(map[string]any)["next"])
	require.Less(t, looks, 20)
}
