package scim

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
)

// The filter of the contract, in all forms that clients write it in, looks one user up.
func TestFilterOfTheContract(t *testing.T) {
	for text, want := range map[string]string{
		`userName eq "ada@example.com"`:                                                   "ada@example.com",
		`  USERNAME   Eq   "ada@example.com"  `:                                           "ada@example.com",
		`urn:ietf:params:scim:schemas:core:2.0:User:userName eq "ada@example.com"`:        "ada@example.com",
		`URN:IETF:params:scim:schemas:core:2.0:user:username eq "ada@example.com"`:        "ada@example.com",
		`userName eq "a b@example.com"`:                                                   "a+b@example.com",
		`userName eq "a+b@example.com"`:                                                   "a+b@example.com",
		`userName eq "\u0061\"\\\/@example.com"`:                                          `a"\/@example.com`,
		`userName eq "jürgen@example.com"`:                                                "jürgen@example.com",
		`userName eq ""`:                                                                  "",
		`userName eq "x" `:                                                                "x",
		`userName eq "` + strings.Repeat("x", maxFilterBytes-len(`userName eq ""`)) + `"`: strings.Repeat("x", maxFilterBytes-len(`userName eq ""`)),
	} {
		f, err := parseFilter(text, userSchemas)
		require.NoError(t, err, text)
		name, ok := f.equals("userName")
		require.True(t, ok, text)
		require.Equal(t, want, name, text)
	}
	for _, text := range []string{
		"", " ", `"`, "userName", "userName eq", `userName eq `, `userName eq ada@example.com`, `userName eq 'x'`, `userName eq "x`, `userName eq x"`, `userName eq "x" y`, `eq "x"`,
		`userName eq 7`, `userName eq true`, `not (userName eq "a")`, `(userName eq "a")`, `userName.x eq "x"`, `userNames eq "x"`, `$userName eq "x"`,
		`urn:ietf:params:scim:schemas:core:2.0:Group:userName eq "x"`, `x:userName eq "x"`, "userName eq \"a\x00b\"", "userName eq \"\xff\"", `userName eq "\x"`, "userName\teq\t\"x\"", "userName eq \"a\nb\"",
		`userName eq "` + strings.Repeat("x", maxFilterBytes) + `"`, strings.Repeat("(", 500), strings.Repeat(`not (`, 100),
		`userName eq "a" and`, ` and userName eq "a"`, `userName eq "a" or `, `name eq "x"`, `active eq "yes"`, `active eq 1`, `emails[type eq "work"`, `emails[type eq "work"]x`,
		`emails[type eq "work"].x eq "y"`, `emails[]`, `emails[x eq "y"]`, `[type eq "x"]`, `active[value eq "x"]`, `emails[emails[type eq "a"]]`, `password eq "x"`,
	} {
		_, err := parseFilter(text, userSchemas)
		require.Equal(t, errFilter, err, text)
	}
}

// strangeFilters are hard on a parser; BenchmarkParseFilter says how long each takes.
var strangeFilters = []string{`userName eq "ada@example.com"`, `userName eq "\ud800"`, `USERNAME EQ ""`, `emails[type eq "work" and value co "@"]`, strings.Repeat("(", 512), `not (a pr)`,
	strings.Repeat(`a.`, 256), strings.Repeat(`a:`, 256), `userName eq ` + strings.Repeat(`"`, 400), `userName eq "` + strings.Repeat(`\u0000`, 80) + `"`, "userName eq -1e" + strings.Repeat("9", 400)}

// Whatever stands in a filter: no panic, nor when it is asked, and what it looks up is a text that somebody could have
// asked for.
func FuzzParseFilter(f *testing.F) {
	for _, seed := range strangeFilters {
		f.Add(seed)
	}
	user := treeOf(describe(&document.SCIMUser{ID: "1", UserName: "ada@example.com", Attributes: map[string]string{managerPath: "2"}}, nil).json)
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := parseFilter(text, userSchemas)
		filter.matches(user)
		name, ok := filter.equals("userName")
		require.True(t, utf8.ValidString(name))
		require.False(t, ok && err == nil && !strings.Contains(strings.ToLower(text), "username"))
	})
}

