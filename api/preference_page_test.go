package api

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"millrace/api/center"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/preference"
	"millrace/api/store"
	"millrace/shard"
)

const (
	offersGroup = "7d89bdc3-4aa1-4592-8b8a-4c8b7161c875"
	goneGroup   = "00000000-0000-4000-8000-000000000000"
)

// pagePreferences is a page as a customer writes one.
const pagePreferences = `<h1>Choose</h1>
<p id="state">{{subscribed_state.${email_global}}} {{ subscribed_state.${5A3CC8FF-9a0e-4e2a-8a3c-0a8a7a1f0e55} }} {{subscribed_state.${` + offersGroup + `}}} [{{subscribed_state.${` + goneGroup + `}}}] {{${email_address}}}</p>
<form action="{{preference_center_submit_url}}" method="post">
<label><input type="radio" name="{% form_field_name :email_global_state %}" value="opted_in"> Yes</label>
<label><input type="radio" name="{% form_field_name :email_global_state %}" value="unsubscribed"> No</label>
<label><input type="checkbox" name="{% form_field_name :subscription_group ` + newsGroup + ` %}" value="subscribed"> News</label>
<select name="{% form_field_name :subscription_group ` + offersGroup + ` %}"><option value="subscribed">On</option><option value="unsubscribed">Off</option></select>
<button>Save</button></form>`

// hosting is a server with a preference center "choose" and a user "ada".
type hosting struct {
	*door
	t *testing.T
}

func openHosting(t *testing.T, page string, edit ...func(*Options)) (h hosting) {
	d := openEngine(t, t.TempDir(), edit...)
	h = hosting{d, t}
	by := control.Actor{Name: "test"}
	_, err := d.control.Groups.Create(by, "demo", document.Group{ID: offersGroup, Name: "Offers", Channel: "email"})
	require.NoError(t, err)
	_, err = d.control.PreferenceCenters.Create(by, "demo", document.PreferenceCenter{ID: "choose", Title: "Choose & save", PageHTML: page,
		ConfirmationHTML: `<p>Saved: {{subscribed_state.${email_global}}}</p>`})
	require.NoError(t, err)
	h.user("ada", "Ada+x@example.com")
	return h
}

func (h hosting) user(id, email string) {
	h.t.Helper()
	a := h.call("POST", "/users/track", demoKey, fmt.Sprintf(`{"attributes":[{"external_id":%q,"email":%q}]}`, id, email))
	require.Equal(h.t, 201, a.status, a.body)
}

// change edits the center.
func (h hosting) change(edit func(*document.PreferenceCenter)) {
	h.t.Helper()
	_, err := h.control.PreferenceCenters.Change(control.Actor{Name: "test"}, "demo", "choose", func(p *document.PreferenceCenter) (*document.PreferenceCenter, error) {
		edit(p)
		return p, nil
	})
	require.NoError(h.t, err)
}

// link is the path of a user's page.
func (h hosting) link(user string) string {
	h.t.Helper()
	a := h.call("GET", "/preference_center/v1/choose/url/"+user, demoKey, "")
	require.Equal(h.t, 200, a.status, a.body)
	return strings.TrimPrefix(a.json(h.t)["preference_center_url"].(string), "http://"+h.addr)
}

// linkSecret is the name of the secret that links are signed with.
const linkSecret = "preference_links"

// openText reads the text of a link.
func (d *door) openText(text string) (preference.Link, error) {
	secret, _ := d.control.Secret(linkSecret)
	return preference.Open(&secret, text, time.Now().Unix())
}

// send posts a form as a browser does, without following the redirect.
func (h hosting) send(path string, fields string) answer {
	return h.call("POST", path, "", fields, "Content-Type", "application/x-www-form-urlencoded")
}

