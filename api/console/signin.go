package console

import (
	"net/http"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

const oidcPath = signInPath + "/oidc"

// signInData is what the page of the sign-in shows.
type signInData struct {
	Next     string
	HasToken bool // the admin token signs in from here
	Provider string
}

// showSignIn serves GET /console/sign-in.
func (c *Console) showSignIn(v *visit) error {
	next := nextOf(v.r.FormValue("next"))
	if v.Person != nil && v.Problem == "" {
		return v.redirect(next, "")
	}
	return v.render("signin", "Sign in", signInData{Next: next, HasToken: c.sessions.TakesToken(v.r),
		Provider: c.sessions.Provider()})
}

// nextOf is where a sign-in leads to: always a page of the console, whatever path the address names.
func nextOf(path string) string {
	if !strings.HasPrefix(path, home) || strings.HasPrefix(path, signInPath) || strings.ContainsAny(path,
		"\\\r\n\t") || strings.Contains(path, "//") ||
		strings.Contains(path, "..") || len(path) > 500 {
		return home
	}
	return path
}

// signIn serves POST /console/sign-in: a sign-in with the admin token, from this machine.
func (c *Console) signIn(v *visit) error {
	if !c.sessions.TakesToken(v.r) {
		return &fault{http.StatusForbidden, "The admin token works only from the server's own machine."}
	}
	if err := c.sessions.ByToken(v.w, v.r, v.form("token")); err != nil {
		return v.retry(faultOf(err), c.showSignIn)
	}
	return v.redirect(nextOf(v.form("next")), "")
}

// startOIDC serves GET /console/sign-in/oidc: it leads to the provider.
func (c *Console) startOIDC(v *visit) error {
	if c.sessions.Provider() == "" {
		return notFound()
	}
	v.endTurn() // it may wait for the provider
	address, err := c.sessions.Start(v.w, nextOf(v.r.URL.Query().Get("next")))
	if err != nil {
		return faultOf(err)
	}
	return v.redirect(address, "")
}

// finishOIDC serves GET /console/sign-in/callback, where the provider leads back to. The browser sends the session's
// cookie only with requests that this site has caused, and a redirect would still count as caused by the provider: so a
// page leads on.
func (c *Console) finishOIDC(v *visit) error {
	v.endTurn() // it waits for the provider
	next, err := c.sessions.Finish(v.w, v.r)
	if err != nil {
		return faultOf(err)
	}
	return v.render("onward", "Signed in", next)
}

// signOut serves POST /console/sign-out.
func (c *Console) signOut(v *visit) error {
	if err := c.sessions.End(v.w, v.by(), v.Person, false); err != nil {
		return faultOf(err)
	}
	return v.redirect(signInPath, "out")
}

// signOutEverywhere serves POST /console/sign-out-everywhere.
func (c *Console) signOutEverywhere(v *visit) error {
	if err := c.sessions.End(v.w, v.by(), v.Person, true); err != nil {
		return faultOf(err)
	}
	return v.redirect(signInPath, "everywhere")
}

// accountData is what the page of a person's own account shows.
type accountData struct {
	Sessions   []*document.Session
	Company    []string
	Workspaces []workspaceRights
}

type workspaceRights struct {
	*control.Workspace
	Rights []string
}

// showAccount serves GET /console/account: the sessions, and what the person may do.
func (c *Console) showAccount(v *visit) error {
	data := accountData{Sessions: c.sessions.Of(v.Person), Company: v.Person.Rights.InCompany()}
	for _, w := range v.Person.Rights.Workspaces(c.options.Control.Snapshot()) {
		data.Workspaces = append(data.Workspaces, workspaceRights{w, v.Person.Rights.In(w.ID).Names()})
	}
	return v.render("account", "Your account", data)
}
