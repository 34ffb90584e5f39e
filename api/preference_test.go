package api

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/call"
	"millrace/api/center"
	"millrace/api/control"
	"millrace/api/control/document"
)

const goodCenter = `"preference_center_page_html":"<p>Page</p>","confirmation_page_html":"<p>Saved</p>"`

// unlimited lifts the limit of ten changes a minute.
func (d *door) unlimited(t *testing.T) {
	_, err := d.control.UpdateSettings(control.Actor{Name: "test"}, "demo", func(s *document.Settings) error {
		return s.Patch([]byte(`{"rate_limits":{"preference_center.update":"100000/1s","preference_center.list":"100000/1s"}}`))
	})
	require.NoError(t, err)
}

func (d *door) createCenter(t *testing.T, body string) (id string) {
	a := d.call("POST", "/preference_center/v1", demoKey, body)
	require.Equal(t, 201, a.status, a.body)
	return a.json(t)["preference_center_api_id"].(string)
}

// Created, listed, read, updated by PUT and POST, and all of it still there after a restart.
func TestPreferenceCenters(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	a := d.call("POST", "/preference_center/v1/", demoKey, `{"name":"News_and-More2","preference_center_title":"Your <choices>","preference_center_page_html":"<p>\u00e9 \"x\"</p>",
		"confirmation_page_html":"<p>ok</p>","state":"draft","options":{"meta-viewport-content":"width=device-width","other":7,
		"link-tags":[{"rel":"shortcut icon","type":"image/svg+xml","sizes":"16x16 any","color":"#ff0000","href":"https://example.com/i.svg?a=1&b=2"}]},"unknown":[1]}`)
	require.Equal(t, 201, a.status, a.body)
	made := a.json(t)
	id := made["preference_center_api_id"].(string)
	require.Regexp(t, `^[0-9a-f-]{36}$`, id)
	require.Equal(t, "{{preference_center.${News_and-More2}}}", made["liquid_tag"])
	require.Equal(t, "success", made["message"])
	require.Len(t, made, 4)
	created, err := time.Parse(time.RFC3339, made["created_at"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), created, time.Minute)

	read := func() map[string]any {
		a := d.call("GET", "/preference_center/v1/"+id, demoKey, "")
		require.Equal(t, 200, a.status, a.body)
		return a.json(t)
	}
	want := map[string]any{
		"name": "News_and-More2", "preference_center_api_id": id, "created_at": made["created_at"], "updated_at": made["created_at"],
		"preference_center_title": "Your <choices>", "preference_center_page_html": `<p>é "x"</p>`, "confirmation_page_html": "<p>ok</p>", "redirect_page_html": nil,
		"preference_center_options": map[string]any{"meta-viewport-content": "width=device-width", "links-tags": []any{map[string]any{
			"rel": "shortcut icon", "type": "image/svg+xml", "sizes": "16x16 any", "color": "#ff0000", "href": "https://example.com/i.svg?a=1&b=2"}}},
		"state": "draft", "message": "success",
	}
	require.Equal(t, want, read())

	list := func(key string) (found []any) {
		a := d.call("GET", "/preference_center/v1/list", key, "")
		require.Equal(t, 200, a.status)
		require.Equal(t, "success", a.json(t)["message"])
		return a.json(t)["preference_centers"].([]any)
	}
	require.Contains(t, list(demoKey), map[string]any{"name": "News_and-More2", "preference_center_api_id": id, "created_at": made["created_at"], "updated_at": made["created_at"]})
	require.Len(t, list(demoKey), 2)

	// What is left out: the title becomes the default, state, options and redirect page stay; the name is ignored.
	a = d.call("PUT", "/preference_center/v1/"+id, demoKey, `{"name":7,`+goodCenter+`,"redirect_page_html":"<p>old</p>"}`)
	require.Equal(t, 200, a.status, a.body)
	answer := a.json(t)
	require.Equal(t, map[string]any{"preference_center_api_id": id, "created_at": made["created_at"], "updated_at": answer["updated_at"], "message": "success"}, answer)
	want["preference_center_title"], want["preference_center_page_html"], want["confirmation_page_html"] = "Preference Center", "<p>Page</p>", "<p>Saved</p>"
	want["updated_at"], want["redirect_page_html"] = answer["updated_at"], "<p>old</p>"
	require.Equal(t, want, read())

	a = d.call("POST", "/preference_center/v1/"+id, demoKey, `{`+goodCenter+`,"state":"active","options":{},"redirect_page_html":null,"preference_center_title":"T"}`)
	require.Equal(t, 200, a.status, a.body)
	want["updated_at"] = a.json(t)["updated_at"]
	want["state"], want["preference_center_options"], want["redirect_page_html"], want["preference_center_title"] = "active", map[string]any{}, nil, "T"
	require.Equal(t, want, read())

	// Another workspace sees nothing of it, and may use the name.
	require.Len(t, list(otherKey), 1)
	for _, method := range []string{"GET", "PUT", "POST"} {
		a = d.call(method, "/preference_center/v1/"+id, otherKey, `{`+goodCenter+`}`)
		require.Equal(t, 404, a.status, method)
		require.Equal(t, "Preference center not found", a.json(t)["message"])
	}
	require.Equal(t, 201, d.call("POST", "/preference_center/v1", otherKey, `{"name":"News_and-More2",`+goodCenter+`}`).status)

	// The operator's log says who.
	require.Contains(t, d.logged(), "audit: preference center created")
	require.Contains(t, d.logged(), "audit: preference center changed")
	require.NotContains(t, d.logged(), "<p>ok", "no contents")

	d.end()
	d = openEngine(t, dir) // and the bootstrap file, applied again, has not undone a thing
	require.Equal(t, want, read())
}