// states are email state and groups of a user, by the export.
func (h hosting) states(user string) (email string, groups map[string]string) {
	h.t.Helper()
	a := h.call("POST", "/users/export/ids", demoKey, fmt.Sprintf(`{"external_ids":[%q]}`, user))
	u := a.json(h.t)["users"].([]any)[0].(map[string]any)
	email, _ = u["email_subscribe"].(string)
	groups = map[string]string{}
	list, _ := u["subscription_groups"].([]any)
	for _, g := range list {
		g := g.(map[string]any)
		groups[g["id"].(string)] = g["status"].(string)
	}
	return email, groups
}

// formOf is what a browser would send of a page that nobody has touched.
func formOf(t *testing.T, page string) (fields url.Values) {
	fields = url.Values{}
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	attr := func(n *html.Node, name string) (string, bool) {
		for _, a := range n.Attr {
			if a.Key == name {
				return a.Val, true
			}
		}
		return "", false
	}
	for n := range root.Descendants() {
		name, _ := attr(n, "name")
		value, _ := attr(n, "value")
		kind, _ := attr(n, "type")
		_, checked := attr(n, "checked")
		switch {
		case n.Data == "input" && (kind != "radio" && kind != "checkbox" || checked):
			fields.Add(name, value)
		case n.Data == "option":
			if _, selected := attr(n, "selected"); selected {
				name, _ = attr(n.Parent, "name")
				fields.Add(name, value)
			}
		}
	}
	delete(fields, "")
	return fields
}

// checkHeaders: every page, good or bad, is served under the policy.
func checkPage(t *testing.T, a answer, status int) {
	t.Helper()
	require.NoError(t, a.err)
	require.Equal(t, status, a.status, a.body)
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": preference.Policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cache-Control": "no-store", "X-Frame-Options": "DENY", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		"X-Robots-Tag": "noindex", "Set-Cookie": "", "Access-Control-Allow-Origin": "", "X-RateLimit-Limit": "",
	} {
		require.Equal(t, want, a.header.Get(name), name)
	}
	require.NotEmpty(t, a.header.Get("X-Request-Id"))
}

