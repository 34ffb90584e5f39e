package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/store"
	"millrace/shard"
)

// answered is an answer of the admin listener.
type answered struct {
	status int
	etag   string
	allow  string
	v      map[string]any
	body   string
}

// administer calls the admin API with the token.
func (d *door) administer(t *testing.T, method, path, body string, headers ...string) (a answered) {
	t.Helper()
	r := httptest.NewRequest(method, "http://admin/admin"+path, strings.NewReader(body))
	r.RemoteAddr = "192.0.2.9:1234"
	r.Header.Set("Authorization", "Bearer admin-token")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	d.any().operatorServer().Handler.ServeHTTP(w, r)
	a = answered{status: w.Code, etag: w.Header().Get("ETag"), allow: w.Header().Get("Allow"), body: w.Body.String()}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a.v), a.body)
	require.NotEmpty(t, a.v["message"], a.body)
	require.NotEmpty(t, w.Header().Get("X-Request-Id"))
	checkTimes(t, a.v)
	return a
}

var isoTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)

// checkTimes checks that all times of an answer are ISO 8601.
func checkTimes(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			checkTimes(t, e)
		}
	case map[string]any:
		for name, m := range v {
			if strings.HasSuffix(name, "_at") {
				require.Regexp(t, isoTime, m, name)
			}
			checkTimes(t, m)
		}
	}
}

// a document of each noun that is changed as a whole, what a PATCH may say of it, and what is refused with which text.
var nouns = []struct {
	name, document, id, patch, changed string
	refused                            map[string]string
	refusedPatch                       map[string]string
}{
	{"apps", `{"id":"a1","name":"iOS"}`, "a1", `{"name":"Web"}`, `"name":"Web"`,
		map[string]string{
			`{"id":"x","nam":"iOS"}`:                               "invalid: nam is not a known member",
			`{"id":"x","Name":"iOS"}`:                              "invalid: Name is not a known member",
			`{"id":"x","name":7}`:                                  "invalid: name: want a string",
			`{"id":"x","name":"a","name":"b"}`:                     "invalid: name appears twice",
			`{"id":"x","name":"a"} {}`:                             "invalid: malformed JSON at byte 22",
			`{"id":"x","name":"` + strings.Repeat("a", 256) + `"}`: "want 1 to 255 bytes",
			`{"id":"` + strings.Repeat("a", 256) + `"}`:            "app id",
			`{"id":"a\u0001"}`:                                     "app id",
			`[]`:                                                   "invalid: the body: want an object",
			`"x"`:                                                  "invalid: the body: want an object",
			``:                                                     "malformed JSON",
			`{"id":`:                                               "malformed JSON",
			"{\"id\":\"x\",\"name\":\"\xff\"}":                     "malformed JSON at byte 18",
			`{"id":"x","name":` + strings.Repeat("[", 20_000) + "1}": "invalid",
		},
		map[string]string{`{"id":"other"}`: `invalid: id: it is "a1" and can't be changed`, `{"nam":"x"}`: "invalid: nam is not a known member", `[]`: "want an object"}},
	{"subscription_groups", `{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e66","name":"News","channel":"email"}`, "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e66", `{"name":"Daily"}`, `"name":"Daily"`,
		map[string]string{
			`{"id":"x","name":"n","channel":"email"}`:       "want a UUID",
			`{"name":"n","channel":"fax"}`:                  `channel "fax"`,
			`{"name":"n"}`:                                  `channel ""`,
			`{"channel":"sms"}`:                             `name ""`,
			`{"name":"n","channel":"sms","archived":"yes"}`: "invalid: archived: want true or false",
		},
		map[string]string{`{"channel":"sms"}`: "channel: subscription group 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e66 has the channel email, which can't be changed"}},
	{"preference_centers", `{"id":"p1","name":"Main","preference_center_page_html":"<p>page</p>","confirmation_page_html":"<p>done</p>"}`, "p1", `{"state":"draft"}`, `"state":"draft"`,
		map[string]string{
			`{"id":"x","name":"x"}`:                          "'preference_center_page_html' is required",
			`{"id":"x","name":"x","created_at":"yesterday"}`: "invalid: created_at: want a time such as",
			`{"id":"x","name":"x","preference_center_page_html":"a","confirmation_page_html":"b","state":"on"}`:                          "'state' must be",
			`{"id":"x","name":"x","preference_center_page_html":"a","confirmation_page_html":"b","options":{"viewport":"x"}}`:            "invalid: options.viewport is not a known member",
			`{"id":"x","name":"x","preference_center_page_html":"a","confirmation_page_html":"b","options":{"links-tags":[{"href":7}]}}`: "invalid: options.links-tags[0].href: want a string",
		},
		map[string]string{`{"name":"Other"}`: "'name' can't be changed"}},
	{"campaigns", `{"id":"c9","name":"C","messages":[{"id":"m1","channel":"email","multi_language":true,"translations":[{"locale":{"name":"es-MX","country":"MX","language":"es"},"translation_map":{"6f4e8f64-3f36-4a0b-a2a3-d19dd7d8e5b1":"Hola"}}]}]}`,
		"c9", `{"messages":[{"id":"m2","channel":"email"}]}`, `"id":"m2"`,
		map[string]string{
			`{"id":"x","messages":[{"id":"m","channel":"email"},{"id":"n","chanel":"email"}]}`:                    "invalid: messages[1].chanel is not a known member",
			`{"id":"x","messages":[{"id":"m"}]}`:                                                                  "messages[0]: invalid: channel is required",
			`{"id":"x","messages":[{"channel":"email"}]}`:                                                         "messages[0]: invalid: id",
			`{"id":"x","messages":{}}`:                                                                            "invalid: messages: want an array",
			`{"id":"x","messages":[{"id":"m","channel":"email"},{"id":"m","channel":"email"}]}`:                   `messages[1]: invalid: message id "m" appears twice`,
			`{"id":"x","messages":[{"id":"m","channel":"email","translations":[{"locale":{"name":"no such"}}]}]}`: "messages[0]: invalid: translations[0]: locale name",
		},
		nil},
	{"canvases", `{"id":"w9","name":"W","steps":[{"id":"s1","messages":[{"id":"m1","channel":"email"}]}]}`, "w9", `{"steps":[]}`, `"steps":[]`,
		map[string]string{
			`{"id":"x","steps":[{"id":"s","messages":[{"id":"m","channel":"email","x":1}]}]}`: "invalid: steps[0].messages[0].x is not a known member",
			`{"id":"x","steps":[{"messages":[]}]}`:                                            "steps[0]: invalid: id",
			`{"id":"x","steps":[{"id":"s"},{"id":"s"}]}`:                                      `steps[1]: invalid: step id "s" appears twice`,
			`{"id":"x","steps":[{"id":"s","messages":[{"id":"m"}]}]}`:                         "steps[0]: messages[0]: invalid: channel is required",
		},
		nil},
}

