package control

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

// memory is a store that applies at once.
type memory struct {
	mu    sync.Mutex // held by PutDocuments, but not while before is called
	docs  map[string]string
	apply func(key string, doc []byte)
	puts  int
	audit []string
	// before, when set, is called before each record, with the documents that it will change.
	before func(changes []Change)
	// unknown: nobody is told whether the record was stored; it is not when lost is set, too.
	unknown, lost bool
}

func (m *memory) PutDocuments(actor uint32, changes []Change, audit []byte) error {
	if m.before != nil {
		m.before(changes)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		if c.Check && m.docs[c.Key] != string(c.Was) {
			return fmt.Errorf("store: %w", ErrConflict)
		}
	}
	if m.unknown && m.lost {
		return fmt.Errorf("store: %w", ErrUnknown)
	}
	m.puts++
	if len(audit) > 0 {
		m.audit = append(m.audit, string(audit))
	}
	for _, c := range changes {
		m.put(c.Key, string(c.Doc))
	}
	if m.unknown {
		return fmt.Errorf("store: %w", ErrUnknown)
	}
	return nil
}

// put is what another node has done.
func (m *memory) put(key, doc string) {
	if m.docs[key] = doc; doc == "" {
		delete(m.docs, key)
	}
	m.apply(key, []byte(doc))
}

func start(t *testing.T, docs map[string]string) (*Control, *memory, *bytes.Buffer) {
	log := new(bytes.Buffer)
	c := New(Options{Now: func() int64 { return 1_800_000_000_000 }, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Prepare: func(w *Workspace) any { return len(w.Groups) }})
	m := &memory{docs: docs, apply: c.Apply}
	for key, doc := range docs { // recovery, in any order
		c.Apply(key, []byte(doc))
	}
	c.Start(m)
	return c, m, log
}

const full = `
company:
  scim: {token: "scim-token-123", request_origin: "https://dashboard.example.com", ip_allowlist: []}
workspaces:
  - id: demo
    name: Demo
    plan: base
    multi_language: true
    rate_limits: {users.track: 3000/3s}
    blocked_external_ids: [test]
    currency: EUR
    exchange_rates: {USD: 0.92, JPY: 0.0061}
    apps: [{id: 11ae5b4b-2445-4440-a04f-bf537764c9ad, name: iOS}]
    api_keys:
      - {name: all, key: "secret-token-0123456789", permissions: ["*"], ip_allowlist: []}
      - {name: made, permissions: [users.track]}
    subscription_groups:
      - {id: 5A3CC8FF-9a0e-4e2a-8a3c-0a8a7a1f0e55, name: News, channel: email}
    preference_centers:
      - {id: main, name: Main, preference_center_title: T, preference_center_page_html: <p>, confirmation_page_html: <p>, state: active, options: {meta-viewport-content: width=device-width}}
    campaigns:
      - id: c1
        messages:
          - {id: m1, channel: email, multi_language: true, translations: [{locale: {name: es-MX, country: MX, language: es}, translation_map: {1f0c: Hola}}]}
    canvases:
      - id: w1
        steps: [{id: s1, messages: [{id: m1, channel: email, multi_language: true}]}]
`

func bootstrap(t *testing.T, c *Control, text string) []MadeKey {
	f, err := document.ParseBootstrap([]byte(text))
	require.NoError(t, err)
	made, err := c.Bootstrap(t.Context(), Actor{Name: "bootstrap file"}, f)
	require.NoError(t, err)
	return made
}

