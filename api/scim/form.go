package scim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/mail"
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

// Limits of single values. How many there are is bounded by MaxBodyBytes.
const (
	maxUserNameBytes = 254
	maxTextBytes     = 255
)

// form reads a user or a group from a request. It goes on after a fault and keeps the first; missing members are
// reported together, before any other fault. Members that a client can't set (id, meta, lastSignInAt, ids of teams) and
// unknown ones are ignored: only what is named here gets in.
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

// members reads a body, with the names of members as the schemas have them, the resource's own schema first. Members
// under the URN of that schema are the resource's (some clients nest them).
func (f *form) members(body []byte, schemas []schemaJSON) map[string]any {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var members map[string]any // not a struct: of several names for one member rename chooses
	if err := decoder.Decode(&members); err != nil || members == nil {
		f.err = &Error{Status: 400, Type: invalidSyntax, Detail: "The body must be a JSON object"}
		return nil
	}
	rename(members, []attribute{{Name: schemas[0].ID}})
	if nested, ok := members[schemas[0].ID].(map[string]any); ok {
		for name, v := range nested {
			if _, twice := members[name]; !twice {
				members[name] = v
			}
		}
	}
	attributes := slices.Concat(common, schemas[0].Attributes)
	for _, s := range schemas[1:] {
		attributes = append(attributes, attribute{Name: s.ID, SubAttributes: s.Attributes})
	}
	rename(members, attributes)
	return members
}

// user reads a whole user. present is the existing user, nil for a new one. What identity providers don't send
// (department, permissions and active) stays as it was, or is what the operator has set for new users.
func (f *form) user(members map[string]any, present *document.SCIMUser) *document.SCIMUser {
	u := &document.SCIMUser{}
	if present != nil {
		u.Inactive = present.Inactive
	}
	f.active(members, u) // first: no other fault may hide this one
	f.schemas(f.required(members, "", "schemas"), UserSchema)
	if members["userName"] != nil || present == nil {
		u.UserName = f.userName(f.required(members, "", "userName"), present)
	}
	if name := f.object("name", f.required(members, "", "name")); name != nil {
		u.GivenName = f.text("name.givenName", f.required(name, "name.", "givenName"))
		u.FamilyName = f.text("name.familyName", f.required(name, "name.", "familyName"))
		f.attribute(u, formattedPath, name["formatted"])
	}
	u.ExternalID = f.optional("externalId", members["externalId"])
	for _, a := range userTexts {
		f.attribute(u, a.Name, members[a.Name])
	}
	f.enterprise(u, members[EnterpriseSchema])
	u.Emails = f.emails(members["emails"])
	switch {
	case present == nil:
	case present.Emails == nil && slices.Equal(u.Emails, emailsOf(present)):
		u.Emails = nil // what is shown when no address was ever sent has been sent back
	case present.Emails != nil && u.Emails == nil:
		u.Emails = []document.SCIMEmail{} // removed
	}
	f.rights(u, members, present)
	f.report()
	return u
}

// report makes missing members the fault, whatever else is wrong.
func (f *form) report() {
	switch {
	case len(f.missing) == 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: f.missing[0] + " is required"}
	case len(f.missing) > 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: strings.Join(f.missing, ", ") + " are required"}
	}
}

// required returns a member, and notes it if it is missing; null counts as missing.
func (f *form) required(members map[string]any, path, name string) any {
	v := members[name]
	if v == nil {
		f.missing = append(f.missing, "'"+path+name+"'")
	}
	return v
}

// oldSchema is the core schema of SCIM 1, which OneLogin's templates may name.
const oldSchema = "urn:scim:schemas:core:1.0"

func (f *form) schemas(v any, schema string) {
	if v == nil {
		return
	}
	list := f.strings("schemas", v)
	if list != nil && !slices.ContainsFunc(list,
		func(s string) bool { return strings.EqualFold(s, schema) || s == oldSchema }) {
		f.fail("schemas", "must contain %s", schema)
	}
}

// isActive reports whether name is the member active in any form that SCIM allows: in any case, also beside another
// active, and behind the name of its schema. Of the other members the latter form is not known, since one that is not
// understood is reported as missing, or stays as it was.
func isActive(name string) bool {
	if n := len(UserSchema) + 1; len(name) > n && strings.EqualFold(name[:n], UserSchema+":") {
		name = name[n:]
	}
	return strings.EqualFold(name, "active")
}

// active reads whether the user is active, from whatever form of the name. Of several values, false counts: somebody
// who has left must not be taken for somebody who may sign in.
func (f *form) active(members map[string]any, u *document.SCIMUser) {
	said := map[bool]bool{}
	for name, v := range members {
		if !isActive(name) || v == nil {
			continue
		}
		is, ok := boolOf(v)
		if !ok {
			f.fail("active", "must be a boolean")
		}
		said[is] = true
	}
	if len(said) > 0 {
		u.Inactive = said[false]
	}
}

