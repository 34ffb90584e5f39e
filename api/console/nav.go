package console

import (
	"net/http"
	"strings"
)

// link is an entry of a navigation.
type link struct {
	Name, Path string
	Here       bool
}

// menus are the pages that the navigation leads to: those of the company, and those of a workspace. Who may not open a
// page doesn't see its entry.
var (
	companyMenu = []struct{ name, path string }{
		{"Overview", "/console/{$}"}, {"People", companyPath}, {"Audit log", auditPath}, {"Cluster", clusterPath}, {"API", "/console/api"},
	}
	workspaceMenu = []struct{ name, path string }{
		{"Users", usersPath}, {"Consent", consentPath}, {"API keys", keysPath}, {"Settings", settingsPath},
	}
)

// Nav is the navigation of the company.
func (v *visit) Nav() (list []link) {
	at := v.At
	v.At = nil
	defer func() { v.At = at }()
	for _, m := range companyMenu {
		if v.May(http.MethodGet, m.path) {
			list = append(list, link{m.name, strings.TrimSuffix(m.path, "{$}"), v.isAt(m.path)})
		}
	}
	return list
}

// Tabs is the navigation of the workspace that the page is of.
func (v *visit) Tabs() (list []link) {
	if v.At == nil {
		return nil
	}
	for _, m := range workspaceMenu {
		if v.May(http.MethodGet, m.path) {
			list = append(list, link{m.name, strings.Replace(m.path, "/{workspace}", path(v.At.ID), 1), v.isAt(m.path)})
		}
	}
	return list
}

// isAt says whether the page is one of these.
func (v *visit) isAt(pattern string) bool {
	return v.route != nil && (v.route.path == pattern || !strings.HasSuffix(pattern, "$}") && strings.HasPrefix(v.route.path, pattern+"/"))
}

// Others are the workspaces that the person may go to.
func (v *visit) Others() (list []link) {
	for _, w := range v.c.workspacesOf(v.Person.rights) {
		list = append(list, link{w.Name, path("console", "w", w.ID), v.At != nil && v.At.ID == w.ID})
	}
	return list
}
