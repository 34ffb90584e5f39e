package api

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/scim"
)

// provision sends a request with the SCIM token and its origin.
func (d *door) provision(method, target, body string, headers ...string) answer {
	return d.call(method, target, scimToken, body, append([]string{"X-Request-Origin", scimOrigin}, headers...)...)
}

// userBody is a whole user; permissions is the JSON of that member.
func userBody(userName, department, permissions string) string {
	return fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"userName":%q,"name":{"givenName":"Ada","familyName":"Lovelace"},"department":%q,"permissions":%s}`,
		userName, department, permissions)
}

const fullPermissions = `{"companyPermissions":["manage_company_settings"],"roles":[{"roleName":"Editor"},{"roleId":"r7"}],"appGroup":[` +
	`{"appGroupName":"Demo","appGroupPermissions":["basic_access","send_campaigns_canvases","some_new_permission"],"team":[{"teamName":"North","teamPermissions":["export_user_data","admin"]}]},` +
	`{"appGroupId":"other","appGroupPermissionSets":[{"appGroupPermissionSetName":"Readers"}]}]}`

func scimFailure(status int, detail string) string {
	return fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"detail":%q,"status":%d}`, detail, status)
}

func scim400(kind, detail string) string {
	return fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"detail":%q,"status":400,"scimType":%q}`, detail, kind)
}

// createUser makes a user and returns its id.
func (d *door) createUser(t testing.TB, userName string) string {
	a := d.provision("POST", "/scim/v2/Users", userBody(userName, "bi", "{}"))
	require.Equal(t, 201, a.status, a.body)
	return a.json(t)["id"].(string)
}

func groupBody(displayName string) string {
	return fmt.Sprintf(`{"schemas":["urn:ietf:params:scim:schemas:core:2.0:Group"],"displayName":%q,"members":[]}`, displayName)
}

// createGroup makes a group and returns its path.
func (d *door) createGroup(t testing.TB, displayName string) string {
	a := d.provision("POST", "/scim/v2/Groups", groupBody(displayName))
	require.Equal(t, 201, a.status, a.body)
	return a.header.Get("Location")
}

// patchBody is a PATCH of these operations.
func patchBody(operations ...string) string {
	return `{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[` + strings.Join(operations, ",") + `]}`
}

// testSCIMRoute: a SCIM route is served to the SCIM token and to nothing else.
func testSCIMRoute(t *testing.T, d *door, rt route, others []string) {
	n := scimUsersMade.Add(1)
	target := strings.Replace(rt.path, "{id}", d.createUser(t, fmt.Sprintf("matrix-%d@example.com", n)), 1)
	body := ""
	switch {
	case rt.path == "/scim/v2/Groups" && rt.method == "POST":
		body = groupBody(fmt.Sprintf("Matrix %d", n))
	case strings.HasPrefix(rt.path, "/scim/v2/Groups/"):
		name := fmt.Sprintf("Matrix group %d", n)
		target = d.createGroup(t, name)
		switch rt.method {
		case "PUT":
			body = groupBody(name)
		case "PATCH":
			body = patchBody(`{"op":"replace","path":"externalId","value":"x"}`)
		}
	case rt.method == "PATCH":
		body = patchBody(`{"op":"replace","path":"active","value":false}`)
	case rt.method == "POST" || rt.method == "PUT":
		body = userBody(fmt.Sprintf("matrix-%d@example.com", n), "pm", "{}")
		if rt.method == "POST" {
			body = userBody(fmt.Sprintf("matrix-new-%d@example.com", n), "pm", "{}")
		}
	case rt.path == "/scim/v2/Users":
		target += "?filter=" + url.QueryEscape(`userName eq "nobody@example.com"`)
	case strings.HasPrefix(rt.path, "/scim/v2/ResourceTypes/"):
		target = "/scim/v2/ResourceTypes/User"
	case strings.HasPrefix(rt.path, "/scim/v2/Schemas/"):
		target = "/scim/v2/Schemas/" + scim.UserSchema
	}
	for _, key := range others {
		a := d.call(rt.method, target, key, body, "X-Request-Origin", scimOrigin)
		require.Equal(t, 401, a.status, "%s with %q", rt.path, key)
		require.Equal(t, scimFailure(401, textSCIMUnauthorized), a.body)
	}
	a := d.provision(rt.method, target, body)
	require.Less(t, a.status, 300, "%s %s: %s", rt.method, rt.path, a.body)
	require.NotEmpty(t, a.header.Get("X-RateLimit-Limit"))
}

var scimUsersMade atomic.Int64

// The life of a user, each effect read back another way, and all of it again after a restart.
func TestSCIMUser(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	created := d.provision("POST", "/scim/v2/Users/", userBody("Ada@Example.com", "finance", fullPermissions), "Content-Type", "application/scim+json; charset=utf-8")
	require.Equal(t, 201, created.status, created.body)
	require.Equal(t, "application/scim+json", created.header.Get("Content-Type"))
	require.Equal(t, "5000", created.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "4999", created.header.Get("X-RateLimit-Remaining"))
	v := created.json(t)
	id := v["id"].(string)
	require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{8}){3}$`, id)
	require.Equal(t, "/scim/v2/Users/"+id, created.header.Get("Location"))

	// Letter by letter, apart from what time and chance make.
	text := strings.ReplaceAll(created.body, id, "ID")
	text = regexp.MustCompile(`20\d\d-[0-9T:.-]+Z`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(`"createdAt":"[A-Z][a-z]+day, [A-Z][a-z]+ \d+, 20\d\d \d+:\d\d:\d\d [AP]M"`).ReplaceAllString(text, `"createdAt":"DATE"`)
	text = regexp.MustCompile(`"teamId":"N[0-9a-f]{24}"`).ReplaceAllString(text, `"teamId":"TEAM"`)
	text = regexp.MustCompile(`"W/\\"[0-9a-f]{16}\\""`).ReplaceAllString(text, `"VERSION"`)
	require.Equal(t, `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"id":"ID","userName":"Ada@Example.com","name":{"givenName":"Ada","familyName":"Lovelace"},`+
		`"active":true,"emails":[{"value":"Ada@Example.com","type":"work","primary":true}],"department":"finance","lastSignInAt":"Thursday, January 1, 1970 12:00:00 AM","createdAt":"DATE","permissions":{"companyPermissions":["manage_company_settings"],`+
		`"roles":[{"roleName":"Editor"},{"roleId":"r7"}],"appGroup":[{"appGroupId":"demo","appGroupName":"Demo",`+
		`"appGroupPermissions":["basic_access","send_campaigns_canvases","some_new_permission"],`+
		`"team":[{"teamId":"TEAM","teamName":"North","teamPermissions":["export_user_data","admin"]}]},`+
		`{"appGroupId":"other","appGroupName":"other","appGroupPermissionSets":[{"appGroupPermissionSetName":"Readers"}],"team":[]}]},`+
		`"meta":{"resourceType":"User","created":"TIME","lastModified":"TIME","location":"/scim/v2/Users/ID","version":"VERSION"}}`, text)
	require.Equal(t, v["meta"].(map[string]any)["version"], created.header.Get("ETag"))

	find := func(filter string) answer {
		return d.provision("GET", "/scim/v2/Users?filter="+url.QueryEscape(filter), "")
	}
	check := func() {
		a := d.provision("GET", "/scim/v2/Users/"+id+"/", "")
		require.Equal(t, 200, a.status)
		require.Equal(t, created.body, a.body)
		require.Equal(t, 200, d.provision("HEAD", "/scim/v2/Users/"+id, "").status)
		for _, filter := range []string{`userName eq "ada@example.com"`, `username EQ "ADA@EXAMPLE.COM"`} {
			a = find(filter)
			require.Equal(t, 200, a.status)
			require.Equal(t, `{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":1,"startIndex":1,"itemsPerPage":1,"Resources":[`+created.body+`]}`, a.body)
		}
		a = d.provision("POST", "/scim/v2/Users", userBody("ADA@example.com", "bi", "{}"))
		require.Equal(t, 409, a.status)
		require.Equal(t, strings.Replace(scimFailure(409, "User already exists in the database."), "}", `,"scimType":"uniqueness"}`, 1), a.body)
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"))
	}
	check()
	d.end()
	d = openEngine(t, dir)
	check()

	// What the service says can be sent back: ids, times, schemas and meta are passed over.
	again := d.provision("PUT", "/scim/v2/Users/"+id, created.body)
	require.Equal(t, 200, again.status, again.body)
	require.Equal(t, v["permissions"], again.json(t)["permissions"])

	changed := d.provision("PUT", "/scim/v2/Users/"+id, `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User","urn:x"],"id":"7","userName":"ADA@EXAMPLE.COM","lastSignInAt":"now",
		"name":{"givenName":"A.","familyName":"King","formatted":"x"},"department":"c_suite","active":true,"permissions":{"companyPermissions":["admin"]}}`)
	require.Equal(t, 200, changed.status, changed.body)
	w := changed.json(t)
	require.Equal(t, "Ada@Example.com", w["userName"], "a userName stays as it is")
	require.Equal(t, id, w["id"])
	require.Equal(t, map[string]any{"givenName": "A.", "familyName": "King", "formatted": "x"}, w["name"])
	require.Equal(t, "c_suite", w["department"])
	require.Equal(t, map[string]any{"companyPermissions": []any{"admin"}, "appGroup": []any{}}, w["permissions"])
	require.Equal(t, v["createdAt"], w["createdAt"])
	require.Equal(t, "Thursday, January 1, 1970 12:00:00 AM", w["lastSignInAt"])
	require.Equal(t, v["meta"].(map[string]any)["created"], w["meta"].(map[string]any)["created"])
	require.NotEqual(t, v["meta"].(map[string]any)["lastModified"], w["meta"].(map[string]any)["lastModified"])
	require.Equal(t, true, w["active"])
	require.Equal(t, changed.body, d.provision("GET", "/scim/v2/Users/"+id, "").body)

	moved := d.provision("PUT", "/scim/v2/Users/"+id, userBody("other@example.com", "bi", "{}"))
	require.Equal(t, 400, moved.status)
	require.Equal(t, scim400("mutability", "'userName' can't be changed"), moved.body)
	require.Equal(t, changed.body, d.provision("GET", "/scim/v2/Users/"+id, "").body, "a refused change has no effect")

	gone := d.provision("DELETE", "/scim/v2/Users/"+id, "")
	require.Equal(t, 204, gone.status)
	require.Empty(t, gone.body)
	require.Empty(t, gone.header.Get("Content-Type"))
	require.NotEmpty(t, gone.header.Get("X-RateLimit-Remaining"))
	nobody := func() {
		for method, body := range map[string]string{"GET": "", "DELETE": "", "PUT": userBody("ada@example.com", "bi", "{}")} {
			a := d.provision(method, "/scim/v2/Users/"+id, body)
			require.Equal(t, 404, a.status, method)
			require.Equal(t, scimFailure(404, "User not found"), a.body)
		}
		require.Equal(t, `{"schemas":["urn:ietf:params:scim:api:messages:2.0:ListResponse"],"totalResults":0,"startIndex":1,"itemsPerPage":0,"Resources":[]}`, find(`userName eq "ada@example.com"`).body)
	}
	nobody()
	d.end()
	d = openEngine(t, dir)
	nobody()
	require.NotEqual(t, id, d.createUser(t, "ada@example.com"), "a name is free again, an id is not")
	require.Equal(t, 404, d.provision("GET", "/scim/v2/Users/"+id, "").status)
}