// The bootstrap file gives what it says, once: a change by the API since stays until the file says something new.
func TestPreferenceCenterOfTheBootstrapFile(t *testing.T) {
	d := openEngine(t, t.TempDir())
	read := func() map[string]any { return d.call("GET", "/preference_center/v1/main", demoKey, "").json(t) }
	first := read()
	require.Equal(t, "main", first["name"])
	require.Equal(t, "Preference Center", first["preference_center_title"])
	require.Equal(t, "active", first["state"])
	require.Equal(t, map[string]any{}, first["preference_center_options"])
	apply := func(text string) error {
		file, err := document.ParseBootstrap([]byte(text))
		require.NoError(t, err)
		_, err = d.control.Bootstrap(t.Context(), control.Actor{Name: "bootstrap file"}, file)
		return err
	}
	require.Equal(t, 200, d.call("PUT", "/preference_center/v1/main", demoKey, `{`+goodCenter+`,"state":"draft"}`).status)
	changed := read()
	require.NoError(t, apply(demoYAML))
	require.Equal(t, changed, read())
	require.NoError(t, apply(strings.ReplaceAll(demoYAML, "<p>Saved</p>", "<p>New</p>")))
	now := read()
	require.Equal(t, "<p>New</p>", now["confirmation_page_html"])
	require.Equal(t, "active", now["state"])
	require.Equal(t, first["created_at"], now["created_at"])
	require.ErrorContains(t, apply(strings.ReplaceAll(demoYAML, "{id: main,", "{id: main, name: Other,")), "'name' can't be changed: it is main")
	require.ErrorContains(t, apply(strings.ReplaceAll(demoYAML, "{id: main,", "{id: second, name: main,")), "a preference center with the name \"main\" already exists")
}

