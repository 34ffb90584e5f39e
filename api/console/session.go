package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"millrace/api/control"
)

// Sessions live on the server, as control documents; a browser has a random token, of which the server keeps the
// digest. Who is behind a session, and what the person may do, is looked up with each request: who is deactivated or
// removed is out with the next one.

// Cookies. The prefix has browsers take them over https alone (or from loopback), for this host alone.
const (
	sessionCookie = "__Host-millrace"
	formCookie    = "__Host-millrace-form" // of forms of those who have no session
	flowCookie    = "__Host-millrace-oidc" // of a sign-in that is with the provider
)

// person is who makes a request.
type person struct {
	session *control.Session
	user    *control.SCIMUser // nil: by the admin token
	rights  rights
	form    string // what forms carry
}

// name is what the audit log calls the person.
func (p *person) name() string {
	if p.user == nil {
		return "admin token (console)"
	}
	return "dashboard user " + p.user.UserName
}

// Name is what pages call the person.
func (p *person) Name() string {
	if p.user == nil {
		return "Admin token"
	}
	return strings.TrimSpace(p.user.GivenName + " " + p.user.FamilyName)
}

// UserName is what the person signs in by.
func (p *person) UserName() string { return p.session.UserName }

func (c *Console) limits() control.SessionLimits {
	return control.SessionLimits{Idle: c.options.Idle.Milliseconds(), Life: c.options.Life.Milliseconds(),
		Max: c.options.MaxSessions, MaxOfUser: c.options.MaxSessionsOfUser}
}

// begin makes a session and gives the browser its token. The session that the browser had ends.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, user *control.SCIMUser) error {
	token := randomText()
	now := c.options.Now()
	s := control.Session{ID: digest(token), UserName: adminTokenName, Address: r.RemoteAddr, BeganAt: now, SeenAt: now}
	p := person{session: &s, user: user}
	if user == nil {
		s.Secret = digest(s.ID + c.options.AdminToken)
	} else {
		s.UserID, s.UserName, s.UserKey = user.ID, user.UserName, c.users.Key(user)
	}
	if err := c.options.Control.BeginSession(c.actor(r, &p), s, c.limits()); err != nil {
		return err
	}
	if before := c.whoIs(r); before != nil { // the browser forgets its token
		if err := c.options.Control.EndSession(c.actor(r, before), before.session.ID); err != nil {
			return err
		}
	}
	setCookie(w, sessionCookie, token, http.SameSiteStrictMode, 0)
	return nil
}

// adminTokenName is the user name of sessions by the admin token. No dashboard user has it: theirs are addresses.
const adminTokenName = "admin token"

// reloadHeader marks requests that a page makes by itself: nobody uses a session by having a page open.
const reloadHeader = "X-Reload"

// isByItself says whether a page makes the request by itself: it loads a part anew, or watches.
func isByItself(r *http.Request) bool {
	return r.Header.Get(reloadHeader) != "" || r.Pattern == http.MethodGet+" "+streamPath
}

// whoIs finds out who makes a request; nil: nobody who is signed in.
func (c *Console) whoIs(r *http.Request) *person {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return nil
	}
	s, now := c.options.Control.Session(digest(cookie.Value)), c.options.Now()
	if s == nil || c.limits().IsOver(s, now) {
		return nil
	}
	p := &person{session: s, form: formToken(cookie.Value)}
	if s.UserID == "" {
		if !isLocal(r) || c.options.AdminToken == "" || s.Secret != digest(s.ID+c.options.AdminToken) {
			return nil
		}
		p.rights.company = all
	} else {
		user, permissions := c.users.Named(s.UserName)
		if user == nil || user.ID != s.UserID || user.Inactive || s.BeganAt <= user.DeactivatedAt {
			return nil
		}
		p.user, p.rights = user, rightsOf(permissions)
	}
	if now-s.SeenAt >= c.limits().Step() && !isByItself(r) {
		if err := c.options.Control.TouchSession(s.ID, now); err != nil {
			c.options.Logger.Warn("the last use of a session is not stored", "error", err)
		}
	}
	return p
}

// actor is how the audit log knows who makes a request.
func (c *Console) actor(r *http.Request, p *person) control.Actor {
	return control.Actor{Name: p.name(), Number: control.AdminActor, Address: r.RemoteAddr,
		RequestID: "console-" + randomText()[:16]}
}

// isLocal says whether a request comes from this machine, and was not handed on by a proxy here.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Unmap().IsLoopback() {
		return false
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip",
		"Via"} {
		if r.Header.Get(name) != "" {
			return false
		}
	}
	return true
}

// formToken is what forms of a session carry: who knows it has read a page of that session.
func formToken(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("form"))
	return hex.EncodeToString(mac.Sum(nil))
}

func same(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func randomText() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// setCookie sets a cookie for this host; seconds 0: as long as the browser is open, below 0: none any more.
func setCookie(w http.ResponseWriter, name, value string, site http.SameSite, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true,
		SameSite: site})
}

// SessionID is which of a person's sessions this is.
func (p *person) SessionID() string { return p.session.ID }

// Department is the person's, empty for none. It gives no right.
func (p *person) Department() string {
	if p.user == nil {
		return ""
	}
	return p.user.Department
}
