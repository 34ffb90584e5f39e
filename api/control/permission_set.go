package control

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/puzpuzpuz/xsync/v3"
)

// PermissionSet is a named set of permissions of the company; SCIM calls it a group. Its members, dashboard users, have
// its permissions besides their own.
//
// Membership is stored in the user's document, by the set's number. So one more member costs the same however many
// there are, and a set that is made under the id of a removed one has a number of its own, and no members. A change of
// members also touches the set's document, so that two at once exclude one another.
type PermissionSet struct {
	ID          string          `json:"id" yaml:"id"`
	Name        string          `json:"name" yaml:"name"` // unique, whatever the case
	ExternalID  string          `json:"external_id,omitempty" yaml:"-"`
	Permissions SCIMPermissions `json:"permissions" yaml:"permissions"`

	// The fields below are the server's, whatever a change says.
	Number    uint32 `json:"number" yaml:"-"`
	Revision  uint64 `json:"revision" yaml:"-"` // rises with each change, including changes of members
	CreatedAt Millis `json:"created_at" yaml:"-"`
	UpdatedAt Millis `json:"updated_at" yaml:"-"`

	touched bool // its members change
}

// Limits of permission sets.
const (
	// MaxPermissionSets is how many permission sets there may be.
	MaxPermissionSets = 1000
	// MaxMemberChanges is how many members one change may add or remove.
	MaxMemberChanges = 5000
	maxMemberBytes   = 16 << 20 // size of their documents
)

func newPermissionSets(c *Control) *Collection[PermissionSet] {
	l := newCollection[PermissionSet](c, kindPermissionSet, "permission set")
	l.otherID, l.byOther = (*PermissionSet).reference, xsync.NewMapOf[string, *PermissionSet]()
	l.complete = func(p *PermissionSet) {
		p.ensureDefaults()
		p.Permissions.resolve(c.Snapshot())
	}
	l.check = func(_, p *PermissionSet) error {
		return cmp.Or(p.validate(), p.Permissions.resolved(c.Snapshot(), "permissions"))
	}
	return l
}

func (p *PermissionSet) ensureDefaults() {
	ensureID(&p.ID)
	p.Name = cmp.Or(p.Name, p.ID)
}

func (p *PermissionSet) documentID() *string { return &p.ID }

func (p *PermissionSet) reference() string { return strconv.FormatUint(uint64(p.Number), 10) }

func (p *PermissionSet) validate() error {
	if !slugForm.MatchString(p.ID) {
		return invalid("permission set id %q: want lower-case letters, digits, - and _, at most 63", p.ID)
	}
	return cmp.Or(checkName("name", p.Name), p.Permissions.validate("permissions"))
}

func (p *PermissionSet) renames(old *PermissionSet) bool { return p.Name != old.Name }

func (p *PermissionSet) setNumber(n uint32) { p.Number = n }

// fits reports why there is no room for the set, or its name is taken.
func (p *PermissionSet) fits(others []*PermissionSet) error {
	isNew := true
	for _, o := range others {
		switch {
		case o.ID == p.ID:
			isNew = false
		case strings.EqualFold(o.Name, p.Name):
			return fmt.Errorf("a permission set with the name %q %w", p.Name, ErrExists)
		}
	}
	if isNew && len(others) >= MaxPermissionSets {
		return fmt.Errorf("%w: there are %d permission sets, which is the limit", ErrConflict, len(others))
	}
	return nil
}

// keep keeps what the bootstrap file doesn't have.
func (p *PermissionSet) keep(old *PermissionSet) { p.ExternalID = old.ExternalID }

func (p *PermissionSet) stamp(old *PermissionSet, now int64) {
	if old == nil {
		p.Revision, p.CreatedAt, p.UpdatedAt = 1, Millis(now), Millis(now)
		return
	}
	p.Number, p.Revision, p.CreatedAt, p.UpdatedAt = old.Number, old.Revision, old.CreatedAt, old.UpdatedAt
	touched := p.touched
	if p.touched = false; touched || !reflect.DeepEqual(p, old) {
		p.Revision, p.UpdatedAt = old.Revision+1, max(Millis(now), old.UpdatedAt)
	}
}

