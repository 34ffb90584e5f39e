package scim

import (
	"fmt"
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

// What a user or a group may do, as requests state it.

// rights reads department and permissions.
func (f *form) rights(u *document.SCIMUser, members map[string]any, present *document.SCIMUser) {
	if present != nil {
		u.Department, u.Permissions = present.Department, present.Permissions
	} else {
		u.Department, u.Permissions = f.snapshot.SCIM.NewUser()
	}
	if v := members["department"]; v != nil {
		u.Department = f.department(v)
	}
	if permissions := f.object("permissions", members["permissions"]); permissions != nil {
		u.Permissions = f.permissions(permissions)
	}
}

// paired notes department or permissions that are missing beside the other. A client that sends one knows the contract,
// in which both are required (service.md 4.16, 4.19), and an X-Request-Origin too. Identity providers send neither as a
// rule, and never that header; so without it, one may be sent alone. A substitute for the missing one excuses it: the
// operator's default for new users, or no department where there was none.
func (f *form) paired(members map[string]any, present *document.SCIMUser, withOrigin bool) {
	s := f.snapshot.SCIM
	if s == nil || !withOrigin || (members["department"] == nil) == (members["permissions"] == nil) {
		return
	}
	without := s.DefaultDepartment != ""
	if present != nil {
		without = present.Department == ""
	}
	if !without {
		f.required(members, "", "department")
	}
	if present != nil || s.DefaultPermissions == nil {
		f.required(members, "", "permissions")
	}
	f.report()
}

func (f *form) department(v any) string {
	name, _ := v.(string)
	if !slices.Contains(document.Departments, name) {
		f.fail("department", "must be one of %s", strings.Join(document.Departments, ", "))
	}
	return name
}

func (f *form) permissions(members map[string]any) document.SCIMPermissions {
	p := document.SCIMPermissions{Company: f.names("permissions.companyPermissions", members["companyPermissions"],
		isCompanyPermission), AppGroups: []document.SCIMAppGroup{}}
	for i, v := range f.list("permissions.roles", members["roles"]) {
		path := fmt.Sprintf("permissions.roles[%d]", i)
		id, name := f.reference(path, f.object(path, v), "roleId", "roleName")
		p.Roles = append(p.Roles, document.SCIMRole{ID: id, Name: name})
	}
	places := map[string]int{}
	for i, v := range f.list("permissions.appGroup", members["appGroup"]) {
		path := fmt.Sprintf("permissions.appGroup[%d]", i)
		group := f.appGroup(path, f.object(path, v))
		if first, twice := places[group.ID]; twice {
			f.fail(path, "is for the same workspace as 'permissions.appGroup[%d]'", first)
		}
		places[group.ID] = i
		p.AppGroups = append(p.AppGroups, group)
	}
	return p
}

func (f *form) appGroup(path string, members map[string]any) (g document.SCIMAppGroup) {
	g.ID, g.Name = f.reference(path, members, "appGroupId", "appGroupName")
	g.ID, g.Name = f.workspace(path, g.ID, g.Name)
	permissions, sets := members["appGroupPermissions"], members["appGroupPermissionSets"]
	if permissions != nil && sets != nil {
		f.fail(path, "must not have both 'appGroupPermissions' and 'appGroupPermissionSets'")
	}
	if sets == nil {
		g.Permissions = f.names(path+".appGroupPermissions", permissions, isAppGroupPermission)
	} else {
		g.PermissionSets = []document.SCIMPermissionSet{}
	}
	for i, v := range f.list(path+".appGroupPermissionSets", sets) {
		path := fmt.Sprintf("%s.appGroupPermissionSets[%d]", path, i)
		id, name := f.reference(path, f.object(path, v), "appGroupPermissionSetId", "appGroupPermissionSetName")
		g.PermissionSets = append(g.PermissionSets, document.SCIMPermissionSet{ID: id, Name: name})
	}
	g.Teams = []document.SCIMTeam{}
	for i, v := range f.list(path+".team", members["team"]) {
		path := fmt.Sprintf("%s.team[%d]", path, i)
		g.Teams = append(g.Teams, f.team(path, f.object(path, v), g.ID))
	}
	return g
}

// team: teams are known by their names; the id is made of the name, so it never changes.
func (f *form) team(path string, members map[string]any, appGroup string) document.SCIMTeam {
	id, name := f.reference(path, members, "teamId", "teamName")
	if name != "" {
		id = control.TeamID(appGroup, name)
	}
	return document.SCIMTeam{ID: id, Name: name,
		Permissions: f.names(path+".teamPermissions", members["teamPermissions"], isTeamPermission)}
}

// workspace resolves which workspace an app group is for. The id is that of a workspace, and survives a change of its
// name; so if both are given and the name belongs to no workspace, the id decides. A name that no workspace has is kept
// with an id that no workspace can have, so that a workspace that is made later gives nobody permissions.
func (f *form) workspace(path, id, name string) (string, string) {
	var named []*control.Workspace
	for _, w := range f.snapshot.Workspaces() {
		if name != "" && w.Name == name {
			named = append(named, w)
		}
	}
	byID := f.snapshot.Lookup(id)
	switch {
	case byID != nil && (len(named) == 0 || slices.Contains(named, byID)):
		return byID.ID, byID.Name
	case byID != nil:
		f.fail(path, "has the 'appGroupId' of one workspace and the 'appGroupName' of another")
	case len(named) == 1:
		return named[0].ID, name
	case len(named) > 1:
		f.fail(path+".appGroupName", "is the name of more than one workspace: use 'appGroupId'")
	case name == "" && id != "":
		f.fail(path+".appGroupId", "is not the id of a workspace")
	}
	return control.UnknownWorkspaceID(name), name
}

// reference reads an id and a name, of which at least one must be there.
func (f *form) reference(path string, members map[string]any, idName, nameName string) (id, name string) {
	if members == nil {
		return "", ""
	}
	if v := members[idName]; v != nil {
		id = f.text(path+"."+idName, v)
	}
	if v := members[nameName]; v != nil {
		name = f.text(path+"."+nameName, v)
	}
	if members[idName] == nil && members[nameName] == nil {
		f.fail(path, "must have '%s' or '%s'", nameName, idName)
	}
	return id, name
}

// names reads an array of permissions.
func (f *form) names(path string, v any, known func(string) bool) []string {
	names := []string{}
	for _, name := range f.strings(path, v) {
		if name == "" || len(name) > maxTextBytes || !document.Printable(name) {
			f.fail(path, "must hold names of 1 to %d bytes without control characters", maxTextBytes)
		}
		if !known(name) {
			f.unknown++
		}
		names = append(names, name)
	}
	return names
}
