package control

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/control/document"
)

func newPermissionSets(c *Control) *Collection[document.PermissionSet] {
	l := newCollection[document.PermissionSet](c, kindPermissionSet, "permission set")
	l.otherID = func(p *document.PermissionSet) string { return reference(p.Number) }
	l.byOther = xsync.NewMapOf[string, *document.PermissionSet]()
	l.complete = func(p *document.PermissionSet) {
		p.EnsureDefaults()
		c.Snapshot().resolve(&p.Permissions)
	}
	l.check = func(_, p *document.PermissionSet) error {
		return cmp.Or(p.Validate(), c.Snapshot().resolved(&p.Permissions, "permissions"))
	}
	l.max, l.setNumber = document.MaxPermissionSets, func(p *document.PermissionSet, n uint32) { p.Number = n }
	l.nameOf, l.sameName = func(p *document.PermissionSet) string { return p.Name }, strings.EqualFold
	return l
}

// reference is the id by which users name a permission set.
func reference(number uint32) string { return strconv.FormatUint(uint64(number), 10) }

// Limits of changes of members.
const (
	// MaxMemberChanges is how many members one change may add or remove.
	MaxMemberChanges = 5000
	maxMemberBytes   = 16 << 20 // size of their documents
)

// MemberChange says which users join a permission set and which leave it, by the ids of their documents. Missing users
// are ignored.
type MemberChange struct{ Add, Remove []string }

// EditPermissionSet changes a permission set and its members in one record. edit gets the current set, which it may
// change (nil: there is none), and returns the new one. It is called again when another node was faster.
func (c *Control) EditPermissionSet(
	by Actor, id string, edit func(old *document.PermissionSet) (*document.PermissionSet, MemberChange, error),
) (p *document.PermissionSet, err error) {
	err = c.do(by, func(d *draft) error {
		var members MemberChange
		editSet := func(old *document.PermissionSet) (next *document.PermissionSet, err error) {
			if next, members, err = edit(old); err == nil && len(members.Add)+len(members.Remove) > 0 {
				next.Touch()
			}
			return next, err
		}
		p, err = c.PermissionSets.change(d, "", id, editSet)
		if err != nil {
			return err
		}
		return d.changeMembers(p.Number, members)
	})
	return p, err
}

func (d *draft) changeMembers(number uint32, members MemberChange) error {
	if n := len(members.Add) + len(members.Remove); n > MaxMemberChanges {
		return document.Invalid("%d members are added or removed, at most %d are allowed in one request", n,
			MaxMemberChanges)
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
				return document.Invalid("the members that are added or removed have too much data for one request")
			}
		}
	}
	return nil
}

// setMember makes a user a member, or not. It returns how many bytes have to be stored.
func (d *draft) setMember(number uint32, id string, is bool) (int, error) {
	key := joinKey(kindSCIMUser, "", id)
	u, err := read[document.SCIMUser](d, key, "dashboard user")
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

func (c *Control) setNumbered(number uint32) *document.PermissionSet {
	return c.PermissionSets.Find("", reference(number))
}

// SetsOf returns the permission sets that a dashboard user is a member of, without removed ones.
func (c *Control) SetsOf(u *document.SCIMUser) (sets []*document.PermissionSet) {
	for _, n := range u.PermissionSets {
		if p := c.setNumbered(n); p != nil {
			sets = append(sets, p)
		}
	}
	return sets
}

// MembersOf returns the members of a permission set, in order of their names.
func (c *Control) MembersOf(p *document.PermissionSet) (members []*document.SCIMUser) {
	c.SCIMUsers.docs.Range(func(_ string, u *document.SCIMUser) bool {
		if slices.Contains(u.PermissionSets, p.Number) {
			members = append(members, u)
		}
		return true
	})
	sortByName(members)
	return members
}

// Members returns the members of all permission sets by the sets' numbers, in order of their names.
func (c *Control) Members() map[uint32][]*document.SCIMUser {
	members := map[uint32][]*document.SCIMUser{}
	c.SCIMUsers.docs.Range(func(_ string, u *document.SCIMUser) bool {
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

func sortByName(users []*document.SCIMUser) {
	slices.SortFunc(users, func(a, b *document.SCIMUser) int { return strings.Compare(a.UserName, b.UserName) })
}
