package control

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"millrace/api/control/document"
)

// resolve fills in what an operator may leave out: the id of a workspace given by name, the name of one given by id,
// and empty lists.
func (s *Snapshot) resolve(p *document.SCIMPermissions) {
	p.Company = orNone(p.Company)
	p.AppGroups = slices.Clone(orNone(p.AppGroups))
	for i := range p.AppGroups {
		g := &p.AppGroups[i]
		if g.PermissionSets == nil {
			g.Permissions = orNone(g.Permissions)
		}
		if w := s.Lookup(g.ID); w != nil {
			g.Name = w.Name
		} else if named := s.named(g.Name); g.ID == "" && len(named) == 1 {
			g.ID = named[0].ID
		}
		g.Teams = slices.Clone(orNone(g.Teams))
		for j := range g.Teams {
			t := &g.Teams[j]
			if t.Permissions = orNone(t.Permissions); t.Name != "" {
				t.ID = TeamID(g.ID, t.Name)
			}
		}
	}
}

// TeamID is the id of a team, derived from its name, and therefore always the same.
func TeamID(workspace, name string) string { return derivedID("team", workspace, name) }

// UnknownWorkspaceID stands for a workspace name that doesn't exist: no workspace can have this id.
func UnknownWorkspaceID(name string) string { return derivedID("app group", name) }

// derivedID makes an id out of names, beginning with a capital letter, which no id of a workspace does.
func derivedID(names ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(names, "\x00")))
	return derivedPrefix + hex.EncodeToString(sum[:12])
}

const derivedPrefix = "N"

// named returns the workspaces with a name.
func (s *Snapshot) named(name string) (list []*Workspace) {
	for _, w := range s.Workspaces() {
		if w.Name == name {
			list = append(list, w)
		}
	}
	return list
}

// resolved returns an error unless every workspace either exists or is a name without a workspace to which package scim
// has given an id: such ids begin with a capital letter.
func (s *Snapshot) resolved(p *document.SCIMPermissions, path string) error {
	for i, g := range p.AppGroups {
		if g.ID == "" {
			return document.Invalid("%s.appGroup[%d]: no workspace has the name %q, or more than one has it", path, i,
				g.Name)
		}
		if s.Lookup(g.ID) == nil && !strings.HasPrefix(g.ID, derivedPrefix) {
			return document.Invalid("%s.appGroup[%d]: there is no workspace %q", path, i, g.ID)
		}
	}
	return nil
}

func orNone[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
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
