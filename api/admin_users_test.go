package api

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An operator finds users by each of their identifiers, sees the states that hold, and removes one.
func TestAdminUsers(t *testing.T) {
	d := openEngine(t, t.TempDir())
	require.Equal(t, 201, d.call("POST", "/users/track", demoKey, `{"attributes":[{"external_id":"a/b c","first_name":"Ada","email":"Ada+x@example.com","phone":"+14155552671"},
		{"external_id":"b","email":"ada+x@example.com"}]}`).status)
	require.Equal(t, 201, d.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"external_id":"a/b c","alias_label":"l","alias_name":"n"}]}`).status)
	find := func(query string) []any {
		t.Helper()
		a := d.administer(t, "GET", "/workspaces/demo/users?"+query, "")
		require.Equal(t, 200, a.status, a.v)
		return a.v["users"].([]any)
	}
	ada := find("external_id=" + url.QueryEscape("a/b c"))[0].(map[string]any)
	require.Equal(t, "Ada", ada["first_name"])
	id := ada["svc_id"].(string)
	for _, query := range []string{"svc_id=" + id, "braze_id=" + id, "alias_label=l&alias_name=n", "phone=%2B14155552671", "phone=+14155552671"} {
		require.Equal(t, []any{ada}, find(query), query)
	}
	require.Len(t, find("email=ada%2Bx@example.com"), 2)
	a := d.administer(t, "GET", "/workspaces/demo/users?email=ADA%2Bx@example.com&limit=1", "")
	require.Len(t, a.v["users"], 1)
	require.Equal(t, 2.0, a.v["count"])
	require.Equal(t, ada, d.administer(t, "GET", "/workspaces/demo/users/"+id, "").v["user"])
	for _, query := range []string{"external_id=nobody", "svc_id=nobody", "email=nobody@example.com", "alias_label=l&alias_name=m"} {
		require.Empty(t, find(query), query)
	}
	for query, says := range map[string]string{"": "want one of", "external_id=a&email=b": "want one of", "alias_label=l": "want one of", "phone=x": "E.164", "external_id=a&limit=101": "limit",
		"external_id=" + strings.Repeat("a", 70_000): "too long"} {
		a := d.administer(t, "GET", "/workspaces/demo/users?"+query, "")
		require.Equal(t, 400, a.status, says)
		require.Contains(t, a.v["message"], says)
	}
	for _, path := range []string{"/workspaces/nowhere/users?external_id=b", "/workspaces/demo/users/nobody", "/workspaces/other/users/" + id} {
		require.Equal(t, 404, d.administer(t, "GET", path, "").status, path)
	}

	states := "/workspaces/demo/users/" + id + "/states"
	for body, says := range map[string]string{`{}`: "want email_subscribe or", `{"email_subscribe":"yes"}`: "email_subscribe", `{"subscription_groups":{"x":"subscribed"}}`: "no group",
		`{"subscription_groups":{"` + newsGroup + `":"on"}}`: "want subscribed or", `{"x":1}`: "not a known member"} {
		a := d.administer(t, "PATCH", states, body)
		require.Equal(t, 400, a.status, body)
		require.Contains(t, a.v["message"], says)
	}
	require.Equal(t, 200, d.administer(t, "PATCH", states, `{"email_subscribe":"unsubscribed","subscription_groups":{"`+strings.ToUpper(newsGroup)+`":"subscribed"}}`).status)
	require.Equal(t, "unsubscribed", find("svc_id=" + id)[0].(map[string]any)["email_subscribe"])
	trail := d.administer(t, "GET", "/workspaces/demo/trail?svc_id="+id, "").v["changes"].([]any)
	require.Equal(t, "admin", trail[len(trail)-1].(map[string]any)["actor"])

	require.Equal(t, find("svc_id=" + id)[0], d.administer(t, "GET", "/workspaces/demo/users/"+id+"/export", "").v["user"])
	require.Equal(t, 404, d.administer(t, "GET", "/workspaces/demo/users/nobody/export", "").status)
	require.Equal(t, 200, d.administer(t, "DELETE", "/workspaces/demo/users/"+id, "").status)
	require.Equal(t, 404, d.administer(t, "DELETE", "/workspaces/demo/users/"+id, "").status)
	require.Equal(t, 404, d.administer(t, "PATCH", states, `{"email_subscribe":"subscribed"}`).status)
	require.Empty(t, find("external_id="+url.QueryEscape("a/b c")))
	require.Len(t, find("email=ada%2Bx@example.com"), 1)
	entries := d.administer(t, "GET", "/audit?limit=3", "").v["entries"].([]any)
	require.Equal(t, "states of a user changed", entries[0].(map[string]any)["what"])
	require.Equal(t, "user exported", entries[1].(map[string]any)["what"])
	require.Equal(t, map[string]any{"count": 1.0, "svc_id": id}, entries[2].(map[string]any)["details"])
}

func TestAdminDashboardUsers(t *testing.T) {
	d := open(t, nil)
	require.Empty(t, d.administer(t, "GET", "/dashboard_users", "").v["dashboard_users"])
	require.Equal(t, 201, d.provision("POST", "/scim/v2/Users", userBody("ada@example.com", "bi", `{"companyPermissions":["admin"],"appGroup":[]}`)).status)
	u := d.administer(t, "GET", "/dashboard_users", "").v["dashboard_users"].([]any)[0].(map[string]any)
	require.Equal(t, true, u["active"])
	require.Contains(t, u["user_name"], "@")
}
