package scim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"unicode/utf8"

	"millrace/api/control"
)

// Limits of single values. How many there are is bounded by MaxBodyBytes.
const (
	maxUserNameBytes = 254
	maxTextBytes     = 255
)

// form reads a user from a request. It goes on after a fault and keeps the first; missing members are reported together, before any other fault. Members
// that a client can't set (id, meta, lastSignInAt, ids of teams) and unknown ones are passed over: nothing gets into a user that is not named here.
type form struct {
	snapshot *control.Snapshot
	missing  []string
	err      *Error
	unknown  int // permissions that are not known; they are kept as they are (D9)
}

func newForm(s *control.Snapshot) *form { return &form{snapshot: s} }

// fail keeps the first fault.
func (f *form) fail(path, text string, args ...any) {
	if f.err == nil {
		f.err = &Error{Status: 400, Type: invalidValue, Detail: "'" + path + "' " + fmt.Sprintf(text, args...)}
	}
}

// user reads a whole user; of a present one the userName is optional and must be the same.
func (f *form) user(body []byte, present *control.SCIMUser) *control.SCIMUser {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var members map[string]any // not a struct: names are compared exactly
	if err := decoder.Decode(&members); err != nil {
		f.err = &Error{Status: 400, Type: invalidSyntax, Detail: "The body must be a JSON object"}
		return nil
	}
	for name, v := range members { // before all else: no other fault may hide this one
		if isActive(name) {
			f.active(v)
		}
	}
	if f.err != nil {
		return nil
	}
	u := &control.SCIMUser{}
	f.schemas(f.required(members, "", "schemas"))
	if members["userName"] != nil || present == nil {
		u.UserName = f.userName(f.required(members, "", "userName"), present)
	}
	if name := f.object("name", f.required(members, "", "name")); name != nil {
		u.GivenName = f.text("name.givenName", f.required(name, "name.", "givenName"))
		u.FamilyName = f.text("name.familyName", f.required(name, "name.", "familyName"))
	}
	u.Department = f.department(f.required(members, "", "department"))
	if permissions := f.object("permissions", f.required(members, "", "permissions")); permissions != nil {
		u.Permissions = f.permissions(permissions)
	}
	switch {
	case len(f.missing) == 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: f.missing[0] + " is required"}
	case len(f.missing) > 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: strings.Join(f.missing, ", ") + " are required"}
	}
	return u
}

// required returns a member, and notes it when it isn't there; null is not there.
func (f *form) required(members map[string]any, path, name string) any {
	v := members[name]
	if v == nil {
		f.missing = append(f.missing, "'"+path+name+"'")
	}
	return v
}

func (f *form) schemas(v any) {
	if v == nil {
		return
	}
	list := f.strings("schemas", v)
	if list != nil && !slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, UserSchema) }) {
		f.fail("schemas", "must contain %s", UserSchema)
	}
}

// isActive says whether name is that of the member active in any form that SCIM has for it: names are compared without regard to case (RFC 7643 2.1), and may
// stand behind the name of their schema. Of the other members one form is known, since what is not understood of them is missing, or stays as it was.
func isActive(name string) bool {
	if n := len(UserSchema) + 1; len(name) > n && strings.EqualFold(name[:n], UserSchema+":") {
		name = name[n:]
	}
	return strings.EqualFold(name, "active")
}

// active refuses what would deactivate a user. There is no such state, and an identity provider that was told otherwise would believe that somebody who
// has left can't sign in. Some send the boolean as a string.
func (f *form) active(v any) {
	if text, ok := v.(string); ok {
		switch strings.ToLower(text) {
		case "true":
			v = true
		case "false":
			v = false
		}
	}
	switch v {
	case nil, true:
	case false:
		f.fail("active", "can't be false: users can't be deactivated here. DELETE removes the user")
	default:
		f.fail("active", "must be a boolean")
	}
}

func (f *form) userName(v any, present *control.SCIMUser) string {
	if v == nil {
		return ""
	}
	name, _ := v.(string)
	switch {
	case present != nil && key(name) != key(present.UserName):
		if f.err == nil {
			f.err = &Error{Status: 400, Type: mutability, Detail: "'userName' can't be changed"}
		}
	case !isAddress(name):
		f.fail("userName", "must be an email address of at most %d bytes", maxUserNameBytes)
	}
	return name
}

// isAddress says whether text is a bare email address, with a domain that has a dot.
func isAddress(text string) bool {
	if len(text) > maxUserNameBytes || strings.ContainsAny(text, " \"()<>") {
		return false
	}
	a, err := mail.ParseAddress(text)
	return err == nil && a.Address == text && strings.Contains(text[strings.LastIndexByte(text, '@'):], ".")
}

