package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/live"
)

const demoYAML = `
company:
  scim: {token: demo-scim-token-0123456789, request_origin: "https://idp.example.com"}
workspaces:
  - id: demo
    name: Demo
    multi_language: true
    locales: [{name: es-MX, country: MX, language: es}, {name: de}]
    campaigns: &campaigns
      - id: c1
        messages:
          - &m1
            id: m1
            channel: email
            multi_language: true
            source: {id_0: Hello, id_1: "Good \"bye\""}
            translations:
              - {locale: {name: es-MX, country: MX, language: es}, translation_map: {id_1: Adiós, id_0: Hola}}
              - {locale: {name: fr, country: "", language: French}, translation_map: {id_0: Bonjour, id_1: Adieu}}
          - {id: m2, channel: email, multi_language: true, translations: [{locale: {name: fr}, translation_map: {x: Un}}]}
          - &mono {id: m3, channel: email}
          - &sms {id: m4, channel: sms, multi_language: true}
      - {id: c2, messages: [{id: m5, channel: sms}, {id: m6, channel: email}, {id: m8, channel: push}]}
      - {id: c3, messages: [{id: m7, channel: push}]}
      - {id: c4, messages: []}
    canvases: &canvases
      - id: w1
        steps:
          - {id: s1, messages: [{<<: *m1, id: n1}, {<<: *mono, id: n3}, {<<: *sms, id: n4}]}
          - {id: s2, messages: [{<<: *m1, id: n2}]}
    apps: [{id: 11ae5b4b-2445-4440-a04f-bf537764c9ad, name: iOS}]
    api_keys:
      - {name: all, key: demo-all-key-0123456789, permissions: ["*"]}
      - {name: track, key: demo-track-key-0123456789, permissions: [users.track]}
      - {name: none, key: demo-none-key-0123456789, permissions: []}
      - {name: elsewhere, key: demo-elsewhere-key-0123456789, permissions: ["*"], ip_allowlist: [10.0.0.0/8]}
    subscription_groups:
      - {id: 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55, name: News, channel: email}
      - {id: 7b1d0f6e-3c52-4a8e-9d57-2f6f0b9a4c11, name: Alerts, channel: sms}
      - {id: c0ffee00-1d2e-4f3a-8b4c-5d6e7f8091a2, name: Chat, channel: whatsapp}
    preference_centers: [{id: main, preference_center_page_html: <p>Page</p>, confirmation_page_html: <p>Saved</p>}]
  - id: other
    multi_language: true
    campaigns: *campaigns
    canvases: *canvases
    api_keys:
      - {name: all, key: other-all-key-0123456789, permissions: ["*"]}
    subscription_groups:
      - {id: 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55, name: News, channel: email}
      - {id: 7b1d0f6e-3c52-4a8e-9d57-2f6f0b9a4c11, name: Alerts, channel: sms}
      - {id: c0ffee00-1d2e-4f3a-8b4c-5d6e7f8091a2, name: Chat, channel: whatsapp}
    preference_centers: [{id: main, preference_center_page_html: <p>Page</p>, confirmation_page_html: <p>Saved</p>}]
`

const (
	demoKey  = "demo-all-key-0123456789"
	trackKey = "demo-track-key-0123456789" // of the same workspace
	otherKey = "other-all-key-0123456789"

	// Subscription groups of both workspaces.
	newsGroup   = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55" // email
	alertsGroup = "7b1d0f6e-3c52-4a8e-9d57-2f6f0b9a4c11" // sms
	chatGroup   = "c0ffee00-1d2e-4f3a-8b4c-5d6e7f8091a2" // whatsapp

	scimToken  = "demo-scim-token-0123456789"
	scimOrigin = "https://idp.example.com"
)

// door is a running Server with its parts.
type door struct {
	*Server
	store   *memoryStore
	control *control.Control
	live    *live.Hub
	addr    string
	log     *bytes.Buffer
	t       testing.TB
	others  []*door // of the other nodes: a request goes to any
	end     func()

	operator OperatorOptions
}