// MemberChange says which users join a permission set and which leave it, by the ids of their documents. Missing users
// are ignored.
type MemberChange struct{ Add, Remove []string }

// EditPermissionSet changes a permission set and its members in one record. edit gets the current set, which it may
// change (nil: there is none), and returns the new one. It is called again when another node was faster.
func (c *Control) EditPermissionSet(
	by Actor, id string, edit func(old *PermissionSet) (*PermissionSet, MemberChange, error),
) (p *PermissionSet, err error) {
	err = c.do(by, func(d *draft) error {
		var members MemberChange
		p, err = c.PermissionSets.change(d, "", id, func(old *PermissionSet) (next *PermissionSet, err error) {
			if next, members, err = edit(old); err == nil && len(members.Add)+len(members.Remove) > 0 {
				next.touched = true
			}
			return next, err
		})
		if err != nil {
			return err
		}
		return d.changeMembers(p.Number, members)
	})
	return p, err
}

func (d *draft) changeMembers(number uint32, members MemberChange) error {
	if n := len(members.Add) + len(members.Remove); n > MaxMemberChanges {
		return invalid("%d members are added or removed, at most %d are allowed in one request", n, MaxMemberChanges)
	} else if n > 0 {
		d.entry.Details = pairs([]any{"members_added", len(members.Add), "members_removed", len(members.Remove),
			"added", strings.Join(members.Add, " "), "removed", strings.Join(members.Remove, " ")})
	}
	bytes := 0
	for i, list := range [][]string{members.Add, members.Remove} {
		for _, id := range list {
			n, err := d.setMember(number, id, i == 0)
			if err != nil {
				return err
			}
			if bytes += n; bytes > maxMemberBytes {
				return invalid("the members that are added or removed have too much data for one request")
			}
		}
	}
	return nil
}

// setMember makes a user a member, or not. It returns how many bytes have to be stored.
func (d *draft) setMember(number uint32, id string, is bool) (int, error) {
	key := joinKey(kindSCIMUser, "", id)
	u, err := read[SCIMUser](d, key, "dashboard user")
	if u == nil {
		return 0, err
	}
	u.PermissionSets = slices.DeleteFunc(u.PermissionSets,
		func(n uint32) bool { return n == number || d.c.setNumbered(n) == nil })
	if is {
		u.PermissionSets = append(u.PermissionSets, number)
		slices.Sort(u.PermissionSets)
	}
	return d.write(key, u)
}

func (c *Control) setNumbered(number uint32) *PermissionSet {
	return c.PermissionSets.Find("", (&PermissionSet{Number: number}).reference())
}

// SetsOf returns the permission sets that a dashboard user is a member of, without removed ones.
func (c *Control) SetsOf(u *SCIMUser) (sets []*PermissionSet) {
	for _, n := range u.PermissionSets {
		if p := c.setNumbered(n); p != nil {
			sets = append(sets, p)
		}
	}
	return sets
}

// MembersOf returns the members of a permission set, in order of their names.
func (c *Control) MembersOf(p *PermissionSet) (members []*SCIMUser) {
	c.SCIMUsers.docs.Range(func(_ string, u *SCIMUser) bool {
		if slices.Contains(u.PermissionSets, p.Number) {
			members = append(members, u)
		}
		return true
	})
	sortByName(members)
	return members
}

// Members returns the members of all permission sets by the sets' numbers, in order of their names.
func (c *Control) Members() map[uint32][]*SCIMUser {
	members := map[uint32][]*SCIMUser{}
	c.SCIMUsers.docs.Range(func(_ string, u *SCIMUser) bool {
		for _, n := range u.PermissionSets {
			members[n] = append(members[n], u)
		}
		return true
	})
	for _, list := range members {
		sortByName(list)
	}
	return members
}

func sortByName(users []*SCIMUser) {
	slices.SortFunc(users, func(a, b *SCIMUser) int { return strings.Compare(a.UserName, b.UserName) })
}