// Create, list, read, replace, change, remove; by the API alone, each effect read back.
func TestAdminDocuments(t *testing.T) {
	d := openEngine(t, t.TempDir())
	for _, n := range nouns {
		t.Run(n.name, func(t *testing.T) {
			all, one := "/workspaces/demo/"+n.name, "/workspaces/demo/"+n.name+"/"+n.id
			list := func() (ids []string) {
				for _, v := range d.administer(t, "GET", all, "").v[n.name].([]any) {
					ids = append(ids, v.(map[string]any)["id"].(string))
				}
				return ids
			}
			before := list()
			made := d.administer(t, "POST", all, n.document)
			require.Equal(t, 201, made.status, made.body)
			require.NotEmpty(t, made.etag)
			require.ElementsMatch(t, append(before, n.id), list())
			again := d.administer(t, "POST", all, n.document)
			require.Equal(t, 409, again.status)
			require.Contains(t, again.v["message"], "already exists")
			got := d.administer(t, "GET", one, "")
			require.Equal(t, 200, got.status)
			require.Equal(t, made.v, got.v)
			require.Equal(t, made.etag, got.etag)
			require.Equal(t, got.v, d.administer(t, "GET", one+"/", "").v, "with a slash")
			require.Equal(t, 404, d.administer(t, "GET", strings.Replace(one, "/demo/", "/other/", 1), "").status, "another workspace hasn't got it")
			require.Equal(t, 404, d.administer(t, "GET", strings.Replace(one, "/demo/", "/nobody/", 1), "").status)
			require.Equal(t, 404, d.administer(t, "GET", strings.Replace(all, "/demo/", "/nobody/", 1), "").status)
			require.Equal(t, 404, d.administer(t, "POST", strings.Replace(all, "/demo/", "/nobody/", 1), n.document).status)

			changed := d.administer(t, "PATCH", one, n.patch)
			require.Equal(t, 200, changed.status, changed.body)
			require.Contains(t, changed.body, n.changed)
			require.NotEqual(t, got.etag, changed.etag)
			require.Contains(t, d.administer(t, "GET", one, "").body, n.changed)
			require.Equal(t, 412, d.administer(t, "PATCH", one, n.patch, "If-Match", got.etag).status, "somebody has changed it")
			require.Equal(t, 412, d.administer(t, "PUT", one, n.document, "If-Match", got.etag).status)
			require.Equal(t, 412, d.administer(t, "DELETE", one, "", "If-Match", got.etag).status)
			require.Contains(t, d.administer(t, "GET", one, "").body, n.changed)
			put := d.administer(t, "PUT", one, n.document, "If-Match", `"x", `+changed.etag)
			require.Equal(t, 200, put.status, put.body)
			require.Equal(t, put.etag, d.administer(t, "PUT", one, n.document).etag, "it says what it said before")
			delete(put.v, "updated_at")
			delete(got.v, "updated_at")
			require.Equal(t, got.v, put.v)
			require.Equal(t, 404, d.administer(t, "PATCH", all+"/11111111-1111-1111-1111-111111111111", n.patch).status)

			for text, want := range n.refused {
				a := d.administer(t, "POST", all, text)
				require.Equal(t, 400, a.status, text)
				require.Contains(t, a.v["message"], want, text)
			}
			for text, want := range n.refusedPatch {
				a := d.administer(t, "PATCH", one, text)
				require.Equal(t, 400, a.status, text)
				require.Contains(t, a.v["message"], want, text)
			}
			a := d.administer(t, "PUT", one, strings.Replace(n.document, n.id, "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e77", 1))
			require.Equal(t, 400, a.status)
			require.Contains(t, a.v["message"], "and can't be changed")
			require.ElementsMatch(t, append(before, n.id), list(), "nothing that was refused is there")

			require.Equal(t, 200, d.administer(t, "DELETE", one, "", "If-Match", "*").status)
			if n.name == "subscription_groups" {
				require.Equal(t, true, d.administer(t, "GET", one, "").v["archived"])
				return
			}
			require.Equal(t, 404, d.administer(t, "DELETE", one, "").status)
			require.Equal(t, 404, d.administer(t, "GET", one, "").status)
			require.ElementsMatch(t, before, list())
			require.Equal(t, 412, d.administer(t, "PUT", one, n.document, "If-Match", "*").status)
			a = d.administer(t, "PUT", one, strings.Replace(n.document, `"id":"`+n.id+`",`, "", 1))
			require.Equal(t, 201, a.status, "PUT makes what isn't there")
			require.Equal(t, n.id, a.v["id"])
		})
	}
}

