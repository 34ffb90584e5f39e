package console

import (
	"net/http"
	"slices"
	"strings"
)

// link is an entry of a navigation.
type link struct {
	Name, Path string
	Here       bool
}

// entry is one of a menu: also are the paths of pages that belong to it.
type entry struct {
	name, path string
	also       []string
}

// menus are the pages that the navigation leads to: those of the company, and those of a workspace. Who may not open a
// page doesn't see its entry.
var (
	companyMenu = []entry{
		{name: "Overview", path: "/console/{$}"}, {name: "People", path: companyPath},
		{name: "Audit log", path: auditPath}, {name: "Cluster", path: clusterPath}, {name: "API", path: apiPath},
	}
	workspaceMenu = []entry{
		{name: "Users", path: usersPath}, {name: "Live", path: livePath}, {name: "Refused", path: refusedPath},
		{name: "Consent", path: consentPath, also: []string{centersPath}},
		{name: "Campaigns", path: campaignsPath, also: []string{workspacePath + "/canvases"}},
		{name: "Streams", path: streamsPath},
		{name: "API keys", path: keysPath}, {name: "Try it", path: tryPath}, {name: "Settings", path: settingsPath},
	}
)

// Nav is the navigation of the company.
func (v *visit) Nav() (list []link) {
	at := v.At
	v.At = nil
	defer func() { v.At = at }()
	for _, m := range companyMenu {
		if v.May(http.MethodGet, m.path) {
			list = append(list, link{m.name, strings.TrimSuffix(m.path, "{$}"), v.isAt(m)})
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
			list = append(list, link{m.name, strings.Replace(m.path, "/{workspace}", path(v.At.ID), 1), v.isAt(m)})
		}
	}
	return list
}

// isAt says whether the page belongs to an entry.
func (v *visit) isAt(m entry) bool {
	if v.route == nil {
		return false
	}
	below := func(path string) bool { return v.route.path == path || strings.HasPrefix(v.route.path, path+"/") }
	return below(m.path) || slices.ContainsFunc(m.also, below)
}

// Others are the workspaces that the person may go to.
func (v *visit) Others() (list []link) {
	for _, w := range v.Person.Rights.Workspaces(v.c.options.Control.Snapshot()) {
		list = append(list, link{w.Name, path("console", "w", w.ID), v.At != nil && v.At.ID == w.ID})
	}
	return list
}