// The whole way: the page shows the states, the form changes them, the confirmation shows that, and the API reads it.
func TestHostedPage(t *testing.T) {
	h := openHosting(t, pagePreferences)
	path := h.link("ada")
	a := h.call("GET", path, "", "")
	checkPage(t, a, 200)
	require.Contains(t, a.body, `<p id="state">subscribed unknown unknown [] Ada&#43;x&#64;example&#46;com</p>`)
	require.Contains(t, a.body, "<title>Choose &amp; save</title>")
	require.Contains(t, a.body, `<form action="`+path+`" method="post">`)
	require.Regexp(t, `^<!doctype html>`, a.body)

	// Sent as it was shown, it changes nothing, which is no error.
	fields := formOf(t, a.body)
	require.Equal(t, url.Values{"subscription_group_" + offersGroup: {"unchanged"}}, fields)
	checkPage(t, h.send(path, fields.Encode()), 303)
	_, groups := h.states("ada")
	require.Empty(t, groups)

	saved := h.send(path, "email_global_state=opted_in&subscription_group_"+newsGroup+"=unsubscribed&subscription_group_"+newsGroup+"=subscribed&subscription_group_"+offersGroup+"=unsubscribed&other=1")
	checkPage(t, saved, 303)
	require.Equal(t, path+"?saved", saved.header.Get("Location"))
	checkPage(t, h.call("GET", path+"?saved", "", ""), 200)
	require.Contains(t, h.call("GET", path+"?saved", "", "").body, "<p>Saved: opted_in</p>")
	email, groups := h.states("ada")
	require.Equal(t, "opted_in", email)
	require.Equal(t, map[string]string{newsGroup: "Subscribed", offersGroup: "Unsubscribed"}, groups)

	a = h.call("GET", path, "", "")
	require.Contains(t, a.body, `<p id="state">opted_in subscribed unsubscribed []`)
	fields = formOf(t, a.body)
	require.Equal(t, url.Values{"email_global_state": {"opted_in"}, "subscription_group_" + newsGroup: {"unsubscribed", "subscribed"},
		"subscription_group_" + offersGroup: {"unsubscribed"}}, fields)
	checkPage(t, h.send(path, fields.Encode()), 303)
	same, sameGroups := h.states("ada")
	require.Equal(t, email, same)
	require.Equal(t, groups, sameGroups)

	// The box is taken out: the hidden field before it speaks.
	fields["subscription_group_"+newsGroup] = []string{"unsubscribed"}
	checkPage(t, h.send(path, fields.Encode()), 303)
	_, groups = h.states("ada")
	require.Equal(t, "Unsubscribed", groups[newsGroup])

	// GET and HEAD change nothing, whatever they carry.
	for _, method := range []string{"GET", "HEAD"} {
		a = h.call(method, path+"?email_global_state=unsubscribed&List-Unsubscribe=One-Click", "", "", "Content-Type", "application/x-www-form-urlencoded")
		checkPage(t, a, 200)
		require.Equal(t, method == "HEAD", a.body == "")
	}
	email, _ = h.states("ada")
	require.Equal(t, "opted_in", email)
	require.Contains(t, h.metricsText(t), `millrace_preference_changes_total{source="form"}`)

	// The users who share the address have the same states; others have not.
	h.user("twin", "ADA+x@example.com")
	h.user("bob", "bob@example.com")
	email, groups = h.states("twin")
	require.Equal(t, "opted_in", email)
	require.Equal(t, "Unsubscribed", groups[offersGroup])
	checkPage(t, h.send(path, "email_global_state=unsubscribed"), 303)
	email, _ = h.states("twin")
	require.Equal(t, "unsubscribed", email)
	email, groups = h.states("bob")
	require.Equal(t, "subscribed", email)
	require.Empty(t, groups)
	require.Contains(t, h.call("GET", h.link("bob"), "", "").body, `<p id="state">subscribed unknown unknown [] bob&#64;example&#46;com</p>`)
}

func TestFormErrors(t *testing.T) {
	h := openHosting(t, pagePreferences)
	path := h.link("ada")
	for body, text := range map[string]string{
		"email_global_state=maybe":                      "the value of the field email_global_state is not valid",
		"email_global_state=Subscribed":                 "the value of the field email_global_state is not valid",
		"subscription_group_" + newsGroup + "=opted_in": "the value of the field subscription_group_" + newsGroup + " is not valid",
		"email_global_state=":                           "the form says nothing about preferences",
		"a=%zz":                                         "the form can&#39;t be read",
		"email_global_state=opted_in&subscription_group_" + newsGroup + "=x": "is not valid",
		strings.Repeat("a&", 1000) + "email_global_state=opted_in":           "the form can&#39;t be read",
	} {
		a := h.send(path, body)
		checkPage(t, a, 400)
		require.Contains(t, a.body, "Nothing was changed: ", body)
		require.Contains(t, a.body, text, body)
	}
	checkPage(t, h.send(path, strings.Repeat("a", maxFormBytes+1)), 413)
	checkPage(t, h.call("POST", path, demoKey, strings.Repeat("a", maxFormBytes+1), "Content-Type", "application/x-www-form-urlencoded"), 413)
	for _, kind := range []string{"application/json", "text/plain", "x", "application/x-www-form-urlencoded-2"} {
		checkPage(t, h.call("POST", path, "", "email_global_state=unsubscribed", "Content-Type", kind), 415)
	}
	checkPage(t, h.call("POST", path, "", compressed(t, "gzip", strings.NewReader("email_global_state=unsubscribed")), "Content-Type", "application/x-www-form-urlencoded", "Content-Encoding", "gzip"), 415)
	for _, method := range []string{"PUT", "DELETE", "PATCH", "OPTIONS"} {
		a := h.call(method, path, "", "email_global_state=unsubscribed")
		checkPage(t, a, 405)
		require.Equal(t, "GET, HEAD, POST", a.header.Get("Allow"))
	}
	email, groups := h.states("ada")
	require.Equal(t, "subscribed", email)
	require.Empty(t, groups)

	// What says nothing is no error: an empty form, groups that do not exist, fields of somebody else.
	for _, body := range []string{"", "x=y", "subscription_group_" + goneGroup + "=subscribed", "subscription_group_x=subscribed", "subscription_group_" + strings.ToUpper(newsGroup) + "=subscribed"} {
		checkPage(t, h.send(path, body), 303)
	}
	_, groups = h.states("ada")
	require.Empty(t, groups)
	require.Equal(t, 415, h.call("POST", "/users/track", demoKey, "a=b", "Content-Type", "application/x-www-form-urlencoded").status, "a form is no request of the API")
}

