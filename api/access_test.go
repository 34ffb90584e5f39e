package api

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

// goodRequests has a request for each route that needs more than its path: with a key that holds the permission it is
// accepted, in any order and again and again, in the workspaces demo and other (demoYAML), where a user "reader" is.
// {unique} in a body is another text each time. By method and path of the route.
var goodRequests = map[string]struct{ target, body string }{
	"POST /users/track":      {body: goodBody},
	"POST /users/track/bulk": {body: goodBody},
	"POST /users/track/sync": {body: goodBody},
	"POST /users/export/ids": {body: `{"external_ids":["a"]}`},
	"POST /users/delete":     {body: `{"external_ids":["a"]}`},

	"POST /users/alias/new":           {body: `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"n"}]}`},
	"POST /users/alias/update":        {body: `{"alias_updates":[{"alias_label":"l","old_alias_name":"n","new_alias_name":"n"}]}`},
	"POST /users/identify":            {body: `{"aliases_to_identify":[{"external_id":"b","user_alias":{"alias_label":"l","alias_name":"n"}}]}`},
	"POST /users/merge":               {body: `{"merge_updates":[{"identifier_to_merge":{"external_id":"b"},"identifier_to_keep":{"external_id":"a"}}]}`},
	"POST /users/external_ids/rename": {body: `{"external_id_renames":[{"current_external_id":"a","new_external_id":"c"}]}`},
	"POST /users/external_ids/remove": {body: `{"external_ids":["a"]}`},

	"POST /subscription/status/set":    {body: `{"subscription_group_id":"` + newsGroup + `","subscription_state":"subscribed","external_id":"a"}`},
	"POST /v2/subscription/status/set": {body: `{"subscription_groups":[{"subscription_group_id":"` + newsGroup + `","subscription_state":"subscribed","emails":["ada@example.com"]}]}`},
	"GET /subscription/status/get":     {target: "/subscription/status/get?external_id=a&subscription_group_id=" + newsGroup},
	"GET /subscription/user/status":    {target: "/subscription/user/status?external_id=a"},
	"POST /email/status":               {body: `{"email":"ada@example.com","subscription_state":"opted_in"}`},
	"POST /email/blacklist":            {body: `{"email":"bob@example.com"}`},
	"POST /email/blocklist":            {body: `{"email":"bob@example.com"}`},
	"GET /email/hard_bounces":          {target: "/email/hard_bounces?start_date=2020-01-01&end_date=2099-01-01"},
	"GET /email/unsubscribes":          {target: "/email/unsubscribes?start_date=2020-01-01&end_date=2099-01-01"},
	"POST /email/bounce/remove":        {body: `{"email":"bob@example.com"}`},
	"POST /email/spam/remove":          {body: `{"email":"bob@example.com"}`},

	"GET /campaigns/translations":        {target: "/campaigns/translations?campaign_id=c1&message_variation_id=m1"},
	"GET /campaigns/translations/source": {target: "/campaigns/translations/source?campaign_id=c1&message_variation_id=m1"},
	"PUT /campaigns/translations":        {body: `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"es-mx","translation_map":{"x":"Uno"}}`},
	"GET /campaign/translations":         {target: "/campaign/translations?campaign_id=c1&message_variation_id=m1"},
	"GET /campaign/translations/source":  {target: "/campaign/translations/source?campaign_id=c1&message_variation_id=m1"},
	"PUT /campaign/translations":         {body: `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"es-mx","translation_map":{"x":"Uno"}}`},
	"GET /canvases/translations":         {target: "/canvases/translations?workflow_id=w1&step_id=s1&message_variation_id=n1"},
	"GET /canvases/translations/source":  {target: "/canvases/translations/source?workflow_id=w1&step_id=s1&message_variation_id=n1"},
	"PUT /canvases/translations":         {body: `{"workflow_id":"w1","step_id":"s2","message_variation_id":"n2","locale_name":"es-mx","translation_map":{"id_0":"Hola","id_1":"Adiós"}}`},
	"GET /canvas/translations":           {target: "/canvas/translations?workflow_id=w1&step_id=s1&message_variation_id=n1"},
	"GET /canvas/translations/source":    {target: "/canvas/translations/source?workflow_id=w1&step_id=s1&message_variation_id=n1"},
	"PUT /canvas/translations":           {body: `{"workflow_id":"w1","step_id":"s2","message_variation_id":"n2","locale_name":"es-mx","translation_map":{"id_0":"Hola","id_1":"Adiós"}}`},

	"POST /preference_center/v1":                 {body: `{"name":"n{unique}",` + goodCenter + `}`},
	"GET /preference_center/v1/{id}":             {target: "/preference_center/v1/main"},
	"PUT /preference_center/v1/{id}":             {target: "/preference_center/v1/main", body: `{` + goodCenter + `}`},
	"POST /preference_center/v1/{id}":            {target: "/preference_center/v1/main", body: `{` + goodCenter + `}`},
	"GET /preference_center/v1/{id}/url/{user}":  {target: "/preference_center/v1/main/url/reader"},
	"POST /preference_center/v1/{id}/url/{user}": {target: "/preference_center/v1/main/url/reader", body: `{}`},
}