// Everything that is wrong with a user has its own text, and no effect.
func TestSCIMRefusals(t *testing.T) {
	d := openEngine(t, t.TempDir())
	_, err := d.control.UpdateSettings(control.Actor{}, "other", func(s *document.Settings) error { s.Name = "Second"; return nil })
	require.NoError(t, err)
	id := d.createUser(t, "present@example.com")
	before := d.provision("GET", "/scim/v2/Users/"+id, "").body
	good := userBody("new@example.com", "bi", "{}")
	with := func(old, replacement string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, replacement, 1)
	}
	permissions := func(text string) string { return userBody("new@example.com", "bi", text) }
	group := func(text string) string { return permissions(`{"appGroup":[` + text + `]}`) }
	long := strings.Repeat("x", 256)
	for body, detail := range map[string]string{
		`{}`: "'schemas', 'userName', 'name' are required",
		`{"schemas":null,"userName":null,"name":{},"department":7,"permissions":null,"permission":{}}`: "'schemas', 'userName', 'name.givenName', 'name.familyName', 'permissions' are required",
		with(`"userName":`, `"user_name":`):                                     "'userName' is required",
		with(`["urn:ietf:params:scim:schemas:core:2.0:User"]`, `[]`):            "'schemas' must contain urn:ietf:params:scim:schemas:core:2.0:User",
		with(`["urn:ietf:params:scim:schemas:core:2.0:User"]`, `[7]`):           "'schemas' must be an array of strings",
		with(`["urn:ietf:params:scim:schemas:core:2.0:User"]`, `"x"`):           "'schemas' must be an array of strings",
		with(`"new@example.com"`, `7`):                                          "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `""`):                                         "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"new"`):                                      "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"new@example"`):                              "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"New <new@example.com>"`):                    "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"a@example.com,b@example.com"`):              "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"new@example.com\u0000"`):                    "'userName' must be an email address of at most 254 bytes",
		with(`"new@example.com"`, `"`+strings.Repeat("x", 243)+`@example.com"`): "'userName' must be an email address of at most 254 bytes",
		with(`{"givenName":"Ada","familyName":"Lovelace"}`, `"Ada"`):            "'name' must be an object",
		with(`"Ada"`, `7`):                                                                "'name.givenName' must be a string",
		with(`"Ada"`, `" "`):                                                              "'name.givenName' must have 1 to 255 bytes without control characters",
		with(`"Lovelace"`, `"`+long+`"`):                                                  "'name.familyName' must have 1 to 255 bytes without control characters",
		with(`"Lovelace"`, `"a\nb"`):                                                      "'name.familyName' must have 1 to 255 bytes without control characters",
		with(`"bi"`, `"Finance"`):                                                         "'department' must be one of agency, bi, c_suite, engineering, finance, marketing, pm",
		with(`"bi"`, `["bi"]`):                                                            "'department' must be one of agency, bi, c_suite, engineering, finance, marketing, pm",
		permissions(`[]`):                                                                 "'permissions' must be an object",
		permissions(`{"companyPermissions":"admin"}`):                                     "'permissions.companyPermissions' must be an array of strings",
		permissions(`{"companyPermissions":["admin",7]}`):                                 "'permissions.companyPermissions' must be an array of strings",
		permissions(`{"companyPermissions":[""]}`):                                        "'permissions.companyPermissions' must hold names of 1 to 255 bytes without control characters",
		permissions(`{"companyPermissions":["` + long + `"]}`):                            "'permissions.companyPermissions' must hold names of 1 to 255 bytes without control characters",
		permissions(`{"roles":{}}`):                                                       "'permissions.roles' must be an array of objects",
		permissions(`{"roles":[{"roleName":"a"},"b"]}`):                                   "'permissions.roles[1]' must be an object",
		permissions(`{"roles":[null]}`):                                                   "'permissions.roles[0]' must be an object",
		permissions(`{"roles":[{}]}`):                                                     "'permissions.roles[0]' must have 'roleName' or 'roleId'",
		permissions(`{"appGroup":{}}`):                                                    "'permissions.appGroup' must be an array of objects",
		group(`7`):                                                                        "'permissions.appGroup[0]' must be an object",
		group(`{"appGroupPermissions":["basic_access"]}`):                                 "'permissions.appGroup[0]' must have 'appGroupName' or 'appGroupId'",
		group(`{"appGroupName":7}`):                                                       "'permissions.appGroup[0].appGroupName' must be a string",
		group(`{"appGroupId":"nowhere"}`):                                                 "'permissions.appGroup[0].appGroupId' is not the id of a workspace",
		group(`{"appGroupId":"demo","appGroupName":"Second"}`):                            "'permissions.appGroup[0]' has the 'appGroupId' of one workspace and the 'appGroupName' of another",
		group(`{"appGroupName":"Demo"},{"appGroupId":"demo"}`):                            "'permissions.appGroup[1]' is for the same workspace as 'permissions.appGroup[0]'",
		group(`{"appGroupName":"Demo","appGroupPermissions":{}}`):                         "'permissions.appGroup[0].appGroupPermissions' must be an array of strings",
		group(`{"appGroupName":"Demo","appGroupPermissionSets":{}}`):                      "'permissions.appGroup[0].appGroupPermissionSets' must be an array of objects",
		group(`{"appGroupName":"Demo","appGroupPermissionSets":[{}]}`):                    "'permissions.appGroup[0].appGroupPermissionSets[0]' must have 'appGroupPermissionSetName' or 'appGroupPermissionSetId'",
		group(`{"appGroupName":"Demo","team":[{"teamPermissions":[]}]}`):                  "'permissions.appGroup[0].team[0]' must have 'teamName' or 'teamId'",
		group(`{"appGroupName":"Demo","team":[{"teamName":"a"},{"teamName":[]}]}`):        "'permissions.appGroup[0].team[1].teamName' must be a string",
		group(`{"appGroupName":"Demo","team":[{"teamName":"a","teamPermissions":[{}]}]}`): "'permissions.appGroup[0].team[0].teamPermissions' must be an array of strings",
		group(`{"appGroupName":"Demo","appGroupPermissions":[],"appGroupPermissionSets":[]}`): "'permissions.appGroup[0]' must not have both 'appGroupPermissions' and " +
			"'appGroupPermissionSets'",
		with(`"bi"`, `"bi","active":0`):               "'active' must be a boolean",
		with(`"bi"`, `"bi","active":"no"`):            "'active' must be a boolean",
		with(`"bi"`, `"bi","active":{"value":false}`): "'active' must be a boolean",
		with(`"bi"`, `"bi","active":["false"]`):       "'active' must be a boolean",
	} {
		a := d.provision("POST", "/scim/v2/Users", body)
		require.Equal(t, 400, a.status, body)
		require.Equal(t, scim400("invalidValue", detail), a.body, body)
		if strings.Contains(detail, "'userName'") {
			continue
		}
		a = d.provision("PUT", "/scim/v2/Users/"+id, strings.Replace(body, `"userName":"new@example.com",`, "", 1))
		require.Equal(t, scim400("invalidValue", detail), a.body, body)
	}
	require.Equal(t, scim400("invalidValue", "'schemas', 'name' are required"), d.provision("PUT", "/scim/v2/Users/"+id, `{}`).body)
	for _, name := range []string{`7`, `"new@example.com"`, `""`} {
		require.Equal(t, scim400("mutability", "'userName' can't be changed"), d.provision("PUT", "/scim/v2/Users/"+id, with(`"new@example.com"`, name)).body)
	}
	for body, detail := range map[string]string{
		`{"schemas":[`: "Invalid JSON at byte 12: a value is expected",
		`[]`:           "the body must be an object",
		``:             "Invalid JSON at byte 0: a value is expected",
		"\ufeff{}":     "Invalid JSON at byte 0: a byte order mark",
		with(`{"schemas"`, `{"userName":"a@example.com","schemas"`):                                  "Invalid JSON: member 'userName' is there more than once",
		group(`{"appGroupName":"Demo","appGroupPermissions":["a"],"appGroupPermissions":["admin"]}`): "Invalid JSON: member 'appGroupPermissions' is there more than once",
		with(`"Ada"`, `"\ud800"`):                            "Invalid JSON: a lone surrogate in a string",
		with(`{"schemas"`, `{"x":[{"a":1,"a":2}],"schemas"`): "Invalid JSON: member 'a' is there more than once",
	} {
		a := d.provision("POST", "/scim/v2/Users", body)
		require.Equal(t, 400, a.status, body)
		require.Equal(t, scimFailure(400, detail), a.body, body)
	}
	require.Equal(t, before, d.provision("GET", "/scim/v2/Users/"+id, "").body)
	require.Equal(t, before, d.provision("GET", "/scim/v2/Users/"+strings.ReplaceAll(id, "-", "%2D"), "").body)
	for _, path := range []string{"Ada@example.com", "x/../" + id, "/" + id, id + "//", id + "%2F", "..", "%2E%2E"} {
		a := d.provision("GET", "/scim/v2/Users/"+path, "")
		require.Equal(t, 404, a.status, path)
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"), path)
	}
	require.Equal(t, 0.0, d.provision("GET", "/scim/v2/Users?filter="+url.QueryEscape(`userName eq "new@example.com"`), "").json(t)["totalResults"])

	for _, like := range []string{"present@example.com", "PRESENT@Example.com", "pre\u017Fent@example.com"} { // the last one has a long s
		a := d.provision("POST", "/scim/v2/Users", strings.Replace(good, "new@example.com", like, 1))
		require.Equal(t, strings.ContainsRune(like, '\u017F'), a.status == 201, "%s: %s", like, a.body)
	}

	large := with(`"schemas"`, `"x":"`+strings.Repeat("x", scim.MaxBodyBytes)+`","schemas"`)
	a := d.provision("POST", "/scim/v2/Users", large)
	require.Equal(t, 413, a.status)
	require.Equal(t, scimFailure(413, "Request Entity Too Large"), a.body)
	fits := with(`"schemas"`, `"x":"`+strings.Repeat("x", scim.MaxBodyBytes-2000)+`","schemas"`)
	require.Equal(t, 201, d.provision("POST", "/scim/v2/Users", fits).status, "more than a stranger may send")
}