// A permission that no endpoint asks for is kept, and the log names it each time that the key is made or changed, or the
// file that has it is applied.
func TestUnknownPermissions(t *testing.T) {
	c, _, log := start(t, map[string]string{})
	c.options.Permissions = []string{"users.merge", "users.track"}
	warned := func() string {
		defer log.Reset()
		for line := range strings.Lines(log.String()) {
			if _, of, ok := strings.Cut(line, `msg="an API key has permissions that no endpoint asks for" `); ok {
				return strings.TrimSpace(of)
			}
		}
		return ""
	}
	const file = "workspaces: [{id: demo, name: Demo, api_keys: [" +
		"{name: all, key: secret-token-0123456789, permissions: ['*', users.merge]}," +
		"{name: old, key: secret-token-9876543210, permissions: [users.trak, users.track, messages.send]}]}]"
	for range 2 {
		bootstrap(t, c, file)
		require.Equal(t, `workspace=demo name=old permissions="users.trak messages.send"`, warned())
	}
	by := Actor{Name: "test"}
	k, _, err := c.CreateKey(by, "demo", document.KeySpec{Name: "k", Permissions: []string{"users.track"}})
	require.NoError(t, err)
	require.Empty(t, warned())
	k, err = c.UpdateKey(by, "demo", k.ID, func(s *document.KeySpec) error {
		s.Permissions = []string{"users.trak"}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"users.trak"}, k.Permissions)
	require.Equal(t, "workspace=demo name=k permissions=users.trak", warned())
	_, _, err = c.CreateKey(by, "demo", document.KeySpec{Name: "other", Permissions: []string{"messages.send"}})
	require.NoError(t, err)
	require.Equal(t, "workspace=demo name=other permissions=messages.send", warned())
}

func TestBootstrap(t *testing.T) {
	c, m, log := start(t, map[string]string{})
	made := bootstrap(t, c, full)
	require.Len(t, made, 1)
	require.Equal(t, "made", made[0].Name)

	w := c.Snapshot().Lookup("demo")
	require.Same(t, w, c.Snapshot().Workspace(1))
	require.Equal(t, "Demo", w.Name)
	require.True(t, w.MultiLanguage)
	require.Contains(t, w.Blocked, "test")
	require.Equal(t, document.Decimal("0.0061"), w.ExchangeRates["JPY"])
	require.Equal(t, "email", w.Groups["5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"].Channel)
	require.Equal(t, "iOS", w.Apps["11ae5b4b-2445-4440-a04f-bf537764c9ad"].Name)
	require.Equal(t, 1, w.Prepared())
	k := c.Snapshot().Keys.Find([]byte("secret-token-0123456789"))
	require.Equal(t, uint32(1), k.Number)
	require.True(t, k.Allows("users.delete"))
	k = c.Snapshot().Keys.Find([]byte(made[0].Token))
	require.Equal(t, uint32(2), k.Number)
	require.False(t, k.Allows("users.delete"))
	require.Equal(t, "https://dashboard.example.com", c.Snapshot().SCIM.RequestOrigin)
	require.Contains(t, c.PreferenceCenters.Get("demo", "main").Options.Viewport, "width=device-width")
	require.Contains(t, fmt.Sprint(c.Campaigns.Get("demo", "c1").Messages[0].Translations), "Hola")
	require.Len(t, c.Canvases.List("demo"), 1)

	for key, doc := range m.docs { // tokens are nowhere, not in the log either
		for _, secret := range []string{"secret-token-0123456789", "scim-token-123", made[0].Token} {
			require.NotContains(t, doc, secret, key)
			require.NotContains(t, log.String(), secret)
		}
	}
	require.Contains(t, log.String(), "audit: workspace created")

	// Again: nothing happens.
	puts := m.puts
	require.Empty(t, bootstrap(t, c, full))
	require.Equal(t, puts, m.puts)

	// After a restart too, and the state is the same.
	c2, m2, _ := start(t, maps.Clone(m.docs))
	require.Equal(t, w.Settings, c2.Snapshot().Lookup("demo").Settings)
	require.Equal(t, w.Groups, c2.Snapshot().Lookup("demo").Groups)
	require.Equal(t, w.Keys, c2.Snapshot().Lookup("demo").Keys)
	require.Equal(t, k.Number, c2.Snapshot().Keys.Find([]byte(made[0].Token)).Number)
	require.Empty(t, bootstrap(t, c2, full))
	require.Zero(t, m2.puts)
}