// RFC 8058: mail programs unsubscribe for their users.
func TestOneClick(t *testing.T) {
	h := openHosting(t, pagePreferences)
	path := h.link("ada")
	for name, request := range map[string][2]string{
		"urlencoded": {"application/x-www-form-urlencoded", "List-Unsubscribe=One-Click"},
		"multipart":  {"multipart/form-data; boundary=xx", "--xx\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--xx--\r\n"},
		"and more":   {"application/x-www-form-urlencoded; charset=utf-8", "List-Unsubscribe=One-Click&email_global_state=opted_in"},
	} {
		checkPage(t, h.send(path, "email_global_state=opted_in"), 303)
		a := h.call("POST", path, "", request[1], "Content-Type", request[0])
		checkPage(t, a, 200)
		require.Contains(t, a.body, "You are unsubscribed")
		email, _ := h.states("ada")
		require.Equal(t, "unsubscribed", email, name)
	}
	for _, other := range []string{"List-Unsubscribe=Two-Clicks", "list-unsubscribe=One-Click"} {
		checkPage(t, h.send(path, "email_global_state=opted_in"), 303)
		checkPage(t, h.send(path, other), 303)
		email, _ := h.states("ada")
		require.Equal(t, "opted_in", email, other)
	}
	// A draft has no page, but the links that are out still unsubscribe.
	h.change(func(p *document.PreferenceCenter) { p.State = "draft" })
	checkPage(t, h.call("GET", path, "", ""), 404)
	checkPage(t, h.call("GET", path+"?saved", "", ""), 404)
	checkPage(t, h.send(path, "email_global_state=subscribed"), 404)
	checkPage(t, h.send(path, "List-Unsubscribe=One-Click"), 200)
	email, _ := h.states("ada")
	require.Equal(t, "unsubscribed", email)
	require.Contains(t, h.metricsText(t), `millrace_preference_changes_total{source="one-click"}`)
}

