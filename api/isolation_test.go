package api

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

// A key of one workspace can name everything that another workspace has, and neither sees nor changes it: the answers
// are those for what isn't there, 404, 400, Unknown or nobody, and never a 403, which would tell that it is.

const (
	// marker is in everything of demo that an answer could give away.
	marker = "s3cret"
	// What demo alone has.
	hiddenGroup = "0a7a2a4e-9c0b-4d38-8a52-1d3f6a0c9b77"
	hiddenYAML  = `
workspaces:
  - id: demo
    name: Demo
    multi_language: true
    locales: [{name: es-MX, country: MX, language: es}, {name: de}]
    rate_limits: {preference_center.update: 100000/1m, preference_center.list: 100000/1m, users.external_ids.rename: 100000/1m, users.external_ids.remove: 100000/1m}
    subscription_groups: [{id: 0a7a2a4e-9c0b-4d38-8a52-1d3f6a0c9b77, name: Group-s3cret, channel: email}]
    preference_centers: [{id: hidden, name: hidden, preference_center_page_html: page-s3cret, confirmation_page_html: done-s3cret}]
    campaigns: [{id: hidden, messages: [&hidden {id: hm, channel: email, multi_language: true, source: {a: source-s3cret}, translations: [{locale: {name: de}, translation_map: {a: text-s3cret}}]}]}]
    canvases: [{id: hidden, steps: [{id: hs, messages: [{<<: *hidden, id: hn}]}]}]
  - id: other
    multi_language: true
    rate_limits: {preference_center.update: 100000/1m, preference_center.list: 100000/1m, users.external_ids.rename: 100000/1m, users.external_ids.remove: 100000/1m}
`
	hiddenAlias = `"alias_label":"l-s3cret","alias_name":"n-s3cret"`
	hiddenEmail = "ada-s3cret@example.com"
	hiddenPhone = "+14155552671"
	// Those of demo, and those that attacks would make.
	allAliases = `{"user_aliases":[{` + hiddenAlias + `},{"alias_label":"cookie-s3cret","alias_name":"c"},{"alias_label":"l-s3cret","alias_name":"taken"},
		{"alias_label":"new","alias_name":"a"},{"alias_label":"new","alias_name":"b"},{"alias_label":"new","alias_name":"nobody's"}]}`
)

// attack is a request that names what demo has, and the status that another workspace gets, and a text in its answer.
type attack struct {
	target, body string // target: the route's path when empty
	status       int
	says         string
}

