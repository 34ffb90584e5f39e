// Package signin authenticates requests to the console: a dashboard user for whom an identity provider vouches, or
// somebody who has the admin token on this machine.
//
// Sessions live on the server, as control documents; a browser has a random token, of which the server keeps only the
// digest. Who is behind a session, and what the person may do, is looked up with each request: a person who is
// deactivated or removed is out with the next request.
package signin

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/console/rights"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/scim"
	"millrace/wal/throttle"
)

// Options of Sessions.
type Options struct {
	// Control has dashboard users, their permissions, and sessions. Required.
	Control *control.Control
	// AdminToken is the token that signs in from loopback. Empty: no token does.
	AdminToken string
	// Provider signs dashboard users in; without an Issuer nobody signs in but by the admin token.
	Provider Provider
	// Idle is after how long without use a session ends, Life after how long in any case. Defaults 30 minutes, 12
	// hours.
	Idle, Life time.Duration
	// MaxSessions is how many sessions there may be at a time, MaxSessionsOfUser how many of them one person may have.
	// Defaults 1000, 20.
	MaxSessions, MaxSessionsOfUser int
	// MaxSignInsPerMinute is how many wrong admin tokens a minute are looked at. Default 10.
	MaxSignInsPerMinute int
	// Now is the clock, Unix milliseconds. Default: the system's.
	Now func() int64
	// Logger. Default: slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Idle, o.Life = cmp.Or(o.Idle, 30*time.Minute), cmp.Or(o.Life, 12*time.Hour)
	o.MaxSessions, o.MaxSessionsOfUser = cmp.Or(o.MaxSessions, 1000), cmp.Or(o.MaxSessionsOfUser, 20)
	o.MaxSignInsPerMinute = cmp.Or(o.MaxSignInsPerMinute, 10)
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate returns an error that names the first wrong option.
func (o *Options) Validate() error {
	switch {
	case o.Control == nil:
		return errors.New("console: Control is not set")
	case o.Idle < time.Minute || o.Life < o.Idle || o.Life > 30*24*time.Hour:
		return fmt.Errorf("console: Idle is %v and Life %v, want a minute or more, and of Life at least Idle and at "+
			"most 30 days", o.Idle, o.Life)
	case o.MaxSessions < 1 || o.MaxSessions > control.MaxDocuments || o.MaxSessionsOfUser < 1 ||
		o.MaxSignInsPerMinute < 1:
		return fmt.Errorf("console: MaxSessions is %d, want 1 to %d; MaxSessionsOfUser %d and MaxSignInsPerMinute %d, "+
			"want at least 1", o.MaxSessions, control.MaxDocuments, o.MaxSessionsOfUser, o.MaxSignInsPerMinute)
	}
	return o.Provider.validate()
}

// Sessions are the sessions of all who are signed in. Make them with New.
type Sessions struct {
	options Options
	users   *scim.Users
	tries   tries
	oidc    provider
	failed  throttle.Lines // about sign-ins by the provider, which any stranger can begin and forge
}

// maxFailedLines is how many of them there are in a minute.
const maxFailedLines = 30

// New makes Sessions of valid options.
func New(options Options) *Sessions {
	return &Sessions{options: options, users: scim.NewUsers(options.Control, options.Now),
		oidc:   provider{Provider: options.Provider, asking: make(chan struct{}, maxAsking)},
		failed: throttle.Lines{Most: maxFailedLines}}
}

// Refusal is why somebody is not signed in, with the status of the answer. The person sees its text.
type Refusal struct {
	Status int
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

var tooMany = &Refusal{http.StatusServiceUnavailable, "Too many people are signing in right now. Please try again."}

var outOfReach = &Refusal{http.StatusBadGateway,
	"The identity provider can't be reached. See the server's log for details."}

// Person is who makes a request.
type Person struct {
	// Rights are what the person may do.
	Rights  rights.Rights
	session *document.Session
	user    *document.SCIMUser // nil: by the admin token
	form    string             // what forms carry
}

// Name is what pages call the person.
func (p *Person) Name() string {
	if p.user == nil {
		return "Admin token"
	}
	return strings.TrimSpace(p.user.GivenName + " " + p.user.FamilyName)
}

// UserName is what the person signs in by.
func (p *Person) UserName() string { return p.session.UserName }

// SessionID is the id of the session that the request belongs to.
func (p *Person) SessionID() string { return p.session.ID }

// Department is the person's department, empty for none. It gives no right.
func (p *Person) Department() string {
	if p.user == nil {
		return ""
	}
	return p.user.Department
}

// Form is the token that the person's forms carry.
func (p *Person) Form() string { return p.form }

// Actor is how the audit log knows a request of the person.
func (p *Person) Actor(r *http.Request) control.Actor {
	name := "admin token (console)"
	if p.user != nil {
		name = "dashboard user " + p.user.UserName
	}
	return control.Actor{Name: name, Number: control.AdminActor, Address: r.RemoteAddr,
		RequestID: "console-" + randomText()[:16]}
}

func (s *Sessions) limits() document.SessionLimits {
	return document.SessionLimits{Idle: s.options.Idle.Milliseconds(), Life: s.options.Life.Milliseconds(),
		Max: s.options.MaxSessions, MaxOfUser: s.options.MaxSessionsOfUser}
}

// adminTokenName is the user name of sessions by the admin token. No dashboard user has it: theirs are addresses.
const adminTokenName = "admin token"

// TakesToken says whether the admin token may sign in from where a request comes from.
func (s *Sessions) TakesToken(r *http.Request) bool { return s.options.AdminToken != "" && isLocal(r) }

// ByToken signs in by the admin token. Call it only where TakesToken allows it.
func (s *Sessions) ByToken(w http.ResponseWriter, r *http.Request, token string) error {
	if !s.tries.take(s.options.Now(), s.options.MaxSignInsPerMinute) {
		return &Refusal{http.StatusTooManyRequests, "Too many attempts. Wait a minute."}
	}
	if !same(digest(token), digest(s.options.AdminToken)) {
		return &Refusal{http.StatusUnauthorized,
			"That is not the admin token. The token is in the file admin-token in the data directory."}
	}
	s.tries.giveBack()
	return s.Begin(w, r, nil)
}

// Begin makes a session of a dashboard user (nil: of the admin token), and gives the browser its token. A session that
// the browser already had ends.
func (s *Sessions) Begin(w http.ResponseWriter, r *http.Request, user *document.SCIMUser) error {
	token := randomText()
	now := s.options.Now()
	one := document.Session{ID: digest(token), UserName: adminTokenName, Address: r.RemoteAddr, BeganAt: now,
		SeenAt: now}
	p := Person{session: &one, user: user}
	if user == nil {
		one.Secret = digest(one.ID + s.options.AdminToken)
	} else {
		one.UserID, one.UserName, one.UserKey = user.ID, user.UserName, s.users.Key(user)
		one.DeactivatedAt = user.DeactivatedAt
	}
	before, beforeID := s.WhoIs(r, false), ""
	if before != nil {
		beforeID = before.session.ID
	}
	if err := s.options.Control.BeginSession(p.Actor(r), one, beforeID, s.limits()); err != nil {
		return err
	}
	if before != nil { // the browser forgets its token
		if err := s.options.Control.EndSession(before.Actor(r), before.session.ID); err != nil {
			return err
		}
	}
	setCookie(w, sessionCookie, token, http.SameSiteStrictMode, 0)
	return nil
}

// WhoIs finds out who makes a request; it returns nil when nobody is signed in. isUse says whether the request counts
// as a use of the session.
func (s *Sessions) WhoIs(r *http.Request, isUse bool) *Person {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return nil
	}
	one, now := s.options.Control.Session(digest(cookie.Value)), s.options.Now()
	if one == nil || s.limits().IsOver(one, now) {
		return nil
	}
	p := &Person{session: one, form: formToken(cookie.Value)}
	if one.UserID == "" {
		if !s.TakesToken(r) || one.Secret != digest(one.ID+s.options.AdminToken) {
			return nil
		}
		p.Rights = rights.OfAdmin()
	} else {
		user, permissions := s.users.Named(one.UserName)
		if user == nil || user.ID != one.UserID || user.Inactive || one.DeactivatedAt != user.DeactivatedAt {
			return nil
		}
		p.user, p.Rights = user, rights.Of(permissions)
	}
	if now-one.SeenAt >= s.limits().Step() && isUse {
		if err := s.options.Control.TouchSession(one.ID, now); err != nil {
			s.options.Logger.Warn("the last use of a session was not stored", "error", err)
		}
	}
	return p
}

// Provider is the host of the identity provider, empty when there is none.
func (s *Sessions) Provider() string { return s.oidc.host() }

// Start begins a sign-in with the provider, after which the page next is shown. It returns the address to which the
// browser is to be led.
func (s *Sessions) Start(w http.ResponseWriter, next string) (address string, err error) {
	if !s.oidc.enter() {
		return "", tooMany
	}
	defer s.oidc.leave()
	f := newFlow(next)
	if address, err = s.oidc.begin(s.options.Now, f); err != nil {
		s.failed.Error(s.options.Logger, "sign-in", "error", err)
		return "", outOfReach
	}
	return address, f.keep(w)
}

// Finish signs the person in with what the provider sent back, and returns the page that Start was given.
func (s *Sessions) Finish(w http.ResponseWriter, r *http.Request) (next string, err error) {
	f, ok := flowOf(r)
	query := r.URL.Query()
	if !s.oidc.isSet() || !ok || !same(query.Get("state"), f.State) {
		return "", &Refusal{http.StatusBadRequest,
			"This sign-in was not started in this browser, or it took too long. Please sign in again."}
	}
	setCookie(w, flowCookie, "", http.SameSiteLaxMode, -1)
	if code := query.Get("error"); code != "" {
		return "", &Refusal{http.StatusForbidden,
			fmt.Sprintf("The identity provider refused the sign-in: %.80s. Please sign in again.", code)}
	}
	if !s.oidc.enter() {
		return "", tooMany
	}
	defer s.oidc.leave()
	name, err := s.oidc.identify(r.Context(), s.options.Now, query.Get("code"), f)
	if err != nil {
		signInsFailed.Inc()
		s.failed.Warn(s.options.Logger, "sign-in failed", "address", r.RemoteAddr, "error", err)
		if isOutOfReach(err) {
			return "", outOfReach
		}
		return "", &Refusal{http.StatusForbidden,
			"The identity provider's answer can't be accepted. See the server's log for details."}
	}
	user, permissions := s.users.Named(name)
	if user == nil || user.Inactive {
		signInsRefused.Inc()
		s.options.Logger.Warn("sign-in refused: no dashboard user, or an inactive one",
			"address", r.RemoteAddr, "user", name)
		return "", &Refusal{http.StatusForbidden,
			fmt.Sprintf("%.200s may not use this console. Ask an administrator for access.", name)}
	}
	if rights.Of(permissions).IsNothing() {
		s.options.Logger.Info("a dashboard user without any rights signed in", "user", user.UserName)
	}
	if err := s.Begin(w, r, user); err != nil {
		return "", err
	}
	signIns.Inc()
	return f.Next, nil
}

// Of lists a person's sessions.
func (s *Sessions) Of(p *Person) []*document.Session {
	return s.options.Control.Sessions(p.session.UserName)
}

// End ends a person's session, or all sessions of the person, and has the browser forget its token.
func (s *Sessions) End(w http.ResponseWriter, by control.Actor, p *Person, everywhere bool) (err error) {
	if everywhere {
		_, err = s.options.Control.EndSessions(by, p.session.UserName)
	} else {
		err = s.options.Control.EndSession(by, p.session.ID)
	}
	if err == nil {
		setCookie(w, sessionCookie, "", http.SameSiteStrictMode, -1)
	}
	return err
}

// IsForm says whether a form is one that a page of this session has shown. p is nil for a stranger, whose forms carry a
// token that is derived from the one in a cookie.
func IsForm(r *http.Request, p *Person, carried string) bool {
	if p != nil {
		return same(carried, p.form)
	}
	cookie, err := r.Cookie(formCookie)
	return err == nil && same(carried, formToken(cookie.Value))
}

// isLocal says whether a request comes from this machine, and was not forwarded by a proxy here.
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

// tries bounds how often somebody may be wrong in a minute. They are not counted by address, since all who may try come
// from this machine.
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

// giveBack gives back a try that was right, so that it doesn't count.
func (t *tries) giveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
}

var (
	signIns        = metrics.NewCounter(`millrace_console_sign_ins_total{result="in"}`)
	signInsRefused = metrics.NewCounter(`millrace_console_sign_ins_total{result="refused"}`)
	signInsFailed  = metrics.NewCounter(`millrace_console_sign_ins_total{result="failed"}`)
)
