package scim

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"millrace/api/control"
	"millrace/shard/op"
)

// Users are the dashboard users of the company. Safe for concurrent use; reads take no lock. An error that is an *Error is the answer; any other is the engine's.
type Users struct {
	control *control.Control
	now     func() int64
	max     int // how many there may be
}

// NewUsers keeps users in c; now is the clock, Unix milliseconds.
func NewUsers(c *control.Control, now func() int64) *Users {
	return &Users{control: c, now: now, max: control.MaxDocuments}
}

// Create makes the user that body, a JSON object, describes. body is only read.
func (u *Users) Create(by control.Actor, body []byte) (*control.SCIMUser, error) {
	f := newForm(u.control.Snapshot())
	user := f.user(body, nil)
	if f.err != nil {
		return nil, f.err
	}
	user.ID, user.CreatedAt, user.UpdatedAt = newID(), u.now(), u.now()
	err := u.edit(by, key(user.UserName), "SCIM user created", user.ID, f.unknown, func(old *control.SCIMUser) (*control.SCIMUser, error) {
		switch {
		case old != nil:
			return nil, errExists
		case u.control.SCIMUsers.Len() >= u.max:
			return nil, errTooMany
		}
		return user, nil
	})
	return user, err
}

// Replace gives a user the name, department and permissions of body (service.md 4.19). The userName stays; a body may repeat it.
func (u *Users) Replace(by control.Actor, id string, body []byte) (*control.SCIMUser, error) {
	present, err := u.Get(id)
	if err != nil {
		return nil, err
	}
	f := newForm(u.control.Snapshot())
	user := f.user(body, present)
	if f.err != nil {
		return nil, f.err
	}
	err = u.edit(by, key(present.UserName), "SCIM user replaced", id, f.unknown, func(old *control.SCIMUser) (*control.SCIMUser, error) {
		if old == nil || old.ID != id { // deleted in between
			return nil, errNotFound
		}
		user.ID, user.UserName, user.CreatedAt, user.UpdatedAt = id, old.UserName, old.CreatedAt, u.now()
		return user, nil
	})
	return user, err
}

// Delete removes a user for good.
func (u *Users) Delete(by control.Actor, id string) error {
	present, err := u.Get(id)
	if err != nil {
		return err
	}
	return u.edit(by, key(present.UserName), "SCIM user deleted", id, 0, func(old *control.SCIMUser) (*control.SCIMUser, error) {
		if old == nil || old.ID != id {
			return nil, errNotFound
		}
		return nil, nil
	})
}

// Get returns the user with this id. It is not to be changed.
func (u *Users) Get(id string) (*control.SCIMUser, error) {
	if user := u.control.SCIMUsers.Find("", id); user != nil {
		return user, nil
	}
	return nil, errNotFound
}

// Named returns the user with this userName in whatever case, nil when there is none. It is not to be changed.
func (u *Users) Named(userName string) *control.SCIMUser {
	return u.control.SCIMUsers.Get("", key(userName))
}

// edit changes one document. change gets the present user, nil for none, and returns what it shall be, nil for removed.
func (u *Users) edit(by control.Actor, key, what, id string, unknownPermissions int, change func(*control.SCIMUser) (*control.SCIMUser, error)) error {
	return u.control.SCIMUsers.Edit(by, "", key, what, change, "scim_id", id, "unknown_permissions", unknownPermissions)
}

// key is how userNames are compared: as the addresses that they are.
func key(userName string) string { return string(op.AppendEmailKey(nil, []byte(userName))) }

// newID makes an id in the form that clients know: four times eight hexadecimal digits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	word := binary.BigEndian.Uint32
	return fmt.Sprintf("%08x-%08x-%08x-%08x", word(b[0:]), word(b[4:]), word(b[8:]), word(b[12:]))
}

// Location is the path of a user.
func Location(user *control.SCIMUser) string { return usersPath + "/" + user.ID }

// Forms of times: signInForm is that of lastSignInAt and createdAt, in UTC. Nobody signs in here yet, and the epoch stands for never.
const signInForm = "Monday, January 2, 2006 3:04:05 PM"

var neverSignedIn = time.UnixMilli(0).UTC().Format(signInForm)

type userJSON struct {
	Schemas      []string                `json:"schemas,omitempty"`
	ID           string                  `json:"id"`
	UserName     string                  `json:"userName"`
	Name         nameJSON                `json:"name"`
	Department   string                  `json:"department"`
	LastSignInAt string                  `json:"lastSignInAt"`
	CreatedAt    string                  `json:"createdAt"`
	Permissions  control.SCIMPermissions `json:"permissions"`
	Meta         metaJSON                `json:"meta"`
}

type nameJSON struct {
	GivenName  string `json:"givenName"`
	FamilyName string `json:"familyName"`
}

type metaJSON struct {
	ResourceType string `json:"resourceType"`
	Created      string `json:"created,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
	Location     string `json:"location"`
}

func describe(u *control.SCIMUser) userJSON {
	created, updated := time.UnixMilli(u.CreatedAt).UTC(), time.UnixMilli(u.UpdatedAt).UTC()
	return userJSON{
		ID: u.ID, UserName: u.UserName, Name: nameJSON{u.GivenName, u.FamilyName}, Department: u.Department,
		LastSignInAt: neverSignedIn, CreatedAt: created.Format(signInForm), Permissions: u.Permissions,
		Meta: metaJSON{"User", created.Format(time.RFC3339Nano), updated.Format(time.RFC3339Nano), Location(u)},
	}
}

// AppendUser appends a user as it is answered.
func AppendUser(dst []byte, u *control.SCIMUser) []byte {
	v := describe(u)
	v.Schemas = []string{UserSchema}
	return appendJSON(dst, v)
}

// AppendList appends the answer to a filter: the user, nil for none. Of the one result, startIndex (from 1) and count may leave nothing to be shown. Entries have
// no schemas, as clients know it.
func AppendList(dst []byte, u *control.SCIMUser, startIndex, count int) []byte {
	startIndex = max(1, startIndex)
	list := listJSON[userJSON]{Schemas: []string{listSchema}, StartIndex: startIndex, Resources: []userJSON{}}
	if u != nil {
		list.TotalResults = 1
		if startIndex == 1 && count > 0 {
			list.Resources, list.ItemsPerPage = append(list.Resources, describe(u)), 1
		}
	}
	return appendJSON(dst, list)
}

type listJSON[T any] struct {
	Schemas      []string `json:"schemas"`
	TotalResults int      `json:"totalResults"`
	StartIndex   int      `json:"startIndex"`
	ItemsPerPage int      `json:"itemsPerPage"`
	Resources    []T      `json:"Resources"`
}
