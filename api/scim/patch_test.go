package scim

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
)

func newTestUsers(t testing.TB) (*control.Control, *Users, *Groups) {
	c := control.New(control.Options{Now: func() int64 { return 1 }, Logger: slog.New(slog.DiscardHandler)})
	c.Start(&store{c})
	t.Helper()
	return c, NewUsers(c, func() int64 { return 1 }), NewGroups(c)
}

const adaBody = `{"schemas":["` + UserSchema + `"],"userName":"ada@example.com","name":{"givenName":"Ada","familyName":"Lovelace"},"department":"bi","externalId":"e",` +
	`"permissions":{"companyPermissions":["admin"]},"emails":[{"value":"w@example.com","type":"work","primary":true},{"value":"h@example.com","type":"home"}],` +
	`"` + EnterpriseSchema + `":{"division":"d"}}`

func patchOf(operations string) []byte { return []byte(`{"Operations":[` + operations + `]}`) }

// What each operation does to a user; what it leaves is as it was.
func TestPatch(t *testing.T) {
	for _, c := range []struct{ operations, path, want string }{
		{`{"op":"replace","path":"displayName","value":"x"}`, "displayName", `x`},
		{`{"op":"ADD","path":"DISPLAYNAME","value":"x"}`, "displayName", `x`},
		{`{"op":"add","value":{"displayname":"x"}}`, "displayName", `x`},
		{`{"op":"replace","path":"name.givenName","value":"x"}`, "name", `map[familyName:Lovelace givenName:x]`},
		{`{"op":"replace","path":"name","value":{"GIVENNAME":"x"}}`, "name", `map[familyName:Lovelace givenName:x]`},
		{`{"op":"replace","value":{"name":{"formatted":"x"},"name.givenName":"y"}}`, "name", `map[familyName:Lovelace formatted:x givenName:y]`},
		{`{"op":"replace","path":"` + UserSchema + `:name.familyName","value":"x"}`, "name", `map[familyName:x givenName:Ada]`},
		{`{"op":"replace","path":"` + UserSchema + `","value":{"title":"x"}}`, "title", `x`},
		{`{"op":"replace","path":"externalId","value":"x"}`, "externalId", `x`},
		{`{"op":"remove","path":"externalId"}`, "externalId", `<nil>`},
		{`{"op":"replace","path":"externalId","value":null}`, "externalId", `<nil>`},
		{`{"op":"add","path":"externalId","value":""}`, "externalId", `<nil>`},
		{`{"op":"replace","path":"id","value":"x"},{"op":"add","path":"groups","value":[{"value":"x"}]},{"op":"remove","path":"meta"}`, "groups", `<nil>`},

		{`{"op":"add","path":"emails","value":[{"value":"x@example.com","type":"other"}]}`, "emails",
			`[map[primary:true type:work value:w@example.com] map[type:home value:h@example.com] map[type:other value:x@example.com]]`},
		{`{"op":"add","path":"emails","value":{"value":"h@example.com","type":"other"}}`, "emails", `[map[primary:true type:work value:w@example.com] map[type:other value:h@example.com]]`},
		{`{"op":"add","path":"emails","value":[{"value":"x@example.com","primary":"True"}]}`, "emails",
			`[map[type:work value:w@example.com] map[type:home value:h@example.com] map[primary:true value:x@example.com]]`},
		{`{"op":"replace","path":"emails","value":"x@example.com"}`, "emails", `[map[value:x@example.com]]`},
		{`{"op":"replace","path":"emails","value":[]}`, "emails", `<nil>`},
		{`{"op":"remove","path":"emails"}`, "emails", `<nil>`},
		{`{"op":"remove","path":"emails[type eq \"work\"]"}`, "emails", `[map[type:home value:h@example.com]]`},
		{`{"op":"remove","path":"emails[type eq \"work\" or value sw \"h@\"]"}`, "emails", `<nil>`},
		{`{"op":"remove","path":"emails","value":[{"value":"w@example.com"}]}`, "emails", `[map[type:home value:h@example.com]]`},
		{`{"op":"remove","path":"emails[primary eq \"True\"].type"}`, "emails", `[map[primary:true value:w@example.com] map[type:home value:h@example.com]]`},
		{`{"op":"replace","path":"emails[type eq \"home\"]","value":{"value":"x@example.com","primary":true}}`, "emails",
			`[map[type:work value:w@example.com] map[primary:true type:home value:x@example.com]]`},
		{`{"op":"replace","path":"emails[type eq \"other\" and primary eq true].value","value":"x@example.com"}`, "emails",
			`[map[type:work value:w@example.com] map[type:home value:h@example.com] map[primary:true type:other value:x@example.com]]`},
		{`{"op":"replace","path":"emails.type","value":"x"}`, "emails", `[map[primary:true type:x value:w@example.com] map[type:x value:h@example.com]]`},
		{`{"op":"remove","path":"emails"},{"op":"add","path":"emails.value","value":"x@example.com"}`, "emails", `[map[value:x@example.com]]`},

		{`{"op":"replace","path":"` + EnterpriseSchema + `:Division","value":"x"}`, EnterpriseSchema, `map[division:x]`},
		{`{"op":"replace","path":"division","value":"x"}`, EnterpriseSchema, `map[division:x]`},
		{`{"op":"replace","path":"` + EnterpriseSchema + `","value":{"manager":"m"}}`, EnterpriseSchema, `map[division:d manager:map[value:m]]`},
		{`{"op":"replace","value":{"` + EnterpriseSchema + `":{"manager":{"value":"m"}}}}`, EnterpriseSchema, `map[division:d manager:map[value:m]]`},
		{`{"op":"replace","path":"manager.value","value":"m"}`, EnterpriseSchema, `map[division:d manager:map[value:m]]`},
		{`{"op":"replace","path":"manager","value":[{"value":"m"}]},{"op":"replace","path":"manager","value":""}`, EnterpriseSchema, `map[division:d]`},
		{`{"op":"remove","path":"` + EnterpriseSchema + `"}`, EnterpriseSchema, `<nil>`},
		{`{"op":"replace","path":"` + EnterpriseSchema + `","value":null}`, EnterpriseSchema, `<nil>`},

		{`{"op":"add","path":"permissions.companyPermissions","value":["x","admin"]}`, "permissions", `map[appGroup:[] companyPermissions:[admin x]]`},
		{`{"op":"replace","path":"permissions.companyPermissions","value":["x"]}`, "permissions", `map[appGroup:[] companyPermissions:[x]]`},
		{`{"op":"remove","path":"permissions"}`, "permissions", `map[appGroup:[] companyPermissions:[]]`},
		{`{"op":"add","path":"permissions.companyPermissions","value":["x","y"]},{"op":"remove","path":"permissions.companyPermissions","value":["admin","y","z"]}`, "permissions", `map[appGroup:[] companyPermissions:[x]]`},
		{`{"op":"remove","path":"permissions.companyPermissions","value":"x"}`, "permissions", `map[appGroup:[] companyPermissions:[admin]]`},
		{`{"op":"remove","path":"permissions.companyPermissions","value":[{"value":"admin"}]}`, "permissions", `map[appGroup:[] companyPermissions:[]]`},
		{`{"op":"remove","path":"permissions.companyPermissions"}`, "permissions", `map[appGroup:[] companyPermissions:[]]`},
		{`{"op":"replace","path":"permissions","value":{"appGroup":[{"appGroupName":"A"},{"appGroupName":"B"}]}},{"op":"remove","path":"permissions.appGroup","value":[{"APPGROUPNAME":"A"},{}]},` +
			`{"op":"replace","path":"permissions.companyPermissions","value":null}`, "permissions",
			`map[appGroup:[map[appGroupId:` + control.UnknownWorkspaceID("B") + ` appGroupName:B appGroupPermissions:[] team:[]]] companyPermissions:[]]`},
		{`{"op":"remove","path":"department"}`, "department", `<nil>`},
		{`{"op":"replace","path":"department","value":"pm"}`, "department", `pm`},
		{`{"op":"replace","path":"favouriteColour","value":"x"},{"op":"remove","path":"name.middleName"},{"op":"add","path":"urn:x:y:z.a","value":1}`, "externalId", `e`},
	} {
		control, u, _ := newTestUsers(t)
		made, err := u.Create(Sent{By: controlActor, Body: []byte(adaBody)})
		require.NoError(t, err)
		before := treeOf(made.json)
		got, err := u.Patch(made.ID, Sent{By: controlActor, Body: patchOf(c.operations)})
		require.NoError(t, err, c.operations)
		after := treeOf(got.json)
		require.Equal(t, c.want, fmt.Sprint(after[c.path]), c.operations)
		stored, err := u.Get(made.ID)
		require.NoError(t, err)
		require.Equal(t, after, treeOf(stored.json), "%s: what is answered is what is kept", c.operations)
		for _, name := range []string{"userName", "id", "name", "emails", "permissions", "department", "externalId", "active", "displayName", EnterpriseSchema} {
			if name != c.path {
				require.Equal(t, before[name], after[name], "%s: %s", c.operations, name)
			}
		}
		require.Equal(t, 1, control.SCIMUsers.Len())
	}
}

