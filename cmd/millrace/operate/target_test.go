package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a network with one server, in the time of a bubble.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serveInBubble lets a Target reach the handler for the length of f.
func serveInBubble(t *testing.T, handler http.Handler, f func(c *Target)) {
	was := client
	defer func() { client = was }()
	synctest.Test(t, func(t *testing.T) {
		network := make(pipes)
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			network <- theirs
			return ours, nil
		}}
		client = clientOver(transport)
		server := &http.Server{Handler: handler}
		go func() { _ = server.Serve(network) }()
		f(&Target{Server: "http://node", Token: "t", Silence: 5 * time.Second})
		require.NoError(t, server.Close())
		transport.CloseIdleConnections()
	})
}

// A server that hangs, before its answer or in the middle of it, ends a command when it has been silent for --silence.
func TestSilentServer(t *testing.T) {
	const silent = "the server at http://node does not answer: it has been silent for 5s"
	for name, test := range map[string]struct {
		method   string
		starts   bool          // the answer begins before the server hangs
		alive    time.Duration // until then it answers that it is alive
		wantText string
		want     string
	}{
		"before the answer": {method: http.MethodGet, want: "GET /admin/x: " + silent},
		"before the answer to a change": {method: http.MethodPost,
			want: "POST /admin/x: " + silent + "; whether the request was done is unknown"},
		"in the midst of the answer": {method: http.MethodGet, starts: true, alive: time.Hour, wantText: "some", want: silent},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			begun := time.Now()
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case time.Since(begun) < test.alive && r.URL.Path == "/livez":
					return
				case test.starts && r.URL.Path != "/livez":
					_, _ = io.WriteString(w, "some")
					_ = http.NewResponseController(w).Flush()
				}
				<-over
			})
			serveInBubble(t, handler, func(c *Target) {
				over, begun = make(chan struct{}), time.Now()
				text, err := ask(c, test.method)
				require.EqualError(t, err, test.want)
				require.Equal(t, test.wantText, text)
				require.GreaterOrEqual(t, time.Since(begun), test.alive)
				require.LessOrEqual(t, time.Since(begun), test.alive+c.Silence)
				close(over)
			})
		})
	}
}

// A server that is alive may take its time: for the answer to begin, and to end.
func TestServerThatTakesItsTime(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" {
			time.Sleep(3 * time.Second) // it has other work, too
			return
		}
		time.Sleep(time.Hour)
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(time.Hour)
		_, _ = io.WriteString(w, " more")
	})
	serveInBubble(t, handler, func(c *Target) {
		text, err := ask(c, http.MethodGet)
		require.NoError(t, err)
		require.Equal(t, "some more", text)
	})
}

// A server that isn't there is no silent one: the error is that of the connection.
func TestServerThatIsNotThere(t *testing.T) {
	was := client
	defer func() { client = was }()
	gone := errors.New("refused")
	client = clientOver(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, gone }})
	synctest.Test(t, func(t *testing.T) { // which ends when nobody asks any more
		_, err := ask(&Target{Server: "http://node", Token: "t"}, http.MethodGet)
		require.ErrorIs(t, err, gone)
	})
}

// An error says what the server says; keys that were made all the same are shown with it, since nobody can read them again.
func TestErrorShowsMadeKeys(t *testing.T) {
	for text, want := range map[string]string{
		`{"message":"no"}`: "503 Service Unavailable: no", `{"message":"no","made_keys":[{"key":"k1"}]}`: `"key":"k1"`,
	} {
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, text)
		})
		serveInBubble(t, handler, func(c *Target) {
			_, err := ask(c, http.MethodPost)
			require.ErrorContains(t, err, want)
		})
	}
}

