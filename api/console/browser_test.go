package console

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"millrace/api/console/figures"
	"millrace/api/control"
	"millrace/loadtest/testbrowser"
)

// tab is a tab of a headless Chromium.
type tab struct {
	t   testing.TB
	ctx context.Context
}

// openBrowser starts one, or skips the test where there is none. MILLRACE_SCREENSHOTS names a folder for pictures.
func openBrowser(t *testing.T, flags ...string) tab {
	return tab{t, testbrowser.Open(t, 1280, 900, flags...)}
}

func run[T any](b tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err)
	return v
}

func (b tab) open(url string) { b.t.Helper(); run(b, chromedp.Navigate(url)) }

func (b tab) fill(selector, text string) {
	b.t.Helper()
	run(b, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// submit clicks, and waits for the page that comes of it.
func (b tab) submit(selector string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector)))
	require.NoError(b.t, err)
}

// text waits for an element and reads it in one step: pages replace what they show.
func (b tab) text(selector string) string {
	b.t.Helper()
	script := fmt.Sprintf(`document.querySelector(%q)?.textContent`, selector)
	for {
		if text := run(b, chromedp.Evaluate[*string](script)); text != nil {
			return strings.TrimSpace(*text)
		}
		run(b, chromedp.Sleep(20*time.Millisecond))
	}
}

func (b tab) shoot(name string) {
	if dir := os.Getenv("MILLRACE_SCREENSHOTS"); dir != "" {
		run(b, chromedp.Sleep(300*time.Millisecond)) // frames come late
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), run(b, chromedp.FullScreenshot(100)), 0o644))
	}
}

