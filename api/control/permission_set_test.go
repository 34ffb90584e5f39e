package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

func putUsers(m *memory, n int) (keys []string) {
	for i := range n {
		key := fmt.Sprintf("u%d@example.com", i)
		m.put("scim_user//"+key, fmt.Sprintf(`{"id":"%d","userName":%q,"permissions":{"companyPermissions":[],"appGroup":[]},"emails":null}`, i, key))
		keys = append(keys, key)
	}
	return keys
}

func namesOf(users []*document.SCIMUser) (names []string) {
	for _, u := range users {
		names = append(names, u.UserName)
	}
	return names
}

// addMembers brings users into a set, which it makes when it isn't there.
func addMembers(c *Control, id, name string, keys ...string) (*document.PermissionSet, error) {
	return c.EditPermissionSet(tester, id, func(old *document.PermissionSet) (*document.PermissionSet, MemberChange, error) {
		if old == nil {
			old = &document.PermissionSet{ID: id, Name: name}
		}
		return old, MemberChange{Add: keys}, nil
	})
}

// Two nodes change the members of one set, and make sets of one name, at the same time: none of it is lost, and no name
// is there twice.
func TestPermissionSetsOnTwoNodes(t *testing.T) {
	a, b, m := twoNodes(t)
	keys := putUsers(m, 3)
	_, err := addMembers(a, "s", "S", keys[0])
	require.NoError(t, err)
	m.overtake(func() {
		_, err := addMembers(b, "s", "S", keys[1])
		require.NoError(t, err)
	})
	set, err := addMembers(a, "s", "S", keys[2], "nobody@example.com")
	require.NoError(t, err)
	require.Equal(t, keys, namesOf(b.MembersOf(set)))
	require.Equal(t, uint64(3), b.PermissionSets.Get("", "s").Revision)

	m.overtake(func() {
		_, err := addMembers(b, "t2", "Twin")
		require.NoError(t, err)
	})
	_, err = addMembers(a, "t1", "TWIN")
	require.ErrorIs(t, err, ErrExists)
	m.overtake(func() {
		_, err := addMembers(b, "u", "New name")
		require.NoError(t, err)
	})
	_, err = a.PermissionSets.Change(tester, "", "s", func(old *document.PermissionSet) (*document.PermissionSet, error) {
		old.Name = "new NAME"
		return old, nil
	})
	require.ErrorIs(t, err, ErrExists, "nor by another name")

	// A user who goes meanwhile is passed over, and does not come back.
	m.overtake(func() { m.put("scim_user//"+keys[0], "") })
	_, err = a.EditPermissionSet(tester, "s", func(old *document.PermissionSet) (*document.PermissionSet, MemberChange, error) {
		return old, MemberChange{Remove: keys}, nil
	})
	require.NoError(t, err)
	require.Empty(t, a.MembersOf(set))
	require.Nil(t, a.SCIMUsers.Get("", keys[0]))

	require.NoError(t, a.PermissionSets.Remove(tester, "", "s", nil))
	next, err := addMembers(b, "s", "S")
	require.NoError(t, err)
	require.Greater(t, next.Number, set.Number, "a number is never given again")
}

func TestPermissionSetBounds(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	keys := putUsers(m, maxMemberChanges+1)
	_, err := addMembers(c, "s", "S", keys...)
	require.ErrorIs(t, err, document.ErrInvalid)
	require.Nil(t, c.PermissionSets.Get("", "s"), "nothing is done by half")
	set, err := addMembers(c, "s", "S", keys[1:]...)
	require.NoError(t, err)
	require.Len(t, c.MembersOf(set), maxMemberChanges)

	large := strings.Repeat(`"`+strings.Repeat("x", 200)+`",`, 500)
	for i := range 200 {
		m.put(fmt.Sprintf("scim_user//big%d@example.com", i), fmt.Sprintf(`{"id":"b%d","permissions":{"companyPermissions":[%s"x"],"appGroup":[]}}`, i, large))
		keys[i] = fmt.Sprintf("big%d@example.com", i)
	}
	_, err = addMembers(c, "s", "S", keys[:200]...)
	require.ErrorContains(t, err, "too much data for one request")

	for i := 1; i < document.MaxPermissionSets; i++ {
		m.put(fmt.Sprintf("permission_set//p%d", i), fmt.Sprintf(`{"id":"p%d","name":"P%d","number":%d}`, i, i, 1000+i))
	}
	_, err = addMembers(c, "more", "More")
	require.ErrorIs(t, err, ErrConflict)
	_, err = addMembers(c, "s", "S", "u0@example.com")
	require.NoError(t, err)
}

