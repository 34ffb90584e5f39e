package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/scim"
	"millrace/shard"
)

const everything = `{"companyPermissions":["admin"],"appGroup":[]}`

// The admin token signs in, from this machine alone, and the session ends when it should.
func TestAdminTokenSignsIn(t *testing.T) {
	h := openHouse(t)
	b := h.browser()
	require.Equal(t, signInPath+"?next=%2Fconsole%2Faccount", b.get("/console/account").path, "strangers are led to the sign-in")
	p := b.post(signInPath, "token", "wrong")
	require.Equal(t, 401, p.status)
	require.Contains(t, p.text, "That is not the admin token")
	p = b.post(signInPath, "token", adminToken, "next", "/console/account")
	require.Equal(t, 200, p.status)
	require.Equal(t, "/console/account", p.path)
	require.Equal(t, 200, b.get(home).status)
	require.Equal(t, signInPath+"?done=out", b.post("/console/sign-out").path)
	require.Contains(t, b.get(home).path, signInPath)
	require.Empty(t, h.control.Sessions("admin token"))
}

func TestWhereSignInLeads(t *testing.T) {
	for _, next := range []string{"", "https://evil.example", "//evil.example/console/", "/console//evil.example", "/console/../admin", "/console/\\evil", "/console/sign-in?x", "/metrics",
		"javascript:alert(1)", "/console/\r\nSet-Cookie: a=b", home + strings.Repeat("a", 600)} {
		require.Equal(t, home, nextOf(next), next)
	}
	for _, next := range []string{home, "/console/w/demo/users?external_id=a%20b"} {
		require.Equal(t, next, nextOf(next))
	}
}

// A proxy on this machine hands requests on from anywhere.
func TestAdminTokenFromElsewhere(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"} {
		r, err := http.NewRequest(http.MethodGet, h.url+home, nil)
		require.NoError(t, err)
		r.Header.Set(name, "192.0.2.1")
		answer, err := b.Do(r)
		require.NoError(t, err)
		require.Contains(t, b.read(answer).path, signInPath, "%s: the session doesn't hold there either", name)
	}
	require.Equal(t, home, b.get(home).path)
	r, err := http.NewRequest(http.MethodPost, h.url+signInPath, strings.NewReader("token="+adminToken+"&form="+formToken("a")))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Forwarded-For", "127.0.0.1")
	r.AddCookie(&http.Cookie{Name: "__Host-millrace-form", Value: "a"})
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.Equal(t, 403, answer.StatusCode)
	require.NotContains(t, answer.Header.Values("Set-Cookie"), "__Host-millrace=")
	require.Len(t, h.control.Sessions("admin token"), 1)
	answer.Body.Close()
}

func TestTriesAreBounded(t *testing.T) {
	h := openHouse(t, func(o *Options) { o.MaxSignInsPerMinute = 3 })
	b := h.browser()
	for range 3 {
		require.Equal(t, 401, b.post(signInPath, "token", "wrong").status)
	}
	require.Equal(t, 429, b.post(signInPath, "token", adminToken).status)
	h.now.Add(time.Minute.Milliseconds())
	require.Equal(t, 200, b.post(signInPath, "token", adminToken).status)
}