func TestBootstrapAfterChanges(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	bootstrap(t, c, full)
	by := Actor{Name: "test"}

	// A change through the API stays, until the file says something else.
	_, err := c.UpdateSettings(by, "demo", func(s *document.Settings) error { s.Plan = "mau"; return nil })
	require.NoError(t, err)
	require.NoError(t, c.PreferenceCenters.Edit(by, "demo", "main", "edited", func(p *document.PreferenceCenter) (*document.PreferenceCenter, error) {
		p.Title = "Edited"
		return p, nil
	}))
	bootstrap(t, c, full)
	require.Equal(t, "mau", c.Snapshot().Lookup("demo").Plan)
	require.Equal(t, "Edited", c.PreferenceCenters.Get("demo", "main").Title)
	bootstrap(t, c, strings.Replace(full, "name: Demo", "name: New", 1))
	require.Equal(t, "New", c.Snapshot().Lookup("demo").Name)
	require.Equal(t, "base", c.Snapshot().Lookup("demo").Plan)

	// What the file says anew is so already: noted, but no change, so no entry.
	entries, puts := len(m.audit), m.puts
	_, err = c.UpdateSettings(by, "demo", func(s *document.Settings) error { s.Name = "Newer"; return nil })
	require.NoError(t, err)
	bootstrap(t, c, strings.Replace(full, "name: Demo", "name: Newer", 1))
	require.Equal(t, entries+1, len(m.audit))
	require.Equal(t, puts+2, m.puts)

	// What was archived or removed through the API stays so, until the file says something new of it; then a group
	// stays archived all the same: its states belong to the operator's decision, as a revoked key does.
	const news, ios = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55", "11ae5b4b-2445-4440-a04f-bf537764c9ad"
	require.NoError(t, c.Groups.Remove(by, "demo", news, nil))
	require.NoError(t, c.Apps.Remove(by, "demo", ios, nil))
	require.NoError(t, c.Campaigns.Remove(by, "demo", "c1", nil))
	bootstrap(t, c, full)
	require.Empty(t, c.Snapshot().Lookup("demo").Groups)
	require.Empty(t, c.Snapshot().Lookup("demo").Apps)
	require.Nil(t, c.Campaigns.Get("demo", "c1"))
	bootstrap(t, c, strings.NewReplacer("name: News", "name: Daily", "name: iOS", "name: Phone", "channel: email, multi_language: true, tr", "channel: email, tr").Replace(full))
	require.Empty(t, c.Snapshot().Lookup("demo").Groups)
	require.Equal(t, document.Group{ID: news, Name: "Daily", Channel: "email", Archived: true}, *c.Groups.Get("demo", news))
	require.Equal(t, "Phone", c.Snapshot().Lookup("demo").Apps[ios].Name)
	require.NotNil(t, c.Campaigns.Get("demo", "c1"))
	_, err = c.Groups.Change(by, "demo", news, func(g *document.Group) (*document.Group, error) { g.Archived = false; return g, nil })
	require.NoError(t, err)

	// What the file no longer names stays.
	bootstrap(t, c, "workspaces: [{id: demo}]")
	require.Len(t, c.Snapshot().Lookup("demo").Groups, 1)
	require.Equal(t, 2, c.Snapshot().Keys.Len())

	// A revoked key stays revoked; new rights of a key apply.
	require.NoError(t, c.RevokeKey(by, "demo", "1"))
	bootstrap(t, c, full)
	require.Nil(t, c.Snapshot().Keys.Find([]byte("secret-token-0123456789")))
	bootstrap(t, c, strings.Replace(full, `permissions: ["*"]`, `permissions: [users.merge]`, 1))
	require.Nil(t, c.Snapshot().Keys.Find([]byte("secret-token-0123456789")))

	// Another token under the name: a new key with a new number. The SCIM token has the third.
	bootstrap(t, c, strings.Replace(full, "secret-token-0123456789", "rotated-token-0123456789", 1))
	require.Equal(t, uint32(4), c.Snapshot().Keys.Find([]byte("rotated-token-0123456789")).Number)
}