// A link is one user's of one workspace and center, for a time; nothing else opens a page.
func TestLinks(t *testing.T) {
	h := openHosting(t, pagePreferences)
	checkPage(t, h.call("GET", center.Path+"x", "", ""), 404) // before any link was made
	path := h.link("ada")
	text := strings.TrimPrefix(path, center.Path)
	link, err := h.openText(text)
	require.NoError(t, err)
	require.Equal(t, "choose", link.Center)
	require.InDelta(t, time.Now().Add(90*24*time.Hour).Unix(), link.Expires, 60)
	secret, ok := h.control.Secret(linkSecret)
	require.True(t, ok)

	// Each single character changed, and cut or grown at the end.
	for i := range text {
		for _, c := range "A9-" {
			forged := text[:i] + string(c) + text[i+1:]
			if forged != text {
				checkPage(t, h.call("GET", center.Path+forged, "", ""), 404)
			}
		}
	}
	for _, forged := range []string{text[:len(text)-1], text + "A", text + "=", "", "A", strings.Repeat("A", 5000), text + "/x"} {
		require.Equal(t, 404, h.call("GET", center.Path+forged, "", "").status, forged)
	}
	var other [32]byte
	_, _ = rand.Read(other[:])
	notFound := h.call("GET", center.Path+preference.Sign(&other, link), "", "")
	checkPage(t, notFound, 404)
	for name, change := range map[string]func(*preference.Link){
		"nobody":          func(l *preference.Link) { l.User++ },
		"other workspace": func(l *preference.Link) { l.Workspace = 2 },
		"no workspace":    func(l *preference.Link) { l.Workspace = 99 },
		"no center":       func(l *preference.Link) { l.Center = "nothing" },
	} {
		l := link
		change(&l)
		a := h.call("GET", center.Path+preference.Sign(&secret, l), "", "")
		checkPage(t, a, 404)
		require.Equal(t, notFound.body, a.body, "%s: nothing tells one from the other", name)
		checkPage(t, h.send(center.Path+preference.Sign(&secret, l), "email_global_state=unsubscribed"), 404)
		checkPage(t, h.send(center.Path+preference.Sign(&secret, l), "List-Unsubscribe=One-Click"), 404)
	}

	// Expired: our page, or the customer's, without anybody's states; nothing can be sent.
	expired := link
	expired.Expires = time.Now().Unix() - 1
	late := center.Path + preference.Sign(&secret, expired)
	a := h.call("GET", late, "", "")
	checkPage(t, a, 410)
	require.Contains(t, a.body, "This link has expired")
	html := `<p>Gone [{{subscribed_state.${email_global}}}{{${email_address}}}{{preference_center_submit_url}}]</p><meta http-equiv="refresh" content="0;url=https://evil.example">`
	h.change(func(p *document.PreferenceCenter) { p.RedirectHTML = &html })
	a = h.call("GET", late, "", "")
	checkPage(t, a, 410)
	require.Contains(t, a.body, "<p>Gone []</p>")
	require.Empty(t, a.header.Get("Location"))
	checkPage(t, h.send(late, "email_global_state=unsubscribed"), 410)
	checkPage(t, h.send(late, "List-Unsubscribe=One-Click"), 410)
	email, _ := h.states("ada")
	require.Equal(t, "subscribed", email)

	// A deleted user has no page, and a new one with the same external id does not get the old link.
	require.Equal(t, 201, h.call("POST", "/users/delete", demoKey, `{"external_ids":["ada"]}`).status)
	checkPage(t, h.call("GET", path, "", ""), 404)
	checkPage(t, h.send(path, "List-Unsubscribe=One-Click"), 404)
	h.user("ada", "new@example.com")
	checkPage(t, h.call("GET", path, "", ""), 404)
	checkPage(t, h.call("GET", h.link("ada"), "", ""), 200)
}

// A user who was merged into another one is that one now: the link in an old mail still unsubscribes.
func TestLinkOfAMergedUser(t *testing.T) {
	h := openHosting(t, pagePreferences)
	path := h.link("ada")
	for _, into := range []string{"second", "third"} {
		h.user(into, into+"@example.com")
		from := map[string]string{"second": "ada", "third": "second"}[into]
		a := h.call("POST", "/users/merge", demoKey, fmt.Sprintf(`{"merge_updates":[{"identifier_to_merge":{"external_id":%q},"identifier_to_keep":{"external_id":%q}}]}`, from, into))
		require.Equal(t, 202, a.status, a.body)
		require.Eventually(t, func() bool {
			return strings.Contains(h.call("POST", "/users/export/ids", demoKey, fmt.Sprintf(`{"external_ids":[%q]}`, from)).body, "invalid_user_ids")
		}, time.Minute, 10*time.Millisecond)
		a = h.call("GET", path, "", "")
		checkPage(t, a, 200)
		require.Contains(t, a.body, into+"&#64;example")
	}
	checkPage(t, h.send(path, "List-Unsubscribe=One-Click"), 200)
	email, _ := h.states("third")
	require.Equal(t, "unsubscribed", email)
	h.user("ada", "new@example.com") // somebody else
	require.Contains(t, h.call("GET", path, "", "").body, "third&#64;example")
	require.Equal(t, 201, h.call("POST", "/users/delete", demoKey, `{"external_ids":["third"]}`).status)
	checkPage(t, h.call("GET", path, "", ""), 404)
}