// What a path or method can be.
func TestAdminRoutes(t *testing.T) {
	d := open(t, nil)
	manual, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for _, pattern := range d.operatorPatterns() {
		_, documented, _ := strings.Cut(pattern, " ")
		require.Contains(t, string(manual), "`"+documented+"`", "docs/operations.md lacks it")
		method, path, ok := strings.Cut(pattern, " ")
		require.True(t, ok, pattern)
		path = strings.TrimPrefix(strings.NewReplacer("{workspace}", "demo", "{id}", "x", "{key}", "1", "{token}", "1", "{email}", "a@example.com", "{node}", "7", "{user}", "u").Replace(path), "/admin")
		require.NotContains(t, path, "{", pattern)
		a := d.administer(t, "TRACE", path, "")
		require.Equal(t, 405, a.status, pattern)
		require.Equal(t, "Method Not Allowed", a.v["message"])
		require.True(t, slices.Contains(strings.Split(a.allow, ", "), method), a.allow)
	}
	require.Equal(t, "DELETE, GET, HEAD, PATCH, PUT", d.administer(t, "POST", "/workspaces/demo/apps/x", "").allow)
	a := d.administer(t, "GET", "/nowhere", "")
	require.Equal(t, 404, a.status)
	require.Equal(t, "Not Found", a.v["message"])
	a = d.administer(t, "POST", "/workspaces/demo/apps", `{"id":"a/b c%","name":"odd"}`)
	require.Equal(t, 201, a.status)
	require.Equal(t, "odd", d.administer(t, "GET", "/workspaces/demo/apps/a%2Fb%20c%25", "").v["name"])
	large := d.administer(t, "POST", "/workspaces/demo/apps", `{"name":"`+strings.Repeat("a", 4<<20)+`"}`)
	require.Equal(t, 413, large.status)
	require.Equal(t, 400, d.administer(t, "POST", "/workspaces/demo/apps", `{"id":"..","name":"a"}`).status, "a path could not name it")
}