func TestKeys(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	by := Actor{Name: "test"}
	_, err := c.CreateWorkspace(by, document.Settings{ID: "a"})
	require.NoError(t, err)
	_, err = c.CreateWorkspace(by, document.Settings{ID: "a"})
	require.ErrorIs(t, err, ErrExists)
	w, err := c.CreateWorkspace(by, document.Settings{ID: "b"})
	require.NoError(t, err)
	require.Equal(t, uint32(2), w.Number)

	_, _, err = c.CreateKey(by, "nobody", document.KeySpec{Name: "k"})
	require.ErrorIs(t, err, ErrNotFound)
	d, token, err := c.CreateKey(by, "a", document.KeySpec{Name: "k", Permissions: []string{"users.track"}})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(token, "millrace_live_"))
	_, _, err = c.CreateKey(by, "b", document.KeySpec{Name: "k", Token: token})
	require.ErrorIs(t, err, document.ErrInvalid)

	key := c.Snapshot().Keys.Find([]byte(token))
	key.Usage.Touch(1_800_000_060_000)
	require.NoError(t, c.FlushUsage())
	puts := m.puts
	require.NoError(t, c.FlushUsage())
	require.Equal(t, puts, m.puts, "nothing to store")
	c2, _, _ := start(t, maps.Clone(m.docs))
	require.Equal(t, int64(30_000_001), c2.LastUsed(d.Number))

	require.ErrorIs(t, c.RevokeKey(by, "b", d.ID), ErrNotFound)
	require.NoError(t, c.RevokeKey(by, "a", d.ID))
	require.NoError(t, c.RevokeKey(by, "a", d.ID))
	require.Nil(t, c.Snapshot().Keys.Find([]byte(token)))
	d2, _, err := c.CreateKey(by, "b", document.KeySpec{Name: "k"})
	require.NoError(t, err)
	require.Equal(t, d.Number+1, d2.Number, "the number of a revoked key is not used again")
}

func TestSettings(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	by := Actor{Name: "test"}
	_, err := c.CreateWorkspace(by, document.Settings{ID: "a", RateLimits: map[string]string{"users.track": "5/1s"}, BlockedExternalIDs: []string{"x"}})
	require.NoError(t, err)
	before := c.Snapshot().Lookup("a")
	patch := func(text string) (*Workspace, error) {
		return c.UpdateSettings(by, "a", func(s *document.Settings) error { return s.Patch([]byte(text)) })
	}
	w, err := patch(`{"rate_limits":{"users.merge":"7/1m"},"plan":"mau"}`)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"users.merge": "7/1m"}, w.RateLimits)
	require.Equal(t, "mau", w.Plan)
	require.Equal(t, []string{"x"}, w.BlockedExternalIDs)
	require.Equal(t, before.Number, w.Number)
	require.Same(t, before.Windows, w.Windows, "counts go on")
	require.Equal(t, "5/1s", before.RateLimits["users.track"], "a snapshot never changes")
	_, err = c.UpdateSettings(by, "a", func(s *document.Settings) error {
		s.RateLimits["users.delete"], s.BlockedExternalIDs[0] = "1/1s", "y"
		return errors.New("no")
	})
	require.Error(t, err)
	require.Equal(t, map[string]string{"users.merge": "7/1m"}, w.RateLimits, "an edit works on a copy")
	require.Equal(t, []string{"x"}, w.BlockedExternalIDs)
	for _, bad := range []string{`{"plan":"x"}`, `{"plann":"x"}`, `{"id":"b"}`, `[]`, `{`, `{} {}`} {
		_, err := patch(bad)
		require.ErrorIs(t, err, document.ErrInvalid, bad)
	}

	g, err := c.Groups.Create(by, "a", document.Group{Name: "g", Channel: "sms"})
	require.NoError(t, err)
	_, err = c.Groups.Change(by, "a", g.ID, func(g *document.Group) (*document.Group, error) { g.Channel = "email"; return g, nil })
	require.ErrorIs(t, err, document.ErrInvalid)
	a, err := c.Apps.Create(by, "a", document.App{Name: "x"})
	require.NoError(t, err)
	require.Equal(t, "x", c.Snapshot().Lookup("a").Apps[a.ID].Name)
}

// Documents that can't be read cost themselves only.
func TestDamagedDocuments(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	bootstrap(t, c, full)
	docs := maps.Clone(m.docs)
	docs["key/demo/2"] = `{"number":`
	docs["group/demo/5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"] = `7`
	docs["strange"] = `7`
	docs["key/nowhere/1"] = docs["key/demo/1"]
	c2, _, log := start(t, docs)
	require.Equal(t, 1, c2.Snapshot().Keys.Len())
	require.Empty(t, c2.Snapshot().Lookup("demo").Groups)
	require.Contains(t, log.String(), "can't be read")
	c2.Apply("key/demo/1", nil)
	require.Equal(t, 0, c2.Snapshot().Keys.Len())
}
