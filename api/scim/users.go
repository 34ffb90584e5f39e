package scim

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"

	parser "github.com/scim2/filter-parser/v2"

	"millrace/api/control"
	"millrace/api/control/document"
)

// Users are the dashboard users of the company. It is safe for concurrent use; reads take no lock. An error that is an
// *Error is the answer; any other is the engine's.
type Users struct {
	control *control.Control
	now     func() int64
	max     int // how many there may be
}

// NewUsers keeps users in c; now is the clock, Unix milliseconds.
func NewUsers(c *control.Control, now func() int64) *Users {
	return &Users{control: c, now: now, max: control.MaxDocuments}
}

// Schemas of a user: its own, and the extension.

// Create makes the user whom the body describes.
func (u *Users) Create(r Sent) (*Resource, error) {
	f := newForm(u.control.Snapshot())
	members := f.members(r.Body, userSchemas)
	if f.err != nil {
		return nil, f.err
	}
	user := f.user(members, nil)
	f.paired(members, nil, r.WithOrigin)
	if f.err != nil {
		return nil, f.err
	}
	user.ID, user.CreatedAt, user.UpdatedAt = newID(), u.now(), u.now()
	if user.Inactive {
		user.DeactivatedAt = user.CreatedAt
	}
	err := u.edit(r.By, key(user.UserName), "SCIM user created", user.ID, f,
		func(old *document.SCIMUser) (*document.SCIMUser, error) {
			switch {
			case old != nil:
				return nil, errExists
			case u.control.SCIMUsers.Len() >= u.max:
				return nil, errTooMany
			}
			return user, nil
		})
	return u.describe(user), err
}

// Replace gives a user the content of the body (service.md 4.19). The userName stays; a body may repeat it.
func (u *Users) Replace(id string, r Sent) (*Resource, error) {
	return u.change(id, r, "SCIM user replaced", func(f *form, old *document.SCIMUser) *document.SCIMUser {
		members := f.members(r.Body, userSchemas)
		if f.err != nil {
			return nil
		}
		user := f.user(members, old)
		f.paired(members, old, r.WithOrigin)
		return user
	})
}

// Patch carries out the operations of the body, all of them or none.
func (u *Users) Patch(id string, r Sent) (*Resource, error) {
	operations, err := parsePatch(r.Body)
	if err != nil {
		return nil, err
	}
	return u.change(id, r, "SCIM user changed",
		func(f *form, old *document.SCIMUser) *document.SCIMUser { return u.patched(f, old, operations) })
}

// patched returns the user that the operations make. What they don't touch is taken as it is: it was judged when it
// came.
func (u *Users) patched(f *form, old *document.SCIMUser, operations []operation) *document.SCIMUser {
	p := patch{schemas: userSchemas, tree: treeOf(u.describe(old).json), form: f}
	before, ok := p.apply(operations)
	if !ok {
		return nil
	}
	f.required(p.tree, "", "userName")
	next := f.user(p.tree, old)
	if p.tree["department"] == nil {
		next.Department = ""
	}
	switch {
	case reflect.DeepEqual(before["emails"], p.tree["emails"]):
		next.Emails = old.Emails
	case next.Emails == nil: // removed, not left out
		next.Emails = []document.SCIMEmail{}
	}
	return next
}

// change changes the user with this id. next returns the new user, or leaves a fault in the form; it is called again
// only if another change came first. A user that isn't changed stays as it is, including its time of change.
func (u *Users) change(
	id string, r Sent, what string, next func(f *form, old *document.SCIMUser) *document.SCIMUser,
) (*Resource, error) {
	present := u.control.SCIMUsers.Find("", id)
	if present == nil {
		return nil, errNotFound
	}
	if err := checkMatch(r.IfMatch, version(present)); err != nil {
		return nil, err
	}
	f := newForm(u.control.Snapshot())
	user := next(f, present)
	if f.err != nil {
		return nil, f.err
	}
	switch {
	case user.Inactive && !present.Inactive:
		what = "SCIM user deactivated"
	case !user.Inactive && present.Inactive:
		what = "SCIM user activated"
	}
	err := u.edit(r.By, key(present.UserName), what, id, f, func(old *document.SCIMUser) (*document.SCIMUser, error) {
		if old == nil || old.ID != id { // deleted in between
			return nil, errNotFound
		}
		if err := checkMatch(r.IfMatch, version(old)); err != nil {
			return nil, err
		}
		if version(old) != version(present) {
			f := newForm(u.control.Snapshot())
			if user = next(f, old); f.err != nil {
				return nil, f.err
			}
		}
		user.ID, user.UserName, user.CreatedAt, user.UpdatedAt, user.PermissionSets = id, old.UserName, old.CreatedAt,
			old.UpdatedAt, old.PermissionSets
		user.SignedInAt = old.SignedInAt
		if user.DeactivatedAt = old.DeactivatedAt; user.Inactive && !old.Inactive {
			user.DeactivatedAt = max(u.now(), old.DeactivatedAt+1)
		}
		if !reflect.DeepEqual(user, old) {
			user.UpdatedAt = max(u.now(), old.UpdatedAt)
		}
		return user, nil
	})
	if err != nil {
		return nil, err
	}
	return u.describe(user), nil
}

