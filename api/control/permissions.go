package control

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// SCIMPermissions are what a dashboard user may do, in the company and in its workspaces. The names are those of the
// protocol.
type SCIMPermissions struct {
	Company   []string       `json:"companyPermissions" yaml:"companyPermissions"`
	Roles     []SCIMRole     `json:"roles,omitzero" yaml:"roles"`
	AppGroups []SCIMAppGroup `json:"appGroup" yaml:"appGroup"`
}

// SCIMRole is a role, given by its name or its id.
type SCIMRole struct {
	ID   string `json:"roleId,omitempty" yaml:"roleId"`
	Name string `json:"roleName,omitempty" yaml:"roleName"`
}

// SCIMAppGroup is what a dashboard user may do in one workspace: permissions, or sets of them, and those in teams.
type SCIMAppGroup struct {
	ID             string              `json:"appGroupId" yaml:"appGroupId"`
	Name           string              `json:"appGroupName" yaml:"appGroupName"`
	Permissions    []string            `json:"appGroupPermissions,omitzero" yaml:"appGroupPermissions"`
	PermissionSets []SCIMPermissionSet `json:"appGroupPermissionSets,omitzero" yaml:"appGroupPermissionSets"`
	Teams          []SCIMTeam          `json:"team" yaml:"team"`
}

// SCIMPermissionSet is a set of permissions, given by its name or its id.
type SCIMPermissionSet struct {
	ID   string `json:"appGroupPermissionSetId,omitempty" yaml:"appGroupPermissionSetId"`
	Name string `json:"appGroupPermissionSetName,omitempty" yaml:"appGroupPermissionSetName"`
}

// SCIMTeam is what a dashboard user may do in a team of a workspace.
type SCIMTeam struct {
	ID          string   `json:"teamId" yaml:"teamId"`
	Name        string   `json:"teamName,omitempty" yaml:"teamName"`
	Permissions []string `json:"teamPermissions" yaml:"teamPermissions"`
}

// resolve fills in what an operator may leave out: the id of a workspace given by name, the name of one given by id,
// and empty lists.
func (p *SCIMPermissions) resolve(s *Snapshot) {
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
func (p *SCIMPermissions) resolved(s *Snapshot, path string) error {
	for i, g := range p.AppGroups {
		if g.ID == "" {
			return invalid("%s.appGroup[%d]: no workspace has the name %q, or more than one has it", path, i, g.Name)
		}
		if s.Lookup(g.ID) == nil && !strings.HasPrefix(g.ID, derivedPrefix) {
			return invalid("%s.appGroup[%d]: there is no workspace %q", path, i, g.ID)
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

// validate judges what an operator gives, except for whether the workspaces exist: see resolved.
func (p *SCIMPermissions) validate(path string) error {
	if err := checkPermissions(path+".companyPermissions", p.Company); err != nil {
		return err
	}
	for i, r := range p.Roles {
		if err := checkReference(fmt.Sprintf("%s.roles[%d]", path, i), r.ID, r.Name); err != nil {
			return err
		}
	}
	seen := set{}
	for i, g := range p.AppGroups {
		path := fmt.Sprintf("%s.appGroup[%d]", path, i)
		if err := checkReference(path, g.ID, g.Name); err != nil {
			return err
		}
		if g.ID != "" && seen.add("workspace", g.ID) != nil {
			return invalid("%s: workspace %q appears twice", path, g.ID)
		}
		if g.Permissions != nil && g.PermissionSets != nil {
			return invalid("%s: want appGroupPermissions or appGroupPermissionSets, not both", path)
		}
		if err := checkPermissions(path+".appGroupPermissions", g.Permissions); err != nil {
			return err
		}
		for j, s := range g.PermissionSets {
			if err := checkReference(fmt.Sprintf("%s.appGroupPermissionSets[%d]", path, j), s.ID, s.Name); err != nil {
				return err
			}
		}
		for j, t := range g.Teams {
			path := fmt.Sprintf("%s.team[%d]", path, j)
			if err := checkReference(path, t.ID, t.Name); err != nil {
				return err
			}
			if err := checkPermissions(path+".teamPermissions", t.Permissions); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkReference judges an id and a name, of which at least one must be there.
func checkReference(path, id, name string) error {
	if id == "" && name == "" {
		return invalid("%s: an id or a name is required", path)
	}
	for _, text := range []string{id, name} {
		if text != "" {
			if err := checkName(path, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxPermissions is how many permissions one list may have.
const maxPermissions = 1000

func checkPermissions(path string, names []string) error {
	if len(names) > maxPermissions {
		return invalid("%s: %d are given, at most %d are allowed", path, len(names), maxPermissions)
	}
	for _, name := range names {
		if err := checkName(path, name); err != nil {
			return err
		}
	}
	return nil
}

// join adds the permissions of q.
func (p *SCIMPermissions) join(q SCIMPermissions) {
	p.Company = union(p.Company, q.Company)
	p.Roles = union(p.Roles, q.Roles)
	for _, g := range q.AppGroups {
		i := slices.IndexFunc(p.AppGroups, func(have SCIMAppGroup) bool { return have.ID == g.ID })
		if i < 0 {
			p.AppGroups = append(p.AppGroups, SCIMAppGroup{ID: g.ID, Name: g.Name, Teams: []SCIMTeam{}})
			i = len(p.AppGroups) - 1
		}
		have := &p.AppGroups[i]
		have.Permissions, have.PermissionSets = union(have.Permissions, g.Permissions),
			union(have.PermissionSets, g.PermissionSets)
		for _, t := range g.Teams {
			have.joinTeam(t)
		}
	}
}

func (g *SCIMAppGroup) joinTeam(t SCIMTeam) {
	for i := range g.Teams {
		if g.Teams[i].ID == t.ID && g.Teams[i].Name == t.Name {
			g.Teams[i].Permissions = union(g.Teams[i].Permissions, t.Permissions)
			return
		}
	}
	g.Teams = append(g.Teams, SCIMTeam{ID: t.ID, Name: t.Name, Permissions: slices.Clone(t.Permissions)})
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
func (c *Control) PermissionsOf(u *SCIMUser) SCIMPermissions {
	p := SCIMPermissions{Company: []string{}, AppGroups: []SCIMAppGroup{}}
	if u.Inactive {
		return p
	}
	p.join(u.Permissions)
	for _, set := range c.SetsOf(u) {
		p.join(set.Permissions)
	}
	return p
}
