package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

var tester = Actor{Name: "test", Number: 7, Address: "192.0.2.1", RequestID: "r1"}

// twoNodes are two Controls on one store, as in a cluster.
func twoNodes(t *testing.T) (a, b *Control, m *memory) {
	a, m, _ = start(t, map[string]string{})
	b = New(Options{Now: a.options.Now})
	apply := m.apply
	m.apply = func(key string, doc []byte) {
		apply(key, doc)
		b.Apply(key, doc)
	}
	b.Start(m)
	return a, b, m
}

// overtake calls f before the next record.
func (m *memory) overtake(f func()) {
	m.before = func([]Change) {
		m.before = nil
		f()
	}
}

// What another node does between judging and storing is not overwritten: the change is judged anew.
func TestConflictsAreJudgedAnew(t *testing.T) {
	a, b, m := twoNodes(t)
	_, err := a.CreateWorkspace(tester, document.Settings{ID: "w"})
	require.NoError(t, err)
	// Settings: both changes are there.
	m.overtake(func() {
		_, err := b.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Name = "B"; return nil })
		require.NoError(t, err)
	})
	calls := 0
	w, err := a.UpdateSettings(tester, "w", func(s *document.Settings) error { calls++; s.Plan = "mau"; return nil })
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	require.Equal(t, "B", w.Name)
	require.Equal(t, "mau", w.Plan)

	// Two workspaces at once get two numbers; one of the same id exists.
	m.overtake(func() { _, err = b.CreateWorkspace(tester, document.Settings{ID: "x"}); require.NoError(t, err) })
	w, err = a.CreateWorkspace(tester, document.Settings{ID: "y"})
	require.NoError(t, err)
	require.Equal(t, uint32(3), w.Number)
	m.overtake(func() { _, err = b.CreateWorkspace(tester, document.Settings{ID: "z"}); require.NoError(t, err) })
	_, err = a.CreateWorkspace(tester, document.Settings{ID: "z"})
	require.ErrorIs(t, err, ErrExists)

	// Two keys at once get two numbers, in whatever workspaces; the same token is refused.
	m.overtake(func() { _, _, err = b.CreateKey(tester, "x", document.KeySpec{Name: "k"}); require.NoError(t, err) })
	k, _, err := a.CreateKey(tester, "w", document.KeySpec{Name: "k"})
	require.NoError(t, err)
	require.Equal(t, uint32(2), k.Number)
	m.overtake(func() {
		_, _, err = b.CreateKey(tester, "x", document.KeySpec{Name: "t", Token: "token"})
		require.NoError(t, err)
	})
	_, _, err = a.CreateKey(tester, "w", document.KeySpec{Name: "t", Token: "token"})
	require.ErrorIs(t, err, document.ErrInvalid)

	// A document that is edited, and one that is gone meanwhile.
	_, err = a.Campaigns.Create(tester, "w", document.Campaign{ID: "c"})
	require.NoError(t, err)
	m.overtake(func() {
		_, err := b.Campaigns.Change(tester, "w", "c", func(c *document.Campaign) (*document.Campaign, error) { c.Name = "B"; return c, nil })
		require.NoError(t, err)
	})
	require.NoError(t, a.Campaigns.Edit(tester, "w", "c", "edited", func(old *document.Campaign) (*document.Campaign, error) {
		old.Messages = []document.Message{}
		return old, nil
	}))
	require.JSONEq(t, `{"id":"c","name":"B","messages":[]}`, m.docs["campaign/w/c"])
	m.overtake(func() { require.NoError(t, b.Campaigns.Remove(tester, "w", "c", nil)) })
	require.ErrorIs(t, a.Campaigns.Remove(tester, "w", "c", nil), ErrNotFound)

	// Two preference centers of one name: the second sees the first.
	m.overtake(func() {
		_, err := b.PreferenceCenters.Create(tester, "w", document.PreferenceCenter{ID: "p1", Name: "N", PageHTML: "x", ConfirmationHTML: "x"})
		require.NoError(t, err)
	})
	_, err = a.PreferenceCenters.Create(tester, "w", document.PreferenceCenter{ID: "p2", Name: "N", PageHTML: "x", ConfirmationHTML: "x"})
	require.ErrorIs(t, err, ErrExists)

	// Whoever is always overtaken gives up.
	n := 0
	m.before = func([]Change) {
		n++
		m.put("workspace/w/", fmt.Sprintf(`{"id":"w","name":"n%d","number":1}`, n))
	}
	_, err = a.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Plan = "base"; return nil })
	require.ErrorIs(t, err, ErrConflict)
	require.Equal(t, maxAttempts, n)
}

