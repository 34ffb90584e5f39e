package control

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"millrace/api/control/document"
)

// resolve fills in what an operator may leave out: the id of a workspace given by name, the name of one given by id,
// and empty lists. It changes copies of the lists.
func (s *Snapshot) resolve(p *document.SCIMPermissions) {
	p.Company = append([]string{}, p.Company...)
	p.AppGroups = append([]document.SCIMAppGroup{}, p.AppGroups...)
	for i := range p.AppGroups {
		g := &p.AppGroups[i]
		if g.PermissionSets == nil {
			g.Permissions = append([]string{}, g.Permissions...)
		}
		if w := s.Lookup(g.ID); w != nil {
			g.Name = w.Name
		} else if named := s.named(g.Name); g.ID == "" && len(named) == 1 {
			g.ID = named[0].ID
		}
		g.Teams = append([]document.SCIMTeam{}, g.Teams...)
		for j := range g.Teams {
			t := &g.Teams[j]
			if t.Permissions = append([]string{}, t.Permissions...); t.Name != "" {
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

// reference is the id by which users name a permission set.
func reference(number uint32) string { return strconv.FormatUint(uint64(number), 10) }