// Every route × a key for every permission × no key, a wrong one, a revoked one, one for elsewhere, one of another
// workspace, the SCIM token.
func TestPermissionMatrix(t *testing.T) {
	testsize.SkipSerial(t)
	d := openEngine(t, t.TempDir(), func(o *Options) { o.MaxBadKeysPerMinute = 100_000 })
	by := control.Actor{Name: "test"}
	permissions := map[string]string{} // permission → token
	routes := d.routes()
	for _, rt := range routes {
		if rt.permission != "" {
			permissions[rt.permission] = ""
		}
	}
	permissions["users"], permissions["admin"], permissions["users.track.more"] = "", "", ""
	for p := range permissions {
		_, token, err := d.control.CreateKey(by, "demo", document.KeySpec{Name: p, Permissions: []string{p}})
		require.NoError(t, err)
		permissions[p] = token
	}
	revoked, token, err := d.control.CreateKey(by, "demo", document.KeySpec{Name: "revoked", Permissions: []string{"*"}})
	require.NoError(t, err)
	require.Equal(t, 201, d.track(token, "a").status)
	require.Equal(t, 201, d.track(demoKey, "reader").status)
	require.Equal(t, 201, d.track(otherKey, "reader").status)
	require.NoError(t, d.control.RevokeKey(by, "demo", revoked.ID))

	for _, rt := range routes {
		if rt.open {
			require.Contains(t, []string{"/livez", "/readyz", "/openapi.json", "/preferences/{token}"}, rt.path, "only health, the document and hosted pages are open")
			if rt.page { // open to who has a link; keys open nothing
				for _, key := range []string{"", token, demoKey} {
					a := d.call(rt.method, rt.path, key, "", "Content-Type", "application/x-www-form-urlencoded")
					require.Equal(t, 404, a.status)
					require.Equal(t, "text/html; charset=utf-8", a.header.Get("Content-Type"))
				}
				continue
			}
			require.Equal(t, 200, d.call(rt.method, rt.path, "", "").status)
			continue
		}
		if rt.scim {
			keys := append([]string{"", "wrong", token, "admin-token", demoKey, otherKey}, slices.Collect(maps.Values(permissions))...)
			testSCIMRoute(t, d, rt, keys)
			continue
		}
		good, ok := goodRequests[rt.method+" "+rt.path]
		require.True(t, ok || rt.method == "GET", "a new route needs a body here: %s", rt.path)
		target, calls := good.target, 0
		if target == "" {
			target = rt.path
		}
		call := func(key string) answer {
			calls++
			return d.call(rt.method, target, key, strings.ReplaceAll(good.body, "{unique}", fmt.Sprint(calls)))
		}
		for _, key := range []string{"", "wrong", token, "admin-token"} {
			require.Equal(t, 401, call(key).status, "%s with %q", rt.path, key)
		}
		require.Equal(t, 401, d.call(rt.method, target, scimToken, good.body, "X-Request-Origin", scimOrigin).status, "%s with the SCIM token", rt.path)
		for p, key := range permissions {
			a := call(key)
			if p == rt.permission {
				require.Less(t, a.status, 300, "%s with %s: %s", rt.path, p, a.body)
				continue
			}
			require.Equal(t, 403, a.status, "%s with %s", rt.path, p)
			require.Equal(t, "This API key lacks the permission "+rt.permission, a.json(t)["message"])
			require.NotEmpty(t, a.header.Get("X-RateLimit-Limit"))
		}
		require.Equal(t, 403, call("demo-none-key-0123456789").status)
		a := call("demo-elsewhere-key-0123456789")
		require.Equal(t, 403, a.status)
		require.Contains(t, a.body, "address")
		require.Less(t, call(demoKey).status, 300)
		require.Less(t, call(otherKey).status, 300)
	}
}