// Two nodes apply one bootstrap file at once: everything is there once.
func TestBootstrapOnTwoNodes(t *testing.T) {
	a, b, m := twoNodes(t)
	file, err := document.ParseBootstrap([]byte(full))
	require.NoError(t, err)
	first := true
	m.before = func([]Change) {
		if first {
			first = false
			_, err := b.Bootstrap(t.Context(), Actor{Name: "bootstrap file"}, file)
			require.NoError(t, err)
		}
	}
	made, err := a.Bootstrap(t.Context(), Actor{Name: "bootstrap file"}, file)
	require.NoError(t, err)
	require.Empty(t, made, "b has made the key")
	require.Equal(t, 2, a.Snapshot().Keys.Len())
	require.Equal(t, b.Snapshot().Lookup("demo").Keys, a.Snapshot().Lookup("demo").Keys)
	require.Len(t, a.Snapshot().SCIM.Tokens, 1)
	seen := map[string]bool{}
	for _, e := range m.audit {
		require.False(t, seen[e], e)
		seen[e] = true
	}
}

// The same when the other node is done with the file in the middle of judging what is missing, wherever that is.
func TestBootstrapOvertakenWhileJudging(t *testing.T) {
	file, err := document.ParseBootstrap([]byte(full))
	require.NoError(t, err)
	for at := 1; ; at++ {
		a, b, _ := twoNodes(t)
		now, calls := a.options.Now, 0
		a.options.Now = func() int64 {
			if calls++; calls == at {
				_, err := b.Bootstrap(t.Context(), Actor{Name: "bootstrap file"}, file)
				require.NoError(t, err)
			}
			return now()
		}
		_, err := a.Bootstrap(t.Context(), Actor{Name: "bootstrap file"}, file)
		if calls < at {
			require.Greater(t, at, 3, "keys and tokens have the time of their making")
			return
		}
		require.NoError(t, err, "call %d", at)
		require.Equal(t, 2, a.Snapshot().Keys.Len(), "call %d", at)
		require.Len(t, a.Snapshot().SCIM.Tokens, 1, "call %d", at)
	}
}

// Many editors of one node at once: no change is lost.
func TestConcurrentEditors(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	_, err := c.CreateWorkspace(tester, document.Settings{ID: "w"})
	require.NoError(t, err)
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			_, err := c.UpdateSettings(tester, "w", func(s *document.Settings) error {
				s.BlockedExternalIDs = append(s.BlockedExternalIDs, fmt.Sprint(i))
				return nil
			})
			require.NoError(t, err)
			_, _, err = c.CreateKey(tester, "w", document.KeySpec{Name: fmt.Sprint(i)})
			require.NoError(t, err)
		})
	}
	wait.Wait()
	require.Len(t, c.Snapshot().Lookup("w").BlockedExternalIDs, 20)
	require.Len(t, c.Snapshot().Lookup("w").Keys, 20)
	for i, k := range c.Snapshot().Lookup("w").Keys {
		require.Equal(t, uint32(i+1), k.Number)
	}
	require.Len(t, m.audit, 41)
}

