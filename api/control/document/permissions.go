package document

import (
	"cmp"
	"fmt"
	"reflect"
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

// validate judges what an operator gives, but not whether the workspaces exist.
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
			return Invalid("%s: workspace %q appears twice", path, g.ID)
		}
		if g.Permissions != nil && g.PermissionSets != nil {
			return Invalid("%s: want appGroupPermissions or appGroupPermissionSets, not both", path)
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
		return Invalid("%s: an id or a name is required", path)
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
		return Invalid("%s: %d are given, at most %d are allowed", path, len(names), maxPermissions)
	}
	for _, name := range names {
		if err := checkName(path, name); err != nil {
			return err
		}
	}
	return nil
}

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

	touched bool // see Touch
}

// MaxPermissionSets is how many permission sets there may be.
const MaxPermissionSets = 1000

// EnsureDefaults implements Of.
func (p *PermissionSet) EnsureDefaults() {
	ensureID(&p.ID)
	p.Name = cmp.Or(p.Name, p.ID)
}

// DocumentID implements Of.
func (p *PermissionSet) DocumentID() *string { return &p.ID }

// Validate implements Of.
func (p *PermissionSet) Validate() error {
	if !slugForm.MatchString(p.ID) {
		return Invalid("permission set id %q: want lower-case letters, digits, - and _, at most 63", p.ID)
	}
	return cmp.Or(checkName("name", p.Name), p.Permissions.validate("permissions"))
}

// Keep keeps what the bootstrap file doesn't have.
func (p *PermissionSet) Keep(old *PermissionSet) { p.ExternalID = old.ExternalID }

// Touch makes the next Stamp a new revision, because members change.
func (p *PermissionSet) Touch() { p.touched = true }

// Stamp sets number, revision and times.
func (p *PermissionSet) Stamp(old *PermissionSet, now int64) {
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