// The settings of a workspace, one by one.
func TestAdminSettings(t *testing.T) {
	d := open(t, nil)
	for text, want := range map[string]string{
		`{"plan":"pro"}`:                            `plan "pro"`,
		`{"id":"other"}`:                            `id: it is "demo" and can't be changed`,
		`{"Plan":"mau"}`:                            "Plan is not a known member",
		`{"multi_language":"yes"}`:                  "multi_language: want true or false",
		`{"rate_limits":{"users.track":"x"}}`:       "rate_limits",
		`{"rate_limits":{"users.trak":"1/1s"}}`:     "rate_limits",
		`{"rate_limits":[]}`:                        "rate_limits: want an object",
		`{"max_custom_array_length":501}`:           "max_custom_array_length 501",
		`{"max_custom_array_length":1.5}`:           "max_custom_array_length: want an integer",
		`{"currency":"eur"}`:                        `currency "eur"`,
		`{"exchange_rates":{"USD":"-1"}}`:           "exchange_rates: USD",
		`{"blocked_external_ids":[7]}`:              "blocked_external_ids[0]: want a string",
		`{"blocked_external_ids":[""]}`:             "blocked_external_ids",
		`{"locales":[{"name":"x y"}]}`:              "locales[0]",
		`{"locales":[{"nam":"x"}]}`:                 "locales[0].nam is not a known member",
		`{"locales":[{"name":"es"},{"name":"ES"}]}`: "appears twice",
		`{"number":7}`:                              "number is not a known member",
		`{"effective_rate_limits":{}}`:              "effective_rate_limits is not a known member",
		`null`:                                      "",
	} {
		a := d.administer(t, "PATCH", "/workspaces/demo", text)
		if want == "" {
			require.Equal(t, 200, a.status, text)
			continue
		}
		require.Equal(t, 400, a.status, text)
		require.Contains(t, a.v["message"], want, text)
	}
	read := d.administer(t, "GET", "/workspaces/demo", "")
	a := d.administer(t, "PATCH", "/workspaces/demo", `{"locales":[{"name":"es-MX","country":"MX","language":"es"}],"exchange_rates":{"EUR":1.10},"rate_limits":{"users.merge":"7/1m"},"blocked_external_ids":["x"]}`, "If-Match", read.etag)
	require.Equal(t, 200, a.status, a.body)
	limits := a.v["effective_rate_limits"].(map[string]any)
	require.Equal(t, "7/1m", limits["users.merge"])
	require.NotContains(t, limits, "scim", "a limit of the company")
	require.Contains(t, a.body, `"exchange_rates":{"EUR":1.10}`, "the digits that were sent")
	require.Equal(t, 412, d.administer(t, "PATCH", "/workspaces/demo", `{"name":"late"}`, "If-Match", read.etag).status)
	a = d.administer(t, "PATCH", "/workspaces/demo", `{"rate_limits":null,"locales":[],"exchange_rates":{},"blocked_external_ids":null,"name":null}`)
	require.Equal(t, 200, a.status, a.body)
	for _, gone := range []string{"rate_limits", "locales", "exchange_rates", "blocked_external_ids"} {
		require.NotContains(t, a.v, gone)
	}
	require.Equal(t, "demo", a.v["name"], "the default")
}

// A list of addresses that was never set, or was taken back, is an empty one.
func TestAdminSCIMAllowList(t *testing.T) {
	d := openEngine(t, t.TempDir())
	require.Equal(t, []any{}, d.administer(t, "GET", "/scim", "").v["ip_allowlist"])
	a := d.administer(t, "PATCH", "/scim", `{"ip_allowlist":["10.0.0.0/8"]}`)
	require.Equal(t, []any{"10.0.0.0/8"}, a.v["ip_allowlist"], a.body)
	a = d.administer(t, "PATCH", "/scim", `{"ip_allowlist":null}`)
	require.Equal(t, []any{}, a.v["ip_allowlist"], a.body)
}