// Each change is one record with one entry; what changes nothing has neither.
func TestAuditEntries(t *testing.T) {
	c, m, log := start(t, map[string]string{})
	last := func() (e Entry) {
		require.NoError(t, json.Unmarshal([]byte(m.audit[len(m.audit)-1]), &e))
		return e
	}
	step := func(what string, f func() error) Entry {
		puts, entries := m.puts, len(m.audit)
		require.NoError(t, f())
		require.Equal(t, puts+1, m.puts, what)
		require.Len(t, m.audit, entries+1, what)
		e := last()
		require.Equal(t, what, e.What)
		require.Equal(t, []string{"test", "192.0.2.1", "r1"}, []string{e.By, e.Address, e.RequestID})
		require.Contains(t, log.String(), "audit: "+what)
		return e
	}
	nothing := func(f func() error) {
		puts := m.puts
		require.NoError(t, f())
		require.Equal(t, puts, m.puts)
	}
	e := step("workspace created", func() error { _, err := c.CreateWorkspace(tester, document.Settings{ID: "w"}); return err })
	require.Equal(t, Entry{What: "workspace created", Kind: "workspace", Workspace: "w", ID: "w", By: "test", Address: "192.0.2.1", RequestID: "r1", After: sumOf([]byte(m.docs["workspace/w/"]))}, e)
	before := e.After
	plan := func() error {
		_, err := c.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Plan = "mau"; return nil })
		return err
	}
	e = step("workspace changed", plan)
	require.Equal(t, []string{"plan"}, e.Changed)
	require.Equal(t, before, e.Before)
	nothing(plan)

	var token string
	e = step("API key created", func() (err error) {
		_, token, err = c.CreateKey(tester, "w", document.KeySpec{Name: "k", Permissions: []string{"users.track", "users.merge"}})
		return err
	})
	require.Equal(t, map[string]any{"name": "k", "permissions": "users.track users.merge"}, e.Details)
	require.Equal(t, "api_key", e.Kind)
	e = step("API key changed", func() error {
		_, err := c.UpdateKey(tester, "w", "1", func(k *document.KeySpec) error { k.Permissions = nil; return nil })
		return err
	})
	require.Equal(t, []string{"permissions"}, e.Changed)
	step("API key created", func() error { _, _, err := c.RotateKey(tester, "w", "1"); return err })
	_, _, err := c.RotateKey(tester, "w", "1")
	require.ErrorIs(t, err, ErrConflict, "two are valid")
	step("API key revoked", func() error { return c.RevokeKey(tester, "w", "1") })
	nothing(func() error { return c.RevokeKey(tester, "w", "1") })
	_, err = c.UpdateKey(tester, "w", "1", func(k *document.KeySpec) error { return nil })
	require.ErrorIs(t, err, ErrConflict)
	_, _, err = c.RotateKey(tester, "w", "1")
	require.ErrorIs(t, err, ErrConflict)

	step("SCIM access changed", func() error {
		return c.UpdateSCIM(tester, func(s *document.SCIMSettings) error { s.RequestOrigin = "o"; return nil })
	})
	var scim string
	var made document.SCIMToken
	step("SCIM token created", func() (err error) { made, scim, err = c.CreateSCIMToken(tester); return err })
	require.Equal(t, made.ID, c.Snapshot().FindSCIMToken([]byte(scim)).ID)
	step("SCIM token created", func() (err error) { _, _, err = c.CreateSCIMToken(tester); return err })
	_, _, err = c.CreateSCIMToken(tester)
	require.ErrorIs(t, err, ErrConflict)
	step("SCIM token revoked", func() error { return c.RevokeSCIMToken(tester, made.ID) })
	nothing(func() error { return c.RevokeSCIMToken(tester, made.ID) })
	require.Nil(t, c.Snapshot().FindSCIMToken([]byte(scim)))
	require.ErrorIs(t, c.RevokeSCIMToken(tester, "x"), ErrNotFound)

	step("users deleted", func() error {
		return c.Audit(tester, "users deleted", "w", "count", 3, "note", strings.Repeat("ä", 1000))
	})
	require.Equal(t, 3.0, last().Details["count"])
	require.Less(t, len(last().Details["note"].(string)), 1010)

	html := "<script>hostile</script>"
	step("preference center created", func() error {
		_, err := c.PreferenceCenters.Create(tester, "w", document.PreferenceCenter{ID: "p", Name: "P", PageHTML: html, ConfirmationHTML: html})
		return err
	})
	e = step("preference center changed", func() error {
		_, err := c.PreferenceCenters.Change(tester, "w", "p", func(p *document.PreferenceCenter) (*document.PreferenceCenter, error) {
			p.PageHTML += "more"
			return p, nil
		})
		return err
	})
	require.Equal(t, []string{"preference_center_page_html"}, e.Changed)
	step("preference center removed", func() error { return c.PreferenceCenters.Remove(tester, "w", "p", nil) })
	for _, text := range append(m.audit, log.String()) {
		for _, secret := range []string{token, scim, "hostile"} {
			require.NotContains(t, text, secret)
		}
	}
	require.NotContains(t, fmt.Sprint(m.docs), token)
	require.NotContains(t, fmt.Sprint(m.docs), scim)

	// An edit that fails, or a store that does, leaves nothing behind.
	puts := m.puts
	no := errors.New("no")
	require.ErrorIs(t, c.Campaigns.Edit(tester, "w", "c", "x", func(*document.Campaign) (*document.Campaign, error) { return nil, no }), no)
	require.Equal(t, puts, m.puts)

	// Numbers go on after a restart, also those of tokens.
	c2, _, _ := start(t, maps.Clone(m.docs))
	k, _, err := c2.CreateKey(tester, "w", document.KeySpec{Name: "k"})
	require.NoError(t, err)
	require.Equal(t, uint32(5), k.Number)
}

// A node is lost while a change is under way: when the change is there, it was made, with the key that the answer
// shows; when it isn't, it may still come.
func TestUnknownOutcomes(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	m.unknown = true
	_, err := c.CreateWorkspace(tester, document.Settings{ID: "w"})
	require.NoError(t, err)
	_, token, err := c.CreateKey(tester, "w", document.KeySpec{Name: "k"})
	require.NoError(t, err)
	require.NotNil(t, c.Snapshot().Keys.Find([]byte(token)))
	require.ErrorIs(t, c.Audit(tester, "something", "w"), ErrUnknown, "an entry alone can't be looked up")

	m.lost = true
	_, err = c.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Name = "X"; return nil })
	require.ErrorIs(t, err, ErrUnknown)
	require.NotErrorIs(t, err, ErrConflict)
	require.Equal(t, "w", c.Snapshot().Lookup("w").Name)
}
