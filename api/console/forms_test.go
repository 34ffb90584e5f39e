package console

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"millrace/api/control"
)

// addresses are where the links of a page lead, and the forms that look for something.
func addresses(t *testing.T, p page) (list []string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(p.text))
	require.NoError(t, err)
	base, err := url.Parse(p.path)
	require.NoError(t, err)
	for n := range root.Descendants() {
		values := map[string]string{}
		for _, a := range n.Attr {
			values[a.Key] = a.Val
		}
		to, ok := values["href"]
		if n.Data == "form" && values["method"] == "get" {
			to, ok = values["action"], true
		}
		if ok && n.Data != "link" && !strings.HasPrefix(to, "#") {
			at, err := base.Parse(to)
			require.NoError(t, err)
			list = append(list, at.RequestURI())
		}
	}
	return list
}

// The page that answers a form has the path of the form, and yet its links lead to pages.
func TestLinksOfAnswers(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	apps, objects := "", []string{}
	for i := range 120 { // so that there is more than a page of each
		apps += fmt.Sprintf("{id: a%d, name: a}, ", i)
		objects = append(objects, `{"external_id":"ada","name":"e"}`)
	}
	h.bootstrap("workspaces:\n  - id: demo\n    apps: [" + apps + "]\n")
	h.refuse(`{"events":[` + strings.Join(objects[:60], ",") + `]}`)
	blocked := make([]string, 60)
	for i := range blocked {
		blocked[i] = fmt.Sprintf("%q", fmt.Sprintf("a%d@example.com", i))
	}
	h.call(http.MethodPost, "/email/blocklist", `{"email":[`+strings.Join(blocked[:50], ",")+`]}`)
	h.call(http.MethodPost, "/email/blocklist", `{"email":[`+strings.Join(blocked[50:], ",")+`]}`)
	for _, answer := range []page{b.post(demo+"/refused/send", "rule", "required"), b.post(demo + "/refused/send"), b.post(auditPath + "/check"),
		b.post(demo+"/blocklist/lift", "email", "nobody@example.com"), b.post("/console/workspaces"), b.post(demo + "/keys"), b.post(demo + "/settings")} {
		require.NotEmpty(t, addresses(t, answer))
		for _, to := range addresses(t, answer) {
			require.Equal(t, 200, b.get(to).status, "%s on %s", to, answer.path)
		}
	}
}

// What was written in a form that was refused is in it again, and the form is in sight.
func TestRefusedFormsKeepWhatWasWritten(t *testing.T) {
	h := openHouse(t)
	h.bootstrap(streamsYAML)
	b := h.signedIn()
	for _, c := range []struct {
		path   string
		fields []string
		want   []string
	}{
		{"/console/workspaces", []string{"id", "A B", "name", "Mine"}, []string{`<details class="more" open><summary>Add a workspace`, `value="A B"`, `value="Mine"`}},
		{demo + "/groups", []string{"name", "\x01", "channel", "sms"}, []string{`open><summary>Add a subscription group`, `<option selected>sms`}},
		{demo + "/groups/" + newsGroup, []string{"name", ""}, []string{`<details class="confirm" open><summary class="calm">Edit`}},
		{demo + "/centers", []string{"id", "a b"}, []string{`open><summary>Add a preference center`, `value="a b"`, `>The name must be 1 to 100`}},
		{demo + "/centers", []string{"id", " "}, []string{`Enter a name.`, `open><summary>Add a preference center`}},
		{demo + "/apps", []string{"name", "\x01", "id", "mine"}, []string{`open><summary>Add an app`, `value="mine"`, `name="name" required maxlength="255" value="Demo shop"`}},
		{demo + "/keys", []string{"name", "Mine", "permission", "users.track", "ip_allowlist", "nowhere"},
			[]string{`open><summary>Create an API key`, `value="Mine"`, `value="nowhere"`, `value="users.track" checked`, `>Allowed addresses: `}},
		{demo + "/settings", []string{"name", "Mine", "plan", "mau", "currency", "eur", "max_custom_array_length", "30", "multi_language", "true", "rate_limits", "users.track=7/1h"},
			[]string{`value="Mine"`, `<option selected>mau`, `value="eur"`, `value="30"`, `value="true" checked`, `users.track=7/1h</textarea>`}},
		{demo + "/settings", []string{"name", "Mine", "max_custom_array_length", "many"}, []string{`value="many"`}},
		{demo + "/settings", []string{"name", "Mine", "max_custom_array_length", "-1"}, []string{`>Maximum length of array attributes -1: want`}},
		{demo + "/centers/choose", []string{"title", "Mine", "state", "active"}, []string{`>Page is required.`, `value="Mine"`}},
		{demo + "/consent/count/stop", nil, []string{`>Running count not found.`}},
		{demo + "/settings", []string{"name", "Mine", "max_custom_array_length", "30", "tag", `"old"`}, []string{`value="Mine"`, "your changes were not saved"}},
		{demo + "/streams/lake/rewind", []string{"from", "yesterday"}, []string{`<details class="confirm left" open>`, `value="yesterday"`}},
		{auditPath + "/check", []string{"seq", "7"}, []string{`<details class="more" open><summary>Verify`, `value="7"`}},
	} {
		p := b.post(c.path, c.fields...)
		require.GreaterOrEqual(t, p.status, 400, c.path)
		for _, text := range c.want {
			require.Contains(t, p.text, text, c.path)
		}
	}
}

