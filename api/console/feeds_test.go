package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"millrace/api/live"
)

// refuse sends objects to the public API that are refused.
func (h *house) refuse(body string) {
	h.t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+h.public+"/users/track", strings.NewReader(body))
	require.NoError(h.t, err)
	r.Header.Set("Authorization", "Bearer "+demoKey)
	r.Header.Set("Content-Type", "application/json")
	answer, err := h.client.Do(r)
	require.NoError(h.t, err)
	require.NoError(h.t, answer.Body.Close())
	require.Equal(h.t, 400, answer.StatusCode)
}

var entryLink = regexp.MustCompile(`/console/w/demo/refused/(\d+)`)

func TestRefusedPages(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	empty := b.get(demo + "/refused").text
	require.Contains(t, empty, "Nothing has been refused.")
	require.NotContains(t, empty, "No matching objects", "once is enough")
	h.refuse(`{"events":[{"external_id":"ada","name":"signed_up"},{"external_id":"bob","name":"signed_up"}]}`)
	h.refuse(`{"attributes":[{"x":1}]}`)
	h.refuse(`{"attributes":[`)
	p := b.get(demo + "/refused")
	for _, text := range []string{"&#39;time&#39; is required", "no-identifier", "the request", "events[1]", "Correct…"} {
		require.Contains(t, p.text, text)
	}
	p = b.get(demo + "/refused?rule=nope")
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "is unknown; there are")
	require.Contains(t, p.text, `name="rule" value="nope"`, "so that it can be put right")
	require.Contains(t, p.text, "No matching objects.")
	p = b.get(demo + "/refused?rule=required")
	require.NotContains(t, p.text, "the request")
	require.Contains(t, p.text, "Send all “required” again")
	entry := demo + "/refused/" + entryLink.FindAllStringSubmatch(p.text, -1)[1][1]
	p = b.get(entry)
	require.Contains(t, p.text, `{&#34;external_id&#34;:&#34;ada&#34;,&#34;name&#34;:&#34;signed_up&#34;}`)

	p = b.post(entry+"/send", "object", `{"external_id":"ada"`)
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "The object is not valid JSON.")
	p = b.post(entry+"/send", "object", `{"external_id":"ada","name":"mended"}`)
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "Refused again: &#39;time&#39; is required.")
	require.Contains(t, p.text, "mended", "nobody has to write it again")
	p = b.post(entry+"/send", "object", `{"external_id":"ada","name":"mended","time":"2026-01-31T09:30:00Z"}`)
	require.Equal(t, demo+"/refused?done=sent-again", p.path)
	require.Contains(t, p.text, "Object accepted.")
	require.Equal(t, 404, b.get(entry).status)
	require.Contains(t, h.call(http.MethodPost, "/users/export/ids", `{"external_ids":["ada"]}`), `"mended"`)

	require.Contains(t, b.post(demo+"/refused/send", "rule", "required").text, "Accepted: 0. Refused again: 1. Not sent, because the object is not kept: 0.")
	require.Equal(t, 400, b.post(demo+"/refused/send").status)
	whole := entryLink.FindStringSubmatch(b.get(demo + "/refused?input_array=request").text)[0]
	require.Contains(t, b.post(whole+"/remove").text, "Removed from the list.")
	require.NotContains(t, b.get(demo+"/refused").text, "the request</code>")
}