// Who sends one of department and permissions must send the other, as the contract has it; identity providers send
// neither, or no X-Request-Origin. What there is besides the request stands in for what is missing.
func TestSCIMDepartmentAndPermissions(t *testing.T) {
	d := openEngine(t, t.TempDir())
	by := control.Actor{Name: "test"}
	set := func(change func(s *document.SCIMSettings)) {
		require.NoError(t, d.control.UpdateSCIM(by, func(s *document.SCIMSettings) error { change(s); return nil }))
	}
	const rights = `"permissions":{"companyPermissions":["admin"]}`
	n := 0
	body := func(rest string) string {
		n++
		return fmt.Sprintf(`{"schemas":[%q],"userName":"pair-%d@example.com","name":{"givenName":"A","familyName":"B"}%s}`, scim.UserSchema, n, rest)
	}
	create := func(rest string) answer { return d.provision("POST", "/scim/v2/Users", body(rest)) }
	replace := func(id, rest string) answer {
		return d.provision("PUT", "/scim/v2/Users/"+id, regexp.MustCompile(`"userName":"[^"]*",`).ReplaceAllString(body(rest), ""))
	}
	refused := func(name string, a answer) {
		t.Helper()
		require.Equal(t, 400, a.status, a.body)
		require.Equal(t, scim400("invalidValue", "'"+name+"' is required"), a.body)
	}
	for _, none := range []string{"", "null"} {
		department, permissions := "", ""
		if none != "" {
			department, permissions = `,"department":`+none, `,"permissions":`+none
		}
		refused("permissions", create(`,"department":"bi"`+permissions))
		refused("department", create(","+rights+department))
	}
	neither := create("")
	require.Equal(t, 201, neither.status, neither.body)
	both := create(`,"department":"bi",` + rights)
	require.Equal(t, 201, both.status, both.body)

	id := both.json(t)["id"].(string)
	refused("permissions", replace(id, `,"department":"pm"`))
	refused("department", replace(id, `,"permissions":{}`))
	require.Equal(t, both.body, d.provision("GET", "/scim/v2/Users/"+id, "").body)
	require.Equal(t, 200, replace(id, "").status)
	bare := neither.json(t)["id"].(string)
	require.Equal(t, 200, replace(bare, ","+rights).status, "as it was shown, without a department")
	refused("permissions", replace(bare, `,"department":"pm"`))
	require.Equal(t, 200, d.provision("PATCH", "/scim/v2/Users/"+bare, patchBody(`{"op":"add","path":"department","value":"pm"}`)).status)
	require.Equal(t, 200, d.provision("PATCH", "/scim/v2/Users/"+bare, patchBody(`{"op":"remove","path":"department"}`)).status)

	set(func(s *document.SCIMSettings) { s.DefaultDepartment = "finance" })
	a := create("," + rights)
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, "finance", a.json(t)["department"])
	refused("permissions", create(`,"department":"bi"`))
	set(func(s *document.SCIMSettings) {
		s.DefaultDepartment, s.DefaultPermissions = "", &document.SCIMPermissions{Company: []string{"admin"}}
	})
	a = create(`,"department":"bi"`)
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, []any{"admin"}, a.json(t)["permissions"].(map[string]any)["companyPermissions"])
	refused("department", create(","+rights))

	set(func(s *document.SCIMSettings) { s.DefaultPermissions, s.RequestOrigin = nil, "" })
	refused("permissions", create(`,"department":"bi"`)) // the request has an origin, although none is expected
	refused("department", create(","+rights))
	refused("permissions", replace(id, `,"department":"pm"`))
	require.Equal(t, 201, d.call("POST", "/scim/v2/Users", scimToken, body(`,"department":"bi"`)).status)
	require.Equal(t, 201, d.call("POST", "/scim/v2/Users", scimToken, body(","+rights)).status)
	require.Equal(t, 200, d.call("PUT", "/scim/v2/Users/"+id, scimToken, strings.Replace(body(`,"department":"pm"`), "userName", "x", 1)).status)
}