// Delete removes a user for good.
func (u *Users) Delete(by control.Actor, id, ifMatch string) error {
	present := u.control.SCIMUsers.Find("", id)
	if present == nil {
		return errNotFound
	}
	return u.edit(by, key(present.UserName), "SCIM user deleted", id, newForm(nil),
		func(old *document.SCIMUser) (*document.SCIMUser, error) {
			if old == nil || old.ID != id {
				return nil, errNotFound
			}
			return nil, checkMatch(ifMatch, version(old))
		})
}

// MaxBodyBytes bounds a body about a user.
func (u *Users) MaxBodyBytes() int { return MaxBodyBytes }

// Get returns the user with this id.
func (u *Users) Get(id string) (*Resource, error) {
	if user := u.control.SCIMUsers.Find("", id); user != nil {
		return u.describe(user), nil
	}
	return nil, errNotFound
}

// Named returns the user with this userName in any case, nil when there is none, and what the user may do: nothing
// while inactive. Signing in uses it. The user must not be changed.
func (u *Users) Named(userName string) (*document.SCIMUser, document.SCIMPermissions) {
	user := u.control.SCIMUsers.Get("", key(userName))
	if user == nil {
		return nil, document.SCIMPermissions{}
	}
	return user, u.control.PermissionsOf(user)
}

// Key returns the key by which the document of a user is found.
func (u *Users) Key(user *document.SCIMUser) string { return key(user.UserName) }

// List returns a page of the users that the filter describes, or of all users without one, in order of their names.
func (u *Users) List(p Page) (*List, error) {
	f, err := p.filter(userSchemas)
	if err != nil {
		return nil, err
	}
	users := u.candidates(f)
	if f != nil {
		users = slices.DeleteFunc(users,
			func(user *document.SCIMUser) bool { return !f.matches(treeOf(u.describe(user).json)) })
	}
	return pageOf(users, p, u.describe), nil
}

// candidates returns the users that f may describe: f is applied to each, which costs some ten microseconds. A single
// user is looked up.
func (u *Users) candidates(f filter) []*document.SCIMUser {
	users := u.control.SCIMUsers
	one := func(user *document.SCIMUser) []*document.SCIMUser {
		if user == nil {
			return nil
		}
		return []*document.SCIMUser{user}
	}
	if name, ok := f.equals("userName"); ok {
		return one(users.Get("", key(name)))
	}
	if id, ok := f.equals("id"); ok {
		return one(users.Find("", id))
	}
	return slices.DeleteFunc(users.List(""), func(user *document.SCIMUser) bool { return f.excludes(user) })
}

// excludes reports that f doesn't describe user, as far as that can be seen at once: by the attributes that identity
// providers ask for. What it doesn't exclude is compared completely.
func (f filter) excludes(user *document.SCIMUser) bool {
	if len(f) != 1 {
		return false
	}
	return slices.ContainsFunc(f[0], func(c comparison) bool {
		text, _ := c.value.(string)
		switch {
		case c.elements != nil:
			return c.attribute.Name == "emails" && len(c.elements) == 1 &&
				slices.ContainsFunc(c.elements[0], func(of comparison) bool {
					text, _ := of.value.(string)
					return of.operator == parser.EQ && of.attribute.Name == "value" && !hasEmail(user, text)
				})
		case c.operator != parser.EQ || c.value == nil || c.schema != "":
			return false
		}
		switch c.attribute.Name {
		case "externalId":
			return user.ExternalID != text
		case "displayName":
			return user.Attributes["displayName"] != text
		case "emails":
			return c.sub.Name == "value" && !hasEmail(user, text)
		case "active":
			is, _ := boolOf(c.value)
			return user.Inactive == is
		}
		return false
	})
}

func hasEmail(user *document.SCIMUser, address string) bool {
	return slices.ContainsFunc(emailsOf(user),
		func(e document.SCIMEmail) bool { return strings.EqualFold(e.Value, address) })
}

func (u *Users) describe(user *document.SCIMUser) *Resource {
	return describe(user, u.control.SetsOf(user))
}

// edit changes one document. change gets the current user, nil for none, and returns the new one, nil for removed.
func (u *Users) edit(
	by control.Actor, key, what, id string, f *form, change func(*document.SCIMUser) (*document.SCIMUser, error),
) error {
	return u.control.SCIMUsers.Edit(by, "", key, what, change, "scim_id", id, "unknown_permissions", f.unknown)
}

// newID makes an id in the form that clients know: four times eight hexadecimal digits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	word := binary.BigEndian.Uint32
	return fmt.Sprintf("%08x-%08x-%08x-%08x", word(b[0:]), word(b[4:]), word(b[8:]), word(b[12:]))
}