// attacks are made by route, with the svc_id of demo's user.
func attacks(svcID string) map[string][]attack {
	identifiers := []string{`"external_id":"ada-s3cret"`, fmt.Sprintf(`"svc_id":%q`, svcID), fmt.Sprintf(`"braze_id":%q`, svcID), `"user_alias":{` + hiddenAlias + `}`,
		`"email":"` + hiddenEmail + `"`, `"phone":"` + hiddenPhone + `"`}
	all := map[string][]attack{}
	add := func(route string, status int, bodies ...string) {
		for _, b := range bodies {
			all[route] = append(all[route], attack{body: b, status: status})
		}
	}
	get := func(route string, status int, targets ...string) {
		for _, target := range targets {
			all[route] = append(all[route], attack{target: target, status: status})
		}
	}
	for _, id := range identifiers {
		add("POST /users/track", 201, `{"attributes":[{`+id+`,"_update_existing_only":true,"first_name":"Mallory"}]}`,
			`{"events":[{`+id+`,"_update_existing_only":true,"name":"e","time":"2026-01-31T09:30:00Z"}]}`,
			`{"purchases":[{`+id+`,"_update_existing_only":true,"product_id":"p","currency":"USD","price":1,"time":"2026-01-31T09:30:00Z"}]}`)
	}
	add("POST /users/track", 201, `{"attributes":[{"external_id":"ada-s3cret","first_name":"Mallory"}]}`)
	add("POST /users/track", 400, `{"attributes":[{"external_id":"mallory","subscription_groups":[{"subscription_group_id":"`+hiddenGroup+`","subscription_state":"subscribed"}]}]}`)
	all["POST /users/track/bulk"], all["POST /users/track/sync"] = all["POST /users/track"], all["POST /users/track"]
	add("POST /users/export/ids", 201, `{"external_ids":["ada-s3cret"]}`, fmt.Sprintf(`{"svc_id":%q}`, svcID), fmt.Sprintf(`{"braze_ids":[%q]}`, svcID), `{"user_aliases":[{`+hiddenAlias+`}]}`,
		`{"email_address":"`+hiddenEmail+`"}`, `{"phone":"`+hiddenPhone+`"}`)
	add("POST /users/delete", 201, `{"external_ids":["ada-s3cret"]}`, fmt.Sprintf(`{"svc_ids":[%q]}`, svcID), `{"user_aliases":[{`+hiddenAlias+`}]}`,
		`{"email_addresses":["`+hiddenEmail+`"]}`, `{"phone_numbers":["`+hiddenPhone+`"]}`)
	add("POST /users/alias/new", 201, `{"user_aliases":[{"external_id":"ada-s3cret","alias_label":"new","alias_name":"a"}]}`,
		fmt.Sprintf(`{"user_aliases":[{"svc_id":%q,"alias_label":"new","alias_name":"b"}]}`, svcID), `{"user_aliases":[{"alias_label":"new","alias_name":"nobody's"}]}`)
	add("POST /users/alias/update", 201, `{"alias_updates":[{"alias_label":"l-s3cret","old_alias_name":"n-s3cret","new_alias_name":"taken"}]}`)
	add("POST /users/identify", 201, `{"aliases_to_identify":[{"external_id":"mallory","user_alias":{"alias_label":"cookie-s3cret","alias_name":"c"}}]}`,
		`{"emails_to_identify":[{"external_id":"mallory","email":"nameless-s3cret@example.com","prioritization":["unidentified"]}]}`)
	for _, id := range []string{identifiers[0], identifiers[3], identifiers[4] + `,"prioritization":["most_recently_updated"]`, identifiers[5] + `,"prioritization":["most_recently_updated"]`} {
		add("POST /users/merge", 202, `{"merge_updates":[{"identifier_to_merge":{`+id+`},"identifier_to_keep":{"external_id":"keeper"}}]}`,
			`{"merge_updates":[{"identifier_to_merge":{"external_id":"goner"},"identifier_to_keep":{`+id+`}}]}`)
	}
	add("POST /users/external_ids/rename", 201, `{"external_id_renames":[{"current_external_id":"ada-s3cret","new_external_id":"stolen"}]}`)
	add("POST /users/external_ids/remove", 201, `{"external_ids":["former-s3cret"]}`)

	for _, target := range []string{`"external_id":["ada-s3cret"]`, `"email":["` + hiddenEmail + `"]`} {
		add("POST /subscription/status/set", 400, `{"subscription_group_id":"`+hiddenGroup+`","subscription_state":"unsubscribed",`+target+`}`)
		add("POST /subscription/status/set", 201, `{"subscription_group_id":"`+newsGroup+`","subscription_state":"unsubscribed",`+target+`}`)
		add("POST /v2/subscription/status/set", 400, `{"subscription_groups":[{"subscription_group_id":"`+hiddenGroup+`","subscription_state":"unsubscribed",`+target+`}]}`)
		add("POST /v2/subscription/status/set", 201, `{"subscription_groups":[{"subscription_group_id":"`+newsGroup+`","subscription_state":"unsubscribed",`+target+`}]}`)
	}
	for _, query := range []string{"external_id=ada-s3cret", "email=" + hiddenEmail} {
		get("GET /subscription/status/get", 200, "/subscription/status/get?subscription_group_id="+newsGroup+"&"+query)
		get("GET /subscription/status/get", 400, "/subscription/status/get?subscription_group_id="+hiddenGroup+"&"+query)
	}
	for _, query := range []string{"external_id=ada-s3cret", "email=" + hiddenEmail, "phone=" + url.QueryEscape(hiddenPhone)} {
		all["GET /subscription/user/status"] = append(all["GET /subscription/user/status"], attack{"/subscription/user/status?" + query, "", 200, `{"users":[],"total_count":0,`})
	}
	add("POST /email/status", 201, `{"email":"`+hiddenEmail+`","subscription_state":"unsubscribed"}`)
	for _, route := range []string{"POST /email/blocklist", "POST /email/blacklist", "POST /email/bounce/remove", "POST /email/spam/remove"} {
		add(route, 201, `{"email":"`+hiddenEmail+`"}`)
	}
	for _, path := range []string{"/email/hard_bounces", "/email/unsubscribes"} {
		for _, query := range []string{"start_date=2020-01-01&end_date=2099-01-01&sort_direction=asc&limit=500", "email=" + url.QueryEscape("blocked-"+hiddenEmail)} {
			get("GET "+path, 200, path+"?"+query)
		}
	}

	const center = `{"preference_center_page_html":"mine","confirmation_page_html":"mine"}`
	all["GET /preference_center/v1/list"] = []attack{{"", "", 200, `{"preference_centers":[{"name":"main"`}}
	get("GET /preference_center/v1/{id}", 404, "/preference_center/v1/hidden")
	all["PUT /preference_center/v1/{id}"] = []attack{{"/preference_center/v1/hidden", center, 404, ""}}
	all["POST /preference_center/v1/{id}"] = []attack{{"/preference_center/v1/hidden", center, 404, ""}}
	// Names are unique within a workspace only: the one that demo has is free here, and is told by demo's refusal
	// alone.
	all["POST /preference_center/v1"] = []attack{{"", `{"name":"hidden",` + center[1:], 201, ""}}
	for _, path := range []string{"/preference_center/v1/hidden/url/ada-s3cret", "/preference_center/v1/main/url/ada-s3cret", "/preference_center/v1/hidden/url/reader"} {
		get("GET /preference_center/v1/{id}/url/{user}", 404, path)
		all["POST /preference_center/v1/{id}/url/{user}"] = append(all["POST /preference_center/v1/{id}/url/{user}"], attack{path, "{}", 404, ""})
	}

	for _, path := range []string{"/campaigns/translations", "/campaign/translations"} {
		query := path + "?campaign_id=hidden&message_variation_id=hm"
		get("GET "+path, 400, query)
		get("GET "+path+"/source", 400, strings.Replace(query, "?", "/source?", 1))
		add("PUT "+path, 400, `{"campaign_id":"hidden","message_variation_id":"hm","locale_name":"de","translation_map":{"a":"Mallory"}}`)
		// The same ids lead to something of its own.
		add("PUT "+path, 200, fmt.Sprintf(`{"campaign_id":"c1","message_variation_id":"m2","locale_name":"fr","translation_map":{"x":"Mallory by %s"}}`, path))
		// Who has the message hears that it is another campaign's; nobody else hears that it is there.
		const nobodys = "INVALID_MESSAGE_VARIATION_ID"
		all["GET "+path] = append(all["GET "+path], attack{path + "?campaign_id=c1&message_variation_id=hm", "", 400, nobodys})
		all["PUT "+path] = append(all["PUT "+path], attack{"", `{"campaign_id":"c1","message_variation_id":"hm","locale_name":"de","translation_map":{"a":"Mallory"}}`, 400, nobodys})
	}
	for _, path := range []string{"/canvases/translations", "/canvas/translations"} {
		query := path + "?workflow_id=hidden&step_id=hs&message_variation_id=hn"
		get("GET "+path, 404, query)
		get("GET "+path+"/source", 404, strings.Replace(query, "?", "/source?", 1))
		add("PUT "+path, 200, fmt.Sprintf(`{"workflow_id":"w1","step_id":"s2","message_variation_id":"n2","locale_name":"fr","translation_map":{"id_0":"Mallory by %s","id_1":""}}`, path))
		add("PUT "+path, 404, `{"workflow_id":"hidden","step_id":"hs","message_variation_id":"hn","locale_name":"de","translation_map":{"a":"Mallory"}}`)
	}
	return all
}