// Workspaces are found by name and by id, and stay the same when their name changes; a name that is no workspace's
// never becomes one's.
func TestSCIMWorkspaces(t *testing.T) {
	d := openEngine(t, t.TempDir())
	id := d.createUser(t, "a@example.com")
	put := func(group string) map[string]any {
		a := d.provision("PUT", "/scim/v2/Users/"+id, userBody("a@example.com", "bi", `{"appGroup":[`+group+`]}`))
		require.Equal(t, 200, a.status, a.body)
		return a.json(t)["permissions"].(map[string]any)["appGroup"].([]any)[0].(map[string]any)
	}
	rename := func(workspace, name string) {
		_, err := d.control.UpdateSettings(control.Actor{}, workspace, func(s *document.Settings) error { s.Name = name; return nil })
		require.NoError(t, err)
	}
	elsewhere := put(`{"appGroupName":"Elsewhere","team":[{"teamName":"t"}]}`)
	require.Regexp(t, `^N[0-9a-f]{24}$`, elsewhere["appGroupId"])
	require.Equal(t, elsewhere, put(`{"appGroupName":"Elsewhere","team":[{"teamName":"t"}]}`), "ids are stable")
	demo := put(`{"appGroupName":"Demo"}`)
	require.Equal(t, "demo", demo["appGroupId"])
	require.Equal(t, []any{}, demo["appGroupPermissions"])
	rename("demo", "Renamed")
	require.Equal(t, "Renamed", put(`{"appGroupId":"demo","appGroupName":"Demo"}`)["appGroupName"])
	require.Equal(t, "Renamed", put(`{"appGroupId":"demo"}`)["appGroupName"])
	rename("other", "Renamed")
	a := d.provision("PUT", "/scim/v2/Users/"+id, userBody("a@example.com", "bi", `{"appGroup":[{"appGroupName":"Renamed"}]}`))
	require.Equal(t, scim400("invalidValue", "'permissions.appGroup[0].appGroupName' is the name of more than one workspace: use 'appGroupId'"), a.body)
	require.Equal(t, "other", put(`{"appGroupId":"other","appGroupName":"Renamed"}`)["appGroupId"])
	require.Equal(t, "T9", put(`{"appGroupId":"other","team":[{"teamId":"T9"}]}`)["team"].([]any)[0].(map[string]any)["teamId"])
}