func TestPreferenceCenterErrors(t *testing.T) {
	d := openEngine(t, t.TempDir())
	d.unlimited(t)
	d.createCenter(t, `{"name":"taken",`+goodCenter+`}`)
	long := strings.Repeat("x", document.MaxPageBytes)
	links := func(text string) string { return `"options":{"links-tags":[` + text + `]}` }
	both := map[string]string{ // besides the name
		``:                                  "'preference_center_page_html' is required",
		`"preference_center_page_html":"x"`: "'confirmation_page_html' is required",
		`"confirmation_page_html":"x"`:      "'preference_center_page_html' is required",
		`"preference_center_page_html":"","confirmation_page_html":"x"`:                                                 "'preference_center_page_html' is required",
		`"preference_center_page_html":null,"confirmation_page_html":"x"`:                                               "'preference_center_page_html' is required",
		`"preference_center_page_html":7,"confirmation_page_html":"x"`:                                                  "'preference_center_page_html' must be a string",
		`"preference_center_page_html":"x","confirmation_page_html":["x"]`:                                              "'confirmation_page_html' must be a string",
		`"preference_center_page_html":"x` + long + `","confirmation_page_html":"x"`:                                    fmt.Sprintf("'preference_center_page_html' must be at most %d bytes", document.MaxPageBytes),
		`"preference_center_page_html":"x","confirmation_page_html":"\u0000"`:                                           "'confirmation_page_html' must be text without NUL",
		goodCenter + `,"redirect_page_html":{}`:                                                                         "'redirect_page_html' must be a string",
		goodCenter + `,"redirect_page_html":""`:                                                                         "'redirect_page_html' is required",
		goodCenter + `,"preference_center_title":true`:                                                                  "'preference_center_title' must be a string",
		goodCenter + `,"preference_center_title":"` + strings.Repeat("é", 256) + `"`:                                    "'preference_center_title' must be a string of at most 255 characters",
		goodCenter + `,"preference_center_title":"a\nb"`:                                                                "'preference_center_title' must be a string of at most 255 characters",
		goodCenter + `,"state":"on"`:                                                                                    "'state' must be 'active' or 'draft'",
		goodCenter + `,"state":""`:                                                                                      "'state' must be 'active' or 'draft'",
		goodCenter + `,"state":1`:                                                                                       "'state' must be a string",
		goodCenter + `,"options":[]`:                                                                                    "'options' must be an object",
		goodCenter + `,"options":{"meta-viewport-content":1}`:                                                           "'meta-viewport-content' must be a string",
		goodCenter + `,"options":{"meta-viewport-content":"` + strings.Repeat("x", 256) + `"}`:                          "'meta-viewport-content' must be a string of at most 255 bytes",
		goodCenter + `,"options":{"links-tags":{}}`:                                                                     "'links-tags' must be an array of objects",
		goodCenter + `,"options":{"link-tags":["x"]}`:                                                                   "'link-tags' must be an array of objects",
		goodCenter + `,` + links(`{"rel":7}`):                                                                           "'rel' must be a string",
		goodCenter + `,` + links(`{"rel":"stylesheet","href":"https://e.com"}`):                                         "'rel' must be 'icon', 'shortcut icon' or 'apple-touch-icon' ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon","href":"javascript:alert(1)"}`):                                         "'href' must be an https URL ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon","href":"http://e.com/x"}`):                                              "'href' must be an https URL ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon"}`):                                                                      "'href' must be an https URL ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon","href":"https://e.com","type":"\"><script>"}`):                          "'type' is not valid ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon","href":"https://e.com","sizes":"big"}`):                                 "'sizes' is not valid ('links-tags' 0)",
		goodCenter + `,` + links(`{"rel":"icon","href":"https://e.com","color":"red;x"}`):                               "'color' is not valid ('links-tags' 0)",
		goodCenter + `,` + links(strings.TrimSuffix(strings.Repeat(`{"rel":"icon","href":"https://e.com"},`, 11), ",")): "'links-tags' must hold at most 10 objects",
	}
	name := 0
	for body, text := range both {
		name++
		comma := ","
		if body == "" {
			comma = ""
		}
		for request, target := range map[string]string{
			"POST": "/preference_center/v1", "PUT": "/preference_center/v1/main",
		} {
			a := d.call(request, target, demoKey, fmt.Sprintf(`{"name":"n%d"%s%s}`, name, comma, body))
			require.Equal(t, 400, a.status, "%s %.200s", request, body)
			require.Equal(t, text, a.json(t)["message"], "%s %.200s", request, body)
		}
	}
	for text, message := range map[string]string{
		goodCenter:                            "'name' is required",
		`"name":"",` + goodCenter:             "'name' is required",
		`"name":7,` + goodCenter:              "'name' must be a string",
		`"name":"a b",` + goodCenter:          "'name' must be 1 to 100 letters, digits, hyphens and underscores",
		`"name":"é",` + goodCenter:            "'name' must be 1 to 100 letters, digits, hyphens and underscores",
		`"name":"a\n",` + goodCenter:          "'name' must be 1 to 100 letters, digits, hyphens and underscores",
		`"name":"taken",` + goodCenter:        "'name' is in use by another preference center",
		`"name":"x","name":"y",` + goodCenter: "Invalid JSON: member 'name' is there more than once",
	} {
		a := d.call("POST", "/preference_center/v1", demoKey, `{`+text+`}`)
		require.Equal(t, 400, a.status, text)
		require.Equal(t, message, a.json(t)["message"])
	}
	require.Contains(t, d.call("POST", "/preference_center/v1", demoKey, `[]`).body, "the body must be an object")
	require.Len(t, d.call("GET", "/preference_center/v1/list", demoKey, "").json(t)["preference_centers"], 2, "nothing of all that was stored")
	require.Equal(t, "<p>Page</p>", d.call("GET", "/preference_center/v1/main", demoKey, "").json(t)["preference_center_page_html"])

	// The largest page is taken.
	d.createCenter(t, `{"name":"large","preference_center_page_html":"`+long+`","confirmation_page_html":"x"}`)

	for target, allow := range map[string]string{"/preference_center/v1/list": "GET, HEAD", "/preference_center/v1": "POST", "/preference_center/v1/main/": "GET, HEAD, PUT, POST",
		"/preference_center/v1/main/url/a": "GET, HEAD, POST"} {
		a := d.call("DELETE", target, demoKey, "")
		require.Equal(t, 405, a.status)
		require.Equal(t, allow, a.header.Get("Allow"))
	}
	for method, target := range map[string]string{"GET": "/preference_center/v1/nobody", "PUT": "/preference_center/v1/nobody", "POST": "/preference_center/v1/nobody/url/reader"} {
		a := d.call(method, target, demoKey, `{`+goodCenter+`}`)
		require.Equal(t, 404, a.status, target)
		require.Equal(t, "Preference center not found", a.json(t)["message"])
	}
	a := d.call("GET", "/preference_center/v1/main/url/nobody", demoKey, "")
	require.Equal(t, 404, a.status)
	require.Equal(t, "User not found", a.json(t)["message"])
}

// A client that has no room for a document isn't told to try again.
func TestNoRoomIsNoConflict(t *testing.T) {
	f := call.FailureOf(fmt.Errorf("%w: all of them", control.ErrNoRoom))
	require.Equal(t, 400, f.Status)
	require.Zero(t, f.RetryAfter)
}

// A workspace is full at some time; changes at once are one after another, each whole.
func TestPreferenceCenterConcurrency(t *testing.T) {
	d := openEngine(t, t.TempDir())
	d.unlimited(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for worker := range 8 {
		group.Go(func() {
			for i := range 4 { // all workers want the same four names
				a := d.call("POST", "/preference_center/v1", demoKey, fmt.Sprintf(`{"name":"n%d",%s}`, i, goodCenter))
				mu.Lock()
				statuses[a.status]++
				mu.Unlock()
				html := strings.Repeat(fmt.Sprint(worker), 1000)
				if a := d.call("PUT", "/preference_center/v1/main", demoKey, fmt.Sprintf(`{"preference_center_page_html":%q,"confirmation_page_html":%q}`, html, html)); a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
				a = d.call("GET", "/preference_center/v1/main", demoKey, "")
				if v := a.json(t); v["preference_center_page_html"] != v["confirmation_page_html"] {
					t.Error("half of one change and half of another")
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, map[int]int{201: 4, 400: 28}, statuses)
	for i := 4; i < document.MaxPreferenceCenters-1; i++ {
		d.createCenter(t, fmt.Sprintf(`{"name":"n%d",%s}`, i, goodCenter))
	}
	a := d.call("POST", "/preference_center/v1", demoKey, `{"name":"onemore",`+goodCenter+`}`)
	require.Equal(t, 400, a.status)
	require.Equal(t, "a workspace may have at most 100 preference centers", a.json(t)["message"])
	for name, says := range map[string]string{"onemore": "which is the limit", "n4": `already exists`} {
		a := d.administer(t, "POST", "/workspaces/demo/preference_centers", `{"name":"`+name+`",`+goodCenter+`}`)
		require.Equal(t, 409, a.status, a.body)
		require.Contains(t, a.body, says)
	}
}

func TestPreferenceCenterRateLimits(t *testing.T) {
	d := openEngine(t, t.TempDir())
	require.Equal(t, "1000", d.call("GET", "/preference_center/v1/list", demoKey, "").header.Get("X-RateLimit-Limit"))
	require.Equal(t, "1000", d.call("GET", "/preference_center/v1/main", demoKey, "").header.Get("X-RateLimit-Limit"))
	require.Equal(t, "1000", d.call("GET", "/preference_center/v1/main/url/a", demoKey, "").header.Get("X-RateLimit-Limit"))
	require.Equal(t, "10", d.call("PUT", "/preference_center/v1/main", demoKey, `{}`).header.Get("X-RateLimit-Limit"))
}

// The link: who it is for, how long, where to.
func TestPreferenceURL(t *testing.T) {
	d := openEngine(t, t.TempDir())
	ask := func(d *door, method, target, body string, headers ...string) string {
		a := d.call(method, target, demoKey, body, headers...)
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, "success", a.json(t)["message"])
		require.Equal(t, "no-store", a.header.Get("Cache-Control"))
		return a.json(t)["preference_center_url"].(string)
	}
	// External ids of all sorts; the last two would be one in a path that is normalised.
	ids := []string{"ada", "a/b", "a//b", "a+b=", "é", "a b", "%41", "a%2Fb", "..x", "a?b#c", "url/ada"}
	for _, id := range ids {
		require.Equal(t, 201, d.track(demoKey, id).status)
	}
	seen := map[string]string{}
	for _, id := range ids {
		link := ask(d, "GET", "/preference_center/v1/main/url/"+url.PathEscape(id), "")
		require.Regexp(t, "^http://"+d.addr+"/preferences/[A-Za-z0-9_-]{78}$", link)
		a := d.call("GET", strings.TrimPrefix(link, "http://"+d.addr), "", "")
		require.Equal(t, 200, a.status)
		require.Contains(t, a.body, "<p>Page</p>")
		opened, err := d.openText(strings.TrimPrefix(link, "http://"+d.addr+center.Path))
		require.NoError(t, err)
		require.NotContains(t, seen, fmt.Sprint(opened.User), id)
		seen[fmt.Sprint(opened.User)] = id
	}
	require.NotEmpty(t, ask(d, "GET", "/preference_center/v1/main/url/ada/", ""))
	for _, target := range []string{"/preference_center//v1/main/url/ada", "/preference_center/v1/main/./url/ada", "/preference_center/v1/main/url/",
		"/preference_center/v1/main/url//ada", "/preference_center/v1/main/url/x/../ada", "/preference_center/v1/main%2Furl/ada", "/x/../preference_center/v1/main/url/ada",
		"/preference_center/v1/main/url/x%2F..%2Fada", "/preferences/../preference_center/v1/main"} {
		require.Equal(t, 404, d.call("GET", target, demoKey, "").status, target)
	}

	require.NotEmpty(t, ask(d, "GET", "/preference_center/v1/m%61in/url/%61da", "")) // encoded without need, in places of names

	// The viewport of a link.
	for target, body := range map[string]string{
		"?preference_center_options=" + url.QueryEscape(`{"meta-viewport-content":"width=\"7\""}`): "",
		"?options[meta-viewport-content]=width%3D%227%22":                                          "",
		"":     `{"PreferenceCenterID":"main","preference_center_options":{"meta-viewport-content":"width=\"7\""}}`,
		"?x=y": `{"options":{"meta-viewport-content":"width=\"7\""}}`,
	} {
		link := ask(d, "POST", "/preference_center/v1/main/url/ada"+target, body)
		require.Contains(t, d.call("GET", strings.TrimPrefix(link, "http://"+d.addr), "", "").body, `<meta name="viewport" content="width=&#34;7&#34;">`, target)
	}
	require.NotContains(t, d.call("GET", strings.TrimPrefix(ask(d, "POST", "/preference_center/v1/main/url/ada", ""), "http://"+d.addr), "", "").body, "viewport")
	for target, text := range map[string]string{
		"?options=7": "'options' must be an object", "?preference_center_options=%7B": "'preference_center_options' must be an object",
		"?options[meta-viewport-content]=" + strings.Repeat("x", 256): "'meta-viewport-content' must be a string of at most 255 bytes",
		"?options=%7B%22meta-viewport-content%22:1%7D":                "'meta-viewport-content' must be a string",
	} {
		a := d.call("GET", "/preference_center/v1/main/url/ada"+target, demoKey, "")
		require.Equal(t, 400, a.status)
		require.Equal(t, text, a.json(t)["message"])
	}
	require.Equal(t, 400, d.call("POST", "/preference_center/v1/main/url/ada", demoKey, "{").status)

	// Where to: the setting goes before whatever Host the caller names.
	d2 := openEngine(t, t.TempDir(), func(o *Options) { o.PublicURL = "https://mail.example.com/pc/" })
	d2.track(demoKey, "ada")
	link := ask(d2, "GET", "/preference_center/v1/main/url/ada", "")
	require.Regexp(t, "^https://mail.example.com/pc/preferences/[A-Za-z0-9_-]+$", link)
	responses, _ := d2.raw(t, 1, "GET /preference_center/v1/main/url/ada HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer "+demoKey+"\r\n\r\n")
	require.Equal(t, 200, responses[0].status)
	require.Contains(t, responses[0].body, `"https://mail.example.com/pc/preferences/`)
}

