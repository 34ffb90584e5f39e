package console

import (
	"millrace/api/console/rights"
	"millrace/api/console/signin"
)

// route is a page or a verb. Nothing is served that isn't in the table of routes, and each line says which right the
// person must have: in the workspace that the path names, or else in the company.
type route struct {
	method, path string
	needs        rights.Right
	handler      handler
}

// What a route may need in place of rights.
const (
	anyPerson rights.Right = 0       // whoever is signed in
	anybody   rights.Right = 1 << 31 // strangers, too
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
		{"POST", refusalPath + "/remove", rights.SeePersonal | rights.ChangeUsers, c.removeRefusal},

		{"GET", tryPath, rights.See, c.showTry},
		{"POST", tryPath, rights.See, c.sendTry}, // the key alone decides what the request may do
		{"GET", streamsPath, rights.See, c.showStreams},
		{"POST", oneStreamPath + "/pause", rights.ChangeSettings, c.pauseStream},
		{"POST", oneStreamPath + "/resume", rights.ChangeSettings, c.resumeStream},
		{"POST", oneStreamPath + "/rewind", rights.ChangeSettings, c.rewindStream},
		{"GET", campaignsPath, rights.See, c.showCampaigns},
		{"GET", campaignPath, rights.See, c.showCampaign},
		{"GET", canvasPath, rights.See, c.showCanvas},

		{"GET", consentPath, rights.See, c.showConsent},
		{"POST", countPath, rights.ChangeGroups, c.startCount},
		{"POST", countPath + "/stop", rights.ChangeGroups, c.stopCount},
		{"POST", groupsPath, rights.ChangeGroups, c.addGroup},
		{"POST", groupsPath + "/{group}", rights.ChangeGroups, c.renameGroup},
		{"POST", groupsPath + "/{group}/archive", rights.ChangeGroups, c.archiveGroup},
		{"POST", groupsPath + "/{group}/restore", rights.ChangeGroups, c.restoreGroup},
		{"POST", workspacePath + "/blocklist/lift", rights.SeePersonal | rights.ChangeEmail, c.liftBlock},
		{"POST", centersPath, rights.ChangeCenters, c.addCenter},
		{"GET", centerPath, rights.See, c.showCenter},
		{"GET", centerPath + "/preview", rights.See, c.previewCenter},
		{"POST", centerPath, rights.ChangeCenters, c.changeCenter},

		{"GET", keysPath, rights.SeeKeys, c.showKeys},
		{"POST", keysPath, rights.ManageKeys, c.makeKey},
		{"POST", keysPath + "/{key}/rotate", rights.ManageKeys, c.rotateKey},
		{"POST", keysPath + "/{key}/revoke", rights.ManageKeys, c.revokeKey},
		{"GET", settingsPath, rights.See, c.showSettings},
		{"POST", settingsPath, rights.ChangeSettings, c.changeSettings},
		{"POST", appsPath, rights.ChangeApps, c.addApp},
		{"POST", appsPath + "/{app}/remove", rights.ChangeApps, c.removeApp},

		{"POST", "/console/workspaces", rights.AddWorkspaces, c.addWorkspace},
		{"GET", companyPath, rights.SeeCompany, c.showCompany},
		{"POST", "/console/people/sign-out", rights.SignOthersOut, c.signOtherOut},
		{"POST", "/console/scim/tokens", rights.ManageCompany, c.makeSCIMToken},
		{"POST", "/console/scim/tokens/{token}/revoke", rights.ManageCompany, c.revokeSCIMToken},
		{"GET", auditPath, rights.SeeCompany, c.showAudit},
		{"GET", auditPath + "/download", rights.SeeCompany, c.downloadAudit},
		{"POST", auditPath + "/check", rights.SeeCompany, c.checkAudit},
		{"GET", clusterPath, rights.SeeCompany, c.showCluster},
		{"POST", "/console/cluster/nodes", rights.ManageCompany, c.addNode},
		{"POST", "/console/cluster/nodes/{node}/drain", rights.ManageCompany, c.drainNode},
		{"POST", "/console/cluster/nodes/{node}/remove", rights.ManageCompany, c.removeNode},
	}
}