func (f *form) department(v any) string {
	if v == nil {
		return ""
	}
	name, _ := v.(string)
	if !slices.Contains(departments, name) {
		f.fail("department", "must be one of %s", strings.Join(departments, ", "))
	}
	return name
}

func (f *form) permissions(members map[string]any) control.SCIMPermissions {
	p := control.SCIMPermissions{Company: f.names("permissions.companyPermissions", members["companyPermissions"], isCompanyPermission), AppGroups: []control.SCIMAppGroup{}}
	for i, v := range f.list("permissions.roles", members["roles"]) {
		path := fmt.Sprintf("permissions.roles[%d]", i)
		id, name := f.reference(path, f.object(path, v), "roleId", "roleName")
		p.Roles = append(p.Roles, control.SCIMRole{ID: id, Name: name})
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

func (f *form) appGroup(path string, members map[string]any) (g control.SCIMAppGroup) {
	g.ID, g.Name = f.reference(path, members, "appGroupId", "appGroupName")
	g.ID, g.Name = f.workspace(path, g.ID, g.Name)
	permissions, sets := members["appGroupPermissions"], members["appGroupPermissionSets"]
	if permissions != nil && sets != nil {
		f.fail(path, "must not have both 'appGroupPermissions' and 'appGroupPermissionSets'")
	}
	if sets == nil {
		g.Permissions = f.names(path+".appGroupPermissions", permissions, isAppGroupPermission)
	} else {
		g.PermissionSets = []control.SCIMPermissionSet{}
	}
	for i, v := range f.list(path+".appGroupPermissionSets", sets) {
		path := fmt.Sprintf("%s.appGroupPermissionSets[%d]", path, i)
		id, name := f.reference(path, f.object(path, v), "appGroupPermissionSetId", "appGroupPermissionSetName")
		g.PermissionSets = append(g.PermissionSets, control.SCIMPermissionSet{ID: id, Name: name})
	}
	g.Teams = []control.SCIMTeam{}
	for i, v := range f.list(path+".team", members["team"]) {
		path := fmt.Sprintf("%s.team[%d]", path, i)
		g.Teams = append(g.Teams, f.team(path, f.object(path, v), g.ID))
	}
	return g
}

// team: teams are known by their names; the id is made of the name, so it stays the same.
func (f *form) team(path string, members map[string]any, appGroup string) control.SCIMTeam {
	id, name := f.reference(path, members, "teamId", "teamName")
	if name != "" {
		id = derivedID("team", appGroup, name)
	}
	return control.SCIMTeam{ID: id, Name: name, Permissions: f.names(path+".teamPermissions", members["teamPermissions"], isTeamPermission)}
}

// workspace resolves what an app group is for. The id is that of a workspace, which survives a change of its name; so where both are given and the name is no
// workspace's, the id decides. A name that no workspace has is kept with an id that no workspace can have: a workspace that is made later gives nobody permissions.
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
	return derivedID("app group", name), name
}

// derivedID makes an id out of names: always the same, and with a capital letter in front, which no id of a workspace has.
func derivedID(names ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(names, "\x00")))
	return "N" + hex.EncodeToString(sum[:12])
}

// reference reads an id and a name, of which at least one is there.
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
		if name == "" || len(name) > maxTextBytes || !printable(name) {
			f.fail(path, "must hold names of 1 to %d bytes without control characters", maxTextBytes)
		}
		if !known(name) {
			f.unknown++
		}
		names = append(names, name)
	}
	return names
}

// strings reads an array of strings; absent it is empty. nil after a fault.
func (f *form) strings(path string, v any) []string {
	if v == nil {
		return nil
	}
	elements, ok := v.([]any)
	list := make([]string, 0, len(elements))
	for _, e := range elements {
		s, isString := e.(string)
		ok = ok && isString
		list = append(list, s)
	}
	if !ok {
		f.fail(path, "must be an array of strings")
		return nil
	}
	return list
}

// list reads an array of objects; absent it is empty.
func (f *form) list(path string, v any) []any {
	elements, ok := v.([]any)
	if v != nil && !ok {
		f.fail(path, "must be an array of objects")
	}
	return elements
}

// object reads an object. nil for an absent one and after a fault.
func (f *form) object(path string, v any) map[string]any {
	members, ok := v.(map[string]any)
	if !ok && (v != nil || strings.HasSuffix(path, "]")) { // an element is never absent
		f.fail(path, "must be an object")
	}
	return members
}

// text reads a name of 1 to 255 bytes.
func (f *form) text(path string, v any) string {
	if v == nil {
		return ""
	}
	s, ok := v.(string)
	switch {
	case !ok:
		f.fail(path, "must be a string")
	case strings.TrimSpace(s) == "" || len(s) > maxTextBytes || !printable(s):
		f.fail(path, "must have 1 to %d bytes without control characters", maxTextBytes)
	}
	return s
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