// Of strangers' forms no more is kept than a sign-in has, however the form is sent; people may send larger ones.
func TestLargeFormsOfStrangers(t *testing.T) {
	h := openHouse(t)
	large := strings.Repeat("x", maxStrangersFormBytes)
	b := h.browser()
	p := b.post(signInPath, "token", large)
	require.Equal(t, 413, p.status)
	require.Contains(t, p.text, "The form is too large")
	read := &countedBody{Reader: strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"next\"\r\n\r\n" + strings.Repeat(large, 100))}
	r := httptest.NewRequest(http.MethodGet, signInPath, read)
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	h.console.ServeHTTP(httptest.NewRecorder(), r)
	require.LessOrEqual(t, read.n, 2*maxStrangersFormBytes)
	require.NotEqual(t, 413, h.signedIn().post(demo+"/settings", "name", large).status)
}

// Forms count like the bodies of other requests: when there is no room for a form, it is answered 503, and taken later.
// A browser that sends all of it before it reads gets the answer, too.
func TestFormsWithoutRoom(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	send := func() page { return b.post(demo+"/settings", "name", strings.Repeat("x", 2<<20)) }
	others := h.api.Hold(io.NopCloser(zeros{}))
	_, err := io.CopyN(io.Discard, others, 192<<20) // of 256 MiB, of which others may take three quarters
	require.NoError(t, err)
	p := send()
	require.Equal(t, 503, p.status, p.text)
	require.Equal(t, "1", p.header.Get("Retry-After"))

	form := "name=" + strings.Repeat("x", 2<<20)
	read := &countedBody{Reader: strings.NewReader(form)}
	r, w := b.request(http.MethodPost, demo+"/settings", read), httptest.NewRecorder()
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	h.console.ServeHTTP(w, r)
	require.Equal(t, 503, w.Code)
	require.Len(t, form, read.n)

	others.Release()
	require.NotEqual(t, 503, send().status)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

type countedBody struct {
	io.Reader
	n int
}

func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// A form that comes after the session's end says so, and the sign-in leads back to where it was; what was done before
// isn't said again where something went wrong.
func TestFormsOfStrangers(t *testing.T) {
	h := openHouse(t)
	b := h.browser()
	r, err := http.NewRequest(http.MethodPost, h.url+demo+"/settings", strings.NewReader("name=x"))
	require.NoError(t, err)
	for from, back := range map[string]string{h.url + demo + "/settings?x=1": signInPath + "?next=" + url.QueryEscape(demo+"/settings?x=1"), "http://elsewhere.example/console/": signInPath, "": signInPath} {
		r.Header.Set("Referer", from)
		r.Body, err = r.GetBody()
		require.NoError(t, err)
		answer, err := b.Do(r)
		require.NoError(t, err)
		p := b.read(answer)
		require.Equal(t, 401, p.status)
		require.Contains(t, p.text, "your session has ended. Nothing was done.")
		require.Contains(t, p.text, `<a href="`+html.EscapeString(back)+`">Sign in</a>`)
	}
	s := h.signedIn()
	require.NotContains(t, s.get(demo+"/centers/nothing?done=center-added").text, "added as a draft")
	require.NotContains(t, s.post(demo+"/users/nobody/delete").text, `class="problem"`, "once is enough")
}

// What the code of the pages adds: a double click sends a form once, what was done is not said again, and a page whose
// figures can't be fetched says so.
func TestBrowserForms(t *testing.T) {
	b := openBrowser(t)
	h := openHouse(t)
	b.open(h.url + "/")
	b.fill(`input[name=token]`, adminToken)
	b.submit("button")
	require.Equal(t, "false true", run(b, chromedp.Evaluate[string](`[1, 2].map(() => {
		const sent = new SubmitEvent("submit", { bubbles: true, cancelable: true });
		document.querySelector("form[method=post]").dispatchEvent(sent);
		return sent.defaultPrevented;
	}).join(" ")`)))
	b.open(h.url + demo + "/settings?done=settings")
	require.Equal(t, "Settings saved.", b.text(".done"))
	require.Equal(t, h.url+demo+"/settings", run(b, chromedp.Location()))

	b.open(h.url + demo + "/live?by=phone&value=abc")
	b.await("#stream-state", "phone must be in E.164 format")
	b.open(h.url + demo + "/live")
	b.await("#stream-state", "Watching.")
	_, err := h.control.EndSessions(control.Actor{Name: "SCIM token"}, "admin token")
	require.NoError(t, err)
	b.await("#stream-state", "You are signed out.")

	b.open(h.url + "/")
	b.fill(`input[name=token]`, adminToken)
	b.submit("button")
	look := func() { run(b, chromedp.Evaluate[any](`document.dispatchEvent(new Event("visibilitychange"))`)) }
	look()
	_, err = h.control.EndSessions(control.Actor{Name: "SCIM token"}, "admin token")
	require.NoError(t, err)
	require.Eventually(t, func() bool { look(); return strings.Contains(b.text("main"), "Not updated since") }, time.Minute, 20*time.Millisecond)
	require.Contains(t, b.text(".problem"), "You are signed out.")
}
