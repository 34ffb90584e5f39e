package console

import (
	"net/http"
	"strings"
	"sync"

	"millrace/api/control"
)

const signInPath = "/console/sign-in"

// signInData is what the sign-in shows.
type signInData struct {
	Next     string
	HasToken bool // the admin token signs in from here
	HasOIDC  bool
	Provider string
}

// showSignIn serves GET /console/sign-in.
func (c *Console) showSignIn(v *visit) error {
	next := nextOf(v.r.FormValue("next"))
	if v.Person != nil && v.Problem == "" {
		return v.redirect(next, "")
	}
	return v.render("signin", "Sign in", signInData{Next: next, HasToken: c.options.AdminToken != "" && isLocal(v.r),
		HasOIDC: c.oidc.isSet(), Provider: c.oidc.host()})
}

// nextOf is where a sign-in leads to: a page of the console, whatever the address says.
func nextOf(path string) string {
	if !strings.HasPrefix(path, home) || strings.HasPrefix(path, signInPath) || strings.ContainsAny(path,
		"\\\r\n\t") || strings.Contains(path, "//") ||
		strings.Contains(path, "..") || len(path) > 500 {
		return home
	}
	return path
}

// signIn serves POST /console/sign-in: the admin token, from this machine.
func (c *Console) signIn(v *visit) error {
	if c.options.AdminToken == "" || !isLocal(v.r) {
		return &fault{http.StatusForbidden, "The admin token signs in from the machine of the server only."}
	}
	if !c.tries.take(c.options.Now(), c.options.MaxSignInsPerMinute) {
		return v.retry(&fault{http.StatusTooManyRequests, "There were too many tries. Wait for a minute."},
			c.showSignIn)
	}
	if !same(digest(v.form("token")), digest(c.options.AdminToken)) {
		return v.retry(&fault{http.StatusUnauthorized,
			"That is not the admin token. It is in the file admin-token of the data directory."}, c.showSignIn)
	}
	c.tries.giveBack()
	if err := c.begin(v.w, v.r, nil); err != nil {
		return v.retry(faultOf(err), c.showSignIn)
	}
	return v.redirect(nextOf(v.form("next")), "")
}

// signOut serves POST /console/sign-out.
func (c *Console) signOut(v *visit) error {
	if err := c.options.Control.EndSession(v.by(), v.Person.session.ID); err != nil {
		return faultOf(err)
	}
	setCookie(v.w, sessionCookie, "", http.SameSiteStrictMode, -1)
	return v.redirect(signInPath, "out")
}

// signOutEverywhere serves POST /console/sign-out-everywhere.
func (c *Console) signOutEverywhere(v *visit) error {
	if _, err := c.options.Control.EndSessions(v.by(), v.Person.session.UserName); err != nil {
		return faultOf(err)
	}
	setCookie(v.w, sessionCookie, "", http.SameSiteStrictMode, -1)
	return v.redirect(signInPath, "everywhere")
}

// accountData is what a person sees of himself.
type accountData struct {
	Sessions   []*control.Session
	Company    []string
	Workspaces []workspaceRights
}

type workspaceRights struct {
	*control.Workspace
	Rights []string
}

// showAccount serves GET /console/account: the sessions, and what the person may do.
func (c *Console) showAccount(v *visit) error {
	data := accountData{Sessions: c.options.Control.Sessions(v.Person.session.UserName),
		Company: (v.Person.rights.company &^ inWorkspace).names()}
	for _, w := range c.workspacesOf(v.Person.rights) {
		data.Workspaces = append(data.Workspaces, workspaceRights{w, v.Person.rights.in(w.ID).names()})
	}
	return v.render("account", "Your account", data)
}

// tries bound how often somebody may be wrong in a minute. They are not counted by address: whoever may try is here.
type tries struct {
	mu     sync.Mutex
	minute int64
	n      int
}

func (t *tries) take(nowMillis int64, perMinute int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if minute := nowMillis / 60_000; minute != t.minute {
		t.minute, t.n = minute, 0
	}
	t.n++
	return t.n <= perMinute
}

// giveBack takes a try back that was right.
func (t *tries) giveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
}