func BenchmarkParseFilter(b *testing.B) {
	for i, text := range strangeFilters {
		b.Run(strconv.Itoa(i), func(b *testing.B) {
			for b.Loop() {
				_, _ = parseFilter(text, userSchemas)
			}
		})
	}
}

// What RFC 7643 and RFC 7644 require of the documents, member by member.
func TestDiscoveryDocuments(t *testing.T) {
	read := func(document []byte) (v map[string]any) {
		require.NoError(t, json.Unmarshal(document, &v), string(document))
		return v
	}
	object := func(v any) map[string]any { m, _ := v.(map[string]any); return m }

	config := read(Discovery(base + "/ServiceProviderConfig")) // RFC 7643 5
	require.Equal(t, []any{configSchema}, config["schemas"])
	for feature, is := range map[string]bool{"patch": true, "bulk": false, "changePassword": false, "sort": false, "etag": true} {
		require.Equal(t, is, object(config[feature])["supported"], feature)
	}
	for _, number := range []string{"maxOperations", "maxPayloadSize"} {
		require.IsType(t, 0.0, object(config["bulk"])[number])
	}
	require.Equal(t, map[string]any{"supported": true, "maxResults": float64(MaxCount)}, config["filter"])
	for _, scheme := range config["authenticationSchemes"].([]any) {
		for _, member := range []string{"type", "name", "description"} {
			require.NotEmpty(t, object(scheme)[member], member)
		}
		require.Contains(t, []any{"oauth", "oauth2", "oauthbearertoken", "httpbasic", "httpdigest"}, object(scheme)["type"])
	}

	list := func(document []byte) (list []map[string]any) { // RFC 7644 3.4.2
		v := read(document)
		require.Equal(t, []any{listSchema}, v["schemas"])
		for _, r := range v["Resources"].([]any) {
			list = append(list, object(r))
		}
		require.Equal(t, float64(len(list)), v["totalResults"])
		return list
	}
	kinds := list(Discovery(base + "/ResourceTypes")) // RFC 7643 6
	for i, want := range []map[string]any{
		{"name": "User", "endpoint": "/Users", "schema": UserSchema, "id": "User", "schemaExtensions": []any{map[string]any{"schema": EnterpriseSchema, "required": false}}},
		{"name": "Group", "endpoint": "/Groups", "schema": GroupSchema, "id": "Group"},
	} {
		require.Equal(t, read(Discovery(base+"/ResourceTypes/"+want["id"].(string))), kinds[i])
		require.Equal(t, []any{typeSchema}, kinds[i]["schemas"])
		for member, v := range want {
			require.Equal(t, v, kinds[i][member])
		}
	}
	require.Nil(t, Discovery(base+"/ResourceTypes/user"))

	schemas := list(Discovery(base + "/Schemas")) // RFC 7643 7
	require.Nil(t, Discovery(base+"/Schemas/User"))
	var walk func(path string, attributes []any)
	paths := map[string]map[string]any{}
	walk = func(path string, attributes []any) {
		for _, a := range attributes {
			a := object(a)
			name := path + a["name"].(string)
			paths[name] = a
			require.NotEmpty(t, a["description"], name)
			require.Contains(t, []any{"string", "boolean", "reference", "complex"}, a["type"], name)
			require.Contains(t, []any{"readOnly", "readWrite", "immutable", "writeOnly"}, a["mutability"], name)
			require.Contains(t, []any{"always", "never", "default", "request"}, a["returned"], name)
			require.Contains(t, []any{"none", "server", "global"}, a["uniqueness"], name)
			for _, member := range []string{"multiValued", "required", "caseExact"} {
				require.IsType(t, true, a[member], name)
			}
			sub, _ := a["subAttributes"].([]any)
			require.Equal(t, a["type"] == "complex", len(sub) > 0, name)
			walk(name+".", sub)
		}
	}
	for i, id := range []string{UserSchema, EnterpriseSchema, GroupSchema} {
		require.Equal(t, read(Discovery(base+"/Schemas/"+id)), schemas[i])
		require.Equal(t, id, schemas[i]["id"])
		prefix := map[string]string{UserSchema: "", EnterpriseSchema: EnterpriseSchema + ".", GroupSchema: "group."}[id]
		walk(prefix, schemas[i]["attributes"].([]any))
	}
	require.Equal(t, "immutable", paths["userName"]["mutability"])
	require.Equal(t, "server", paths["userName"]["uniqueness"])
	require.Equal(t, false, paths["userName"]["caseExact"])
	require.Equal(t, "readOnly", paths["lastSignInAt"]["mutability"])
	require.Len(t, paths["department"]["canonicalValues"], 7)

	// A resource that is answered has no member that its schema doesn't know, apart from those of every resource.
	var known func(prefix, path string, v any)
	seen := map[string]bool{}
	known = func(prefix, path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, m := range v {
				if path == prefix && slices.Contains([]string{"schemas", "id", "externalId", "meta"}, name) {
					continue
				}
				if name != EnterpriseSchema {
					require.Contains(t, paths, path+name)
					seen[path+name] = true
				}
				known(prefix, path+name+".", m)
			}
		case []any:
			for _, e := range v {
				known(prefix, path, e)
			}
		}
	}
	permissions := document.SCIMPermissions{Company: []string{"a"}, Roles: []document.SCIMRole{{ID: "a", Name: "b"}}, AppGroups: []document.SCIMAppGroup{
		{Permissions: []string{"a"}, PermissionSets: []document.SCIMPermissionSet{{ID: "a", Name: "b"}}, Teams: []document.SCIMTeam{{Name: "x"}}}}}
	user := &document.SCIMUser{Department: "bi", Permissions: permissions, Attributes: map[string]string{managerPath: "7", formattedPath: "x"}}
	for _, a := range userTexts {
		user.Attributes[a.Name] = "x"
	}
	for _, a := range enterpriseTexts {
		user.Attributes[enterprisePath(a.Name)] = "x"
	}
	group := &document.PermissionSet{ID: "g", Permissions: permissions}
	known("", "", treeOf(describe(user, []*document.PermissionSet{group}).json))
	known("group.", "group.", treeOf(describeGroup(group, []*document.SCIMUser{user}).json))
	for path := range paths {
		require.True(t, seen[path] || strings.Contains(path, "eamName"), "%s is in a schema and never answered", path)
	}
}

