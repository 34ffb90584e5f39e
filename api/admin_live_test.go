package api

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watcher reads GET /admin/live.
type watcher struct {
	t     *testing.T
	lines *bufio.Scanner
}

// sight is one event of it.
type sight struct {
	name string
	data map[string]any
}

func (d *door) watch(t *testing.T, query string) *watcher {
	t.Helper()
	server := httptest.NewServer(d.operatorServer().Handler)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/admin/live?"+query, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+d.operator.Token)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { answer.Body.Close() })
	require.Equal(t, 200, answer.StatusCode)
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	w := &watcher{t, bufio.NewScanner(answer.Body)}
	require.Equal(t, "watching", w.next().name)
	return w
}

// next waits for an event.
func (w *watcher) next() (s sight) {
	w.t.Helper()
	for w.lines.Scan() {
		switch line := w.lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			s.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			require.NoError(w.t, json.Unmarshal([]byte(line[len("data: "):]), &s.data))
			return s
		}
	}
	require.NoError(w.t, w.lines.Err())
	w.t.Fatal("the stream has ended")
	return s
}

func TestLive(t *testing.T) {
	if members > 1 {
		t.Skip("a node shows what it applies itself")
	}
	d := openEngine(t, t.TempDir())
	all, ada := d.watch(t, "workspace=demo&kind=event&kind=purchase&kind=attributes"), d.watch(t, "workspace=demo&alias_label=crm&alias_name=7")
	track := func(body string) {
		t.Helper()
		a := d.call("POST", "/users/track", demoKey, body)
		require.Equal(t, 201, a.status, a.body)
	}
	track(`{"attributes":[{"external_id":"ada","email":"ada@example.com","plan":"pro"}],
		"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-02T03:04:05Z","properties":{"from":"<b>"}}],
		"purchases":[{"external_id":"ada","product_id":"book","currency":"EUR","price":9.5,"quantity":2,"time":"2026-01-02T03:04:05Z"}]}`)
	seen := map[any]map[string]any{}
	for range 3 {
		s := all.next()
		require.Empty(t, s.name)
		seen[s.data["kind"]] = s.data
		require.Equal(t, "ada", s.data["external_id"])
		require.Equal(t, "demo", s.data["workspace"])
		require.Equal(t, "/users/track", s.data["source"])
		require.Equal(t, "api key", s.data["actor"])
		require.NotEmpty(t, s.data["svc_id"])
		require.NotContains(t, s.data, "state")
	}
	require.Equal(t, map[string]any{"email": "ada@example.com", "plan": "pro"}, seen["attributes"]["attributes"])
	require.Equal(t, "signed_up", seen["event"]["name"])
	require.Equal(t, map[string]any{"from": "<b>"}, seen["event"]["properties"])
	require.Equal(t, "2026-01-02T03:04:05Z", seen["event"]["time"])
	require.Equal(t, "book", seen["purchase"]["product_id"])
	require.Equal(t, 9.5, seen["purchase"]["price"])

	// Whom an alias leads to is looked up again and again: here there is nobody, then somebody.
	require.Equal(t, 201, d.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"external_id":"ada","alias_label":"crm","alias_name":"7"}]}`).status)
	got := make(chan sight, 1)
	go func() { got <- ada.next() }()
	for s := (sight{}); s.data == nil; {
		track(`{"attributes":[{"external_id":"ada","email_subscribe":"unsubscribed"}]}`)
		track(`{"attributes":[{"external_id":"ada","email_subscribe":"opted_in"}]}`)
		select {
		case s = <-got:
			require.Equal(t, "ada", s.data["external_id"])
		case <-time.After(10 * time.Millisecond):
		}
	}
	consent := d.watch(t, "kind=consent&name=email_subscribe")
	track(`{"attributes":[{"external_id":"ada","email_subscribe":"unsubscribed"}]}`)
	s := consent.next()
	require.Equal(t, "email_subscribe", s.data["state"])
	require.Equal(t, "unsubscribed", s.data["value"])
	require.NotContains(t, s.data, "attributes")

	status, v, _ := d.admin("GET", "/admin/audit?limit=1", "admin-token", "")
	require.Equal(t, 200, status)
	require.Equal(t, "live view opened", v["entries"].([]any)[0].(map[string]any)["what"])
}

// endingWriter ends the live view as soon as something was written, before anybody has flushed it.
type endingWriter struct {
	*httptest.ResponseRecorder
	end func()
}

func (w endingWriter) Write(b []byte) (int, error) {
	w.end()
	return w.ResponseRecorder.Write(b)
}

func (w endingWriter) SetWriteDeadline(time.Time) error { return nil }

// Who watches is told so at once, and not when there is something to show.
func TestLiveBeginsAtOnce(t *testing.T) {
	d := openEngine(t, t.TempDir())
	w := endingWriter{httptest.NewRecorder(), d.live.Close}
	r := httptest.NewRequest("GET", "/admin/live", nil)
	r.Header.Set("Authorization", "Bearer "+d.operator.Token)
	d.operatorServer().Handler.ServeHTTP(w, r)
	require.True(t, w.Flushed)
	require.Contains(t, w.Body.String(), "event: watching\n")
}

func TestLiveRefuses(t *testing.T) {
	d := openEngine(t, t.TempDir())
	check := func(query string, status int, text string) {
		t.Helper()
		got, v, body := d.admin("GET", "/admin/live?"+query, "admin-token", "")
		require.Equal(t, status, got, body)
		require.Contains(t, v["message"], text)
	}
	check("kind=x", 400, "kind: want attributes, event, purchase or consent")
	check("workspace=nowhere", 404, `workspace "nowhere" not found`)
	check("external_id=ada", 400, "workspace is required with a user")
	check("workspace=demo&external_id=ada&email=x", 400, "want one of external_id")
	check("workspace=demo&phone=12", 400, "phone must be in E.164 format")
	for _, d := range append(d.others, d) {
		for range 4 {
			d.watch(t, "")
		}
	}
	check("", 503, "as many watch as may: 4")
	for _, d := range append(d.others, d) {
		d.live.Close()
	}
	check("", 503, "the live view is closed")
	for _, d := range append(d.others, d) {
		d.operator.Live = nil
	}
	check("", 404, "switched off")
}