// Sessions end when nobody uses them, when they are old, and when there are too many of one person.
func TestSessionsEnd(t *testing.T) {
	h := openHouse(t, func(o *Options) { o.Idle, o.Life, o.MaxSessionsOfUser = 8*time.Minute, time.Hour, 2 })
	in := func(b *browser) bool { return b.get("/console/account").path == "/console/account" }
	b := h.signedIn()
	for range 7 {
		h.now.Add(7 * time.Minute.Milliseconds())
		require.True(t, in(b), "used every seven minutes")
	}
	h.now.Add(8 * time.Minute.Milliseconds())
	require.False(t, in(b), "not used for eight")
	b = h.signedIn()
	for range 9 {
		h.now.Add(6 * time.Minute.Milliseconds())
		require.True(t, in(b))
	}
	h.now.Add(6 * time.Minute.Milliseconds())
	require.False(t, in(b), "an hour old")

	b = h.signedIn()
	for range 3 {
		h.now.Add(3 * time.Minute.Milliseconds())
		r, err := http.NewRequest(http.MethodGet, h.url+home, nil)
		require.NoError(t, err)
		r.Header.Set(reloadHeader, "1")
		answer, err := b.Do(r)
		require.NoError(t, err)
		answer.Body.Close()
	}
	require.False(t, in(b), "a page that is open reloads itself")

	h.now.Add(24 * time.Hour.Milliseconds())
	b = h.signedIn()
	h.now.Add(-7 * time.Minute.Milliseconds())
	require.True(t, in(b), "the clocks of two nodes may differ")
	h.now.Add(7*time.Minute.Milliseconds() - 24*time.Hour.Milliseconds())
	require.False(t, in(b), "the clock was a day ahead")

	first := h.signedIn()
	h.now.Add(1000)
	second := h.signedIn()
	h.now.Add(1000)
	third := h.signedIn()
	require.False(t, in(first))
	require.True(t, in(second))
	require.True(t, in(third))
	require.Contains(t, third.get("/console/account").text, "this one")
	require.Equal(t, signInPath+"?done=everywhere", third.post("/console/sign-out-everywhere").path)
	require.False(t, in(second))
	require.False(t, in(third))
	require.LessOrEqual(t, len(h.control.Sessions("admin token")), 1, "those that are over have made room")
}

func TestSessionsAreBounded(t *testing.T) {
	h := openHouse(t, func(o *Options) { o.MaxSessions = 2 })
	for _, name := range []string{"a@example.com", "b@example.com"} {
		h.provision(name, everything)
		h.signedInAs(name)
	}
	b := h.browser()
	p := b.post(signInPath, "token", adminToken)
	require.Equal(t, 409, p.status)
	require.Contains(t, p.text, "2 sessions are open")
	h.now.Add(time.Hour.Milliseconds())
	require.Equal(t, 200, b.post(signInPath, "token", adminToken).status)
	h.signedInAs("a@example.com")
	require.Equal(t, 200, b.post(signInPath, "token", adminToken).status, "in the place of the browser's own session")
}

// Who may have no further session gets one in the place of the oldest, also when there are no more of anybody.
func TestOwnSessionMakesRoom(t *testing.T) {
	h := openHouse(t, func(o *Options) { o.MaxSessions, o.MaxSessionsOfUser = 2, 1 })
	for _, name := range []string{"a@example.com", "b@example.com"} {
		h.provision(name, everything)
		h.signedInAs(name)
	}
	b := h.signedInAs("b@example.com")
	require.Equal(t, home, b.get(home).path)
	require.Len(t, h.control.Sessions("b@example.com"), 1)
}

// Who is deactivated or removed is out with the next request, and doesn't come back with an old session.
func TestDeprovisioningEndsSessions(t *testing.T) {
	h := openHouse(t)
	by := control.Actor{Name: "SCIM token"}
	id := h.provision("ada@example.com", everything)
	active := func(yes string) {
		h.now.Add(1000)
		_, err := h.users.Patch(id, scim.Sent{By: by, Body: []byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[{"op":"replace","path":"active","value":` + yes + `}]}`)})
		require.NoError(t, err)
	}
	b := h.signedInAs("ada@example.com")
	require.Equal(t, home, b.get(home).path)
	active("false")
	require.Contains(t, b.get(home).path, signInPath)
	active("true")
	require.Contains(t, b.get(home).path, signInPath, "what was begun before is over")
	h.now.Add(1000)
	b = h.signedInAs("ada@example.com")
	require.Equal(t, home, b.get(home).path)
	require.NoError(t, h.users.Delete(by, id, ""))
	require.Contains(t, b.get(home).path, signInPath)
	h.provision("ada@example.com", everything)
	require.Contains(t, b.get(home).path, signInPath, "another person of that name")
}

// The clock is set right while somebody is inactive, or a moment before: a session from before stays over, and a new
// one is one.
func TestDeactivationWhileTheClockIsPutBack(t *testing.T) {
	h := openHouse(t)
	id := h.provision("ada@example.com", everything)
	active := func(yes string) {
		_, err := h.users.Patch(id, scim.Sent{By: control.Actor{Name: "SCIM token"}, Body: []byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[{"op":"replace","path":"active","value":` + yes + `}]}`)})
		require.NoError(t, err)
	}
	old := h.signedInAs("ada@example.com")
	h.now.Add(-10 * time.Minute.Milliseconds())
	require.Equal(t, home, old.get(home).path)
	for range 2 {
		active("false")
		active("true")
		require.Contains(t, old.get(home).path, signInPath, "what was begun before is over")
		h.now.Add(-time.Minute.Milliseconds())
		old = h.signedInAs("ada@example.com")
		require.Equal(t, home, old.get(home).path, "what begins now is not")
	}
}

