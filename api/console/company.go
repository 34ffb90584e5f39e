package console

import (
	"net/http"

	"millrace/api/console/rights"
	"millrace/api/control"
)

const companyPath = "/console/company"

// dashboardUser is a dashboard user as the admin API shows one.
type dashboardUser struct {
	UserName       string                  `json:"user_name"`
	Name           string                  `json:"name"`
	Department     string                  `json:"department"`
	IsActive       bool                    `json:"active"`
	PermissionSets []string                `json:"permission_sets"`
	Permissions    control.SCIMPermissions `json:"permissions"`
	Company        []string                `json:"-"` // rights in the company
	Workspaces     []string                `json:"-"` // where the user has any
}

// scimAccess is how identity providers reach the SCIM API.
type scimAccess struct {
	control.SCIMSettings
	Tokens []scimToken `json:"tokens"`
}

type scimToken struct {
	ID         string `json:"id"`
	Hint       string `json:"hint"`
	CreatedAt  string `json:"created_at"`
	LastUsedAt string `json:"last_used_at"`
	RevokedAt  string `json:"revoked_at"`
	Token      string `json:"token"` // only in the answer that makes it
}

type companyData struct {
	Users []dashboardUser
	SCIM  scimAccess
	Made  *scimToken
}

// showCompany serves GET /console/company: dashboard users, and how they are provisioned.
func (c *Console) showCompany(v *visit) error { return v.showCompany(nil) }

func (v *visit) showCompany(made *scimToken) error {
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
	made := new(scimToken)
	if err := v.call(http.MethodPost, "/admin/scim/tokens", nil, made); err != nil {
		return v.retry(err, c.showCompany)
	}
	return v.showCompany(made)
}
