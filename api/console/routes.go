package console

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"millrace/api/admin/answers"
	"millrace/api/console/rights"
	"millrace/api/console/signin"
)

// Paths of the admin API.
const (
	ofWorkspace = "/admin/workspaces/{workspace}"
	oneStream   = ofWorkspace + "/streams/{stream}"
	counts      = ofWorkspace + "/consent/counts"
	groups      = ofWorkspace + "/subscription_groups"
)

func (c *Console) routes() []*route {
	return []*route{
		{"GET", signInPath, anybody, c.showSignIn},
		{"POST", signInPath, anybody, c.signIn},
		{"GET", oidcPath, anybody, c.startOIDC},
		{"GET", signin.CallbackPath, anybody, c.finishOIDC},
		{"POST", "/console/sign-out", anyPerson, c.signOut},
		{"POST", "/console/sign-out-everywhere", anyPerson, c.signOutEverywhere},
		{"GET", "/console/account", anyPerson, c.showAccount},

		{"GET", "/console/{$}", anyPerson, c.showOverview},
		{"GET", apiPath, anyPerson, c.showAPI},
		{"GET", documentPath, anyPerson, c.showDocument},
		{"GET", workspacePath, rights.See, c.showWorkspace},
		{"GET", usersPath, rights.SeeUsers, c.showUsers},
		{"GET", userPath, rights.SeeUsers, c.showUser},
		{"GET", userPath + "/events", rights.SeeUsers | rights.SeePersonal, c.showEvents},
		{"GET", userPath + "/download", rights.SeePersonal | rights.ExportUsers, c.downloadUser},
		{"POST", userPath + "/consent", rights.ChangeUsers, c.changeConsent},
		{"POST", userPath + "/delete", rights.ChangeUsers, c.deleteUser},

		{"GET", livePath, rights.SeeUsers | rights.SeePersonal, c.showLive},
		{"GET", streamPath, rights.SeeUsers | rights.SeePersonal, c.streamLive},
		{"GET", refusedPath, rights.SeeUsers | rights.SeePersonal, c.showRefused},
		{"GET", refusalPath, rights.SeeUsers | rights.SeePersonal, c.showRefusal},
		{"POST", refusedPath + "/send", rights.SeePersonal | rights.ChangeUsers, c.sendAllRefused},
		{"POST", refusalPath + "/send", rights.SeePersonal | rights.ChangeUsers, c.sendRefusal},
		{"POST", refusalPath + "/remove", rights.SeePersonal | rights.ChangeUsers,
			c.verb("DELETE", ofWorkspace+"/refused/{entry}", nil, c.showRefusal, refusedPath, "refusal-removed")},

		{"GET", tryPath, rights.See, c.showTry},
		{"POST", tryPath, rights.See, c.sendTry}, // the key alone decides what the request may do
		{"GET", streamsPath, rights.See, c.showStreams},
		{"POST", oneStreamPath + "/pause", rights.ChangeSettings,
			c.verb("PATCH", oneStream, fixed{"paused": true}, c.showStreams, streamsPath, "stream-paused")},
		{"POST", oneStreamPath + "/resume", rights.ChangeSettings,
			c.verb("PATCH", oneStream, fixed{"paused": false}, c.showStreams, streamsPath, "stream-resumed")},
		{"POST", oneStreamPath + "/rewind", rights.ChangeSettings,
			c.verb("POST", oneStream+"/rewind", fields{"from"}, c.showStreams, streamsPath, "stream-rewound")},
		{"GET", campaignsPath, rights.See, c.showCampaigns},
		{"GET", campaignPath, rights.See, c.showCampaign},
		{"GET", canvasPath, rights.See, c.showCanvas},

		{"GET", consentPath, rights.See, c.showConsent},
		{"POST", countPath, rights.ChangeGroups,
			c.verb("POST", counts, nil, c.showConsent, consentPath, "")},
		{"POST", countPath + "/stop", rights.ChangeGroups,
			c.verb("DELETE", counts, nil, c.showConsent, consentPath, "count-stopped")},
		{"POST", groupsPath, rights.ChangeGroups,
			c.verb("POST", groups, fields{"name", "channel"}, c.showConsent, consentPath, "group-added")},
		{"POST", groupsPath + "/{group}", rights.ChangeGroups,
			c.verb("PATCH", groups+"/{group}", fields{"name"}, c.showConsent, consentPath, "group-changed")},
		{"POST", groupsPath + "/{group}/archive", rights.ChangeGroups,
			c.verb("PATCH", groups+"/{group}", fixed{"archived": true}, c.showConsent, consentPath, "group-archived")},
		{"POST", groupsPath + "/{group}/restore", rights.ChangeGroups,
			c.verb("PATCH", groups+"/{group}", fixed{"archived": false}, c.showConsent, consentPath, "group-restored")},
		{"POST", workspacePath + "/blocklist/lift", rights.SeePersonal | rights.ChangeEmail,
			c.verb("DELETE", ofWorkspace+"/blocklist/{email}", nil, c.showConsent, consentPath, "block-lifted")},
		{"POST", centersPath, rights.ChangeCenters, c.addCenter},
		{"GET", centerPath, rights.See, c.showCenter},
		{"GET", centerPath + "/preview", rights.See, c.previewCenter},
		{"POST", centerPath, rights.ChangeCenters, c.changeCenter},

		{"GET", keysPath, rights.SeeKeys, c.showKeys},
		{"POST", keysPath, rights.ManageKeys, c.makeKey},
		{"POST", keysPath + "/{key}/rotate", rights.ManageKeys, c.rotateKey},
		{"POST", keysPath + "/{key}/revoke", rights.ManageKeys,
			c.verb("DELETE", ofWorkspace+"/api_keys/{key}", nil, c.showKeys, keysPath, "key-revoked")},
		{"GET", settingsPath, rights.See, c.showSettings},
		{"POST", settingsPath, rights.ChangeSettings, c.changeSettings},
		{"POST", appsPath, rights.ChangeApps, c.addApp},
		{"POST", appsPath + "/{app}/remove", rights.ChangeApps,
			c.verb("DELETE", ofWorkspace+"/apps/{app}", nil, c.showSettings, settingsPath, "app-removed")},

		{"POST", "/console/workspaces", rights.AddWorkspaces,
			c.verb("POST", "/admin/workspaces", fields{"id", "name"}, c.showOverview, home, "workspace-added")},
		{"GET", companyPath, rights.SeeCompany, c.showCompany},
		{"POST", "/console/people/sign-out", rights.SignOthersOut,
			c.verb("DELETE", "/admin/dashboard_users/{user}/sessions", nil, c.showCompany, companyPath, "other-out")},
		{"POST", "/console/scim/tokens", rights.ManageCompany, c.makeSCIMToken},
		{"POST", "/console/scim/tokens/{token}/revoke", rights.ManageCompany,
			c.verb("DELETE", "/admin/scim/tokens/{token}", nil, c.showCompany, companyPath, "token-revoked")},
		{"GET", auditPath, rights.SeeCompany, c.showAudit},
		{"GET", auditPath + "/download", rights.SeeCompany, c.downloadAudit},
		{"POST", auditPath + "/check", rights.SeeCompany, c.checkAudit},
		{"GET", clusterPath, rights.SeeCompany, c.showCluster},
		{"POST", "/console/cluster/nodes", rights.ManageCompany, c.addNode},
		{"POST", "/console/cluster/nodes/{node}/drain", rights.ManageCompany,
			c.verb("POST", "/admin/cluster/nodes/{node}/drain", nil, c.showCluster, clusterPath, "node-drains")},
		{"POST", "/console/cluster/nodes/{node}/remove", rights.ManageCompany, c.removeNode},
	}
}