// A form that no page of the session has shown changes nothing; nor does one that another site sends.
func TestFormsNeedTheirToken(t *testing.T) {
	h := openHouse(t)
	b, stranger := h.signedIn(), h.signedIn()
	for _, rt := range h.console.routes() {
		if rt.method != http.MethodPost {
			continue
		}
		target := strings.NewReplacer("{workspace}", "demo").Replace(rt.path)
		for _, token := range []string{"", "0", stranger.token(), formToken("")} {
			p := b.send(target, "form", token, "token", adminToken)
			require.Equal(t, 403, p.status, "%s with %q", rt.path, token)
		}
		r, err := http.NewRequest(http.MethodPost, h.url+target, strings.NewReader("form="+b.token()))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "https://evil.example")
		answer, err := b.Do(r)
		require.NoError(t, err)
		require.Equal(t, 403, b.read(answer).status, rt.path)
	}
	require.Equal(t, home, b.get(home).path, "still signed in")
}

// Every answer has the headers that keep foreign code out; no page has code or style inline.
func TestHeaders(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	for _, path := range []string{home, "/console/account", "/console/nowhere", "/console/static/console.css", signInPath, "/console/w/nowhere/users"} {
		p := b.get(path)
		require.Equal(t, policy, p.header.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", p.header.Get("X-Content-Type-Options"), path)
		require.Equal(t, "DENY", p.header.Get("X-Frame-Options"), path)
		require.Empty(t, p.header.Get("Access-Control-Allow-Origin"), path)
		for _, inline := range []string{"<style", " style=", "<script>", " onclick", "javascript:"} {
			require.NotContains(t, p.text, inline, path)
		}
	}
	r, err := http.NewRequest(http.MethodGet, h.url+signInPath, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	for _, c := range answer.Cookies() {
		require.True(t, c.HttpOnly && c.Secure && c.SameSite == http.SameSiteStrictMode && c.Path == "/" && c.Domain == "", c.String())
	}
	require.NotEmpty(t, answer.Cookies())
}

// Signing in and out has its entries in the audit log, with the person's name; being in use has none.
func TestSessionsAreAudited(t *testing.T) {
	h := openHouse(t)
	h.provision("ada@example.com", everything)
	b := h.signedInAs("ada@example.com")
	user, _ := h.users.Named("ada@example.com")
	require.Equal(t, h.now.Load(), user.SignedInAt)
	at := time.UnixMilli(user.SignedInAt).UTC().Format("Monday, January 2, 2006 3:04:05 PM")
	found, err := h.users.Get(user.ID)
	require.NoError(t, err)
	require.Contains(t, string(found.Append(nil, scim.Projection{})), `"lastSignInAt":"`+at+`"`)
	h.now.Add(10 * time.Minute.Milliseconds())
	b.get(home)
	b.post("/console/sign-out")
	var said []string
	require.NoError(t, h.engine.Audit(1, func(e shard.AuditEntry) bool {
		if strings.Contains(string(e.Body), `"by":"dashboard user ada@example.com"`) {
			said = append(said, string(e.Body))
		}
		return true
	}))
	require.Len(t, said, 2)
	require.Contains(t, said[0], `"what":"signed in"`)
	require.Contains(t, said[1], `"what":"signed out"`)
}

// Who signs in again in the same browser leaves no session behind that nobody can end from there.
func TestSigningInAgain(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	h.provision("ada@example.com", everything)
	user, _ := h.users.Named("ada@example.com")
	r := b.request(http.MethodGet, "/", nil)
	require.NotNil(t, h.console.whoIs(r))
	require.NoError(t, h.console.sessions.Begin(httptest.NewRecorder(), r, user))
	require.Nil(t, h.console.whoIs(r))
}

// formToken is what forms carry when a cookie has a token.
func formToken(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("form"))
	return hex.EncodeToString(mac.Sum(nil))
}