// An address that can't be one, and a server that isn't the admin listener, are said to be that.
func TestWrongServer(t *testing.T) {
	for server, want := range map[string]string{
		"127.0.0.1:8081":       `--server "127.0.0.1:8081": want http://HOST:PORT or https://HOST`,
		"localhost:8081":       `--server "localhost:8081": want http://HOST:PORT or https://HOST`,
		"ftp://localhost:8081": `--server "ftp://localhost:8081": want http://HOST:PORT or https://HOST`,
		"":                     `--server "": want http://HOST:PORT or https://HOST`,
	} {
		_, err := ask(&Target{Server: server, Token: "t"}, http.MethodGet)
		require.EqualError(t, err, want)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"message":"Not Found"}`)
	})
	serveInBubble(t, handler, func(c *Target) {
		s := &session{caller: &caller{Target: *c}, ctx: context.Background()}
		require.EqualError(t, s.listAll("/admin/apps", "apps"),
			"GET /admin/apps: 404 Not Found: http://node has no such path: is it the address of the admin listener?")
	})
}

func ask(c *Target, method string) (string, error) {
	body, err := c.call(context.Background(), method, "/admin/x", strings.NewReader(""))
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// The body of an answer that switches protocols is the connection: nothing would end reading it.
func TestServerThatSwitchesProtocols(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		require.NoError(t, err)
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // until the client closes it
		_ = conn.Close()
	})
	serveInBubble(t, handler, func(c *Target) {
		_, err := ask(c, http.MethodGet)
		require.ErrorContains(t, err, "101 Switching Protocols")
	})
}

// A list that comes in pages is printed as a whole.
func TestAllPages(t *testing.T) {
	pages := map[string]string{"": `{"apps":[{"id":"a"},{"id":"b"}],"next":"b&c","message":"success"}`,
		"b&c": `{"apps":[{"id":"d"}],"message":"success"}`}
	serveInBubble(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, pages[r.URL.Query().Get("cursor")])
	}), func(c *Target) {
		for asJSON, want := range map[bool]string{false: "ID\na\nb\nd\n", true: `{"apps":[{"id":"a"},{"id":"b"},{"id":"d"}]}`} {
			var out strings.Builder
			s := &session{caller: &caller{Target: *c, JSON: asJSON}, ctx: context.Background(), out: &out}
			require.NoError(t, s.listAll("/admin/apps", "apps", column{"ID", "id"}))
			if asJSON {
				require.JSONEq(t, want, out.String())
				continue
			}
			require.Equal(t, want, out.String())
		}
	})
}

// A key that was made and can't be printed can be revoked: the error says how.
func TestKeyThatCannotBeShown(t *testing.T) {
	server := http.NewServeMux()
	server.HandleFunc("POST /admin/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"id":7,"key":"secret","token":"secret","made_keys":[{"name":"k","key":"secret"}]}`)
	})
	file := filepath.Join(t.TempDir(), "bootstrap.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	serveInBubble(t, server, func(c *Target) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		defer full.Close()
		key := oneThing{inOne: inOne{"demo"}, ID: "1"}
		for _, asJSON := range []bool{false, true} {
			s := &session{caller: &caller{Target: *c, JSON: asJSON}, ctx: context.Background(), out: full}
			const revoked = "API key 7 was made, but could not be shown; to revoke it: millrace admin keys revoke demo 7: "
			require.ErrorContains(t, (&keysCreate{inOne: inOne{"demo"}}).Run(s), revoked)
			require.ErrorContains(t, (&keysRotate{key}).Run(s), revoked)
			require.ErrorContains(t, (*scimRotate)(nil).Run(s), "millrace admin scim revoke 7: ")
			require.ErrorIs(t, (*scimRotate)(nil).Run(s), syscall.ENOSPC)
			require.ErrorContains(t, (&bootstrapCommand{file}).Run(s), "keys were made, but could not all be shown")
		}
	})
}

// A name that is all dots is a name: the server must not take it for a step up, to what the name is of.
func TestDotsInPaths(t *testing.T) {
	server := http.NewServeMux()
	server.HandleFunc("DELETE /admin/workspaces/{workspace}", func(http.ResponseWriter, *http.Request) {
		t.Error("the workspace was deleted")
	})
	server.HandleFunc("DELETE /admin/workspaces/{workspace}/api_keys/{key}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"key":%q}`, r.PathValue("key"))
	})
	serveInBubble(t, server, func(c *Target) {
		s := &session{caller: &caller{Target: *c}, ctx: context.Background()}
		for _, name := range []string{".", "..", "...", "a/../..", "%2E%2E"} {
			answer, err := s.do(http.MethodDelete, inWorkspace("demo", "api_keys", name), nil)
			require.NoError(t, err)
			require.Equal(t, name, answer.text("key"))
		}
	})
}
