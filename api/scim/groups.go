package scim

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

// Groups are the permission sets of the company, and their members. It is safe for concurrent use; reads take no lock.
// Errors are as for Users.
type Groups struct {
	control *control.Control
}

// NewGroups keeps groups in c.
func NewGroups(c *control.Control) *Groups { return &Groups{control: c} }

// Create makes the group that the body describes, with the members that are users. It gives no permissions unless the
// body names them: the operator gives them by the admin API.
func (g *Groups) Create(r Sent) (*Resource, error) {
	return g.change(newID(), r, true,
		func(f *form, _ *document.PermissionSet, m *memberSet) *document.PermissionSet {
			return g.read(f, r.Body, nil, m)
		})
}

// Replace gives a group the name and the members in the body. Its permissions stay, unless the body has some.
func (g *Groups) Replace(id string, r Sent) (*Resource, error) {
	return g.change(id, r, false,
		func(f *form, old *document.PermissionSet, m *memberSet) *document.PermissionSet {
			return g.read(f, r.Body, old, m)
		})
}

// read reads a whole group. Missing members mean none (RFC 7644 3.5.1).
func (g *Groups) read(f *form, body []byte, old *document.PermissionSet, m *memberSet) *document.PermissionSet {
	members := f.members(body, groupSchemas)
	if f.err != nil {
		return nil
	}
	m.ids = map[string]bool{}
	for _, id := range f.ids(members["members"]) {
		m.ids[id] = true
	}
	return f.group(members, old)
}

// Patch carries out the operations of the body, all of them or none.
func (g *Groups) Patch(id string, r Sent) (*Resource, error) {
	operations, err := parsePatch(r.Body)
	if err != nil {
		return nil, err
	}
	return g.change(id, r, false,
		func(f *form, old *document.PermissionSet, m *memberSet) *document.PermissionSet {
			p := patch{schemas: groupSchemas, tree: treeOf(describeGroup(old, nil).json), members: m, form: f}
			if _, ok := p.apply(operations); !ok {
				return nil
			}
			return f.group(p.tree, old)
		})
}

// change changes or makes the group with this id. next says what the group shall be and who is in it, or leaves a fault
// in the form.
func (g *Groups) change(
	id string, r Sent, isNew bool,
	next func(*form, *document.PermissionSet, *memberSet) *document.PermissionSet,
) (*Resource, error) {
	set, err := g.control.EditPermissionSet(r.By, id,
		func(old *document.PermissionSet) (*document.PermissionSet, control.MemberChange, error) {
			var change control.MemberChange
			m := &memberSet{ids: map[string]bool{}}
			if old == nil && !isNew {
				return nil, change, errNoGroup
			}
			if old == nil && g.control.PermissionSets.Len() >= document.MaxPermissionSets {
				return nil, change, errTooManyGroups
			}
			var present []*document.SCIMUser
			if old != nil {
				if err := checkMatch(r.IfMatch, version(old)); err != nil {
					return nil, change, err
				}
				present = g.control.MembersOf(old)
			}
			for _, u := range present {
				m.ids[u.ID] = true
			}
			f := newForm(g.control.Snapshot())
			set := next(f, old, m)
			if f.err != nil {
				return nil, change, f.err
			}
			set.ID = id
			return set, g.difference(present, m), nil
		})
	switch {
	case errors.Is(err, control.ErrExists):
		return nil, errTaken
	case errors.Is(err, document.ErrInvalid):
		return nil, &Error{Status: 400, Type: invalidValue, Detail: err.Error()}
	case err != nil:
		return nil, err
	}
	return g.describe(set), nil
}

// difference returns who joins and who leaves, by the ids of their documents. Ids of nobody are ignored: users may
// disappear while a provider works through its list.
func (g *Groups) difference(present []*document.SCIMUser, m *memberSet) (c control.MemberChange) {
	for _, u := range present {
		if !m.ids[u.ID] {
			c.Remove = append(c.Remove, key(u.UserName))
		}
		delete(m.ids, u.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(m.ids)) {
		if u := g.control.SCIMUsers.Find("", id); u != nil {
			c.Add = append(c.Add, key(u.UserName))
		}
	}
	return c
}

// Delete removes a group for good, whoever made it: its members lose what it gave them.
func (g *Groups) Delete(by control.Actor, id, ifMatch string) error {
	err := g.control.PermissionSets.Remove(by, "", id,
		func(old *document.PermissionSet) error { return checkMatch(ifMatch, version(old)) })
	if errors.Is(err, control.ErrNotFound) {
		return errNoGroup
	}
	return err
}

// MaxBodyBytes bounds a body about a group.
func (g *Groups) MaxBodyBytes() int { return MaxGroupBodyBytes }

// Get returns the group with this id.
func (g *Groups) Get(id string) (*Resource, error) {
	if set := g.control.PermissionSets.Get("", id); set != nil {
		return g.describe(set), nil
	}
	return nil, errNoGroup
}

// List returns a page of the groups that the filter describes, or of all groups without one, in order of their ids.
func (g *Groups) List(p Page) (*List, error) {
	f, err := p.filter(groupSchemas)
	if err != nil {
		return nil, err
	}
	sets, members := g.control.PermissionSets.List(""), g.control.Members()
	describe := func(set *document.PermissionSet) *Resource { return describeGroup(set, members[set.Number]) }
	if name, ok := f.equals("displayName"); ok { // what identity providers ask for
		sets = slices.DeleteFunc(sets, func(set *document.PermissionSet) bool {
			return !strings.EqualFold(set.Name, name)
		})
	}
	if f != nil {
		sets = slices.DeleteFunc(sets, func(set *document.PermissionSet) bool {
			if f.mentions("members") {
				return !f.matches(treeOf(describe(set).json))
			}
			return !f.matches(treeOf(describeGroup(set, nil).json))
		})
	}
	from, total := min(max(0, p.StartIndex-1), len(sets)), 0
	for i, set := range sets[from:] {
		if total += len(members[set.Number]); i > 0 && total > maxPageMembers {
			p.Count = min(p.Count, i)
			break
		}
	}
	return pageOf(sets, p, describe), nil
}

func (g *Groups) describe(set *document.PermissionSet) *Resource {
	return describeGroup(set, g.control.MembersOf(set))
}