// The secret stays through a restart, and nothing shows it.
func TestLinksAfterARestart(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	d.track(demoKey, "ada")
	path := strings.TrimPrefix(d.call("GET", "/preference_center/v1/main/url/ada", demoKey, "").json(t)["preference_center_url"].(string), "http://"+d.addr)
	secret, _ := d.control.Secret(linkSecret)
	require.NotContains(t, d.logged(), fmt.Sprintf("%x", secret))
	d.end()
	d = openEngine(t, dir)
	checkPage(t, d.call("GET", path, "", ""), 200)
	again, ok := d.control.Secret(linkSecret)
	require.True(t, ok)
	require.Equal(t, secret, again)
}

// Behind --public-url with a path, the form goes there too.
func TestPublicPath(t *testing.T) {
	h := openHosting(t, pagePreferences, func(o *Options) { o.PublicURL = "https://mail.example.com/pc" })
	path := strings.TrimPrefix(h.link("ada"), "https://mail.example.com/pc")
	a := h.call("GET", path, "", "")
	checkPage(t, a, 200)
	require.Contains(t, a.body, `<form action="/pc`+path+`" method="post">`)
	require.Equal(t, "/pc"+path+"?saved", h.send(path, "email_global_state=opted_in").header.Get("Location"))
}

func TestPublicURLOption(t *testing.T) {
	d := open(t, nil)
	for text, ok := range map[string]bool{"": true, "https://a.example": true, "http://127.0.0.1:8080/": true, "https://[::1]:1/x/y_z~.-": true,
		"a.example": false, "ftp://a": false, "https://": false, "https://a/?x": false, "https://a/#x": false, "https://a/\"": false, "https://u@a": false, "https://a/%41": false, "https://a//b": false} {
		options := d.options
		options.PublicURL = text
		require.Equal(t, ok, options.Validate() == nil, text)
	}
	options := d.options
	options.PreferenceLinkLife = time.Second
	require.Error(t, options.Validate())
}

// Pages are bounded per address, forms per user.
func TestPageLimits(t *testing.T) {
	now := time.Now().UnixMilli() // one minute for all requests
	h := openHosting(t, pagePreferences, func(o *Options) { o.MaxPagesPerMinute, o.Now = 100, func() int64 { return now } })
	h.pin()
	path := h.link("ada")
	limited := 0
	for range 95 {
		if a := h.send(path, "email_global_state=opted_in"); a.status == 429 {
			checkPage(t, a, 429)
			require.Equal(t, "60", a.header.Get("Retry-After"))
			limited++
		}
	}
	require.Equal(t, 95-30, limited)
	limited = 0
	for range 250 {
		if h.call("GET", center.Path+"x", "", "").status == 429 {
			limited++
		}
	}
	require.Equal(t, 250-(100-95), limited, "forms are pages too")
	require.Equal(t, 201, h.track(demoKey, "a").status, "the API is not concerned")
}

type (
	busyStore struct{ store.Store }
	busyBatch struct{ store.Batch }
)

func (s busyStore) NewBatch(workspace, actor uint32) store.Batch {
	return busyBatch{s.Store.NewBatch(workspace, actor)}
}
func (b busyBatch) Commit() error { return fmt.Errorf("commit: %w", shard.ErrBusy) }

// An engine that can't take the change: a page says so, and no confirmation is shown.
func TestPageOfABusyEngine(t *testing.T) {
	h := openHosting(t, pagePreferences)
	path := h.link("ada")
	h.pin()
	h.options.Store = busyStore{h.options.Store}
	h.exchanges = sync.Pool{New: h.exchanges.New} // those that are there have the store before
	a := h.send(path, "email_global_state=opted_in")
	checkPage(t, a, 503)
	require.Contains(t, a.body, "busy")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Empty(t, a.header.Get("Location"))
}

