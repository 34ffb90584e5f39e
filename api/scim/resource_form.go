package scim

import (
	"fmt"
	"net/mail"
	"slices"
	"strings"

	"millrace/api/control/document"
)

// Whole users and groups, as requests state them.

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

// maxUserNameBytes is how long an address may be.
const maxUserNameBytes = 254

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
