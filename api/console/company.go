package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"millrace/api/admin/answers"
	"millrace/api/console/rights"
	"millrace/api/control"
	"millrace/api/control/document"
)

const companyPath = "/console/company"

// dashboardUser is a dashboard user, and where the user has rights.
type dashboardUser struct {
	answers.DashboardUser
	Company    []string // rights in the company
	Workspaces string   // where the user has any
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
	Users  []dashboardUser
	Search string
	Next   string // where the next page begins
	SCIM   answers.SCIMAccess
	Made   *answers.MadeToken
}

// peoplePage is how many people a page has.
const peoplePage = "50"

// showCompany serves GET /console/company: dashboard users, and how they are provisioned.
func (c *Console) showCompany(v *visit) error { return v.showCompany(nil) }

func (v *visit) showCompany(made *answers.MadeToken) error {
	data := companyData{Search: v.r.URL.Query().Get("search"), Made: made}
	ask := url.Values{"limit": {peoplePage}}
	v.passOn(ask, "search", "cursor")
	var page answers.DashboardUsers
	if err := v.call(http.MethodGet, "/admin/dashboard_users?"+ask.Encode(), nil, &page); err != nil {
		return err
	}
	data.Next = page.Next
	var err error
	if data.Users, err = v.peopleOf(&page); err != nil {
		return err
	}
	if err := v.call(http.MethodGet, "/admin/scim", nil, &data.SCIM); err != nil {
		return err
	}
	return v.render("company", "People", data)
}

// peopleOf finds out where people have rights. It reads each of their permission sets once.
func (v *visit) peopleOf(page *answers.DashboardUsers) (people []dashboardUser, err error) {
	sets := map[string]rights.Rights{}
	for _, u := range page.Users {
		if !u.IsActive {
			people = append(people, dashboardUser{DashboardUser: u})
			continue
		}
		of := rights.Of(u.Permissions)
		for _, set := range u.PermissionSets {
			gives, ok := sets[set.ID]
			if !ok {
				if gives, err = v.rightsOfSet(set.ID); err != nil {
					return nil, err
				}
				sets[set.ID] = gives
			}
			of.Add(gives)
		}
		people = append(people, dashboardUser{u, of.InCompany(), namesOf(of, v.c.options.Control.Snapshot())})
	}
	return people, nil
}

// rightsOfSet returns what a permission set gives: nothing when it was removed meanwhile.
func (v *visit) rightsOfSet(id string) (rights.Rights, error) {
	var set struct {
		Permissions document.SCIMPermissions `json:"permissions"`
	}
	err := v.call(http.MethodGet, answers.Path("admin", "permission_sets", id), nil, &set)
	if isNotFound(err) {
		err = nil
	}
	return rights.Of(set.Permissions), err
}

// makeSCIMToken serves POST /console/scim/tokens. Its answer shows the token, and nothing shows it again.
func (c *Console) makeSCIMToken(v *visit) error {
	made := new(answers.MadeToken)
	if err := v.call(http.MethodPost, "/admin/scim/tokens", nil, made); err != nil {
		return v.retry(err, c.showCompany)
	}
	return v.showCompany(made)
}