var controlActor = control.Actor{Name: "test"}

// What is wrong with a PATCH has its kind and its text, and no effect, whatever stands before it.
func TestPatchRefusals(t *testing.T) {
	c, u, g := newTestUsers(t)
	user, err := u.Create(Sent{By: controlActor, Body: []byte(adaBody)})
	require.NoError(t, err)
	group, err := g.Create(Sent{By: controlActor, Body: []byte(`{"schemas":["` + GroupSchema + `"],"displayName":"G","members":[{"value":"` + user.ID + `"}]}`)})
	require.NoError(t, err)
	_, err = g.Create(Sent{By: controlActor, Body: []byte(`{"schemas":["` + GroupSchema + `"],"displayName":"Other"}`)})
	require.NoError(t, err)
	user, err = u.Get(user.ID)
	require.NoError(t, err)
	const good = `{"op":"replace","path":"externalId","value":"changed"},`
	for body, kind := range map[string]string{
		`{"Operations":[` + good + `{"op":"move","path":"title"}]}`:                                                      invalidSyntax,
		`{"Operations":[` + good + `{"path":"title","value":"x"}]}`:                                                      invalidSyntax,
		`{"Operations":[` + good + `{"op":"remove"}]}`:                                                                   noTarget,
		`{"Operations":[` + good + `{"op":"remove","value":{"title":"x"}}]}`:                                             noTarget,
		`{"Operations":[` + good + `{"op":"add","value":"x"}]}`:                                                          invalidValue,
		`{"Operations":[` + good + `{"op":"add"}]}`:                                                                      invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":7,"value":"x"}]}`:                                                 invalidSyntax,
		`{"Operations":[` + good + `{"op":"add","path":"a b","value":"x"}]}`:                                             invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":".x","value":"x"}]}`:                                              invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"name.","value":"x"}]}`:                                           invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"emails[type eq \"work\"","value":"x"}]}`:                         invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"emails[type eq \"work\"]value","value":"x"}]}`:                   invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"emails[type eq \"work\"].","value":"x"}]}`:                       invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"name[givenName eq \"Ada\"]","value":{}}]}`:                       invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"title.value","value":"x"}]}`:                                     invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"` + strings.Repeat("x", 513) + `","value":"x"}]}`:                invalidPath,
		`{"Operations":[` + good + `{"op":"add","path":"emails[what]","value":{}}]}`:                                     invalidFilter,
		`{"Operations":[` + good + `{"op":"add","path":"active[value eq true]","value":{}}]}`:                            invalidFilter,
		`{"Operations":[` + good + `{"op":"add","path":"title","value":7}]}`:                                             invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"title","value":["x"]}]}`:                                         invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"name","value":"x"}]}`:                                            invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"emails","value":[7]}]}`:                                          invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"emails[type eq \"work\"]","value":"x"}]}`:                        invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"emails[type eq \"work\"].primary","value":"perhaps"}]}`:          invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"permissions","value":{"appGroup":[{"appGroupId":"nowhere"}]}}]}`: invalidValue,
		`{"Operations":[` + good + `{"op":"add","path":"department","value":"kitchen"}]}`:                                invalidValue,
		`{"Operations":[` + good + `{"op":"remove","path":"name"}]}`:                                                     invalidValue,
		`{"Operations":[` + good + `{"op":"remove","path":"name.familyName"}]}`:                                          invalidValue,
		`{"Operations":[` + good + `{"op":"remove","path":"userName"}]}`:                                                 invalidValue,
		`{"Operations":[` + good + `{"op":"replace","path":"userName","value":"else@example.com"}]}`:                     mutability,
		`{"Operations":[]}`:     invalidSyntax,
		`{}`:                    invalidSyntax,
		`{"Operations":{}}`:     invalidSyntax,
		`{"Operations":[null]}`: invalidSyntax,
		`[]`:                    invalidSyntax,
	} {
		_, err := u.Patch(user.ID, Sent{By: controlActor, Body: []byte(body)})
		var e *Error
		require.True(t, errors.As(err, &e), "%s: %v", body, err)
		require.Equal(t, []any{400, kind}, []any{e.Status, e.Type}, "%s: %s", body, e.Detail)
		now, err := u.Get(user.ID)
		require.NoError(t, err)
		require.Equal(t, user, now, body)
	}
	for operations, kind := range map[string]string{
		`{"op":"add","path":"members","value":[7]}`:                                    invalidValue,
		`{"op":"add","path":"members","value":[{}]}`:                                   invalidValue,
		`{"op":"remove","path":"members[display eq \"x\"]"}`:                           invalidPath,
		`{"op":"remove","path":"members[value ne \"x\"]"}`:                             invalidPath,
		`{"op":"remove","path":"members[value eq \"x\"].value"}`:                       invalidPath,
		`{"op":"replace","path":"members[value eq \"x\"]","value":[]}`:                 invalidPath,
		`{"op":"remove","path":"members[value"}`:                                       invalidPath,
		`{"op":"remove","path":"displayName"}`:                                         invalidSyntax,
		`{"op":"replace","path":"displayName","value":"OTHER"}`:                        uniqueness,
		`{"op":"replace","path":"displayName","value":" "}`:                            invalidValue,
		`{"op":"replace","path":"permissions","value":{"companyPermissions":"admin"}}`: invalidValue,
	} {
		_, err := g.Patch(group.ID, Sent{By: controlActor, Body: patchOf(good + `{"op":"remove","path":"members"},` + operations)})
		var e *Error
		require.True(t, errors.As(err, &e), "%s: %v", operations, err)
		require.Equal(t, kind, e.Type, "%s: %s", operations, e.Detail)
		now, err := g.Get(group.ID)
		require.NoError(t, err)
		require.Equal(t, group, now, operations)
	}
	_, err = u.Patch("nobody", Sent{By: controlActor, Body: patchOf(strings.TrimSuffix(good, ","))})
	require.Equal(t, errNotFound, err)
	_, err = g.Patch("nothing", Sent{By: controlActor, Body: patchOf(strings.TrimSuffix(good, ","))})
	require.Equal(t, errNoGroup, err)
	require.Equal(t, 2, c.PermissionSets.Len())
}