func TestPermissionNames(t *testing.T) {
	for _, name := range []string{"basic_access", "send_campaigns_canvases", "export_user_data", "archive_campaigns", "view_email_settings", "export_promotion_codes", "blocklist_custom_events", "delete_tags",
		"view_decisioning_studio_guardrails", "manage_catalogs_dashboard_permission"} {
		require.True(t, isAppGroupPermission(name), name)
	}
	for _, name := range []string{"", "view_", "blocklist_tags", "archive_tags", "view,edit", "send_campaign_canvases"} {
		require.False(t, isAppGroupPermission(name), name)
	}
	require.True(t, isTeamPermission("view_segments"))
	require.False(t, isTeamPermission("manage_teams"))
	require.True(t, isCompanyPermission("add_remove_app_groups"))
	for _, list := range [][]string{appGroupPermissions, teamPermissions} {
		require.Len(t, slices.Compact(slices.Clone(list)), len(list), "no name twice")
	}
}

func TestErrors(t *testing.T) {
	require.Equal(t, `{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"detail":"User already exists in the database.","status":409,"scimType":"uniqueness"}`, string(AppendError(nil, errExists)))
	require.Equal(t, `x{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"detail":"a \"<b>","status":400,"scimType":"invalidValue"}`,
		string(AppendError([]byte("x"), &Error{Status: 400, Type: invalidValue, Detail: `a "<b>`})))
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{8}){3}$`, id)
		require.False(t, seen[id])
		seen[id] = true
	}
	require.Equal(t, control.TeamID("a", "b"), control.TeamID("a", "b"))
	require.NotEqual(t, control.TeamID("a", "b"), control.TeamID("ab", ""))
}

// store applies documents at once, as the engine does in the end.
type store struct{ control *control.Control }

func (s *store) PutDocuments(_ uint32, changes []control.Change, _ []byte) error {
	for _, c := range changes {
		s.control.Apply(c.Key, c.Doc)
	}
	return nil
}

// There is room for so many users; a deleted one makes room.
func TestUserBound(t *testing.T) {
	c := control.New(control.Options{Now: func() int64 { return 0 }, Logger: slog.New(slog.DiscardHandler)})
	c.Start(&store{c})
	u := NewUsers(c, func() int64 { return 1 })
	require.Equal(t, control.MaxDocuments, u.max)
	u.max = 3
	body := func(i int) []byte {
		return fmt.Appendf(nil, `{"schemas":[%q],"userName":"u%d@example.com","name":{"givenName":"A","familyName":"B"},"department":"bi","permissions":{}}`, UserSchema, i)
	}
	var last *Resource
	for i := range 3 {
		user, err := u.Create(Sent{Body: body(i)})
		require.NoError(t, err)
		last = user
	}
	_, err := u.Create(Sent{Body: body(3)})
	require.Equal(t, errTooMany, err)
	_, err = u.Create(Sent{Body: body(2)})
	require.Equal(t, errExists, err)
	require.NoError(t, u.Delete(control.Actor{}, last.ID, ""))
	require.Equal(t, errNotFound, u.Delete(control.Actor{}, last.ID, ""))
	_, err = u.Create(Sent{Body: body(3)})
	require.NoError(t, err)
	_, err = u.Create(Sent{Body: []byte(`[`)})
	require.Equal(t, invalidSyntax, err.(*Error).Type)
}

// Names of attributes have no case (RFC 7643 2.1), in any body and at any depth.
func TestNamesInAnyCase(t *testing.T) {
	_, users, groups := newTestUsers(t)
	body := func(address, rest string) string {
		return `{"schemas":["` + UserSchema + `"],"userName":"` + address + `@example.com","name":{"givenName":"Ada","familyName":"Lovelace"},"department":"bi","displayName":"Countess",` +
			`"emails":[{"value":"a@example.com","type":"home"}],"` + EnterpriseSchema + `":{"costCenter":"7","manager":{"value":"m"}},"permissions":{"companyPermissions":["admin"],` +
			`"appGroup":[{"appGroupName":"Demo","appGroupPermissions":["basic_access"],"team":[{"teamName":"North","teamPermissions":["admin"]}]}]}` + rest + `}`
	}
	upper := regexp.MustCompile(`"[^"]+":`)
	shout := func(body string) []byte { return []byte(upper.ReplaceAllStringFunc(body, strings.ToUpper)) }
	seen := func(r *Resource, err error) map[string]any {
		require.NoError(t, err)
		tree := treeOf(r.json)
		for _, name := range []string{"id", "userName", "meta", "createdAt"} {
			delete(tree, name)
		}
		return tree
	}
	first, err := users.Create(Sent{Body: []byte(body("ada", ""))})
	want := seen(first, err)
	require.Equal(t, "North", want["permissions"].(map[string]any)["appGroup"].([]any)[0].(map[string]any)["team"].([]any)[0].(map[string]any)["teamName"])
	second, err := users.Create(Sent{Body: shout(body("bob", ""))})
	require.Equal(t, want, seen(second, err))
	require.Equal(t, want, seen(users.Replace(second.ID, Sent{Body: shout(body("bob", ""))})))
	nested, err := users.Create(Sent{Body: shout(`{"schemas":["` + UserSchema + `"],"` + UserSchema + `":` + body("cy", "") + `}`)})
	require.Equal(t, want, seen(nested, err))
	// Of two, the very name counts, unless it has nothing.
	both := seen(users.Replace(first.ID, Sent{Body: []byte(body("ada", `,"DisplayName":"Eve","title":null,"TITLE":"Dr"`))}))
	require.Equal(t, "Countess", both["displayName"])
	require.Equal(t, "Dr", both["title"])

	north := `{"appGroupName":"Demo","appGroupPermissions":["basic_access"],"team":[{"teamName":"North","teamPermissions":["admin"]}]}`
	for _, operation := range []string{
		`{"op":"replace","path":"permissions","value":` + string(shout(`{"companyPermissions":["admin"],"appGroup":[`+north+`]}`)) + `}`,
		`{"op":"replace","path":"permissions.appGroup","value":[` + string(shout(north)) + `]}`,
		`{"op":"replace","value":` + string(shout(`{"permissions":{"appGroup":[`+north+`]}}`)) + `}`,
	} {
		require.Equal(t, want, seen(users.Patch(second.ID, Sent{Body: patchOf(operation)})), operation)
	}

	group := `{"schemas":["` + GroupSchema + `"],"displayName":"Editors","members":[{"value":"` + first.ID + `"}]}`
	made, err := groups.Create(Sent{Body: shout(group)})
	require.NoError(t, err)
	require.Equal(t, first.ID, treeOf(made.json)["members"].([]any)[0].(map[string]any)["value"])
}