// What sets give comes on top of what a user has; the documents of both stay as they are.
func TestPermissionsOf(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	bootstrap(t, c, `
company:
  permission_sets:
    - {id: a, permissions: {companyPermissions: [x], roles: [{roleName: r}], appGroup: [{appGroupId: w, appGroupPermissions: [p, q], team: [{teamName: t, teamPermissions: [m]}]}]}}
    - {id: b, name: B, permissions: {companyPermissions: [y], appGroup: [{appGroupName: W, appGroupPermissionSets: [{appGroupPermissionSetName: s}], team: [{teamName: t, teamPermissions: [n]}]}, {appGroupId: v}]}}
workspaces: [{id: w, name: W}, {id: v}]`)
	m.put("scim_user//ada@example.com", `{"id":"1","userName":"ada@example.com","permissions":{"companyPermissions":["y","z"],"appGroup":[{"appGroupId":"w","appGroupName":"W","appGroupPermissions":["q"],"team":[]}]}}`)
	for _, id := range []string{"a", "b"} {
		_, err := addMembers(c, id, "", "ada@example.com")
		require.NoError(t, err)
	}
	ada := c.SCIMUsers.Get("", "ada@example.com")
	want := document.SCIMPermissions{Company: []string{"y", "z", "x"}, Roles: []document.SCIMRole{{Name: "r"}}, AppGroups: []document.SCIMAppGroup{
		{ID: "w", Name: "W", Permissions: []string{"q", "p"}, PermissionSets: []document.SCIMPermissionSet{{Name: "s"}}, Teams: []document.SCIMTeam{{ID: TeamID("w", "t"), Name: "t", Permissions: []string{"m", "n"}}}},
		{ID: "v", Name: "v", Permissions: []string{}, Teams: []document.SCIMTeam{}}}}
	for range 2 {
		got := c.PermissionsOf(ada)
		require.Equal(t, want.Company, got.Company)
		require.Equal(t, want.Roles, got.Roles)
		require.Equal(t, want.AppGroups[0], got.AppGroups[0])
		require.Equal(t, "v", got.AppGroups[1].ID)
	}
	require.Equal(t, []string{"y", "z"}, ada.Permissions.Company)
	inactive := *ada
	inactive.Inactive = true
	require.Empty(t, c.PermissionsOf(&inactive).Company)
	require.Empty(t, c.PermissionsOf(&inactive).AppGroups)
}

// The file is applied as often as one likes, takes no members away, and names what is wrong.
func TestBootstrapOfPermissionSets(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	text := `{company: {permission_sets: [{id: a, permissions: {companyPermissions: [x]}}]}}`
	bootstrap(t, c, text)
	keys := putUsers(m, 1)
	set, err := addMembers(c, "a", "", keys...)
	require.NoError(t, err)
	puts := m.puts
	bootstrap(t, c, text)
	require.Equal(t, puts, m.puts)
	bootstrap(t, c, strings.Replace(text, "[x]", "[y]", 1))
	require.Equal(t, []string{"y"}, c.PermissionsOf(c.SCIMUsers.Get("", keys[0])).Company)
	require.Equal(t, keys, namesOf(c.MembersOf(set)))
	for text, want := range map[string]string{
		`{company: {permission_sets: [{name: a}]}}`:                                                   "permission_sets[0]: invalid: id is required",
		`{company: {permission_sets: [{id: a}, {id: a}]}}`:                                            `"a" appears twice`,
		`{company: {permission_sets: [{id: A}]}}`:                                                     "lower-case letters",
		`{company: {permission_sets: [{id: a, members: [x]}]}}`:                                       "members",
		`{company: {permission_sets: [{id: a, permissions: {appGroup: [{appGroupName: Nowhere}]}}]}}`: "Nowhere",
		`{company: {scim: {token: t, default_department: kitchen}}}`:                                  "scim.default_department",
	} {
		f, err := document.ParseBootstrap([]byte(text))
		if err == nil {
			_, err = c.Bootstrap(t.Context(), tester, f)
		}
		require.ErrorContains(t, err, want, text)
	}
}