// Without the setting a link begins with the address that is listened at, or with a Host of the list; a Host that the
// caller has made up stands in none.
func TestPreferenceURLHosts(t *testing.T) {
	d := openEngine(t, t.TempDir(), func(o *Options) {
		o.PublicHosts = []string{"Links.example.com", "mail.example.com:8443", "[::1]:8080", "plain.example.com:80"}
	})
	require.Equal(t, 201, d.track(demoKey, "ada").status)
	_, port, err := net.SplitHostPort(d.addr)
	require.NoError(t, err)
	ask := func(target, host string) answer {
		responses, _ := d.raw(t, 1, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: Bearer "+demoKey+"\r\n\r\n")
		require.Len(t, responses, 1, host)
		return responses[0]
	}
	for _, host := range []string{"127.0.0.1:" + port, "localhost:" + port, "LocalHost:" + port, "links.example.com", "LINKS.example.com:80", "mail.example.com:8443", "[::1]:8080",
		"plain.example.com"} {
		a := ask("/preference_center/v1/main/url/ada", host)
		require.Equal(t, 200, a.status, "%s: %s", host, a.body)
		require.Contains(t, a.body, `"http://`+strings.ToLower(host)+`/preferences/`)
	}
	for _, host := range []string{"evil.example", "evil.example:" + port, "127.0.0.1", "127.0.0.1:1", "127.0.0.2:" + port, "localhost", "localhost:1", "[::1]:" + port, "0.0.0.0:" + port,
		"links.example.com:8080", "links.example.com.", "x.links.example.com", "mail.example.com", "localhost:" + port + "0", "localhost.evil.example:" + port, "a/b", "a\"b", "a b"} {
		a := ask("/preference_center/v1/main/url/ada", host)
		require.Equal(t, 400, a.status, host)
		require.NotContains(t, a.body, "/preferences/", host)
		require.NotEmpty(t, a.json(t)["message"], host)
	}
	require.Equal(t, message("No link can be made for the Host of this request. Whoever runs the service can set --public-url, or name the host in --public-hosts"), ask("/preference_center/v1/main/url/ada", "evil.example").body)
	require.Equal(t, 400, ask("http://evil.example/preference_center/v1/main/url/ada", "links.example.com").status, "which goes before the Host")
	require.Equal(t, 404, ask("/preference_center/v1/main/url/bob", "links.example.com").status)
	require.Equal(t, 200, ask("/preference_center/v1/main", "evil.example").status, "no link")
}