// Keys: rights, rotation, revocation; effective at once, and never shown again.
func TestAdminKeys(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const all = "/workspaces/demo/api_keys"
	made := d.administer(t, "POST", all, `{"name":"server","permissions":["users.track"],"ip_allowlist":["127.0.0.1"]}`)
	require.Equal(t, 201, made.status, made.body)
	token, one := made.v["key"].(string), all+"/"+made.v["id"].(string)
	require.Regexp(t, `^millrace_live_[0-9A-Za-z]{38}$`, token)
	require.Equal(t, 201, d.track(token, "a").status)
	d.administer(t, "PATCH", one, `{"ip_allowlist":["10.0.0.0/8"]}`)
	require.Equal(t, 403, d.track(token, "a").status)
	d.administer(t, "PATCH", one, `{"ip_allowlist":null,"permissions":["users.merge"]}`)
	a := d.track(token, "a")
	require.Equal(t, 403, a.status)
	require.Contains(t, a.body, "lacks the permission users.track")
	d.administer(t, "PATCH", one, `{"permissions":["users.track"],"name":"renamed"}`)
	require.Equal(t, 201, d.track(token, "a").status)
	for text, want := range map[string]string{
		`{"permissions":["users.*"]}`: `permissions: "users.*"`, `{"permissions":"users.track"}`: "permissions: want an array", `{"ip_allowlist":["here"]}`: "ip_allowlist",
		`{"name":""}`: "name", `{"key":"mine"}`: "key is not a known member", `{"sha256":"x"}`: "sha256 is not a known member", `{"revoked_at":1}`: "revoked_at is not a known member",
	} {
		a := d.administer(t, "PATCH", one, text)
		require.Equal(t, 400, a.status, text)
		require.Contains(t, a.v["message"], want)
		text = strings.Replace(text, "{", `{"x":1,`, 1)
		require.Equal(t, 400, d.administer(t, "POST", all, text).status, text)
	}
	rotated := d.administer(t, "POST", one+"/rotate", "")
	require.Equal(t, 201, rotated.status)
	require.Equal(t, "renamed", rotated.v["name"])
	require.Equal(t, 409, d.administer(t, "POST", one+"/rotate", "").status)
	for _, k := range []string{token, rotated.v["key"].(string)} {
		require.Equal(t, 201, d.track(k, "a").status)
	}
	require.Equal(t, 200, d.administer(t, "DELETE", one, "").status)
	require.Equal(t, 401, d.track(token, "a").status)
	require.Equal(t, 201, d.track(rotated.v["key"].(string), "a").status)
	require.Equal(t, 409, d.administer(t, "PATCH", one, `{"name":"x"}`).status)
	require.Equal(t, 409, d.administer(t, "POST", one+"/rotate", "").status)
	require.Equal(t, 404, d.administer(t, "DELETE", strings.Replace(one, "demo", "other", 1), "").status, "keys of another workspace")
	require.Equal(t, 404, d.administer(t, "GET", all+"/777", "").status)
	require.NotEmpty(t, d.administer(t, "GET", one, "").v["revoked_at"])
	list := d.administer(t, "GET", all, "").body
	for _, secret := range []string{token, rotated.v["key"].(string), "sha256", demoKey, control32(d, token)} {
		require.NotContains(t, list, secret)
		require.NotContains(t, d.logged(), secret)
	}
}

// control32 is the digest that is kept of a token.
func control32(d *door, token string) string {
	for _, w := range d.control.Snapshot().Workspaces() {
		for _, k := range w.Keys {
			if strings.HasSuffix(token, k.Hint[len(k.Hint)-4:]) {
				return k.Digest
			}
		}
	}
	return "no such key"
}