// seed makes what demo has, again and again; it returns the svc_id of its user.
func (d *door) seed(t *testing.T) (svcID string) {
	file, err := document.ParseBootstrap([]byte(hiddenYAML))
	require.NoError(t, err)
	_, err = d.control.Bootstrap(t.Context(), control.Actor{Name: "test"}, file)
	require.NoError(t, err)
	must := func(path, body string) answer {
		a := d.call("POST", path, demoKey, body)
		require.Less(t, a.status, 300, "%s: %s", path, a.body)
		return a
	}
	must("/users/delete", `{"external_ids":["ada-s3cret","stolen","mallory","keeper","goner"]}`)
	must("/users/delete", `{"email_addresses":["`+hiddenEmail+`","nameless-s3cret@example.com"]}`)
	must("/users/delete", allAliases)
	must("/users/track", `{"attributes":[{"external_id":"reader"},{"external_id":"former-s3cret","first_name":"Ada-s3cret","email":"`+hiddenEmail+`","phone":"`+hiddenPhone+`","x":"value-s3cret","marked_email_as_spam_at":"2026-01-31T09:30:00Z"},
		{"external_id":"keeper","y":1},{"external_id":"goner","z":1},{"user_alias":{"alias_label":"cookie-s3cret","alias_name":"c"},"_update_existing_only":false,"x":1},{"email":"nameless-s3cret@example.com","x":1}]}`)
	must("/users/external_ids/rename", `{"external_id_renames":[{"current_external_id":"former-s3cret","new_external_id":"ada-s3cret"}]}`)
	must("/users/alias/new", `{"user_aliases":[{"external_id":"ada-s3cret",`+hiddenAlias+`}]}`)
	must("/email/blocklist", `{"email":"`+hiddenEmail+`"}`)
	must("/email/blocklist", `{"email":"blocked-`+hiddenEmail+`"}`)
	must("/email/status", `{"email":"`+hiddenEmail+`","subscription_state":"opted_in"}`)
	for _, group := range []string{newsGroup, hiddenGroup} {
		must("/subscription/status/set", `{"subscription_group_id":"`+group+`","subscription_state":"subscribed","external_id":"ada-s3cret"}`)
	}
	svcID, _ = must("/users/export/ids", `{"external_ids":["ada-s3cret"]}`).json(t)["users"].([]any)[0].(map[string]any)["svc_id"].(string)
	require.NotEmpty(t, svcID)
	return svcID
}

