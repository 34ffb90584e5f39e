package console

import (
	"fmt"
	"net/http"
	"strings"

	"millrace/api/admin/answers"
	"millrace/api/console/rights"
	"millrace/api/control"
)

const companyPath = "/console/company"

// dashboardUser is a dashboard user, and where the user has rights.
type dashboardUser struct {
	answers.DashboardUser
	Company    []string `json:"-"` // rights in the company
	Workspaces string   `json:"-"` // where the user has any
}

// shownWorkspaces is how many workspaces of a user are named: there may be thousands of both.
const shownWorkspaces = 20

func namesOf(r rights.Rights, s *control.Snapshot) string {
	if r.SeesAll() {
		return "all"
	}
	list, names := r.Workspaces(s), []string(nil)
	for _, w := range list[:min(len(list), shownWorkspaces)] {
		names = append(names, w.Name)
	}
	if more := len(list) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

type companyData struct {
	Users []dashboardUser
	SCIM  answers.SCIMAccess
	Made  *answers.MadeToken
}

// showCompany serves GET /console/company: dashboard users, and how they are provisioned.
func (c *Console) showCompany(v *visit) error { return v.showCompany(nil) }

func (v *visit) showCompany(made *answers.MadeToken) error {
	data := companyData{Made: made}
	var err error
	if data.Users, err = listOf[dashboardUser](v, "/admin/dashboard_users"); err != nil {
		return err
	}
	for i := range data.Users {
		u := &data.Users[i]
		r := rights.Of(u.Permissions)
		u.Company, u.Workspaces = r.InCompany(), namesOf(r, v.c.options.Control.Snapshot())
	}
	if err := v.call(http.MethodGet, "/admin/scim", nil, &data.SCIM); err != nil {
		return err
	}
	return v.render("company", "People", data)
}

// makeSCIMToken serves POST /console/scim/tokens. Its answer shows the token, and nothing shows it again.
func (c *Console) makeSCIMToken(v *visit) error {
	made := new(answers.MadeToken)
	if err := v.call(http.MethodPost, "/admin/scim/tokens", nil, made); err != nil {
		return v.retry(err, c.showCompany)
	}
	return v.showCompany(made)
}