func TestSCIMFilter(t *testing.T) {
	d := openEngine(t, t.TempDir())
	d.createUser(t, "a+b@example.com")
	total := func(query string) float64 {
		a := d.provision("GET", "/scim/v2/Users?"+query, "")
		require.Equal(t, 200, a.status, "%s: %s", query, a.body)
		v := a.json(t)
		require.Len(t, v["Resources"], int(v["itemsPerPage"].(float64)))
		return v["totalResults"].(float64) + v["itemsPerPage"].(float64)/10
	}
	const name = `filter=userName%20eq%20%22a%2Bb@example.com%22`
	require.Equal(t, 1.1, total(name))
	require.Equal(t, 1.1, total(`filter=userName%20eq%20%22a+b@example.com%22`), "a plus as the contract's form of the URL has it")
	require.Equal(t, 1.1, total(name+"&startIndex=1&count=100"))
	require.Equal(t, 1.1, total(name+"&startIndex=x&count="))
	require.Equal(t, 1.0, total(name+"&startIndex=2"))
	require.Equal(t, 1.0, total(name+"&count=0"))
	require.Equal(t, 1.0, total(name+"&count=-1"))
	require.Equal(t, 1.1, total(name+"&startIndex=-1"))
	require.Equal(t, 1.1, total(""), "all of them")
	require.Equal(t, 1.1, total("count=10"))
	require.Equal(t, 0.0, total("filter="+url.QueryEscape(`userName eq "c@example.com"`)))
	for _, query := range []string{"filter=", name + "&" + name, "filter=" + url.QueryEscape(`userName eq "`+strings.Repeat("a", 512)+`"`),
		"filter=" + url.QueryEscape(`userName is "a+b@example.com"`), "filter=" + url.QueryEscape(`password eq "a"`), "filter=%00", "filter=%ff"} {
		a := d.provision("GET", "/scim/v2/Users?"+query, "")
		require.Equal(t, 400, a.status, query)
		require.Equal(t, scim400("invalidFilter", "Request is unparsable, syntactically incorrect, or violates schema."), a.body, query)
	}
}