func TestRoutesDenyByDefault(t *testing.T) {
	handler := func(*exchange) {}
	for _, rt := range []route{
		{method: "GET", path: "/x", handler: handler},
		{method: "GET", path: "/x", permission: "p", handler: handler},
		{method: "GET", path: "/x", permission: "p", bucket: 1, open: true, handler: handler},
		{method: "GET", path: "/x", bucket: 1, handler: handler},
		{method: "GET", path: "/x", permission: "p", bucket: 1},
		{method: "GET", path: "/x", permission: "p", scim: true, bucket: 1, handler: handler},
		{method: "GET", path: "/x", scim: true, open: true, handler: handler},
		{method: "GET", path: "/x", scim: true, handler: handler},
		{method: "GET", path: "/x", permission: "p", bucket: 1, page: true, handler: handler},
	} {
		require.Panics(t, func() { newRouter([]route{rt}) })
	}
}

func TestPatterns(t *testing.T) {
	handler := func(*exchange) {}
	r := newRouter([]route{
		{method: "GET", path: "/scim/v2/Users", permission: "p", bucket: 1, handler: handler},
		{method: "GET", path: "/scim/v2/Users/{id}", permission: "p", bucket: 1, handler: handler},
		{method: "PUT", path: "/scim/v2/Users/{id}", permission: "p", bucket: 1, handler: handler},
		{method: "GET", path: "/pc/{id}/url/{user}", permission: "p", bucket: 1, handler: handler},
		{method: "GET", path: "/rest/{id}/of/{all}", rest: true, permission: "p", bucket: 1, handler: handler},
	})
	res := r.find([]byte("/scim/v2/Users/7/"))
	require.Equal(t, "GET, HEAD, PUT", res.allow)
	require.Equal(t, "7", res.method([]byte("PUT")).param("/scim/v2/Users/7", "{id}"))
	require.Nil(t, res.method([]byte("POST")))
	require.NotNil(t, r.find([]byte("/pc/a/url/b")))
	for _, known := range []string{"/rest/a/of/b", "/rest/a/of/b/c/d", "/rest/a/of/b/"} {
		require.NotNil(t, r.find([]byte(known)), known)
	}
	get := func(path string) *route { return r.find([]byte(path)).method([]byte("GET")) }
	for _, path := range []string{"/scim/v2/Users/a%20b%2B%25", "/pc/a%20b%2B%25/url/b", "/rest/a%20b%2B%25/of/x/y"} { // percent-encoded as clients do
		require.Equal(t, "a b+%", get(path).param(path, "{id}"), path)
	}
	for _, path := range []string{"/rest/a/of/b%2F%2Fc", "/rest/a/of/b%2Fc", "/rest/a/of/..x", "/rest/a/of/%2E%2E%2E", "/scim/v2/Users/..."} {
		require.NotNil(t, r.find([]byte(path)), path)
	}
	for _, unknown := range []string{"/scim/v2/Users/..", "/scim/v2/Users/%2e", "/scim/v2/Users/a%2Fb", "/scim/v2/Users/%2f", "/scim/v2/Users/a%2F..", "/scim/v2/Users/%zz", "/scim/v2/Users/%",
		"/scim%2Fv2/Users/7", "/scim/v2/./Users/7", "//scim/v2/Users/7", "/scim/v2//Users/7", "/scim/v2/Users/7//", "/x/../scim/v2/Users/7", "/sc%69m/v2/Users/7",
		"/pc/../url/b", "/pc/a%2Fb/url/b", "/pc/a/url/..", "/pc/a%2furl%2Fb", "/rest/a%2Fb/of/c", "/rest/a/of/b//c", "/rest/a/of//c", "/rest/a/of/b/../c", "/rest/a/of/b/%2E%2e/c",
		"/rest/a/of/b%2F..%2Fc", "/rest/a/of/.", "/rest/a/of/%2e%2e%2f", "/rest/a/of/%", "/rest/a/of/", "/rest/a/of//", "/rest/a/of", "/rest/a/b/c", "/scim/v2/Users//", "/pc/a/url", "/pc/a/url/", "/pc//url/b", "/pc/a/b/c", "/pc/a/url/b/c", "pc/a/url/b", ""} {
		require.Nil(t, r.find([]byte(unknown)), unknown)
	}
}