// What is seen at once of a filter says nothing else than the whole of it, and each filter finds whom it describes.
func TestFilters(t *testing.T) {
	users := []*document.SCIMUser{
		{ID: "0", UserName: "ada@example.com", ExternalID: "E", Attributes: map[string]string{"displayName": "Ada", managerPath: "1"}, CreatedAt: 1_000},
		{ID: "1", UserName: "bob@example.com", ExternalID: "e", Inactive: true, Emails: []document.SCIMEmail{{Value: "B@x.example", Type: "work"}, {Value: "b@y.example", Type: "home", Primary: true}}},
		{ID: "2", UserName: "cy@example.com", Department: "bi", Emails: []document.SCIMEmail{}, Attributes: map[string]string{enterprisePath("department"): "R&D"}, CreatedAt: 2_000},
	}
	for text, want := range map[string]string{
		`externalId eq "E"`: "0", `externalId pr`: "01", `externalId eq null`: "2", `externalId ne "E"`: "12", `externalId ne null`: "01",
		`displayName eq "Ada"`: "0", `displayName eq "ada"`: "", `displayName co "d"`: "0", `DisplayName sw "A" and userName ew ".com"`: "0",
		`userName eq "ADA@EXAMPLE.COM" or id eq "2"`: "02", `userName gt "b"`: "12", `userName le "bob@example.com"`: "01", `userName lt "bob@example.com"`: "0", `userName ge "bob@example.com"`: "12",
		`active eq true`: "02", `active eq false`: "1", `active eq "False"`: "1", `active ne false`: "02", `active pr`: "012",
		`emails eq "b@X.example"`: "1", `emails.value eq "ada@example.com"`: "0", `emails.type eq "work"`: "01", `emails pr`: "01",
		`emails[type eq "work"]`: "01", `emails[type eq "work"].value eq "b@x.example"`: "1", `emails[type eq "home"].value eq "b@x.example"`: "",
		`emails[type eq "work" and value co "x."]`: "1", `emails[primary eq true].value eq "b@y.example"`: "1", `emails[type eq "home" or type eq "x"].value sw "B"`: "1",
		`manager eq "1"`: "0", `manager.value eq "1"`: "0", EnterpriseSchema + `:manager eq "1"`: "0", EnterpriseSchema + `:department eq "R&D"`: "2", `department eq "bi"`: "2", `department eq "R&D"`: "",
		`id eq "0" and manager eq "1"`: "0", `id eq "0" and manager eq "2"`: "", `name.givenName pr`: "012",
		`meta.created gt "1970-01-01T00:00:01+00:00"`: "2", `meta.created eq "1970-01-01T00:00:01.000Z"`: "0", `meta.created lt "9999-12-31T00:00:00Z"`: "012", `meta.resourceType eq "user"`: "012", `schemas eq "` + EnterpriseSchema + `"`: "02",
		`externalId eq "a and b or \"c\" ]"`: "",
	} {
		f, err := parseFilter(text, userSchemas)
		require.NoError(t, err, text)
		got := ""
		for _, u := range users {
			is := f.matches(treeOf(describe(u, nil).json))
			require.False(t, is && f.excludes(u), "%s: %s", text, u.ID)
			if is {
				got += u.ID
			}
		}
		require.Equal(t, want, got, text)
	}
}