// emulate sets the colour scheme and the width of the window.
func (b tab) emulate(scheme string, width int64) {
	b.t.Helper()
	run(b, chromedp.EmulateViewport(width, 900))
	run(b, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
}

// pictures takes pictures of a page: light, dark, narrow.
func (b tab) pictures(name string) {
	if os.Getenv("MILLRACE_SCREENSHOTS") == "" {
		return
	}
	b.shoot(name + "-light")
	b.emulate("dark", 1280)
	b.shoot(name + "-dark")
	b.emulate("light", 420)
	b.shoot(name + "-narrow")
	b.emulate("light", 1280)
}

// pretend has the overview show an hour of traffic.
func (h *house) pretend() {
	h.console.samples = figures.Ring{}
	accepted, refused := 0.0, 0.0
	buckets := [4]float64{} // of these nobody is in the last
	for i := range figures.MaxSamples {
		x := float64(i) / float64(figures.MaxSamples)
		accepted += 10 * (900 + 500*math.Sin(9*x) + 60*math.Sin(140*x))
		refused += 10 * max(0, 40*math.Sin(5*x))
		for j, n := range []float64{400, 60, 4 + 10*max(0, math.Sin(12*x))} {
			buckets[j] += n
		}
		text := fmt.Sprintf("millrace_objects_total{workspace=\"demo\",result=\"accepted\"} %f\nmillrace_objects_total{workspace=\"demo\",result=\"refused\"} %f\n", accepted, refused)
		total := 0.0
		for j, seconds := range []string{"0.0016", "0.0064", "0.0128", "+Inf"} {
			total += buckets[j]
			text += fmt.Sprintf("millrace_http_request_seconds_bucket{route=\"/users/track\",le=%q} %f\n", seconds, total)
		}
		text += "millrace_ready 1\nmillrace_entries 1204311\nmillrace_log_bytes 734003200\nmillrace_eventlog_bytes 9234003200\nprocess_resident_memory_bytes 1834003200\nmillrace_inflight_bytes 90112\n"
		at := h.now.Load() - int64(figures.MaxSamples-1-i)*figures.Interval.Milliseconds()
		h.console.samples.Add(figures.Read(at, []byte(text)))
	}
}

// pretendMonth has it show a month of events.
func (h *house) pretendMonth() {
	var hours []string
	for d := range monthDays {
		at := time.UnixMilli(h.now.Load()).UTC().Add(-time.Duration(d) * day).Format(time.RFC3339)
		events := 80_000 + 30_000*math.Sin(float64(d)/1.1) + 1000*float64(30-d)
		hours = append(hours, fmt.Sprintf(`{"workspace":"demo","type":"event","hour":%q,"count":%.0f},{"workspace":"demo","type":"purchase","hour":%q,"count":%.0f}`, at, events, at, events/9))
	}
	h.counts = `{"hours":[` + strings.Join(hours, ",") + `],"names":[{"workspace":"demo","type":"event","name":"page_viewed","count":1904331},{"workspace":"demo","type":"event","name":"signed_up","count":30441},
		{"workspace":"demo","type":"event","name":"","count":9312},{"workspace":"demo","type":"purchase","name":"book","count":240112},{"workspace":"demo","type":"purchase","name":"a-product-whose-name-is-rather-long-and-has-no-spaces","count":1240}]}`
}

// The way of a person, as he goes it: what is shown, what is clicked, what comes of it.
func TestBrowser(t *testing.T) {
	b := openBrowser(t)
	h := openHouse(t)
	h.pretend()
	h.pretendMonth()
	b.emulate("light", 1280)
	b.open(h.url + "/")
	require.Equal(t, "Sign in · Millrace", run(b, chromedp.Title()))
	b.pictures("sign-in")
	b.fill(`input[name=token]`, "wrong")
	b.submit("button")
	require.Contains(t, b.text(".problem"), "That is not the admin token")
	b.fill(`input[name=token]`, adminToken)
	b.submit("button")
	require.Equal(t, h.url+home, run(b, chromedp.Location()))
	require.Equal(t, "Overview · Millrace", run(b, chromedp.Title()))
	b.pictures("overview")
	b.open(h.url + "/console/account")
	b.pictures("account")
	b.open(h.url + "/console/w/nowhere/users")
	b.pictures("fault")
	h.furnish()
	b.open(h.url + demo + "/consent")
	b.pictures("uncounted")
	b.submit("#counts button")
	run(b, chromedp.WaitVisible(chromedp.CSS("#counts svg.shares"))) // which comes by itself
	for name, path := range map[string]string{"users": "w/demo/users", "found": "w/demo/users?by=email&value=ada%40example.com", "user": "w/demo/users?by=external_id&value=ada",
		"consent": "w/demo/consent", "center": "w/demo/centers/choose", "keys": "w/demo/keys", "settings": "w/demo/settings", "streams": "w/demo/streams", "try": "w/demo/try", "campaigns": "w/demo/campaigns", "translations": "w/demo/campaigns/welcome", "company": "company", "audit": "audit",
		"cluster": "cluster", "api": "api"} {
		b.open(h.url + home + path)
		b.pictures(name)
	}
}

// furnish fills the house with what pages show: common things and long ones.
func (h *house) furnish() {
	long := strings.Repeat("a-name-that-does-not-end-", 8)
	h.bootstrap(`
workspaces:
  - id: demo
    name: Demo shop
    apps: [{id: web, name: Web}, {id: ` + long + `, name: ` + long + `}]
    api_keys: [{name: reader, permissions: [users.export.ids, email.status]}, {name: ` + long + `, permissions: [users.track], ip_allowlist: [10.0.0.0/8]}]
    subscription_groups: [{id: 22222222-2222-3333-4444-555555555555, name: ` + long + `, channel: sms}]
`)
	h.bootstrap(streamsYAML)
	h.track(`{"attributes":[{"external_id":"ada","first_name":"Ada","last_name":"Lovelace","dob":"1815-12-10","email":"ada@example.com","phone":"+14155552671","country":"GB","home_city":"London","plan":"pro","score":7,
		"tags":["a","b"],"home":{"city":"London","floors":3},"` + long + `":"` + long + `"},{"external_id":"` + long + `","email":"ada@example.com"}],
		"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-31T09:30:00Z","app_id":"web"},{"external_id":"ada","name":"read","time":"2026-02-01T09:30:00Z"},{"external_id":"ada","name":"` + long + `","time":"2026-02-01T09:30:00Z"}],
		"purchases":[{"external_id":"ada","product_id":"book","currency":"EUR","price":12.5,"quantity":2,"time":"2026-10-22T09:30:00Z","app_id":"web"}]}`)
	h.provision("ada@example.com", everything)
	h.provision("someone-with-a-long-name@department.of.a.large.company.example.com", inDemo("view_user_profile"))
}

// The whole way of somebody whom the identity provider signs in: in, find a user, change a consent, see the trail, make
// a key and revoke it, be deprovisioned, be out. Nothing that the pages load is held back by their policy.
func TestBrowserSignsIn(t *testing.T) {
	b := openBrowser(t)
	h := openProvider(t)
	id := h.provision("ada@example.com", everything)
	h.track(`{"attributes":[{"external_id":"bob","first_name":"Bob","email":"bob@example.com","country":"GB","home_city":"London","plan":"pro","score":7,"tags":["early","reader"]}],
		"events":[{"external_id":"bob","name":"signed_up","time":"2026-01-31T09:30:00Z"},{"external_id":"bob","name":"book_read","time":"2026-11-02T19:30:00Z"}],
		"purchases":[{"external_id":"bob","product_id":"book","currency":"EUR","price":12.5,"quantity":2,"time":"2026-10-22T09:30:00Z"}]}`)
	b.emulate("light", 1280)
	b.open(h.url + demo + "/users")
	require.Contains(t, run(b, chromedp.Location()), signInPath)
	b.submit(".button")
	b.fill("#username", "ada")
	b.fill("#password", "verysecure")
	b.submit("button")
	run(b, chromedp.WaitVisible(chromedp.CSS(".find"))) // the page in between has led on, and the session came along
	require.Equal(t, h.url+demo+"/users", run(b, chromedp.Location()))
	require.Equal(t, "Ada Lovelace", b.text(".bar .menu summary"))
	require.False(t, run(b, chromedp.Evaluate[bool](`getComputedStyle(document.querySelector(".find .label")).display != "none"`)), "style and code are there")

	b.fill("input[name=value]", "bob")
	b.submit(".find button")
	require.Equal(t, "Bob", b.text("h1"))
	run(b, chromedp.SetValue(chromedp.CSS("select[name=email_subscribe]"), "unsubscribed"))
	b.submit("form[action$=consent] button")
	require.Equal(t, "Consent saved.", b.text(".done"))
	require.Contains(t, b.text("main"), "email subscribe unsubscribed")
	b.shoot("user-consent")

	b.open(h.url + demo + "/keys")
	run(b, chromedp.Click(chromedp.CSS("details.more summary")))
	b.fill("details.more input[name=name]", "backend")
	run(b, chromedp.Click(chromedp.CSS("input[value='users.track']")))
	b.submit("details.more button")
	require.Contains(t, b.text("#secret"), "millrace_live_")
	require.Equal(t, "Copy", b.text("button[data-copy]"))
	b.open(h.url + demo + "/keys")
	run(b, chromedp.Click(chromedp.CSS("tbody tr:nth-child(1) .confirm summary")))
	b.submit("tbody tr:nth-child(1) .danger")
	require.Contains(t, b.text(".done"), "Key revoked")

	b.open(h.url + demo + "/centers/choose")
	require.True(t, run(b, chromedp.Evaluate[bool](`document.querySelector("iframe").contentDocument === null`)), "the customer's HTML has an origin of its own")

	h.now.Add(1000)
	require.NoError(t, h.users.Delete(control.Actor{Name: "SCIM token"}, id, ""))
	b.open(h.url + home)
	require.Contains(t, run(b, chromedp.Location()), signInPath)
}
