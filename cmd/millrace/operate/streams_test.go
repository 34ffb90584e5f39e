package operate

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
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

// How far a stream is in each event log is a line of a table, and nothing before the first is read.
func TestStreamIsShownByParts(t *testing.T) {
	status := `{"state":"failing","parts":[{"group":"01","here":true,"position":7,"events":3},{"group":"02","here":false,"position":9,"error":"no such bucket"}],"message":"success"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/status") {
			fmt.Fprint(w, status)
		} else {
			fmt.Fprint(w, `{"id":"lake","message":"success"}`)
		}
	}))
	defer server.Close()
	show := func(flags ...string) string {
		var out strings.Builder
		var cli struct {
			Streams Streams `cmd:""`
		}
		parser, err := kong.New(&cli, kong.BindTo(context.Background(), (*context.Context)(nil)), kong.BindTo(&out, (*io.Writer)(nil)))
		require.NoError(t, err)
		k, err := parser.Parse(append([]string{"streams", "show", "shop", "lake", "--server", server.URL, "--token", "t"}, flags...))
		require.NoError(t, err)
		require.NoError(t, k.Run())
		return out.String()
	}
	require.Regexp(t, `(?s)^id +lake\nstate +failing\n\nGROUP +HERE .*ERROR\n01 +true +7 .*\n02 +false +9 .* no such bucket\n$`, show())
	require.Contains(t, show("--json"), `"parts":[{"group":"01"`)
	status = `{"state":"running","parts":[],"message":"success"}`
	require.Regexp(t, `^id +lake\nstate +running\n$`, show())
}
