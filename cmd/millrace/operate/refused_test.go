package operate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever lists what was refused is told, apart from the list, which nodes' entries are missing.
func TestRefusedOfNodesThatDoNotAnswer(t *testing.T) {
	missing := `,"missing_nodes":[2,3]`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"refused":[],"counts":[],"message":"success"%s}`, missing)
	}))
	defer server.Close()
	said := func(run func(*session) error) string {
		var out, notes strings.Builder
		called := &caller{Target: Target{Server: server.URL, Token: "t", Silence: 1 << 40}, JSON: true}
		require.NoError(t, run(&session{caller: called, ctx: context.Background(), out: &out, notes: &notes}))
		require.NotContains(t, out.String(), "no answer")
		return notes.String()
	}
	list, counts := refusedList{inOne: inOne{Workspace: "shop"}}, refusedCounts{inOne: inOne{Workspace: "shop"}}
	for _, run := range []func(*session) error{list.Run, counts.Run} {
		require.Equal(t, "no answer from node 2,3: what is there is missing here\n", said(run))
	}
	missing = ""
	require.Empty(t, said(list.Run))
}