// any is one of the nodes.
func (d *door) any() *door {
	if n := rand.IntN(1 + len(d.others)); n > 0 {
		return d.others[n-1]
	}
	return d
}

// pin sends all requests to one node from now on.
func (d *door) pin() { d.others = nil }

// open starts a Server on a real socket.
func open(t testing.TB, change func(*Options)) *door {
	d := &door{log: new(bytes.Buffer), t: t, operator: OperatorOptions{Token: "admin-token"}}
	log := slog.New(slog.NewTextHandler(&lockedWriter{w: d.log}, nil))
	d.control = control.New(control.Options{Now: testClock.Load, Logger: log})
	d.store = newMemoryStore(d.control)
	d.control.Start(d.store)
	file, err := document.ParseBootstrap([]byte(demoYAML))
	require.NoError(t, err)
	_, err = d.control.Bootstrap(t.Context(), control.Actor{Name: "bootstrap file"}, file)
	require.NoError(t, err)
	options := Options{Store: d.store, Control: d.control, Track: memoryTrack, Now: testClock.Load, Logger: log, AccessLog: true,
		AppendPhoneKey: func(dst, phone []byte) ([]byte, bool) {
			return append(dst, phone...), len(phone) > 0 && phone[0] == '+'
		}}
	if change != nil {
		change(&options)
	}
	d.Server, err = New(options)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- d.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.Shutdown(ctx)
		require.NoError(t, <-served)
	})
	return d
}

type lockedWriter struct{ w io.Writer }

func (l *lockedWriter) Write(p []byte) (int, error) {
	logLock <- struct{}{}
	defer func() { <-logLock }()
	return l.w.Write(p)
}

var logLock = make(chan struct{}, 1)

// logged is what all nodes have logged.
func (d *door) logged() string {
	logLock <- struct{}{}
	defer func() { <-logLock }()
	text := d.log.String()
	for _, o := range d.others {
		text += o.log.String()
	}
	return text
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a answer) json(t testing.TB) map[string]any {
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &v), a.body)
	return v
}

// call sends a request; headers are pairs. The answer is held against the OpenAPI document. In a cluster it is sent
// again as long as nothing was done: a group may be handed over at any time.
func (d *door) call(method, path, key, body string, headers ...string) (a answer) {
	for end := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		a = d.callOnce(method, path, key, body, headers)
		if len(d.others) == 0 || a.status != 503 || !strings.Contains(a.body, "Nothing was done") || time.Now().After(end) {
			return a
		}
	}
}

func (d *door) callOnce(method, path, key, body string, headers []string) answer {
	request, err := http.NewRequest(method, "http://"+d.any().addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{err: err}
	}
	request.Host = d.addr
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.Close {
		response.Header.Set("Connection", "close") // the client has taken it out
	}
	a := answer{response.StatusCode, response.Header, string(text), err}
	if err == nil {
		d.checkDocumented(request, body, a)
		d.checkTakenBack(request, body, a)
	}
	return a
}

// client follows no redirects: they are answers.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}

func (d *door) track(key, id string, headers ...string) answer {
	return d.call("POST", "/users/track", key, fmt.Sprintf(`{"attributes":[{"external_id":%q}]}`, id), headers...)
}

func TestTrack(t *testing.T) {
	d := open(t, nil)
	a := d.track(demoKey, "u1")
	require.NoError(t, a.err)
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, `{"attributes_processed":1,"message":"success"}`, a.body)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.Equal(t, "3000", a.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "2999", a.header.Get("X-RateLimit-Remaining"))
	require.Equal(t, "1800000003", a.header.Get("X-RateLimit-Reset"))
	require.Len(t, a.header.Get("X-Request-Id"), 16)
	require.Empty(t, a.header.Get("Server"))
	require.Equal(t, int64(1), d.store.commits.Load())
}