func TestRateLimit(t *testing.T) {
	d := open(t, nil)
	limit := func(text string) {
		_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(text)) })
		require.NoError(t, err)
	}
	defer testClock.Store(testClock.Load())
	limit(`{"rate_limits":{"users.track":"2/3s"}}`)
	testClock.Add(3000)
	for i, remaining := range []string{"1", "0"} {
		a := d.track(demoKey, "a")
		require.Equal(t, 201, a.status, i)
		require.Equal(t, remaining, a.header.Get("X-RateLimit-Remaining"))
	}
	a := d.track("demo-track-key-0123456789", "a") // counted per workspace, not per key
	require.Equal(t, 429, a.status)
	require.Equal(t, "The rate limit of users.track, 2/3s requests, is exceeded. Please try again later.", a.json(t)["message"])
	require.Equal(t, "2", a.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
	require.Equal(t, fmt.Sprint(testClock.Load()/1000+3), a.header.Get("X-RateLimit-Reset"))
	require.Equal(t, "3", a.header.Get("Retry-After"))
	require.Equal(t, "3", a.header.Get("X-RateLimit-Retry-After"))
	require.Equal(t, 403, d.track("demo-none-key-0123456789", "a").status, "a key without the permission is told so")
	require.Equal(t, 201, d.track(otherKey, "a").status, "another workspace has its own")
	require.Equal(t, 201, d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["a"]}`).status, "another bucket too")
	testClock.Add(3000)
	require.Equal(t, 201, d.track(demoKey, "a").status)

	limit(`{"plan":"mau","rate_limits":{"users.track":"100/1h","users.track.burst":"1/1s"}}`)
	testClock.Add(3_600_000)
	require.Equal(t, "100", d.track(demoKey, "a").header.Get("X-RateLimit-Limit"))
	a = d.track(demoKey, "a")
	require.Equal(t, 429, a.status)
	require.Contains(t, a.body, "users.track (burst), 1/1s")
	require.Equal(t, "1", a.header.Get("Retry-After"))

	// /users/delete shares the bucket of users.merge.
	a = d.call("POST", "/users/delete", demoKey, `{"external_ids":["nobody"]}`)
	require.Equal(t, "20000", a.header.Get("X-RateLimit-Limit"))
}

func TestTrustedProxies(t *testing.T) {
	d := open(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12")}
	})
	const key = "demo-elsewhere-key-0123456789" // 10.0.0.0/8 only
	for forwarded, status := range map[string]int{
		"":                              403,
		"10.1.2.3":                      201,
		"11.1.2.3":                      403,
		"10.1.2.3, 11.1.2.3":            403, // the caller wrote the first
		"11.1.2.3, 10.1.2.3":            201,
		"10.1.2.3, 172.16.0.9":          201, // two proxies
		"10.1.2.3, nonsense":            403,
		"::ffff:10.1.2.3":               201,
		"11.1.2.3,10.1.2.3 , 127.0.0.1": 201,
	} {
		require.Equal(t, status, d.track(key, "a", "X-Forwarded-For", forwarded).status, forwarded)
	}
	untrusting := open(t, nil)
	require.Equal(t, 403, untrusting.track(key, "a", "X-Forwarded-For", "10.1.2.3").status)
}

// A key is in no answer and no log, whatever it is; ids and bodies are in no log.
func TestNothingPrivateIsLogged(t *testing.T) {
	d := open(t, nil)
	d.track(demoKey, "very-private-id")
	d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["very-private-id"],"email_address":"private@example.com"}`)
	d.call("POST", "/users/delete", demoKey, `{"external_ids":["very-private-id"]}`)
	d.call("POST", "/users/track", demoKey, `{"panic":true,"x":"very-private-id"}`)
	d.track("somebody-elses-secret-key", "very-private-id")
	require.Contains(t, d.logged(), "msg=request")
	require.Contains(t, d.logged(), "audit: users deleted")
	for _, private := range []string{demoKey, "very-private", "private@example.com", "somebody-elses"} {
		require.NotContains(t, d.logged(), private)
	}
}

// Whatever callers send, there are no more series than routes × statuses.
func TestMetricsCardinality(t *testing.T) {
	d := open(t, nil)
	series := func() int {
		return strings.Count(d.metricsText(t), "millrace_http_requests_total{")
	}
	d.track(demoKey, "a")
	d.call("GET", "/nowhere", demoKey, "")
	d.call("BREW", "/users/track", demoKey, "")
	before := series()
	for range 200 {
		d.call("GET", fmt.Sprintf("/%x/%x", rand.Uint64(), rand.Uint64()), demoKey, "")
		d.call(fmt.Sprintf("M%x", rand.Uint64()), "/users/track", demoKey, "")
		d.track(demoKey, fmt.Sprint(rand.Uint64()))
	}
	require.Equal(t, before, series())
	require.Regexp(t, regexp.MustCompile(`millrace_http_requests_total\{route="/users/track",status="201"\} \d+`), d.metricsText(t))
	require.Contains(t, d.metricsText(t), `millrace_http_request_seconds_bucket{route="/users/track",le="+Inf"}`)
	require.Contains(t, d.metricsText(t), "millrace_http_requests_in_flight")
}
