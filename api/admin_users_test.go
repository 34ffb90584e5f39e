package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
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

// The list of dashboard users comes in pages, and says what permission sets give by naming the sets.
func TestAdminDashboardUsersInPages(t *testing.T) {
	d := open(t, nil)
	for i, name := range []string{"Eve@example.com", "ada@example.com", "bob@example.com", "cyd@example.com", "dan@example.org"} {
		own := fmt.Sprintf(`{"companyPermissions":["own%d"],"appGroup":[]}`, i)
		require.Equal(t, 201, d.provision("POST", "/scim/v2/Users", userBody(name, "bi", own)).status)
	}
	page := func(query string) (names []string, next string) {
		a := d.administer(t, "GET", "/dashboard_users?"+query, "")
		require.Equal(t, 200, a.status, a.body)
		for _, u := range a.v["dashboard_users"].([]any) {
			names = append(names, u.(map[string]any)["user_name"].(string)[:3])
		}
		next, _ = a.v["next"].(string)
		return names, next
	}
	var all []string
	for cursor, more := "", true; more; more = cursor != "" {
		var names []string
		names, cursor = page(url.Values{"limit": {"2"}, "cursor": {cursor}}.Encode())
		require.LessOrEqual(t, len(names), 2)
		all = append(all, names...)
	}
	require.Equal(t, []string{"ada", "bob", "cyd", "dan", "Eve"}, all)
	names, next := page("search=EXAMPLE.org")
	require.Equal(t, []string{"dan"}, names)
	require.Empty(t, next)
	names, next = page("limit=5")
	require.Len(t, names, 5)
	require.Empty(t, next, "nobody follows")
	for _, limit := range []string{"0", "1001", "x"} {
		require.Equal(t, 400, d.administer(t, "GET", "/dashboard_users?limit="+limit, "").status)
	}
}

// A user's permissions may be long, and those of a user's sets even longer: a page has only the user's own, and ends
// when they are long.
func TestAdminDashboardUsersWithLongPermissions(t *testing.T) {
	d := open(t, nil)
	const given = `"given-by-the-set"`
	set := d.administer(t, "PUT", "/permission_sets/editors", `{"name":"Editors","permissions":{"companyPermissions":[`+given+`],"appGroup":[]}}`)
	require.Equal(t, 201, set.status, set.body)
	long := `["` + strings.Repeat(strings.Repeat("p", 240)+`","`, 899) + `last"]`
	for i := range 7 {
		id := fmt.Sprintf("user%d@example.com", i)
		require.NoError(t, d.control.SCIMUsers.Edit(control.Actor{Name: "test"}, "", id, "test", func(*document.SCIMUser) (*document.SCIMUser, error) {
			u := &document.SCIMUser{ID: id, UserName: id, PermissionSets: []uint32{1}}
			return u, json.Unmarshal([]byte(long), &u.Permissions.Company)
		}))
	}
	first := d.administer(t, "GET", "/dashboard_users", "")
	require.Len(t, first.v["dashboard_users"], 5)
	require.Less(t, len(first.body), 3<<19)
	require.NotContains(t, first.body, given)
	u := first.v["dashboard_users"].([]any)[0].(map[string]any)
	require.Equal(t, []any{map[string]any{"id": "editors", "name": "Editors"}}, u["permission_sets"])
	rest := d.administer(t, "GET", "/dashboard_users?cursor="+url.QueryEscape(first.v["next"].(string)), "")
	require.Len(t, rest.v["dashboard_users"], 2)
	require.NotContains(t, rest.v, "next")
}