// Many operators at once: no change is lost, and the audit log has each, in order, also after a restart.
func TestAuditLog(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			require.Equal(t, 201, d.administer(t, "POST", "/workspaces/demo/api_keys", fmt.Sprintf(`{"name":"k%d","permissions":[]}`, i)).status)
			require.Equal(t, 201, d.administer(t, "POST", "/workspaces/demo/apps", fmt.Sprintf(`{"id":"app%d"}`, i), "X-Request-Id", fmt.Sprintf("request-%d", i)).status)
		})
	}
	wait.Wait()
	numbers := map[float64]bool{}
	read := func(query string) (entries []map[string]any, next float64) {
		a := d.administer(t, "GET", "/audit"+query, "")
		require.Equal(t, 200, a.status, a.body)
		for _, e := range a.v["entries"].([]any) {
			entries = append(entries, e.(map[string]any))
		}
		next, _ = a.v["next"].(float64)
		return entries, next
	}
	all, _ := read("?from=1&limit=1000")
	for i, e := range all {
		require.Equal(t, float64(i+1), e["seq"])
		require.NotEmpty(t, e["what"])
		require.Len(t, e["hash"], 64)
		numbers[e["seq"].(float64)] = true
	}
	apps, _ := read("?kind=app&workspace=demo&limit=8")
	require.Len(t, apps, 8, "the newest that match")
	for _, e := range apps {
		require.Equal(t, "app created", e["what"])
		require.Equal(t, "admin token", e["by"])
		require.Equal(t, "192.0.2.9:1234", e["address"])
		require.Equal(t, "request-"+strings.TrimPrefix(e["id"].(string), "app"), e["request_id"])
		require.Len(t, e["after"], 64)
		require.NotContains(t, e, "before")
	}
	newest, _ := read("?limit=3")
	require.Equal(t, all[len(all)-3:], newest)
	newest, _ = read("?limit=1000")
	require.Equal(t, all, newest)
	one, _ := read("?id=app3")
	require.Len(t, one, 1)
	var paged []map[string]any
	for next := 1.0; next != 0; {
		var page []map[string]any
		page, next = read(fmt.Sprintf("?limit=5&from=%v", next))
		require.LessOrEqual(t, len(page), 5)
		paged = append(paged, page...)
	}
	require.Equal(t, all, paged)
	none, next := read("?from=1000000")
	require.Empty(t, none)
	require.Zero(t, next)
	for _, bad := range []string{"?from=0", "?from=x", "?limit=0", "?limit=1001", "/verify?seq=1", "/verify?seq=x&hash=y"} {
		require.Equal(t, 400, d.administer(t, "GET", "/audit"+bad, "").status, bad)
	}
	for _, method := range []string{"DELETE", "PUT", "POST", "PATCH"} {
		require.Equal(t, 405, d.administer(t, method, "/audit", "").status, "append-only")
	}

	// A change by an API key, and what is no document.
	require.Equal(t, 201, d.track(demoKey, "victim").status)
	require.Equal(t, 201, d.call("POST", "/users/delete", demoKey, `{"external_ids":["victim"]}`, "X-Request-Id", "the-request").status)
	newest, _ = read("?limit=1")
	e := newest[0]
	require.Equal(t, []any{"users deleted", "demo", "API key 1 (all)", "127.0.0.1", "the-request", 1.0, map[string]any{"count": 1.0}},
		[]any{e["what"], e["workspace"], e["by"], e["address"], e["request_id"], e["actor"], e["details"]})
	require.Equal(t, 201, d.call("POST", "/users/delete", demoKey, `{"external_ids":["victim"]}`).status)
	again, _ := read("?limit=1")
	require.Equal(t, newest, again, "nobody was deleted")

	verified := d.administer(t, "GET", "/audit/verify", "")
	require.Equal(t, true, verified.v["intact"])
	require.Equal(t, e["hash"], verified.v["hash"])
	d.end()
	d = openEngine(t, dir)
	again, _ = read("?limit=1")
	require.Equal(t, newest, again, "the bootstrap file says nothing new")
	require.Equal(t, verified.v, d.administer(t, "GET", "/audit/verify", "").v)
	require.Equal(t, verified.v, d.administer(t, "GET", fmt.Sprintf("/audit/verify?seq=%v&hash=%s", e["seq"], e["hash"]), "").v)
	broken := d.administer(t, "GET", fmt.Sprintf("/audit/verify?seq=%v&hash=%s", all[3]["seq"], e["hash"]), "")
	require.Equal(t, false, broken.v["intact"])
	require.Equal(t, "entry 4 has another hash than was noted", broken.v["problem"])
	broken = d.administer(t, "GET", fmt.Sprintf("/audit/verify?seq=%v&hash=%s", e["seq"].(float64)+1, e["hash"]), "")
	require.Contains(t, broken.v["problem"], "is missing")
}

// brokenAudit is a store whose audit log was changed behind its back, or can't be read.
type brokenAudit struct {
	store.Store
	err error
}

func (b brokenAudit) VerifyAudit() (uint64, error) { return 3, b.err }

func TestBrokenAuditLog(t *testing.T) {
	broken := brokenAudit{err: fmt.Errorf("%w: entry 4 was changed", shard.ErrAudit)}
	d := open(t, func(o *Options) { broken.Store, o.Store = o.Store, &broken })
	a := d.administer(t, "GET", "/audit/verify", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, false, a.v["intact"])
	require.Equal(t, 3.0, a.v["seq"])
	require.Contains(t, a.v["problem"], "entry 4 was changed")
	broken.err = errors.New("the disk")
	a = d.administer(t, "GET", "/audit/verify", "")
	require.Equal(t, 500, a.status)
	require.NotContains(t, a.body, "the disk")
}

