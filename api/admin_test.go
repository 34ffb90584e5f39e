package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	waitLimit = time.Minute
	tick      = time.Millisecond
)

// admin calls the admin listener.
func (d *door) admin(method, path, token, body string) (int, map[string]any, string) {
	r := httptest.NewRequest(method, "http://admin"+path, strings.NewReader(body))
	r.RemoteAddr = "192.0.2.1:1234"
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	d.any().operatorServer().Handler.ServeHTTP(w, r)
	var v map[string]any
	_ = json.Unmarshal(w.Body.Bytes(), &v)
	return w.Code, v, w.Body.String()
}

func (d *door) metricsText(t *testing.T) string {
	status, _, text := d.admin("GET", "/metrics", "", "")
	require.Equal(t, 200, status)
	return text
}

// Strangers who connect and say nothing sensible write no lines into the log; a panic is one.
func TestOperatorServerLogsPanicsAlone(t *testing.T) {
	d := open(t, nil)
	server := d.operatorServer()
	server.ErrorLog.Printf("http: TLS handshake error from %s: EOF", "192.0.2.1:1234")
	require.NotContains(t, d.logged(), "192.0.2.1")
	server.ErrorLog.Printf("http: panic serving %s: %s", "192.0.2.1:1234", "boom")
	require.Contains(t, d.logged(), "level=ERROR msg=\"http: panic serving 192.0.2.1:1234: boom\"")
}

// Nothing but health and metrics without the token; without a token set, nothing else at all.
func TestAdminNeedsTheToken(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxBadKeysPerMinute = 1000 })
	closed := open(t, func(o *Options) { o.MaxBadKeysPerMinute = 1000 })
	closed.operator.Token = ""
	paths := []string{"GET /debug/pprof/", "GET /debug/pprof/heap", "GET /nowhere"}
	for _, pattern := range d.operatorPatterns() {
		paths = append(paths, strings.NewReplacer("{workspace}", "demo", "{key}", "1").Replace(pattern))
	}
	for _, p := range paths {
		method, path, _ := strings.Cut(p, " ")
		for _, token := range []string{"", "wrong", demoKey} {
			status, v, _ := d.admin(method, path, token, "{}")
			require.Equal(t, 401, status, p)
			require.NotEmpty(t, v["message"])
		}
		for _, token := range []string{"", "admin-token"} {
			status, _, _ := closed.admin(method, path, token, "{}")
			require.Equal(t, 401, status, p)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/docs", "/livez/", "/readyz/", "/metrics/", "/docs/"} {
		status, _, _ := closed.admin("GET", path, "", "")
		require.Equal(t, 200, status)
	}
	status, _, text := d.admin("GET", "/debug/pprof/", "admin-token", "")
	require.Equal(t, 200, status)
	require.Contains(t, text, "goroutine")

	r := httptest.NewRequest("GET", "http://admin/admin/workspaces", nil)
	r.SetBasicAuth("x", "admin-token") // how go tool pprof sends it
	w := httptest.NewRecorder()
	d.operatorServer().Handler.ServeHTTP(w, r)
	require.Equal(t, 200, w.Code)

	r = httptest.NewRequest("POST", "http://admin/admin/workspaces", strings.NewReader(`{"id":"x"}`)) // another site's page
	r.SetBasicAuth("x", "admin-token")
	r.Header.Set("Origin", "https://evil.example")
	w = httptest.NewRecorder()
	d.operatorServer().Handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusForbidden, w.Code)
	require.JSONEq(t, `{"message":"A page of another site has sent this request"}`, w.Body.String())

	for site, want := range map[string]int{"cross-site": http.StatusForbidden, "same-site": http.StatusForbidden, "same-origin": http.StatusOK, "none": http.StatusOK} {
		r = httptest.NewRequest("GET", "http://admin/admin/workspaces", nil) // an image of that page, with what the browser remembers
		r.SetBasicAuth("x", "admin-token")
		r.Header.Set("Sec-Fetch-Site", site)
		w = httptest.NewRecorder()
		d.operatorServer().Handler.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, site)
	}
}

