// Package rights defines what a person may do in the console: the names of rights, and which permissions of a dashboard
// user grant them. docs/console.md lists the rights with their pages and verbs.
package rights

import (
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

// Right is a set of things that a person may do, in a workspace or in the company.
type Right uint32

// Rights in a workspace, then those in the company.
const (
	See Right = 1 << iota // that the workspace exists; its settings, groups and counts: no persons, no keys
	SeeUsers
	SeePersonal // without it names, addresses and values are masked
	ExportUsers
	ChangeUsers
	ChangeGroups
	ChangeEmail
	ChangeCenters
	ChangeApps
	ChangeSettings
	SeeKeys
	ManageKeys

	SeeCompany
	SignOthersOut
	AddWorkspaces
	ManageCompany // SCIM tokens, which can give anybody anything; the nodes of the cluster

	inWorkspace = ManageKeys<<1 - 1
	all         = ManageCompany<<1 - 1
)

// rightNames are the words for the rights, in their order.
var rightNames = []string{"see", "see users", "see personal data", "export users", "change users", "change groups",
	"change email", "change preference centers",
	"change apps", "change settings", "see keys", "manage keys", "see the company", "sign others out", "add workspaces",
	"manage the company"}

// Names lists the words for the rights in r.
func (r Right) Names() (list []string) {
	for i, name := range rightNames {
		if r&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// Has says whether r includes all of needs.
func (r Right) Has(needs Right) bool { return r&needs == needs }

// companyGrants is what each permission of the company grants; the rights of a workspace among them hold in all
// workspaces.
var companyGrants = map[string]Right{
	"admin":                   all,
	"manage_company_settings": SeeCompany | SignOthersOut,
	"add_remove_app_groups":   AddWorkspaces,
}

// workspaceGrants is what each permission in a workspace grants there. Permissions that aren't here grant nothing, and
// neither do teams, roles and sets that are only named.
var workspaceGrants = map[string]Right{
	"admin":                      inWorkspace,
	"basic_access":               See,
	"view_user_profile":          See | SeeUsers,
	"view_pii":                   See | SeePersonal,
	"export_user_data":           See | SeeUsers | ExportUsers,
	"import_update_user_data":    See | SeeUsers | ChangeUsers,
	"edit_user_data":             See | SeeUsers | ChangeUsers,
	"manage_subscription_groups": See | ChangeGroups,
	"manage_email_settings":      See | ChangeEmail,
	"edit_email_settings":        See | ChangeEmail,
	"view_email_settings":        See,
	"view_preference_centers":    See,
	"edit_preference_centers":    See | ChangeCenters,
	"manage_apps":                See | ChangeApps,
	"view_app_settings":          See,
	"edit_app_settings":          See | ChangeApps,
	"view_usage_data":            See,
	"view_api_usage_dashboard":   See,
	"view_api_limits":            See,
	"view_api_identifiers":       See,
	"view_api_keys":              See | SeeKeys,
	"edit_api_keys":              See | SeeKeys | ManageKeys,
	"dev_console":                See | SeeKeys | ManageKeys,
}

// Rights are what one person may do.
type Rights struct {
	company    Right
	workspaces map[string]Right
}

// Of returns the rights that permissions grant.
func Of(p document.SCIMPermissions) Rights {
	r := Rights{workspaces: map[string]Right{}}
	for _, name := range p.Company {
		r.company |= companyGrants[name]
	}
	for _, g := range p.AppGroups {
		for _, name := range g.Permissions {
			r.workspaces[g.ID] |= workspaceGrants[name]
		}
	}
	return r
}

// Add adds the rights that other has.
func (r *Rights) Add(other Rights) {
	r.company |= other.company
	for id, right := range other.workspaces {
		r.workspaces[id] |= right
	}
}

// In is what the person may do in a workspace; In("") is what the person may do in the company.
func (r Rights) In(workspace string) Right {
	if workspace == "" {
		return r.company
	}
	return r.company&inWorkspace | r.workspaces[workspace]
}

// OfAdmin returns the rights of the admin token: all.
func OfAdmin() Rights { return Rights{company: all} }

// InCompany lists the words for what the person may do in the company, apart from its workspaces.
func (r Rights) InCompany() []string { return (r.company &^ inWorkspace).Names() }

// IsNothing says whether the person has no right at all.
func (r Rights) IsNothing() bool { return r.company == 0 && len(r.workspaces) == 0 }

// SeesAll says whether the person may see all workspaces.
func (r Rights) SeesAll() bool { return r.company.Has(See) }

// Workspaces lists the workspaces that the person may see, in order of their ids.
func (r Rights) Workspaces(s *control.Snapshot) (list []*control.Workspace) {
	if r.SeesAll() {
		return s.Workspaces()
	}
	for id, right := range r.workspaces {
		if w := s.Lookup(id); w != nil && right.Has(See) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *control.Workspace) int { return strings.Compare(a.ID, b.ID) })
	return list
}