// Whatever is wrong with the credential gets the same answer, and is counted.
func TestSCIMAccess(t *testing.T) {
	d := open(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		o.MaxBadKeysPerMinute = 100
	})
	const target = "/scim/v2/ServiceProviderConfig"
	ask := func(token string, headers ...string) answer { return d.call("GET", target, token, "", headers...) }
	denied := func(a answer) {
		t.Helper()
		require.Equal(t, 401, a.status, a.body)
		require.Equal(t, scimFailure(401, "The SCIM token, its X-Request-Origin or the caller's address is not valid"), a.body)
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"))
		require.Equal(t, `Bearer realm="scim"`, a.header.Get("WWW-Authenticate"))
		require.Empty(t, a.header.Get("X-RateLimit-Limit"))
	}
	require.Equal(t, 200, ask(scimToken, "X-Request-Origin", scimOrigin).status)
	denied(ask(""))
	denied(ask(scimToken))
	denied(ask(scimToken+"x", "X-Request-Origin", scimOrigin))
	denied(ask(demoKey, "X-Request-Origin", scimOrigin))
	for _, origin := range []string{"", "https://idp.example.com/", "HTTPS://idp.example.com", "http://idp.example.com", "*"} {
		denied(ask(scimToken, "X-Request-Origin", origin))
	}
	twice, _ := d.raw(t, 1, "GET "+target+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+scimToken+"\r\nX-Request-Origin: "+scimOrigin+"\r\nX-Request-Origin: x\r\n\r\n")
	denied(twice[0])

	by := control.Actor{Name: "test"}
	require.NoError(t, d.control.UpdateSCIM(by, func(s *document.SCIMSettings) error { s.IPAllowList = []string{"10.0.0.0/8"}; return nil }))
	denied(ask(scimToken, "X-Request-Origin", scimOrigin))
	denied(ask(scimToken, "X-Request-Origin", scimOrigin, "X-Forwarded-For", "11.0.0.1"))
	require.Equal(t, 200, ask(scimToken, "X-Request-Origin", scimOrigin, "X-Forwarded-For", "10.0.0.1").status)

	require.NoError(t, d.control.UpdateSCIM(by, func(s *document.SCIMSettings) error { s.IPAllowList, s.RequestOrigin = nil, ""; return nil }))
	require.Equal(t, 200, ask(scimToken).status, "as identity providers ask")
	require.Equal(t, 200, ask(scimToken, "X-Request-Origin", "anything").status)
	denied(ask(""))

	second, token, err := d.control.CreateSCIMToken(by)
	require.NoError(t, err)
	require.Equal(t, 200, ask(token, "X-Request-Origin", "x").status, "two tokens, while one takes the place of the other")
	require.NotZero(t, d.control.LastUsed(second.Number))
	require.NoError(t, d.control.RevokeSCIMToken(by, second.ID))
	denied(ask(token, "X-Request-Origin", "x"))
	require.NotContains(t, d.logged(), scimToken)

	for range 100 {
		ask("wrong", "X-Request-Origin", "x")
	}
	a := ask("wrong", "X-Request-Origin", "x")
	require.Equal(t, 429, a.status)
	require.Equal(t, scimFailure(429, "Too many requests with an invalid SCIM token. Please try again later."), a.body)
	require.Equal(t, "60", a.header.Get("Retry-After"))
	require.Equal(t, 200, ask(scimToken, "X-Request-Origin", "x").status, "the right token is not affected")
}

