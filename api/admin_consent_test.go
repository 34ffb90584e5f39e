package api

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trail asks for a trail.
func (d *door) trail(t *testing.T, query string) (changes []map[string]any) {
	t.Helper()
	status, v, text := d.admin("GET", "/admin/workspaces/demo/trail?"+query, "admin-token", "")
	require.Equal(t, 200, status, text)
	require.Equal(t, "success", v["message"])
	for _, c := range v["changes"].([]any) {
		changes = append(changes, c.(map[string]any))
	}
	return changes
}

// Each change is in the trail with its time, its endpoint and its key, whichever way it came, for the user and for the
// address.
func TestTrail(t *testing.T) {
	d := openDoor(t)
	began := time.Now().UTC()
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a@example.com","phone":"+14155552671"}]}`)
	svcID := d.export(t, "a")["svc_id"].(string)
	steps := []struct{ path, body, state, value, group string }{
		{"/subscription/status/set", set(newsGroup, "subscribed", `"external_id":"a"`), "subscription_group", "subscribed", newsGroup},
		{"/v2/subscription/status/set", `{"subscription_groups":[` + set(newsGroup, "unsubscribed", `"email":"a@example.com"`) + `]}`, "subscription_group", "unsubscribed", newsGroup},
		{"/email/status", `{"email":"a@example.com","subscription_state":"opted_in"}`, "email_subscribe", "opted_in", ""},
		{"/users/track", `{"attributes":[{"external_id":"a","email_subscribe":"subscribed"}]}`, "email_subscribe", "subscribed", ""},
		{"/email/bounce/remove", `{"email":"a@example.com"}`, "hard_bounce", "removed", ""},
	}
	find := func(changes []map[string]any, source, state, value, group string) map[string]any {
		i := slices.IndexFunc(changes, func(c map[string]any) bool {
			id, _ := c["subscription_group_id"].(string)
			return c["source"] == source && c["state"] == state && c["value"] == value && id == group
		})
		if i < 0 {
			return nil
		}
		return changes[i]
	}
	d.must(t, "/email/blocklist", `{"email":"a@example.com"}`)
	for _, s := range steps {
		d.must(t, s.path, s.body)
	}
	d.must(t, "/subscription/status/set", set(alertsGroup, "subscribed", `"phone":"+14155552671"`))
	ofUser := d.trail(t, "external_id=a")
	ofEmail := d.trail(t, "email=A%40example.com")
	for _, changes := range [][]map[string]any{ofUser, ofEmail} {
		for _, s := range steps {
			c := find(changes, s.path, s.state, s.value, s.group)
			require.NotNil(t, c, "%s %s %s in %v", s.path, s.state, s.value, changes)
			require.Equal(t, []any{"api key", "all"}, []any{c["actor"], c["key_name"]})
			require.NotEmpty(t, c["key_id"])
			at, err := time.Parse(time.RFC3339Nano, c["changed_at"].(string))
			require.NoError(t, err)
			require.WithinRange(t, at, began.Add(-time.Minute), time.Now().Add(time.Minute))
			if s.group != "" {
				require.Equal(t, []any{"News", "email"}, []any{c["subscription_group_name"], c["channel"]})
			}
		}
		require.NotNil(t, find(changes, "/email/blocklist", "email_subscribe", "unsubscribed", ""))
		require.NotNil(t, find(changes, "/email/blocklist", "hard_bounce", "marked", ""))
		require.True(t, slices.IsSortedFunc(changes, func(a, b map[string]any) int {
			return time.Time.Compare(timeOf(t, a), timeOf(t, b))
		}), "oldest first")
	}
	require.NotNil(t, find(ofUser, "/subscription/status/set", "subscription_group", "subscribed", alertsGroup), "of the phone too")
	ofPhone := d.trail(t, "phone=+14155552671")
	require.NotNil(t, find(ofPhone, "/subscription/status/set", "subscription_group", "subscribed", alertsGroup))
	require.Nil(t, find(ofPhone, "/email/status", "email_subscribe", "opted_in", ""))
	require.Equal(t, ofUser, d.trail(t, "svc_id="+svcID))
	require.Equal(t, ofUser, d.trail(t, "braze_id="+svcID))
	require.Empty(t, d.trail(t, "email=nobody@example.com"))

	d.must(t, "/users/track", `{"attributes":[{"user_alias":{"alias_label":"l","alias_name":"n"},"_update_existing_only":false,"subscription_groups":[{"subscription_group_id":"`+newsGroup+`","subscription_state":"subscribed"}]}]}`)
	require.NotNil(t, find(d.trail(t, "alias_label=l&alias_name=n"), "/users/track", "subscription_group", "subscribed", newsGroup))

	// Who gets an address has of its trail what happens from then on. Users who leave it keep what happened while they
	// had it.
	d.must(t, "/users/track", `{"attributes":[{"external_id":"late","email":"a@example.com"}]}`)
	require.Empty(t, d.trail(t, "external_id=late"))
	d.must(t, "/email/status", `{"email":"a@example.com","subscription_state":"opted_in"}`)
	require.Len(t, d.trail(t, "external_id=late"), 1)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"late","email":"late@example.com"}]}`)
	d.must(t, "/email/status", `{"email":"a@example.com","subscription_state":"unsubscribed"}`)
	late := d.trail(t, "external_id=late")
	require.NotNil(t, find(late, "/email/status", "email_subscribe", "opted_in", ""))
	require.Nil(t, find(late, "/email/status", "email_subscribe", "unsubscribed", ""))
	require.NotNil(t, find(late, "/v2/subscription/status/set", "subscription_group", "unsubscribed", newsGroup), "his own from now on")
	ofUser = d.trail(t, "external_id=a")

	// A group that is archived is unknown to the API; its trail stays.
	status, _, text := d.admin("DELETE", "/admin/workspaces/demo/subscription_groups/"+newsGroup, "admin-token", "")
	require.Equal(t, 200, status, text)
	require.Equal(t, ofUser, d.trail(t, "external_id=a"))
	for path, body := range map[string]string{"/subscription/status/set": set(newsGroup, "subscribed", `"external_id":"a"`), "/subscription/status/get?external_id=a&subscription_group_id=" + newsGroup: ""} {
		method := "POST"
		if body == "" {
			method = "GET"
		}
		require.Equal(t, "Invalid subscription group ID", d.call(method, path, demoKey, body).json(t)["message"])
	}
	users, _ := d.userStatus(t, "external_id=late")
	require.Empty(t, users[0].(map[string]any)["subscription_groups"])

	for query, want := range map[string]int{"": 400, "external_id=a&email=a@example.com": 400, "alias_name=n": 400, "phone=4155552671": 400, "external_id=nobody": 404, "svc_id=x": 404, "alias_label=l&alias_name=x": 404} {
		status, v, _ := d.admin("GET", "/admin/workspaces/demo/trail?"+query, "admin-token", "")
		require.Equal(t, want, status, query)
		require.NotEmpty(t, v["message"])
	}
	status, _, _ = d.admin("GET", "/admin/workspaces/nowhere/trail?external_id=a", "admin-token", "")
	require.Equal(t, 404, status)
	status, _, _ = d.admin("GET", "/admin/workspaces/other/trail?external_id=a", "admin-token", "")
	require.Equal(t, 404, status, "another workspace's user")
	status, v, _ := d.admin("GET", "/admin/workspaces/other/trail?email=a@example.com", "admin-token", "")
	require.Equal(t, 200, status)
	require.Empty(t, v["changes"])
}

func timeOf(t *testing.T, c map[string]any) time.Time {
	at, err := time.Parse(time.RFC3339Nano, c["applied_at"].(string))
	require.NoError(t, err)
	return at
}

// The block list is read in pages, and an operator can lift a block.
func TestBlocklistOfTheOperator(t *testing.T) {
	d := openDoor(t)
	list := func(query string) (emails []string, next string) {
		t.Helper()
		status, v, text := d.admin("GET", "/admin/workspaces/demo/blocklist?"+query, "admin-token", "")
		require.Equal(t, 200, status, text)
		for _, e := range v["blocklist"].([]any) {
			e := e.(map[string]any)
			emails = append(emails, e["email"].(string))
			require.Equal(t, []any{"/email/blocklist", "api key", "all"}, []any{e["source"], e["actor"], e["key_name"]})
			_, err := time.Parse(time.RFC3339Nano, e["since"].(string))
			require.NoError(t, err)
		}
		next, _ = v["next"].(string)
		return emails, next
	}
	emails, next := list("")
	require.Empty(t, emails)
	require.Empty(t, next)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"m7@example.com"}]}`)
	var want []string
	for i := range 45 {
		want = append(want, fmt.Sprintf("m%d@example.com", i))
	}
	d.must(t, "/email/blocklist", `{"email":[`+quoted(45, "M%d@example.com")+`]}`)
	d.must(t, "/email/status", `{"email":"not-blocked@example.com","subscription_state":"unsubscribed"}`)
	var all []string
	for pages, cursor := 0, ""; ; {
		page, next := list("limit=10&cursor=" + url.QueryEscape(cursor))
		require.LessOrEqual(t, len(page), 10)
		all = append(all, page...)
		pages++
		require.Less(t, pages, 1000)
		if cursor = next; next == "" {
			break
		}
	}
	require.ElementsMatch(t, want, all, "each once")

	lift := func(email string) int {
		status, _, _ := d.admin("DELETE", "/admin/workspaces/demo/blocklist/"+url.PathEscape(email), "admin-token", "")
		return status
	}
	require.Equal(t, 200, lift("M7@example.com"))
	require.Equal(t, 404, lift("m7@example.com"), "not any more")
	require.Equal(t, 404, lift("nobody@example.com"))
	require.Equal(t, 404, lift("not-blocked@example.com"))
	require.NotContains(t, d.export(t, "a"), "email_hard_bounced_at")
	require.Equal(t, "unsubscribed", d.export(t, "a")["email_subscribe"])
	all, _ = list("limit=1000")
	require.Len(t, all, 44)
	require.NotContains(t, all, "m7@example.com")
	changes := d.trail(t, "email=m7@example.com")
	last := changes[len(changes)-1]
	require.Equal(t, []any{"hard_bounce", "removed", "admin", "admin"}, []any{last["state"], last["value"], last["source"], last["actor"]})

	for _, query := range []string{"limit=0", "limit=1001", "limit=x"} {
		status, v, _ := d.admin("GET", "/admin/workspaces/demo/blocklist?"+query, "admin-token", "")
		require.Equal(t, 400, status)
		require.Contains(t, v["message"], "limit")
	}
	for _, cursor := range []string{"x", "00", strings.Repeat("g", 32)} {
		status, v, _ := d.admin("GET", "/admin/workspaces/demo/blocklist?cursor="+cursor, "admin-token", "")
		require.Equal(t, 400, status)
		require.Contains(t, v["message"], "cursor")
	}
	status, v, _ := d.admin("GET", "/admin/workspaces/other/blocklist", "admin-token", "")
	require.Equal(t, 200, status)
	require.Empty(t, v["blocklist"], "another workspace's")
}