// Requests that fasthttp can't read are answered with a page too.
func TestUnreadablePageRequests(t *testing.T) {
	d := open(t, nil)
	responses, closed := d.raw(t, 1, "POST /preferences/x HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 99999\r\n\r\n")
	require.True(t, closed)
	checkPage(t, responses[0], 413)
}

// Hostile HTML is served as it is, under the policy; what is put into it opens nothing.
func TestHostileHTML(t *testing.T) {
	hostile := `<script>alert(1)</script><base href="https://evil.example/"><iframe src="/preferences/x"></iframe><form action="https://evil.example/" method="post">` +
		`<input name="{% form_field_name :email_global_state %}"><a href="{{preference_center_submit_url}}">x</a></form>` +
		`{{ 7*7 }} {% include "/etc/passwd" %} {{preference_center_submit_url|upcase}} {{subscribed_state.${email_global}}`
	h := openHosting(t, hostile)
	injection := `</title><script>alert(2)</script>{{subscribed_state.${email_global}}}`
	h.change(func(p *document.PreferenceCenter) {
		p.Title, p.Options.Viewport = injection, `"><script>alert(3)</script>{{preference_center_submit_url}}`
		p.Options.Links = []document.LinkTag{{Rel: "icon", Href: `https://e.example/"><script>alert(4)</script>`}}
	})
	path := h.link("ada")
	a := h.call("GET", path, "", "")
	checkPage(t, a, 200)
	require.Equal(t, 1, strings.Count(a.body, "<script>"), "the customer's own, which does not run: %s", a.body)
	require.Contains(t, a.body, `<title>&lt;/title&gt;&lt;script&gt;alert(2)&lt;/script&gt;{{subscribed_state.${email_global}}}</title>`, "no tags in titles")
	require.Contains(t, a.body, `content="&#34;&gt;&lt;script&gt;alert(3)&lt;/script&gt;{{preference_center_submit_url}}"`)
	for _, untouched := range []string{`{{ 7*7 }}`, `{% include "/etc/passwd" %}`, `{{preference_center_submit_url|upcase}}`, `{{subscribed_state.${email_global}}`} {
		require.Contains(t, a.body, untouched)
	}
	require.NotContains(t, h.call("GET", path, "", "", "Host", "evil.example", "X-Forwarded-Host", "evil.example").body, "evil.example:", "no host from the request")

	// An address is data.
	h.change(func(p *document.PreferenceCenter) {
		p.PageHTML = `<a title={{${email_address}}}>{{${email_address}}}</a>`
	})
	h.user("mallory", `o'mallory&co@example.com`)
	a = h.call("GET", h.link("mallory"), "", "")
	require.Contains(t, a.body, `<a title=o&#39;mallory&#38;co&#64;example&#46;com>o&#39;mallory&#38;co&#64;example&#46;com</a>`)
}

// A whole page of another user never comes out of a link, whoever asks for it with what key.
func TestPagesAreNotMixedUp(t *testing.T) {
	h := openHosting(t, pagePreferences)
	h.user("bob", "bob@example.com")
	ada, bob := h.link("ada"), h.link("bob")
	checkPage(t, h.send(ada, "email_global_state=unsubscribed"), 303)
	for range 3 {
		require.Contains(t, h.call("GET", ada, demoKey, "", "Cookie", "user=bob").body, "unsubscribed unknown unknown [] Ada")
		require.Contains(t, h.call("GET", bob, "", "").body, "subscribed unknown unknown [] bob")
	}
	require.Equal(t, http.StatusNotFound, h.call("GET", center.Path+bob[len(center.Path):len(center.Path)+60]+ada[len(center.Path)+60:], "", "").status)
}