// A change that the engine refuses is not there, and the answer says so.
func TestAdminOnAFailingStore(t *testing.T) {
	d := open(t, nil)
	d.store.refuse = shard.ErrBusy
	a := d.administer(t, "POST", "/workspaces/demo/apps", `{"id":"x"}`)
	require.Equal(t, 503, a.status)
	require.NotContains(t, d.logged(), "id=x")
	d.store.refuse = control.ErrConflict
	a = d.administer(t, "POST", "/workspaces/demo/apps", `{"id":"x"}`)
	require.Equal(t, 409, a.status)
	d.store.refuse = nil
	require.Equal(t, 404, d.administer(t, "GET", "/workspaces/demo/apps/x", "").status)
}

// Changes that come by the API are in the audit log too: by which key or token, on what, without contents.
func TestAuditOfTheAPI(t *testing.T) {
	d := openEngine(t, t.TempDir())
	for _, c := range []struct {
		what, kind, workspace, id, by string
		do                            func() answer
	}{
		{"preference center changed", "preference_center", "demo", "main", "API key 1 (all)", func() answer {
			return d.call("PUT", "/preference_center/v1/main", demoKey, `{"preference_center_title":"Title",`+goodCenter+`}`)
		}},
		{"translation put", "campaign", "other", "c1", "API key 5 (all)", func() answer {
			return d.call("PUT", "/campaigns/translations", otherKey, `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"es-mx","translation_map":{"x":"Secreto"}}`)
		}},
		{"SCIM user created", "scim_user", "", "new@example.com", "SCIM token 6", func() answer {
			return d.provision("POST", "/scim/v2/Users", userBody("new@example.com", "finance", "{}"))
		}},
	} {
		a := c.do()
		require.Less(t, a.status, 300, "%s: %s", c.what, a.body)
		entries := d.administer(t, "GET", "/audit?limit=1", "").v["entries"].([]any)
		e := entries[0].(map[string]any)
		workspace, _ := e["workspace"].(string)
		require.Equal(t, []any{c.what, c.kind, c.workspace, c.id, c.by, "127.0.0.1", a.header.Get("X-Request-Id")},
			[]any{e["what"], e["kind"], workspace, e["id"], e["by"], e["address"], e["request_id"]})
		require.Contains(t, d.logged(), "audit: "+c.what)
		for _, secret := range []string{"Secreto", demoKey, otherKey, scimToken, "<form", "<p>"} {
			require.NotContains(t, fmt.Sprint(e), secret)
			require.NotContains(t, d.logged(), secret)
		}
	}
}

// Wrong admin tokens are counted per address; the right one always passes. Who brings none, as browsers do first,
// guesses none.
func TestAdminTokenIsNotGuessed(t *testing.T) {
	d := open(t, func(o *Options) { o.MaxBadKeysPerMinute = 3 })
	for range 10 {
		status, _, _ := d.admin("GET", "/admin/workspaces", "", "")
		require.Equal(t, 401, status)
	}
	for i := range 6 {
		status, v, _ := d.admin("GET", "/admin/workspaces", fmt.Sprintf("guess-%d", i), "")
		want := 401
		if i >= 3 {
			want = 429
		}
		require.Equal(t, want, status)
		require.NotContains(t, v["message"], "guess")
		status, _, _ = d.admin("GET", "/admin/workspaces", "admin-token", "")
		require.Equal(t, 200, status)
	}
	require.NotContains(t, d.logged(), "guess-")
	require.NotContains(t, d.metricsText(t), "guess-")
}

// fewPuts is a store that is out of reach after its first puts.
type fewPuts struct {
	*memoryStore
	left int
}

func (f *fewPuts) PutDocuments(actor uint32, changes []control.Change, audit []byte) error {
	if f.left--; f.left < 0 {
		return shard.ErrUnavailable
	}
	return f.memoryStore.PutDocuments(actor, changes, audit)
}

// A wrong bootstrap file of which a part is done says what is wrong, and of no lost node.
func TestBootstrapWrongInPart(t *testing.T) {
	d := open(t, nil)
	const key = "{name: %s, key: the-same-token-0123456789, permissions: ['users.track']}"
	status, _, text := d.admin("POST", "/admin/bootstrap", "admin-token",
		fmt.Sprintf("workspaces: [{id: first, api_keys: ["+key+"]}]", "a"))
	require.Equal(t, 200, status, text)
	status, answer, text := d.admin("POST", "/admin/bootstrap", "admin-token",
		fmt.Sprintf("workspaces: [{id: second, api_keys: [{name: b, permissions: ['users.track']}, "+key+"]}]", "c"))
	require.Equal(t, 400, status, text)
	require.Equal(t, `workspaces[0] (second): api_keys[1]: invalid: key: workspace "first" already has a key with this token, "a"`,
		answer["message"])
	require.Len(t, answer["made_keys"], 1)
}

