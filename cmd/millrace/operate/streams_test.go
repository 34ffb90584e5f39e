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

// A stream that is removed while streams are listed is left out; what else goes wrong ends the list.
func TestListOfStreamsWhileOneGoes(t *testing.T) {
	status := http.StatusNotFound
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/streams"):
			fmt.Fprint(w, `{"streams":[{"id":"first"},{"id":"gone"},{"id":"last"}],"message":"success"}`)
		case strings.HasSuffix(r.URL.Path, "/gone/status"):
			w.WriteHeader(status)
			fmt.Fprint(w, `{"message":"it is not there"}`)
		default:
			fmt.Fprint(w, `{"state":"running","message":"success"}`)
		}
	}))
	defer server.Close()
	list := func() (string, error) {
		var out strings.Builder
		c := streamsList{inOne{Workspace: "shop"}}
		called := &caller{Target: Target{Server: server.URL, Token: "t", Silence: 1 << 40}}
		err := c.Run(&session{caller: called, ctx: context.Background(), out: &out})
		return out.String(), err
	}
	listed, err := list()
	require.NoError(t, err)
	require.Regexp(t, `(?s)first +running.*last +running`, listed)
	require.NotContains(t, listed, "gone")

	status = http.StatusServiceUnavailable
	_, err = list()
	require.ErrorContains(t, err, "503 Service Unavailable: it is not there")
}