// A PATCH of a group changes who is in it, and nothing else of the users.
func TestPatchMembers(t *testing.T) {
	c, u, g := newTestUsers(t)
	var ids []string
	for i := range 4 {
		user, err := u.Create(Sent{By: controlActor, Body: []byte(strings.Replace(adaBody, "ada@", fmt.Sprintf("%d@", i), 1))})
		require.NoError(t, err)
		ids = append(ids, user.ID)
	}
	group, err := g.Create(Sent{By: controlActor, Body: []byte(`{"schemas":["` + GroupSchema + `"],"displayName":"G"}`)})
	require.NoError(t, err)
	numbered := strings.NewReplacer("{0}", ids[0], "{1}", ids[1], "{2}", ids[2], "{3}", ids[3])
	before, _ := u.Get(ids[0])
	for _, step := range []struct{ operations, want string }{
		{`{"op":"add","path":"members","value":[{"value":"{0}"},{"value":"{1}"}]}`, "01"},
		{`{"op":"add","path":"members","value":[]}`, "01"},
		{`{"op":"Add","path":"members","value":{"value":"{2}"}}`, "012"},
		{`{"op":"add","path":"members","value":"{2}"}`, "012"},
		{`{"op":"remove","path":"members","value":[]}`, "012"},
		{`{"op":"remove","path":"members","value":["{0}","nobody"]}`, "12"},
		{`{"op":"replace","value":{"MEMBERS":[{"value":"{3}"}]}}`, "3"},
		{`{"op":"add","path":"` + GroupSchema + `:members","value":[{"value":"{0}"}]},{"op":"remove","path":"members[value eq \"{3}\"]"}`, "0"},
		{`{"op":"remove","path":"members"},{"op":"add","path":"members","value":["{1}"]}`, "1"},
		{`{"op":"replace","path":"members","value":null}`, ""},
		{`{"op":"add","path":"members","value":["{0}"]}`, "0"},
	} {
		got, err := g.Patch(group.ID, Sent{By: controlActor, Body: patchOf(numbered.Replace(step.operations))})
		require.NoError(t, err, step.operations)
		members := ""
		for _, m := range got.json.(groupJSON).Members {
			members += m.Display[:1]
		}
		require.Equal(t, step.want, members, step.operations)
	}
	after, _ := u.Get(ids[0])
	a, b := treeOf(before.json), treeOf(after.json)
	require.Len(t, b["groups"], 1)
	for _, tree := range []map[string]any{a, b} {
		delete(tree, "groups")
		delete(tree, "meta")
	}
	require.Equal(t, a, b)
	require.NoError(t, u.Delete(controlActor, ids[0], ""))
	require.Empty(t, c.MembersOf(c.PermissionSets.Get("", group.ID)))
}