func TestRefusedPagesAreHarmless(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	for _, text := range hostile() {
		body, err := json.Marshal(map[string]any{"events": []any{map[string]any{"external_id": text, "name": text, "properties": map[string]any{"$" + text: text}, "time": "2026-01-31T09:30:00Z"}}})
		require.NoError(t, err)
		h.refuse(string(body))
	}
	pages := 0
	for at := demo + "/refused"; at != ""; pages++ {
		p := b.get(at)
		requireHarmless(t, p.text, at)
		for _, m := range entryLink.FindAllString(p.text, 5) {
			requireHarmless(t, b.get(m).text, m)
		}
		at = ""
		if m := regexp.MustCompile(`href="([^"]*before=[^"]*)"`).FindStringSubmatch(p.text); m != nil {
			at = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	require.Equal(t, (len(hostile())+49)/50, pages)
	for _, query := range []string{"/refused?rule=%22%3E%3Cscript%3EHOSTILE", "/live?name=%22%3E%3Cscript%3EHOSTILE&value=%22%20onfocus%3DHOSTILE&by=%3Cscript%3EHOSTILE&kind=HOSTILE%22%3E"} {
		p := b.get(demo + query)
		require.Less(t, p.status, 500)
		requireHarmless(t, p.text, query)
	}
}

// stream watches as the page does, until the connection ends.
func (b *browser) stream(query string) (lines *bufio.Scanner) {
	b.h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.h.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.h.url+demo+"/live/stream?"+query, nil)
	require.NoError(b.h.t, err)
	answer, err := b.Do(r)
	require.NoError(b.h.t, err)
	b.h.t.Cleanup(func() { answer.Body.Close() })
	require.Equal(b.h.t, 200, answer.StatusCode)
	require.Equal(b.h.t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines = bufio.NewScanner(answer.Body)
	require.True(b.h.t, lines.Scan())
	require.Equal(b.h.t, "event: watching", lines.Text())
	return lines
}

// Who watches sees what is applied, in this workspace alone, and no longer than the session is good.
func TestLiveStream(t *testing.T) {
	h := openHouse(t)
	h.provision("ada@example.com", `{"companyPermissions":[],"appGroup":[{"appGroupId":"demo","appGroupPermissions":["view_user_profile","view_pii"],"team":[]}]}`)
	b := h.signedInAs("ada@example.com")
	require.Contains(t, b.get(demo+"/live").text, `data-stream="/console/w/demo/live/stream?`)
	require.Equal(t, 400, b.get(demo+"/live/stream?by=x&value=y").status)
	lines := b.stream(url.Values{"by": {"external_id"}, "value": {"ada"}, "workspace": {"other"}}.Encode())
	h.track(`{"attributes":[{"external_id":"bob","plan":"free"},{"external_id":"ada","plan":"pro"}]}`)
	for lines.Scan() && !strings.Contains(lines.Text(), `"external_id"`) {
	}
	require.Contains(t, lines.Text(), `"external_id":"ada"`)
	require.Contains(t, lines.Text(), `"attributes":{"plan":"pro"}`)
	b.post("/console/sign-out")
	for lines.Scan() {
	}
	require.NoError(t, lines.Err(), "the server ends it")
}

// A page that is open doesn't keep its session, also when it comes back for the stream.
// One person can't take the places of all, and has one again when a window is closed.
func TestOnePersonWatchesInAFewWindows(t *testing.T) {
	h := openHouse(t)
	h.provision("ada@example.com", everything)
	h.provision("eve@example.com", everything)
	ada, eve := h.signedInAs("ada@example.com"), h.signedInAs("eve@example.com")
	watch := func(b *browser) (close func(), status int) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", h.url+demo+"/live/stream", nil)
		require.NoError(t, err)
		answer, err := b.Do(r)
		require.NoError(t, err)
		return func() { cancel(); answer.Body.Close() }, answer.StatusCode
	}
	for range 7 {
		_, status := watch(ada)
		require.Equal(t, 200, status)
	}
	last, status := watch(ada)
	require.Equal(t, 200, status)
	_, status = watch(ada)
	require.Equal(t, 429, status)
	_, status = watch(eve)
	require.Equal(t, 200, status)
	_, err := h.live.Watch(live.Filter{}) // the admin token's
	require.NoError(t, err)
	last()
	for status = 429; status == 429; {
		_, status = watch(ada)
	}
	require.Equal(t, 200, status)
}

func TestLiveStreamKeepsNoSession(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	h.now.Add((25 * time.Minute).Milliseconds())
	require.Equal(t, 200, b.get(demo+"/live/stream").status)
	h.now.Add((6 * time.Minute).Milliseconds())
	require.Equal(t, signInPath+"?next=%2Fconsole%2Faccount", b.get("/console/account").path)
}

// A person sees an event come in, finds one that was refused, mends it, and sees it come in, too.
func TestFeedsInABrowser(t *testing.T) {
	b := openBrowser(t)
	h := openHouse(t)
	b.emulate("light", 1280)
	b.open(h.url + "/")
	b.fill(`input[name=token]`, adminToken)
	b.submit("button")
	b.open(h.url + demo + "/live")
	b.await("#stream-state", "Watching.")
	h.track(`{"attributes":[{"external_id":"ada","first_name":"<b>Ada</b>"}],"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-31T09:30:00Z","properties":{"plan":"pro"}}],
		"purchases":[{"external_id":"ada","product_id":"book","currency":"EUR","price":9.5,"quantity":2,"time":"2026-01-31T09:30:00Z"}]}`)
	b.await("#stream", "signed_up")
	b.await("#stream", "<b>Ada</b>")
	b.await("#stream", "book")
	b.pictures("live")
	h.refuse(`{"events":[{"external_id":"ada","name":"left"}]}`)
	b.open(h.url + demo + "/refused")
	b.pictures("refused")
	b.submit(".act a")
	require.Contains(t, b.text("main"), "'time' is required")
	b.pictures("refusal")
	b.submit("main button[form=send]")
	require.Contains(t, b.text(".problem"), "Refused again")
	run(b, chromedp.Evaluate[any](`document.querySelector("textarea").value = '{"external_id":"ada","name":"left","time":"2026-01-31T09:30:00Z"}'`))
	b.submit("main button[form=send]")
	require.Contains(t, b.text(".done"), "Object accepted.")
	require.Contains(t, h.call(http.MethodPost, "/users/export/ids", `{"external_ids":["ada"]}`), `"left"`)
}

// await waits until an element has this text.
func (b tab) await(selector, text string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return strings.Contains(b.text(selector), text) }, time.Minute, 20*time.Millisecond, "%s: %s", selector, text)
}

// The page says which nodes' entries are missing in its list or in its counts.
func TestRefusedOfNodesThatDoNotAnswer(t *testing.T) {
	h := openHouse(t, func(o *Options) {
		api := o.API
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/refused"):
				fmt.Fprint(w, `{"refused":[],"missing_nodes":[3]}`)
			case strings.HasSuffix(r.URL.Path, "/refused/counts"):
				fmt.Fprint(w, `{"counts":[],"missing_nodes":[2,3]}`)
			default:
				api.ServeHTTP(w, r)
			}
		})
	})
	require.Contains(t, h.signedIn().get(demo+"/refused").text, "No answer from node 2, 3: what was refused there is missing here.")
	require.NotContains(t, openHouse(t).signedIn().get(demo+"/refused").text, "No answer")
}
