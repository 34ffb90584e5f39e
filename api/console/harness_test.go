package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"

	"millrace/api"
	"millrace/api/admin"
	"millrace/api/census"
	"millrace/api/console/signin"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/live"
	"millrace/api/openapi"
	"millrace/api/refused"
	"millrace/api/scim"
	"millrace/api/store"
	"millrace/ingest"
	"millrace/ingest/field"
	"millrace/loadtest/testlog"
	"millrace/shard"
	"millrace/shard/op"
)

const (
	adminToken = "the-admin-token-of-the-tests"
	demoKey    = "demo-key"
	demoYAML   = `
workspaces:
  - id: demo
    name: Demo shop
    apps: [{id: web, name: Web}]
    api_keys: [{name: server, key: demo-key, permissions: ["*"]}]
    subscription_groups: [{id: 11111111-2222-3333-4444-555555555555, name: News, channel: email}]
    preference_centers: [{id: choose, name: choose, preference_center_title: Choose, preference_center_page_html: "<p>Hello <b>you</b></p>", confirmation_page_html: "<p>Saved</p>"}]
  - id: other
    name: Other
`
	newsGroup = "11111111-2222-3333-4444-555555555555"
)

// house is a whole server with a console: engine, door, control data, console, each real.
type house struct {
	t       testing.TB
	control *control.Control
	live    *live.Hub
	engine  *shard.Coordinator
	api     *api.Server
	admin   *admin.Server
	console *Console
	users   *scim.Users
	now     atomic.Int64 // Unix ms
	url     string
	public  string // address of the public API
	client  *http.Client
	log     testlog.Buffer
	counts  string // what the admin API says that the event log has counted; empty: it has none
}

// openHouse starts one, on loopback.
func openHouse(t testing.TB, edit ...func(*Options)) *house {
	h := &house{t: t}
	h.now.Store(time.Now().UnixMilli())
	logger := slog.New(slog.NewTextHandler(&h.log, nil))
	h.live = live.NewHub(live.Options{})
	t.Cleanup(h.live.Close)
	h.control = control.New(control.Options{Now: h.now.Load, Logger: logger, Prepare: prepare})
	engine, err := shard.Open(shard.Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, StoreCacheBytes: 8 << 20, StoreMemTableBytes: 1 << 20,
		OnDocument: h.control.Apply, Tap: h.live, Logger: logger})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	h.engine = engine
	h.control.Start(store.Control(engine))
	h.bootstrap(demoYAML)
	h.openAPI(store.Engine(engine), logger)
	h.users = scim.NewUsers(h.control, h.now.Load)
	options := Options{API: h.admin.API(), As: admin.As, Document: openapi.Page, Permissions: api.Permissions(),
		Options: signin.Options{Control: h.control, AdminToken: adminToken, Now: h.now.Load, Logger: logger},
		Hold:    func(b io.ReadCloser) Held { return h.api.Hold(b) }, Figures: func(dst []byte) []byte {
			b := bytes.NewBuffer(dst)
			metrics.WritePrometheus(b, true)
			return b.Bytes()
		}}
	server := httptest.NewUnstartedServer(nil)
	h.url = "http://" + server.Listener.Addr().String()
	options.Provider.URL = h.url
	for _, e := range edit {
		e(&options)
	}
	h.console, err = New(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.console.Close()) })
	server.Config.Handler = h.admin.HTTPServer(h.console).Handler
	server.Start()
	t.Cleanup(server.Close)
	return h
}

func (h *house) bootstrap(text string) {
	file, err := document.ParseBootstrap([]byte(text))
	require.NoError(h.t, err)
	_, err = h.control.Bootstrap(h.t.Context(), control.Actor{Name: "bootstrap file"}, file)
	require.NoError(h.t, err)
}

// openAPI serves the public API on a port of its own.
func (h *house) openAPI(engine store.Store, logger *slog.Logger) {
	decoders := ingest.NewPool(ingest.Options{})
	kept, err := refused.Open(refused.Options{Dir: filepath.Join(h.t.TempDir(), "refused"), Logger: logger})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, kept.Close()) })
	counter, err := census.New(census.Options{Store: h.engine, Share: 1, Logger: logger})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, counter.Close()) })
	h.api, err = api.New(api.Options{Store: engine, Control: h.control, Logger: logger, AppendPhoneKey: field.NewPhones(0).Parse,
		Refused: kept, Rules: ingest.Rules(),
		Track: func(dst, body []byte, ws *control.Workspace, limits api.Limits, batch store.Batch, nowMillis int64, note func(api.Fault)) ([]byte, int) {
			decoder := decoders.Get()
			defer decoders.Put(decoder)
			b := batch.(*shard.Batch)
			b.SetSource(op.SourceTrack)
			return decoder.TrackWithin(ingest.Limits(limits), dst, body, ws.Prepared().(*ingest.Workspace), &b.Builder, b, nowMillis, func(f ingest.Fault) {
				if note != nil {
					note(api.Fault(f))
				}
			})
		}})
	require.NoError(h.t, err)
	h.admin = admin.New(admin.Options{Public: h.api, Token: adminToken, Live: h.live, Census: counter,
		Handlers: map[string]http.HandlerFunc{"GET /admin/events/counts": h.serveCounts,
			"GET /admin/workspaces/{workspace}/streams/{id}/status": serveStreamStatus}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(h.t, err)
	h.public, h.client = ln.Addr().String(), &http.Client{Transport: &http.Transport{}}
	served := make(chan error, 1)
	go func() { served <- h.api.Serve(ln) }()
	h.t.Cleanup(func() {
		h.client.CloseIdleConnections()
		require.NoError(h.t, h.api.Shutdown(context.Background()))
		require.NoError(h.t, <-served)
	})
}

// serveCounts stands for the event log.
func (h *house) serveCounts(w http.ResponseWriter, r *http.Request) {
	if h.counts == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, h.counts)
}