// A page of groups ends when there are many members in it, and never without a group.
func TestGroupPages(t *testing.T) {
	c, _, g := newTestUsers(t)
	for i := range 3 {
		_, err := g.Create(Sent{By: controlActor, Body: []byte(fmt.Sprintf(`{"schemas":["%s"],"displayName":"%d"}`, GroupSchema, i))})
		require.NoError(t, err)
	}
	for i := range maxPageMembers {
		c.Apply(fmt.Sprintf("scim_user//%d", i), []byte(fmt.Sprintf(`{"id":"%d","userName":"%d","permission_sets":[1,2,3]}`, i, i)))
	}
	for start := 1; start <= 3; start++ {
		l, err := g.List(Page{StartIndex: start, Count: 100})
		require.NoError(t, err)
		require.Len(t, l.resources, 1)
		require.Equal(t, 3, l.total)
	}
	l, err := g.List(Page{StartIndex: 1, Count: 0})
	require.NoError(t, err)
	require.Empty(t, l.resources)
}

// Whatever a PATCH holds: no panic; one that is refused changes nothing; what one makes can be read, patched again and
// sent back as it is.
func FuzzPatch(f *testing.F) {
	for _, operations := range []string{
		`{"op":"Replace","path":"active","value":"False"}`,
		`{"op":"Add","path":"emails[type eq \"work\"].value","value":"a@b.c"},{"op":"Replace","path":"name.familyName","value":"X"}`,
		`{"op":"replace","value":{"name.givenName":"A","` + EnterpriseSchema + `:employeeNumber":"1"}}`,
		`{"op":"Remove","path":"members","value":[{"$ref":null,"value":"id"}]}`,
		`{"op":"replace","value":{"id":"gid","displayName":"New name"}}`,
		`{"op":"Add","path":"manager","value":[{"$ref":"x","value":"id"}]}`,
		`{"op":"remove","path":"emails[type eq \"work\" and value co \"@\"].primary"}`,
		`{"op":"add","path":"permissions.roles","value":[{"roleName":"x"}]},{"op":"add","path":"permissions","value":{"appGroup":[{"appGroupName":"x"}]}}`,
		`{"op":"add","value":{"` + UserSchema + `":{"` + UserSchema + `":{}},"emails":[null,{"value":1}],"groups":[],"schemas":[]}}`,
	} {
		f.Add(patchOf(operations))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, u, g := newTestUsers(t)
		user, err := u.Create(Sent{By: controlActor, Body: []byte(adaBody)})
		require.NoError(t, err)
		group, err := g.Create(Sent{By: controlActor, Body: []byte(`{"schemas":["` + GroupSchema + `"],"displayName":"G","members":["` + user.ID + `"]}`)})
		require.NoError(t, err)
		user, err = u.Get(user.ID)
		require.NoError(t, err)
		for _, of := range []struct {
			before         *Resource
			get            func(string) (*Resource, error)
			patch, replace func(string, Sent) (*Resource, error)
		}{{user, u.Get, u.Patch, u.Replace}, {group, g.Get, g.Patch, g.Replace}} {
			got, err := of.patch(of.before.ID, Sent{By: controlActor, Body: body})
			now, err2 := of.get(of.before.ID)
			require.NoError(t, err2)
			if err != nil {
				var e *Error
				require.True(t, errors.As(err, &e), "%v", err)
				require.Equal(t, of.before, now, "it was refused: %v", err)
				continue
			}
			require.Equal(t, treeOf(now.json), treeOf(got.json))
			again, err := of.replace(of.before.ID, Sent{By: controlActor, Body: got.Append(nil, Projection{})})
			require.NoError(t, err)
			require.Equal(t, now.Version, again.Version, "%s", got.Append(nil, Projection{}))
		}
		require.Equal(t, []int{1, 1}, []int{c.SCIMUsers.Len(), c.PermissionSets.Len()})
		require.NotNil(t, c.SCIMUsers.Get("", "ada@example.com"))
	})
}