// Without SCIM access nobody gets in.
func TestSCIMIsOffByDefault(t *testing.T) {
	d := open(t, nil)
	d.control.Apply("scim//", nil)
	for _, token := range d.control.Snapshot().SCIM.Tokens {
		d.control.Apply("scim_token//"+token.ID, nil)
	}
	require.Nil(t, d.control.Snapshot().SCIM)
	for _, token := range []string{"", scimToken, demoKey} {
		require.Equal(t, 401, d.provisionWith(token).status)
	}
}

func (d *door) provisionWith(token string) answer {
	return d.call("GET", "/scim/v2/Schemas", token, "", "X-Request-Origin", scimOrigin)
}

// One limit for all operations on users, of the whole company; discovery has its own.
func TestSCIMRateLimit(t *testing.T) {
	d := open(t, nil)
	defer testClock.Store(testClock.Load())
	by := control.Actor{Name: "test"}
	require.Error(t, d.control.UpdateSCIM(by, func(s *document.SCIMSettings) error { s.RateLimit = "many"; return nil }))
	require.NoError(t, d.control.UpdateSCIM(by, func(s *document.SCIMSettings) error { s.RateLimit = "5/1d"; return nil }))
	_, err := d.control.UpdateSettings(by, "demo", func(s *document.Settings) error { s.RateLimits = map[string]string{"scim": "9/1d"}; return nil })
	require.ErrorContains(t, err, "the company's")
	testClock.Add(86_400_000)

	id := d.createUser(t, "a@example.com")
	for i, a := range []answer{
		d.provision("GET", "/scim/v2/Users/"+id, ""),
		d.provision("GET", "/scim/v2/Users?filter=x", ""),
		d.provision("PUT", "/scim/v2/Users/"+id, "{}"),
		d.provision("DELETE", "/scim/v2/Users/"+id, ""),
	} {
		require.NotEqual(t, 429, a.status)
		require.Equal(t, "5", a.header.Get("X-RateLimit-Limit"))
		require.Equal(t, fmt.Sprint(3-i), a.header.Get("X-RateLimit-Remaining"))
	}
	a := d.provision("POST", "/scim/v2/Users", userBody("b@example.com", "bi", "{}"))
	require.Equal(t, 429, a.status)
	require.Equal(t, scimFailure(429, "The rate limit of scim, 5/24h requests, is exceeded. Please try again later."), a.body)
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
	require.NotEmpty(t, a.header.Get("X-RateLimit-Reset"))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	a = d.provision("GET", "/scim/v2/Schemas", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, "4999", a.header.Get("X-RateLimit-Remaining"))
	testClock.Add(86_400_000)
	require.Equal(t, 201, d.provision("POST", "/scim/v2/Users", userBody("b@example.com", "bi", "{}")).status)
}

// What the door refuses under /scim has the shape of SCIM, whatever it is.
func TestSCIMShape(t *testing.T) {
	d := open(t, nil)
	check := func(a answer, status int, detail string) {
		t.Helper()
		require.Equal(t, status, a.status, a.body)
		require.Equal(t, scimFailure(status, detail), a.body)
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"))
		require.NotEmpty(t, a.header.Get("X-Request-Id"))
	}
	check(d.provision("GET", "/scim/v2/Me", ""), 404, "Not Found")
	check(d.provision("GET", "/scim/v2/Users/a/b", ""), 404, "Not Found")
	check(d.provision("POST", "/scim/v2/Users", "{}", "Content-Type", "text/plain"), 415, "The Content-Type must be application/json")
	check(d.provision("POST", "/scim/v2/Users", "{}", "Content-Encoding", "x"), 415, "The Content-Encoding must be gzip, deflate, br or zstd")
	check(d.provision("POST", "/scim/v2/Users", "{}", "Content-Encoding", "gzip"), 400, "The body does not match its Content-Encoding")
	for target, allow := range map[string]string{"/scim/v2/Users": "GET, HEAD, POST", "/scim/v2/Users/7/": "GET, HEAD, PUT, PATCH, DELETE", "/scim/v2/Schemas": "GET, HEAD"} {
		a := d.provision("OPTIONS", target, "")
		check(a, 405, "Method Not Allowed")
		require.Equal(t, allow, a.header.Get("Allow"))
	}
	head := "POST /scim/v2/Users HTTP/1.1\r\nHost: x\r\nX-Request-Origin: " + scimOrigin + "\r\n"
	for text, want := range map[string]string{
		head + "X-A: b\r\n c\r\n\r\n": "Folded headers are not allowed.",
		head + "Authorization: Bearer " + scimToken + "\r\nContent-Length: 5000000\r\n\r\n": "Request Entity Too Large",
		head + "Authorization: Bearer wrong\r\nContent-Length: 50000\r\n\r\n":               textSCIMUnauthorized,
		head + "Authorization: Bearer wrong\r\nContent-Length: 5000000\r\n\r\n":             textSCIMUnauthorized,
	} {
		responses, closed := d.raw(t, 1, text)
		require.True(t, closed)
		check(responses[0], responses[0].status, want)
	}
}