func TestAdminAPI(t *testing.T) {
	d := open(t, nil)
	admin := func(method, path, body string, want int) map[string]any {
		status, v, text := d.admin(method, path, "admin-token", body)
		require.Equal(t, want, status, "%s %s: %s", method, path, text)
		require.NotEmpty(t, v["message"])
		return v
	}
	admin("POST", "/admin/workspaces", `{"id":"new","name":"New"}`, 201)
	admin("POST", "/admin/workspaces", `{"id":"new"}`, 409)
	admin("POST", "/admin/workspaces", `{"id":"Bad Id"}`, 400)
	admin("POST", "/admin/workspaces", `{"id":"x","unknown":1}`, 400)
	require.Len(t, admin("GET", "/admin/workspaces", "", 200)["workspaces"], 3)
	admin("GET", "/admin/workspaces/nobody", "", 404)
	admin("PATCH", "/admin/workspaces/nobody", "{}", 404)
	v := admin("PATCH", "/admin/workspaces/new", `{"plan":"mau","rate_limits":{"users.track":"1/1h"}}`, 200)
	require.Equal(t, "mau", v["plan"])
	require.Equal(t, "1/1h", v["effective_rate_limits"].(map[string]any)["users.track"])
	require.Equal(t, "250/1s", v["effective_rate_limits"].(map[string]any)["users.track.burst"])

	app := admin("POST", "/admin/workspaces/new/apps", `{"name":"Web"}`, 201)
	require.Len(t, app["id"], 36)
	require.Len(t, admin("GET", "/admin/workspaces/new/apps", "", 200)["apps"], 1)
	group := admin("POST", "/admin/workspaces/new/subscription_groups", `{"name":"News","channel":"email"}`, 201)
	require.Len(t, group["id"], 36)
	admin("POST", "/admin/workspaces/new/subscription_groups", `{"name":"News","channel":"fax"}`, 400)
	require.Len(t, admin("GET", "/admin/workspaces/new/subscription_groups", "", 200)["subscription_groups"], 1)

	key := admin("POST", "/admin/workspaces/new/api_keys", `{"name":"k","permissions":["users.track"]}`, 201)
	token := key["key"].(string)
	a := d.track(token, "a")
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, "1", a.header.Get("X-RateLimit-Limit"))
	status, list, text := d.admin("GET", "/admin/workspaces/new/api_keys", "admin-token", "")
	require.Equal(t, 200, status)
	require.NotContains(t, text, token)
	require.NotContains(t, text, "sha256")
	require.NotEmpty(t, list["api_keys"].([]any)[0].(map[string]any)["last_used_at"])
	admin("DELETE", "/admin/workspaces/new/api_keys/"+key["id"].(string), "", 200)
	require.Equal(t, 401, d.track(token, "a").status, "revoked at once")
	admin("DELETE", "/admin/workspaces/new/api_keys/777", "", 404)

	made := admin("POST", "/admin/bootstrap", "workspaces: [{id: yaml, api_keys: [{name: k, permissions: ['*']}]}]", 200)["made_keys"].([]any)
	require.Equal(t, 201, d.track(made[0].(map[string]any)["key"].(string), "a").status)
	admin("POST", "/admin/bootstrap", "workspaces: [{id: yaml, plan: x}]", 400)
	admin("GET", "/admin/nowhere", "", 404)

	require.Contains(t, d.logged(), "audit: API key revoked")
	require.NotContains(t, d.logged(), token)
	require.NotContains(t, d.logged(), "admin-token\n")
}

func TestReadiness(t *testing.T) {
	d := open(t, nil)
	require.Equal(t, 200, d.call("GET", "/readyz", "", "").status)
	why := errors.New("recovering")
	d.store.notReady.Store(&why)
	a := d.call("GET", "/readyz", "", "")
	require.Equal(t, 503, a.status)
	require.Equal(t, "recovering", a.json(t)["message"])
	status, _, _ := d.admin("GET", "/readyz", "", "")
	require.Equal(t, 503, status)
	require.Equal(t, 200, d.call("GET", "/livez", "", "").status)
}