func (f *form) userName(v any, present *document.SCIMUser) string {
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

// isAddress reports whether text is a bare email address whose domain has a dot.
func isAddress(text string) bool {
	if len(text) > maxUserNameBytes || strings.ContainsAny(text, " \"()<>") {
		return false
	}
	a, err := mail.ParseAddress(text)
	return err == nil && a.Address == text && strings.Contains(text[strings.LastIndexByte(text, '@'):], ".")
}

// optional reads a text; null and an empty text count as none.
func (f *form) optional(path string, v any) string {
	if v == nil || v == "" {
		return ""
	}
	return f.text(path, v)
}

func (f *form) attribute(u *document.SCIMUser, path string, v any) {
	if text := f.optional(path, v); text != "" {
		if u.Attributes == nil {
			u.Attributes = map[string]string{}
		}
		u.Attributes[path] = text
	}
}

// enterprise reads the extension. The manager comes as an object, and from some clients as a list or a bare id.
func (f *form) enterprise(u *document.SCIMUser, v any) {
	members := f.object(EnterpriseSchema, v)
	for _, a := range enterpriseTexts {
		f.attribute(u, enterprisePath(a.Name), members[a.Name])
	}
	manager := members["manager"]
	if list, ok := manager.([]any); ok {
		manager = nil
		if len(list) > 0 {
			manager = list[0]
		}
	}
	if object, ok := manager.(map[string]any); ok {
		manager = object["value"]
	}
	f.attribute(u, managerPath, manager)
}

// maxEmails is how many addresses a user may have.
const maxEmails = 10

// emails reads the addresses. nil: none were sent. They don't identify the user; two users may have the same.
func (f *form) emails(v any) (list []document.SCIMEmail) {
	elements := f.list("emails", v)
	if len(elements) > maxEmails {
		f.fail("emails", "has %d addresses, at most %d", len(elements), maxEmails)
		return nil
	}
	for i, v := range elements {
		path := fmt.Sprintf("emails[%d]", i)
		if text, ok := v.(string); ok {
			v = map[string]any{"value": text}
		}
		members := f.object(path, v)
		e := document.SCIMEmail{Value: f.optional(path+".value", members["value"]),
			Type: f.optional(path+".type", members["type"])}
		if is, ok := boolOf(members["primary"]); ok {
			e.Primary = is
		} else if members["primary"] != nil {
			f.fail(path+".primary", "must be a boolean")
		}
		if e.Value != "" {
			list = append(list, e)
		}
	}
	return list
}

// group reads a whole group, apart from its members. If it has no permissions they stay as they were: identity
// providers know nothing of them.
func (f *form) group(members map[string]any, present *document.PermissionSet) *document.PermissionSet {
	p := &document.PermissionSet{Permissions: document.SCIMPermissions{Company: []string{},
		AppGroups: []document.SCIMAppGroup{}}}
	if present != nil {
		*p = *present
	}
	f.schemas(f.required(members, "", "schemas"), GroupSchema)
	p.Name = f.text("displayName", f.required(members, "", "displayName"))
	p.ExternalID = f.optional("externalId", members["externalId"])
	if permissions := f.object("permissions", members["permissions"]); permissions != nil {
		p.Permissions = f.permissions(permissions)
	}
	if f.report(); len(f.missing) > 0 {
		f.err.Type = invalidSyntax
	}
	return p
}

// ids reads the users that a list of members names: objects with a value or, from some clients, bare ids; a single one
// need not be in a list.
func (f *form) ids(v any) (ids []string) {
	list, ok := v.([]any)
	if !ok && v != nil {
		list = []any{v}
	}
	for i, e := range list {
		if object, ok := e.(map[string]any); ok {
			e = object["value"]
		}
		id, ok := e.(string)
		if !ok {
			f.fail(fmt.Sprintf("members[%d]", i), "must have a 'value', the id of a user")
			return nil
		}
		ids = append(ids, id)
	}
	return ids
}

// strings reads an array of strings; a missing one is empty. It returns nil after a fault.
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

// list reads an array of objects; a missing one is empty.
func (f *form) list(path string, v any) []any {
	elements, ok := v.([]any)
	if v != nil && !ok {
		f.fail(path, "must be an array of objects")
	}
	return elements
}

// object reads an object. It returns nil for a missing one and after a fault.
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
	case strings.TrimSpace(s) == "" || len(s) > maxTextBytes || !document.Printable(s):
		f.fail(path, "must have 1 to %d bytes without control characters", maxTextBytes)
	}
	return s
}