// 16 clients create the same user at once: one does, and all know of it afterwards.
func TestSCIMConcurrentCreation(t *testing.T) {
	d := openEngine(t, t.TempDir())
	for round := range 5 {
		var group sync.WaitGroup
		var statuses [16]int
		for client := range statuses {
			group.Go(func() {
				name := fmt.Sprintf("same%d@example.com", round)
				if client%2 == 1 {
					name = strings.ToUpper(name)
				}
				statuses[client] = d.provision("POST", "/scim/v2/Users", userBody(name, "bi", "{}")).status
			})
		}
		group.Wait()
		count := map[int]int{}
		for _, s := range statuses {
			count[s]++
		}
		require.Equal(t, map[int]int{201: 1, 409: 15}, count)
	}
	// Changes and deletes of one user at once: each happens or finds nobody, and in the end nobody is left.
	id := d.createUser(t, "busy@example.com")
	var group sync.WaitGroup
	for client := range 16 {
		group.Go(func() {
			if client == 7 {
				_ = d.provision("DELETE", "/scim/v2/Users/"+id, "")
				return
			}
			if s := d.provision("PUT", "/scim/v2/Users/"+id, userBody("busy@example.com", "pm", "{}")).status; s != 200 && s != 404 {
				t.Errorf("PUT: %d", s)
			}
		})
	}
	group.Wait()
	require.Equal(t, 404, d.provision("GET", "/scim/v2/Users/"+id, "").status)
	nobody, _ := d.scim.Named("busy@example.com")
	require.Nil(t, nobody)
}

// An identity provider reads what the service can do, in the forms of RFC 7643.
func TestSCIMDiscovery(t *testing.T) {
	d := open(t, nil)
	get := func(target string) map[string]any {
		a := d.provision("GET", target, "")
		require.Equal(t, 200, a.status, target)
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"))
		return a.json(t)
	}
	config := get("/scim/v2/ServiceProviderConfig/")
	require.Equal(t, []any{"urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"}, config["schemas"])
	for list, item := range map[string]string{"/scim/v2/ResourceTypes": "/scim/v2/ResourceTypes/User", "/scim/v2/Schemas": "/scim/v2/Schemas/" + scim.UserSchema} {
		v := get(list)
		require.Equal(t, []any{"urn:ietf:params:scim:api:messages:2.0:ListResponse"}, v["schemas"])
		require.Len(t, v["Resources"], int(v["totalResults"].(float64)))
		require.Contains(t, v["Resources"], any(get(item)))
		require.Equal(t, item, get(item)["meta"].(map[string]any)["location"])
		a := d.provision("GET", list+"/unknown", "")
		require.Equal(t, 404, a.status)
		require.Equal(t, scimFailure(404, "Resource not found"), a.body)
		require.Equal(t, 403, d.provision("GET", list+"?filter=x", "").status)
	}
	endpoint := get("/scim/v2/ResourceTypes/User")["endpoint"].(string)
	require.Equal(t, 201, d.provision("POST", "/scim/v2"+endpoint, userBody("a@example.com", "bi", "{}")).status)
}

// The audit trail names who, what and which user.
func TestSCIMAudit(t *testing.T) {
	d := open(t, nil)
	id := d.createUser(t, "a@example.com")
	require.Equal(t, 200, d.provision("PUT", "/scim/v2/Users/"+id, userBody("a@example.com", "bi", `{"companyPermissions":["x"]}`)).status)
	require.Equal(t, 204, d.provision("DELETE", "/scim/v2/Users/"+id, "").status)
	for _, what := range []string{"SCIM user created", "SCIM user replaced", "SCIM user deleted"} {
		require.Regexp(t, regexp.QuoteMeta(what)+`.*`+id, d.logged())
	}
	require.Contains(t, d.logged(), `by="SCIM token `)
}

// A response without a body has none on the wire either, and the connection goes on.
func TestSCIMDeleteOnTheWire(t *testing.T) {
	d := open(t, nil)
	id := d.createUser(t, "a@example.com")
	request, err := http.NewRequest("DELETE", "http://"+d.addr+"/scim/v2/Users/"+id, nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+scimToken)
	request.Header.Set("X-Request-Origin", scimOrigin)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, 204, response.StatusCode)
	require.Empty(t, text)
	require.Empty(t, response.TransferEncoding)
	require.False(t, response.Close)
}

// What is shown can be sent back and changes nothing, for a user who never had emails either, and the userName stands
// for them afterwards as before.
func TestSCIMUserSentBack(t *testing.T) {
	d := open(t, nil)
	for i, emails := range []string{``, `,"emails":[]`, `,"emails":[{"value":"sent2@example.com","type":"work","primary":true}]`, `,"emails":[{"value":"x@example.com"}]`} {
		name := fmt.Sprintf("sent%d@example.com", i)
		bare := `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"userName":"` + name + `","name":{"givenName":"A","familyName":"B"}`
		created := d.provision("POST", "/scim/v2/Users", bare+emails+`}`)
		require.Equal(t, 201, created.status, created.body)
		path := "/scim/v2/Users/" + created.json(t)["id"].(string)
		for range 2 {
			a := d.provision("PUT", path, d.provision("GET", path, "").body)
			require.Equal(t, 200, a.status)
			require.Equal(t, created.body, a.body, "version and lastModified too")
			require.Equal(t, created.header.Get("ETag"), a.header.Get("ETag"))
		}
		without := d.provision("PUT", path, bare+`}`)
		if hadEmails := i >= 2; hadEmails {
			require.NotContains(t, without.json(t), "emails", "taken away")
		} else {
			require.Equal(t, created.body, without.body, "as it would have been before")
		}
		require.Equal(t, without.body, d.provision("PUT", path, without.body).body)
	}
	// Another address is one that was sent.
	created := d.provision("POST", "/scim/v2/Users", `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"userName":"other@example.com","name":{"givenName":"A","familyName":"B"}}`)
	path := "/scim/v2/Users/" + created.json(t)["id"].(string)
	changed := d.provision("PUT", path, strings.Replace(created.body, `"type":"work"`, `"type":"home"`, 1))
	require.NotEqual(t, created.header.Get("ETag"), changed.header.Get("ETag"))
	require.Equal(t, "home", changed.json(t)["emails"].([]any)[0].(map[string]any)["type"])
}