// view is all that demo sees of its own.
func (d *door) view(t *testing.T, svcID string) string {
	var b strings.Builder
	for _, body := range []string{`{"external_ids":["ada-s3cret","former-s3cret","stolen","mallory","keeper","goner"]}`, fmt.Sprintf(`{"svc_id":%q}`, svcID),
		allAliases,
		`{"email_address":"` + hiddenEmail + `","phone":"` + hiddenPhone + `"}`, `{"email_address":"nameless-s3cret@example.com"}`} {
		b.WriteString(d.call("POST", "/users/export/ids", demoKey, body).body + "\n")
	}
	for _, target := range []string{"/preference_center/v1/list", "/preference_center/v1/hidden", "/preference_center/v1/main", "/subscription/user/status?external_id=ada-s3cret",
		"/subscription/status/get?subscription_group_id=" + newsGroup + "&email=" + hiddenEmail,
		"/campaigns/translations?campaign_id=hidden", "/campaigns/translations/source?campaign_id=hidden&message_variation_id=hm", "/campaigns/translations?campaign_id=c1",
		"/canvases/translations?workflow_id=hidden&step_id=hs&message_variation_id=hn", "/canvases/translations?workflow_id=w1&step_id=s2&message_variation_id=n2"} {
		a := d.call("GET", target, demoKey, "")
		require.Equal(t, 200, a.status, target)
		b.WriteString(a.body + "\n")
	}
	return b.String()
}

