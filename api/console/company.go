package console

import (
	"net/http"

	"millrace/api/admin"
	"millrace/api/console/rights"
	"millrace/api/control/document"
)

const companyPath = "/console/company"

// dashboardUser is a dashboard user, and where the user has rights.
type dashboardUser struct {
	admin.DashboardUser
	Company    []string `json:"-"` // rights in the company
	Workspaces []string `json:"-"` // where the user has any
}

// scimAccess is how identity providers reach the SCIM API.
type scimAccess struct {
	document.SCIMSettings
	Tokens []admin.MadeToken `json:"tokens"`
}

type companyData struct {
	Users []dashboardUser
	SCIM  scimAccess
	Made  *admin.MadeToken
}

// showCompany serves GET /console/company: dashboard users, and how they are provisioned.
func (c *Console) showCompany(v *visit) error { return v.showCompany(nil) }

func (v *visit) showCompany(made *admin.MadeToken) error {
	data := companyData{Made: made}
	var list struct {
		Users []dashboardUser `json:"dashboard_users"`
	}
	if err := v.call(http.MethodGet, "/admin/dashboard_users", nil, &list); err != nil {
		return err
	}
	for i := range list.Users {
		u := &list.Users[i]
		r := rights.Of(u.Permissions)
		u.Company = r.InCompany()
		for _, w := range r.Workspaces(v.c.options.Control.Snapshot()) {
			u.Workspaces = append(u.Workspaces, w.Name)
		}
	}
	data.Users = list.Users
	if err := v.call(http.MethodGet, "/admin/scim", nil, &data.SCIM); err != nil {
		return err
	}
	return v.render("company", "People", data)
}

// makeSCIMToken serves POST /console/scim/tokens. Its answer shows the token, and nothing shows it again.
func (c *Console) makeSCIMToken(v *visit) error {
	made := new(admin.MadeToken)
	if err := v.call(http.MethodPost, "/admin/scim/tokens", nil, made); err != nil {
		return v.retry(err, c.showCompany)
	}
	return v.showCompany(made)
}
