package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A user's events are those that came under any name while it was theirs, or their svc_id; also those of users who were
// merged into them. Whoever had the name before, or has it since, has their own.
func TestEventsOfAUser(t *testing.T) {
	s := newAdminSite(t)
	p := s.start(t)
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	post := func(path, body string) string {
		t.Helper()
		a := s.post(t, path, allKey, body)
		require.Equal(t, 2, a.status/100, a.body)
		return a.body
	}
	track := func(identifier string, names ...string) {
		t.Helper()
		for _, name := range names {
			post("/users/track", `{"events":[{`+identifier+`,"name":"`+name+`","time":"2020-01-31T09:30:00Z","_update_existing_only":false}]}`)
		}
	}
	svcID := func(identifier string) string {
		t.Helper()
		found := regexp.MustCompile(`"svc_id":"(\w+)"`).FindStringSubmatch(post("/users/export/ids", `{`+identifier+`}`))
		require.NotNil(t, found, identifier)
		return found[1]
	}
	events := func(id string) (names []string) {
		t.Helper()
		a, err := call(patient, http.MethodGet, "http://"+s.admin+"/admin/events?"+url.Values{"workspace": {"test"}, "user": {id}}.Encode(), strings.TrimSpace(string(token)), "")
		require.NoError(t, err)
		require.Equal(t, 200, a.status, a.body)
		for _, found := range regexp.MustCompile(`"name":"(\w+)"`).FindAllStringSubmatch(a.body, -1) {
			names = append(names, found[1])
		}
		return names
	}

	track(`"email":"eve@example.com"`, "made", "later")
	require.Equal(t, []string{"made", "later"}, events(svcID(`"email_address":"eve@example.com"`)))
	track(`"phone":"+14155552671"`, "made")
	require.Equal(t, []string{"made"}, events(svcID(`"phone":"+14155552671"`)))
	track(`"user_alias":{"alias_label":"l","alias_name":"n"}`, "made", "later")
	require.Equal(t, []string{"made", "later"}, events(svcID(`"user_aliases":[{"alias_label":"l","alias_name":"n"}]`)))

	track(`"external_id":"ada"`, "before")
	ada := svcID(`"external_ids":["ada"]`)
	post("/users/external_ids/rename", `{"external_id_renames":[{"current_external_id":"ada","new_external_id":"ada2"}]}`)
	post("/users/external_ids/remove", `{"external_ids":["ada"]}`)
	track(`"external_id":"ada"`, "other")
	track(`"external_id":"ada2"`, "renamed")
	other := svcID(`"external_ids":["ada"]`)
	require.Equal(t, []string{"before", "renamed"}, events(ada))
	require.Equal(t, []string{"other"}, events(other))

	post("/users/delete", `{"external_ids":["ada"]}`)
	track(`"external_id":"ada"`, "again")
	require.Empty(t, events(other))
	third := svcID(`"external_ids":["ada"]`)
	require.Equal(t, []string{"again"}, events(third))

	post("/users/merge", `{"merge_updates":[{"identifier_to_merge":{"external_id":"ada"},"identifier_to_keep":{"external_id":"ada2"}}]}`)
	require.Eventually(t, func() bool { return len(events(ada)) == 3 }, testPatience, 10*time.Millisecond)
	require.ElementsMatch(t, []string{"before", "renamed", "again"}, events(ada))
	require.Equal(t, events(ada), events(third))

	page := s.consolePage(t, strings.TrimSpace(string(token)), "/console/w/test/users/"+ada+"/events")
	require.Contains(t, page, "Events")
	require.NotContains(t, page, "again", "it happened more than 30 days ago")
	post("/users/track", `{"events":[{"external_id":"ada2","name":"of_late","time":"`+time.Now().UTC().Format(time.RFC3339)+`"}]}`)
	require.Contains(t, s.consolePage(t, strings.TrimSpace(string(token)), "/console/w/test/users/"+ada+"/events"), "of_late")
	p.stop()
}

// consolePage is a page of the console for a person who signs in with the admin token.
func (s *site) consolePage(t *testing.T, token, path string) string {
	t.Helper()
	browser := &http.Client{Timeout: testPatience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var cookies []*http.Cookie
	visit := func(method, path string, form url.Values) (status int, text string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+s.admin+path, strings.NewReader(form.Encode()))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range cookies {
			r.AddCookie(c)
		}
		a, err := browser.Do(r)
		require.NoError(t, err)
		defer a.Body.Close()
		cookies = append(cookies, a.Cookies()...)
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(body)
	}
	_, signIn := visit(http.MethodGet, "/console/sign-in", nil)
	form := regexp.MustCompile(`name="form" value="(\w+)"`).FindStringSubmatch(signIn)
	require.NotNil(t, form, signIn)
	status, text := visit(http.MethodPost, "/console/sign-in", url.Values{"form": {form[1]}, "token": {token}})
	require.Equal(t, http.StatusSeeOther, status, text)
	status, text = visit(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, status, text)
	return text
}