func TestWorkspacesAreIsolated(t *testing.T) {
	testsize.SkipSerial(t)
	d := openEngine(t, t.TempDir())
	svcID := d.seed(t)
	require.Equal(t, 201, d.track(otherKey, "reader").status)
	before := d.view(t, svcID)
	require.Equal(t, before, d.view(t, svcID))
	targetOf := func(rt *route, a attack) string {
		if a.target == "" {
			return rt.path
		}
		return a.target
	}
	known := map[string]bool{}
	routes := d.routes()
	for i := range routes {
		rt := &routes[i]
		if rt.permission == "" {
			continue // open, or of the company
		}
		name := rt.method + " " + rt.path
		list := attacks(svcID)[name]
		require.NotEmpty(t, list, "a new route needs attacks here: %s", name)
		known[name] = true
		for _, a := range list {
			got := d.call(rt.method, targetOf(rt, a), otherKey, a.body)
			require.Equal(t, a.status, got.status, "%s %s %s: %s", name, a.target, a.body, got.body)
			require.Contains(t, got.body, a.says, "%s %s %s", name, a.target, a.body)
			shown := got.body
			for _, sent := range []string{"ada-s3cret", "former-s3cret", hiddenEmail, "n-s3cret", "l-s3cret", svcID} { // what was asked for may come back
				shown = strings.ReplaceAll(shown, `"`+sent+`"`, "")
			}
			require.NotContains(t, shown, marker, "%s %s %s", name, a.target, a.body)
			if rt.method == "GET" { // a state that an attack before has set is unsubscribed
				require.NotContains(t, shown, `"Subscribed"`, "%s %s", name, a.target)
				require.NotContains(t, shown, hiddenGroup, "%s %s", name, a.target)
			}
			require.Equal(t, before, d.view(t, svcID), "%s %s %s", name, a.target, a.body)
			// What it has made of its own must not be in the way of the next.
			d.call("POST", "/users/delete", otherKey, `{"external_ids":["ada-s3cret","mallory","keeper","goner","stolen"]}`)
			d.call("POST", "/users/delete", otherKey, `{"email_addresses":["`+hiddenEmail+`"]}`)
		}
	}
	for name := range attacks(svcID) {
		require.True(t, known[name], "%s is no route", name)
	}

	// What the other workspace does to its own happens there, under the same names.
	require.Equal(t, 201, d.call("POST", "/users/track", otherKey, `{"attributes":[{"external_id":"keeper","mine":1},{"external_id":"goner","mine":2,"gone":1}]}`).status)
	require.Equal(t, 202, d.call("POST", "/users/merge", otherKey, `{"merge_updates":[{"identifier_to_merge":{"external_id":"goner"},"identifier_to_keep":{"external_id":"keeper"}}]}`).status)
	require.Eventually(t, func() bool {
		a := d.call("POST", "/users/export/ids", otherKey, `{"external_ids":["keeper","goner"],"fields_to_export":["custom_attributes"]}`)
		return a.body == `{"users":[{"custom_attributes":{"mine":1,"gone":1}}],"invalid_user_ids":["goner"],"message":"success"}`
	}, waitLimit, tick)
	require.Len(t, d.call("POST", "/users/export/ids", otherKey, `{"user_aliases":[{"alias_label":"new","alias_name":"nobody's"}]}`).json(t)["users"], 1)
	require.Equal(t, before, d.view(t, svcID))

	// An attack that would do nothing with demo's own key either proves nothing.
	for i := range routes {
		rt := &routes[i]
		for j := range attacks("")[rt.method+" "+rt.path] {
			svcID = d.seed(t)
			a := attacks(svcID)[rt.method+" "+rt.path][j]
			before = d.view(t, svcID)
			got := d.call(rt.method, targetOf(rt, a), demoKey, a.body)
			bites := func() bool {
				return got.status != a.status || !strings.Contains(got.body, a.says) || strings.Contains(got.body, marker) || strings.Contains(got.body, `"Subscribed"`) || before != d.view(t, svcID)
			}
			if rt.path == "/users/merge" {
				require.Eventually(t, bites, waitLimit, tick, "%s %s", rt.path, a.body)
				continue
			}
			require.True(t, bites(), "%s %s %s does nothing: %s", rt.path, a.target, a.body, got.body)
		}
	}
}