// prepare is what the decoder has to know of a workspace.
func prepare(w *control.Workspace) any {
	prepared := &ingest.Workspace{ID: w.Number, Blocked: w.Blocked, Groups: map[[16]byte]byte{}, Apps: map[string]struct{}{}}
	for id := range w.Apps {
		prepared.Apps[id] = struct{}{}
	}
	for id := range w.Groups {
		raw, _ := field.UUID([]byte(id))
		prepared.Groups[raw] = op.ChannelEmail
	}
	return prepared
}

// track sends objects to the public API; none may be refused.
func (h *house) track(body string) {
	h.t.Helper()
	require.NotContains(h.t, h.call(http.MethodPost, "/users/track", body), `"errors"`)
}

// call makes a request of the public API, which succeeds.
func (h *house) call(method, path, body string) string {
	h.t.Helper()
	r, err := http.NewRequest(method, "http://"+h.public+path, strings.NewReader(body))
	require.NoError(h.t, err)
	r.Header.Set("Authorization", "Bearer "+demoKey)
	r.Header.Set("Content-Type", "application/json")
	answer, err := h.client.Do(r)
	require.NoError(h.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(h.t, err)
	require.Equal(h.t, 201, answer.StatusCode, string(text))
	return string(text)
}

// provision makes a dashboard user, as an identity provider does.
func (h *house) provision(userName, permissions string) (id string) {
	h.t.Helper()
	body := fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"userName":%q,"name":{"givenName":"Ada","familyName":"Lovelace"},"department":"bi","permissions":%s}`,
		userName, permissions)
	_, err := h.users.Create(scim.Sent{By: control.Actor{Name: "SCIM token"}, Body: []byte(body)})
	require.NoError(h.t, err)
	user, _ := h.users.Named(userName)
	return user.ID
}

// browser is a client with cookies, as a person has one.
type browser struct {
	*http.Client
	h *house
}

// page is an answer.
type page struct {
	status int
	header http.Header
	text   string
	path   string // where it was found, after redirects
}

func (h *house) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(h.t, err)
	return &browser{&http.Client{Jar: &looseJar{jar}}, h}
}

// looseJar takes Secure cookies over http on loopback, as browsers do.
type looseJar struct{ http.CookieJar }

func (j *looseJar) Cookies(u *url.URL) []*http.Cookie {
	secure := *u
	secure.Scheme = "https"
	return j.CookieJar.Cookies(&secure)
}

// signedIn is a browser in which the admin token has signed in.
func (h *house) signedIn() *browser {
	h.t.Helper()
	b := h.browser()
	b.get(signInPath)
	p := b.post(signInPath, "token", adminToken)
	require.Equal(h.t, 200, p.status, p.text)
	require.Equal(h.t, home, p.path)
	return b
}

// signedInAs is a browser in which a dashboard user is signed in, without the identity provider.
func (h *house) signedInAs(userName string) *browser {
	h.t.Helper()
	user, _ := h.users.Named(userName)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, h.url, nil)
	require.NoError(h.t, h.console.sessions.Begin(w, r, user))
	b := h.browser()
	u, err := url.Parse(h.url)
	require.NoError(h.t, err)
	u.Scheme = "https"
	b.Jar.SetCookies(u, w.Result().Cookies())
	return b
}

// request is a request as the browser sends it.
func (b *browser) request(method, path string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, b.h.url+path, body)
	r.RemoteAddr = "127.0.0.1:1"
	for _, c := range b.Jar.Cookies(r.URL) {
		r.AddCookie(c)
	}
	return r
}

func (b *browser) get(path string) page {
	b.h.t.Helper()
	answer, err := b.Get(b.h.url + path)
	require.NoError(b.h.t, err)
	return b.read(answer)
}

// post sends a form as a page of the session has it.
func (b *browser) post(path string, fields ...string) page {
	b.h.t.Helper()
	return b.send(path, append([]string{"form", b.token()}, fields...)...)
}

// send sends these fields alone.
func (b *browser) send(path string, fields ...string) page {
	b.h.t.Helper()
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	answer, err := b.PostForm(b.h.url+path, form)
	require.NoError(b.h.t, err)
	return b.read(answer)
}

func (b *browser) read(answer *http.Response) page {
	b.h.t.Helper()
	defer answer.Body.Close()
	if answer.Header.Get("Content-Type") == "text/event-stream" { // which doesn't end by itself
		return page{status: answer.StatusCode, header: answer.Header}
	}
	text, err := io.ReadAll(answer.Body)
	require.NoError(b.h.t, err)
	return page{answer.StatusCode, answer.Header, string(text), answer.Request.URL.RequestURI()}
}

var formField = regexp.MustCompile(`name="form" value="([0-9a-f]{64})"`)

// token is what the forms of this browser carry: the account's page has one, and so has the sign-in.
func (b *browser) token() string {
	b.h.t.Helper()
	m := formField.FindStringSubmatch(b.get("/console/account").text)
	require.NotNil(b.h.t, m)
	return m[1]
}
