package console

// route is a page or a verb. Nothing is served that isn't in the table, and each line says what the person must be
// allowed: in the workspace that the path names, or else in the company.
type route struct {
	method, path string
	needs        Right
	handler      handler
}

// What a route may need instead of rights.
const (
	anyPerson Right = 0       // whoever is signed in
	anybody   Right = 1 << 31 // strangers, too
)

func (c *Console) routes() []*route {
	return []*route{
		{"GET", signInPath, anybody, c.showSignIn},
		{"POST", signInPath, anybody, c.signIn},
		{"GET", oidcPath, anybody, c.startOIDC},
		{"GET", callbackPath, anybody, c.finishOIDC},
		{"POST", "/console/sign-out", anyPerson, c.signOut},
		{"POST", "/console/sign-out-everywhere", anyPerson, c.signOutEverywhere},
		{"GET", "/console/account", anyPerson, c.showAccount},

		{"GET", "/console/{$}", anyPerson, c.showOverview},
		{"GET", apiPath, anyPerson, c.showAPI},
		{"GET", documentPath, anyPerson, c.showDocument},
		{"GET", workspacePath, See, c.showWorkspace},
		{"GET", usersPath, SeeUsers, c.showUsers},
		{"GET", userPath, SeeUsers, c.showUser},
		{"GET", userPath + "/events", SeeUsers | SeePersonal, c.showEvents},
		{"GET", userPath + "/download", SeePersonal | ExportUsers, c.downloadUser},
		{"POST", userPath + "/consent", ChangeUsers, c.changeConsent},
		{"POST", userPath + "/delete", ChangeUsers, c.deleteUser},

		{"GET", livePath, SeeUsers | SeePersonal, c.showLive},
		{"GET", streamPath, SeeUsers | SeePersonal, c.streamLive},
		{"GET", refusedPath, SeeUsers | SeePersonal, c.showRefused},
		{"GET", refusalPath, SeeUsers | SeePersonal, c.showRefusal},
		{"POST", refusedPath + "/send", SeePersonal | ChangeUsers, c.sendAllRefused},
		{"POST", refusalPath + "/send", SeePersonal | ChangeUsers, c.sendRefusal},
		{"POST", refusalPath + "/remove", SeePersonal | ChangeUsers, c.removeRefusal},

		{"GET", tryPath, See, c.showTry},
		{"POST", tryPath, See, c.sendTry}, // what the key may do is the key's
		{"GET", streamsPath, See, c.showStreams},
		{"POST", oneStreamPath + "/pause", ChangeSettings, c.pauseStream},
		{"POST", oneStreamPath + "/resume", ChangeSettings, c.resumeStream},
		{"POST", oneStreamPath + "/rewind", ChangeSettings, c.rewindStream},
		{"GET", campaignsPath, See, c.showCampaigns},
		{"GET", campaignPath, See, c.showCampaign},
		{"GET", canvasPath, See, c.showCanvas},

		{"GET", consentPath, See, c.showConsent},
		{"POST", countPath, ChangeGroups, c.startCount},
		{"POST", countPath + "/stop", ChangeGroups, c.stopCount},
		{"POST", groupsPath, ChangeGroups, c.addGroup},
		{"POST", groupsPath + "/{group}", ChangeGroups, c.renameGroup},
		{"POST", groupsPath + "/{group}/archive", ChangeGroups, c.archiveGroup},
		{"POST", groupsPath + "/{group}/restore", ChangeGroups, c.restoreGroup},
		{"POST", workspacePath + "/blocklist/lift", SeePersonal | ChangeEmail, c.liftBlock},
		{"POST", centersPath, ChangeCenters, c.addCenter},
		{"GET", centerPath, See, c.showCenter},
		{"GET", centerPath + "/preview", See, c.previewCenter},
		{"POST", centerPath, ChangeCenters, c.changeCenter},

		{"GET", keysPath, SeeKeys, c.showKeys},
		{"POST", keysPath, ManageKeys, c.makeKey},
		{"POST", keysPath + "/{key}/rotate", ManageKeys, c.rotateKey},
		{"POST", keysPath + "/{key}/revoke", ManageKeys, c.revokeKey},
		{"GET", settingsPath, See, c.showSettings},
		{"POST", settingsPath, ChangeSettings, c.changeSettings},
		{"POST", appsPath, ChangeApps, c.addApp},
		{"POST", appsPath + "/{app}/remove", ChangeApps, c.removeApp},

		{"POST", "/console/workspaces", AddWorkspaces, c.addWorkspace},
		{"GET", companyPath, SeeCompany, c.showCompany},
		{"POST", "/console/people/sign-out", SignOthersOut, c.signOtherOut},
		{"POST", "/console/scim/tokens", ManageCompany, c.makeSCIMToken},
		{"POST", "/console/scim/tokens/{token}/revoke", ManageCompany, c.revokeSCIMToken},
		{"GET", auditPath, SeeCompany, c.showAudit},
		{"GET", auditPath + "/download", SeeCompany, c.downloadAudit},
		{"POST", auditPath + "/check", SeeCompany, c.checkAudit},
		{"GET", clusterPath, SeeCompany, c.showCluster},
		{"POST", "/console/cluster/nodes", ManageCompany, c.addNode},
		{"POST", "/console/cluster/nodes/{node}/drain", ManageCompany, c.drainNode},
		{"POST", "/console/cluster/nodes/{node}/remove", ManageCompany, c.removeNode},
	}
}