// A bootstrap file that is cut short doesn't say that nothing was done, and shows the keys that it has made.
func TestBootstrapInPart(t *testing.T) {
	const file = "workspaces: [{id: part, api_keys: [{name: a, permissions: ['users.track']}, {name: b, permissions: ['users.track']}]}]"
	for puts, c := range map[int]struct {
		says string
		made int
	}{0: {"Nothing was done", 0}, 1: {"in part or whole, is unknown", 0}, 2: {"in part or whole, is unknown", 1}} {
		d := open(t, nil)
		d.control.Start(&fewPuts{d.store, puts})
		status, answer, text := d.admin("POST", "/admin/bootstrap", "admin-token", file)
		require.Equal(t, 503, status, text)
		require.Contains(t, answer["message"], c.says)
		made, _ := answer["made_keys"].([]any)
		require.Len(t, made, c.made)
		d.control.Start(d.store)
		status, again, text := d.admin("POST", "/admin/bootstrap", "admin-token", file)
		require.Equal(t, 200, status, text)
		require.Len(t, again["made_keys"], 2-c.made)
		for _, k := range made {
			require.Equal(t, 201, d.track(k.(map[string]any)["key"].(string), "u").status)
		}
	}
}

// Lists of documents come in pages, which also end when the documents are long. Keys that are valid come first, and of
// these the newest, so that nobody has to look for them behind those that were revoked in the course of years.
func TestAdminListsInPages(t *testing.T) {
	d := open(t, nil)
	by := control.Actor{Name: "test"}
	for _, id := range []string{"c", "a", "b"} {
		require.Equal(t, 201, d.administer(t, "POST", "/workspaces/demo/apps", `{"id":"in-pages-`+id+`"}`).status)
		_, _, err := d.control.CreateKey(by, "demo", document.KeySpec{Name: "key " + id})
		require.NoError(t, err)
	}
	list := func(path, name, member string) (all []string, pages int) {
		for cursor, more := "", true; more; more = cursor != "" {
			a := d.administer(t, "GET", path+"limit=2&cursor="+url.QueryEscape(cursor), "")
			require.Equal(t, 200, a.status, a.body)
			require.LessOrEqual(t, len(a.v[name].([]any)), 2)
			for _, v := range a.v[name].([]any) {
				all = append(all, v.(map[string]any)[member].(string))
			}
			cursor, _ = a.v["next"].(string)
			pages++
		}
		return all, pages
	}
	apps, _ := list("/workspaces/demo/apps?", "apps", "id")
	require.True(t, slices.IsSorted(apps))
	require.Subset(t, apps, []string{"in-pages-a", "in-pages-b", "in-pages-c"})
	keys, _ := list("/workspaces/demo/api_keys?", "api_keys", "name")
	require.Equal(t, []string{"key b", "key a", "key c"}, keys[:3])
	ids, _ := list("/workspaces/demo/api_keys?", "api_keys", "id")
	require.Len(t, ids, len(keys))
	require.NoError(t, d.control.RevokeKey(by, "demo", ids[0]))
	keys, _ = list("/workspaces/demo/api_keys?", "api_keys", "name")
	require.Equal(t, []string{"key a", "key c"}, keys[:2])
	require.Equal(t, "key b", keys[len(keys)-1])

	blocked := slices.Repeat([]string{strings.Repeat("x", 900)}, 700)
	for i := range 4 {
		_, err := d.control.CreateWorkspace(by, document.Settings{ID: fmt.Sprintf("long%d", i), BlockedExternalIDs: blocked})
		require.NoError(t, err)
	}
	first := d.administer(t, "GET", "/workspaces", "")
	require.NotEmpty(t, first.v["next"])
	require.Less(t, len(first.body), 2<<20)
	workspaces, _ := list("/workspaces?", "workspaces", "id")
	require.Subset(t, workspaces, []string{"demo", "long0", "long1", "long2", "long3"})
	require.Equal(t, 400, d.administer(t, "GET", "/workspaces?limit=1001", "").status)
}
