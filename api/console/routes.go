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
		{"GET", "/console/api", anyPerson, c.showAPI},
		{"GET", clusterPath, SeeCompany, c.showCluster},
		{"POST", "/console/cluster/nodes", ManageCompany, c.addNode},
		{"POST", "/console/cluster/nodes/{node}/drain", ManageCompany, c.drainNode},
		{"POST", "/console/cluster/nodes/{node}/remove", ManageCompany, c.removeNode},
	}
}
