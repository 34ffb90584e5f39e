package console

import (
	"slices"

	"millrace/api/control"
)

// Right is a set of things that a person may do, in a workspace or in the company.
type Right uint32

// Rights in a workspace, then those in the company. docs/console.md has them with their pages and verbs.
const (
	See Right = 1 << iota // that there is the workspace; its settings, groups and counts: no persons, no keys
	SeeUsers
	SeePersonal // else names, addresses and values are masked
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

// names lists the words for what is in r.
func (r Right) names() (list []string) {
	for i, name := range rightNames {
		if r&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}

// companyGrants is what permissions of the company give; the rights of a workspace hold in all of them then.
var companyGrants = map[string]Right{
	"admin":                   all,
	"manage_company_settings": SeeCompany | SignOthersOut,
	"add_remove_app_groups":   AddWorkspaces,
}

// workspaceGrants is what permissions in a workspace give there. Those that aren't here give nothing, and neither do
// teams, roles and sets that are named only.
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

// rights are what one person may do.
type rights struct {
	company    Right
	workspaces map[string]Right
}

func rightsOf(p control.SCIMPermissions) rights {
	r := rights{workspaces: map[string]Right{}}
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

// in is what the person may do in a workspace; in "" it is what the person may do in the company.
func (r rights) in(workspace string) Right {
	if workspace == "" {
		return r.company
	}
	return r.company&inWorkspace | r.workspaces[workspace]
}

// has says whether all of needs is in r.
func (r Right) has(needs Right) bool { return r&needs == needs }

// workspaces lists those that the person may see.
func (c *Console) workspacesOf(r rights) []*control.Workspace {
	return slices.DeleteFunc(c.options.Control.Snapshot().Workspaces(),
		func(w *control.Workspace) bool { return !r.in(w.ID).has(See) })
}