// Bodies of verbs.
type (
	fields []string        // of the form
	fixed  map[string]bool // whatever the form says
)

// verb makes a handler of one call of the admin API, as visit.change does it. In the paths of the call and of the page
// that it leads to, {name} stands for a part of the path of the visit, or else for a field of the form.
func (c *Console) verb(method, target string, body any, again handler, to, done string) handler {
	return func(v *visit) error {
		sent := body
		if names, ok := body.(fields); ok {
			values := map[string]string{}
			for _, name := range names {
				values[name] = v.form(name)
			}
			sent = values
		}
		return v.change(method, v.fill(target), sent, again, v.fill(to), done)
	}
}

func (v *visit) fill(pattern string) string {
	segments := strings.Split(pattern[1:], "/")
	for i, s := range segments {
		if name, ok := strings.CutPrefix(s, "{"); ok {
			name = strings.TrimSuffix(name, "}")
			segments[i] = cmp.Or(v.r.PathValue(name), v.form(name))
		}
	}
	return answers.Path(segments...)
}

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
			at := strings.Replace(m.path, "/{workspace}", answers.Path(v.At.ID), 1)
			list = append(list, link{m.name, at, v.isAt(m)})
		}
	}
	return list
}

// showWorkspace serves GET /console/w/{workspace}: it leads to the first page that the person may open.
func (c *Console) showWorkspace(v *visit) error { return v.redirect(v.Tabs()[0].Path, "") }

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
		list = append(list, link{w.Name, answers.Path("console", "w", w.ID), v.At != nil && v.At.ID == w.ID})
	}
	return list
}
