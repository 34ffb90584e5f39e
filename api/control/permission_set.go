package control

import (
	"slices"
	"strings"

	"millrace/api/control/document"
)

// Limits of changes of members.
const (
	// maxMemberChanges is how many members one change may add or remove.
	maxMemberChanges = 5000
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
		return c.changeMembers(d, p.Number, members)
	})
	return p, err
}

func (c *Control) changeMembers(d *draft, number uint32, members MemberChange) error {
	if n := len(members.Add) + len(members.Remove); n > maxMemberChanges {
		return document.Invalid("%d members are added or removed, at most %d are allowed in one request", n,
			maxMemberChanges)
	} else if n > 0 {
		d.entry.Details = pairs([]any{"members_added", len(members.Add), "members_removed", len(members.Remove),
			"added", strings.Join(members.Add, " "), "removed", strings.Join(members.Remove, " ")})
	}
	bytes := 0
	for i, list := range [][]string{members.Add, members.Remove} {
		for _, id := range list {
			n, err := c.setMember(d, number, id, i == 0)
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
func (c *Control) setMember(d *draft, number uint32, id string, is bool) (int, error) {
	key := joinKey(kindSCIMUser, "", id)
	u, err := read[document.SCIMUser](d, key, "dashboard user")
	if u == nil {
		return 0, err
	}
	u.PermissionSets = slices.DeleteFunc(u.PermissionSets,
		func(n uint32) bool { return n == number || c.setNumbered(n) == nil })
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

// join adds to p the permissions of q.
func join(p *document.SCIMPermissions, q document.SCIMPermissions) {
	p.Company = union(p.Company, q.Company)
	p.Roles = union(p.Roles, q.Roles)
	for _, g := range q.AppGroups {
		i := slices.IndexFunc(p.AppGroups, func(have document.SCIMAppGroup) bool { return have.ID == g.ID })
		if i < 0 {
			p.AppGroups = append(p.AppGroups,
				document.SCIMAppGroup{ID: g.ID, Name: g.Name, Teams: []document.SCIMTeam{}})
			i = len(p.AppGroups) - 1
		}
		have := &p.AppGroups[i]
		have.Permissions, have.PermissionSets = union(have.Permissions, g.Permissions),
			union(have.PermissionSets, g.PermissionSets)
		for _, t := range g.Teams {
			joinTeam(have, t)
		}
	}
}

func joinTeam(g *document.SCIMAppGroup, t document.SCIMTeam) {
	for i := range g.Teams {
		if g.Teams[i].ID == t.ID && g.Teams[i].Name == t.Name {
			g.Teams[i].Permissions = union(g.Teams[i].Permissions, t.Permissions)
			return
		}
	}
	g.Teams = append(g.Teams, document.SCIMTeam{ID: t.ID, Name: t.Name, Permissions: slices.Clone(t.Permissions)})
}

// union returns a and whatever b has besides, in memory of its own.
func union[T comparable](a, b []T) []T {
	all := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// PermissionsOf returns what a dashboard user may do: nothing while inactive, else the user's own permissions and those
// of the permission sets that the user is in.
func (c *Control) PermissionsOf(u *document.SCIMUser) document.SCIMPermissions {
	p := document.SCIMPermissions{Company: []string{}, AppGroups: []document.SCIMAppGroup{}}
	if u.Inactive {
		return p
	}
	join(&p, u.Permissions)
	for _, set := range c.SetsOf(u) {
		join(&p, set.Permissions)
	}
	return p
}
