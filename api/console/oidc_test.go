package console

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"millrace/api/console/signin"
	"millrace/api/control"
	"millrace/api/scim"
)

// people are the users of the identity provider.
type people map[string]*storage.User

func (p people) GetUserByID(id string) *storage.User         { return p[id] }
func (p people) GetUserByUsername(name string) *storage.User { return p[name] }
func (p people) ExampleClientID() string                     { return "none" }

// openProvider starts an identity provider, and a house that it signs people in to.
func openProvider(t *testing.T) *house {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // it logs each request
	t.Cleanup(func() { slog.SetDefault(before) })
	provider := httptest.NewServer(nil)
	t.Cleanup(provider.Close)
	issuer := strings.Replace(provider.URL, "127.0.0.1", "localhost", 1) // another site than the console, as it is for cookies
	users := people{}
	for _, name := range []string{"ada", "bob", "eve", "ivy"} {
		users[name] = &storage.User{ID: name, Username: name, Password: "verysecure", Email: name + "@example.com", EmailVerified: name != "bob"}
	}
	h := openHouse(t, func(o *Options) {
		o.Provider.Issuer, o.Provider.ClientID, o.Provider.ClientSecret = issuer, "console", "secret"
	})
	clients := map[string]*storage.Client{"console": storage.WebClient("console", "secret", h.url+signin.CallbackPath)}
	provider.Config.Handler = exampleop.SetupServer(issuer, storage.NewStorageWithClients(users, clients), nil, false)
	return h
}

var (
	requestField = regexp.MustCompile(`name="id" value="([^"]+)"`)
	onward       = regexp.MustCompile(`http-equiv="refresh" content="0;url=([^"]+)"`)
)

// signInBy goes the whole way: to the provider, its form, and back.
func (b *browser) signInBy(name, next string) page {
	b.h.t.Helper()
	answer, err := b.Get(b.h.url + oidcPath + "?next=" + url.QueryEscape(next))
	require.NoError(b.h.t, err)
	at := answer.Request.URL
	p := b.read(answer)
	m := requestField.FindStringSubmatch(p.text)
	require.NotNil(b.h.t, m, p.text)
	at.Path, at.RawQuery = "/login/username", ""
	answer, err = b.PostForm(at.String(), url.Values{"id": {m[1]}, "username": {name}, "password": {"verysecure"}})
	require.NoError(b.h.t, err)
	p = b.read(answer)
	if m := onward.FindStringSubmatch(p.text); m != nil {
		return b.get(m[1])
	}
	return p
}

// Who is provisioned gets in by a real provider, to where he wanted; nobody else does.
func TestSignInByProvider(t *testing.T) {
	h := openProvider(t)
	h.provision("Ada@Example.com", everything)
	h.provision("bob@example.com", everything)
	id := h.provision("ivy@example.com", everything)
	_, err := h.users.Patch(id, scim.Sent{By: control.Actor{Name: "SCIM token"}, Body: []byte(`{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[{"op":"replace","path":"active","value":false}]}`)})
	require.NoError(t, err)

	b := h.browser()
	p := b.signInBy("ada", "/console/account")
	require.Equal(t, 200, p.status, p.text)
	require.Equal(t, "/console/account", p.path)
	require.Contains(t, p.text, "Ada Lovelace")
	require.Equal(t, home, b.get(signInPath).path, "who is in needs no sign-in")

	for name, why := range map[string]string{"eve": "eve@example.com may not use this console", "ivy": "ivy@example.com may not use this console", "bob": "The identity provider&#39;s answer can&#39;t be accepted"} {
		b := h.browser()
		p := b.signInBy(name, home)
		require.Equal(t, 403, p.status, name)
		require.Contains(t, p.text, why)
		require.Contains(t, b.get(home).path, signInPath)
	}
}

// liar is a provider whose ID tokens say what a test wants.
type liar struct {
	*httptest.Server
	key    *ecdsa.PrivateKey
	nonce  string
	claims func(claims map[string]any) // changes them
	signer *ecdsa.PrivateKey           // nil: key
	forms  []url.Values                // what the token endpoint was sent
	fault  func(http.ResponseWriter)   // nil, or what the token endpoint does instead
	asked  func()                      // called when the provider is asked about itself, and for a token
}

func openLiar(t *testing.T) (*liar, *house) {
	l := &liar{claims: func(map[string]any) {}, asked: func() {}}
	var err error
	l.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	mux := http.NewServeMux()
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	h := openHouse(t, func(o *Options) { o.Provider.Issuer, o.Provider.ClientID = l.URL, "console" })
	h.provision("ada@example.com", everything)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		l.asked()
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": l.URL, "authorization_endpoint": l.URL + "/auth", "token_endpoint": l.URL + "/token", "jwks_uri": l.URL + "/keys",
			"userinfo_endpoint": l.URL + "/userinfo", "id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: l.key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
	})
	mux.HandleFunc("/userinfo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"sub": "another", "email": "ada@example.com", "email_verified": true})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		l.asked()
		if l.fault != nil {
			l.fault(w)
			return
		}
		_ = r.ParseForm()
		l.forms = append(l.forms, r.PostForm)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": l.token(t, h)})
	})
	return l, h
}

func (l *liar) token(t *testing.T, h *house) string {
	now := time.UnixMilli(h.now.Load())
	claims := map[string]any{"iss": l.URL, "aud": "console", "sub": "1", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "nonce": l.nonce, "email": "ada@example.com", "email_verified": true}
	l.claims(claims)
	key := l.key
	if l.signer != nil {
		key = l.signer
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	require.NoError(t, err)
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	require.NoError(t, err)
	return text
}

// start begins a sign-in and returns what the provider is asked.
func (l *liar) start(b *browser) url.Values {
	b.h.t.Helper()
	client := *b.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := client.Get(b.h.url + oidcPath)
	require.NoError(b.h.t, err)
	answer.Body.Close()
	require.Equal(b.h.t, 303, answer.StatusCode)
	u, err := url.Parse(answer.Header.Get("Location"))
	require.NoError(b.h.t, err)
	require.True(b.h.t, strings.HasPrefix(u.String(), l.URL+"/auth"))
	l.nonce = u.Query().Get("nonce")
	return u.Query()
}

// A provider that takes its time keeps nobody from pages.
func TestSignInHasNoTurnWhileItAsks(t *testing.T) {
	l, h := openLiar(t)
	var making []int
	l.asked = func() { making = append(making, len(h.console.turns.making)) }
	b := h.browser()
	asked := l.start(b)
	require.Equal(t, 200, b.get(signin.CallbackPath+"?code=c&state="+asked.Get("state")).status)
	require.Equal(t, []int{0, 0}, making)
}

// The faults of docs/console.md: none of them signs anybody in.
func TestSignInFaults(t *testing.T) {
	l, h := openLiar(t)
	finish := func(b *browser, state string) page { return b.get(signin.CallbackPath + "?code=c&state=" + state) }
	in := func(b *browser) bool { return b.get(home).path == home }

	b := h.browser()
	asked := l.start(b)
	require.Equal(t, "S256", asked.Get("code_challenge_method"))
	require.Equal(t, h.url+signin.CallbackPath, asked.Get("redirect_uri"))
	require.Equal(t, 200, finish(b, asked.Get("state")).status)
	require.True(t, in(b))
	require.NotEmpty(t, l.forms[0].Get("code_verifier"))
	require.Equal(t, 400, finish(b, asked.Get("state")).status, "the same answer once more")

	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	set := func(name string, value any) func(map[string]any) {
		return func(claims map[string]any) { claims[name] = value }
	}
	for name, c := range map[string]struct {
		claims func(map[string]any)
		signer *ecdsa.PrivateKey
	}{
		"another nonce":           {claims: set("nonce", "x")},
		"no nonce":                {claims: func(c map[string]any) { delete(c, "nonce") }},
		"for another client":      {claims: set("aud", "other")},
		"of another issuer":       {claims: set("iss", "https://evil.example")},
		"expired":                 {claims: set("exp", h.now.Load()/1000-60)},
		"email not verified":      {claims: set("email_verified", false)},
		"nobody says verified":    {claims: func(c map[string]any) { delete(c, "email_verified") }},
		"verified is a text":      {claims: set("email_verified", "true")},
		"email is no text":        {claims: set("email", 7)},
		"claims of somebody else": {claims: func(c map[string]any) { delete(c, "email") }},
		"another key":             {claims: func(map[string]any) {}, signer: other},
	} {
		l.claims, l.signer = c.claims, c.signer
		b := h.browser()
		state := l.start(b).Get("state")
		require.Equal(t, 403, finish(b, state).status, name)
		require.False(t, in(b), name)
	}
	l.claims, l.signer = func(map[string]any) {}, nil

	b = h.browser()
	state := l.start(b).Get("state")
	require.Equal(t, 400, finish(b, "x"+state).status, "another state")
	require.Equal(t, 400, finish(h.browser(), state).status, "another browser")
	p := b.get(signin.CallbackPath + "?error=access_denied%3Cb%3E&state=" + state)
	require.Equal(t, 403, p.status)
	require.Contains(t, p.text, "access_denied&lt;b&gt;")
	require.False(t, in(b))

	for _, fault := range []func(http.ResponseWriter){func(w http.ResponseWriter) { w.WriteHeader(503) }, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }} {
		l.fault = fault
		state = l.start(b).Get("state")
		p = finish(b, state)
		require.Equal(t, 502, p.status, "the provider is out of reach when the code is exchanged")
		require.Contains(t, p.text, "can&#39;t be reached")
		require.False(t, in(b))
	}
}

func TestProviderIsOutOfReach(t *testing.T) {
	h := openHouse(t, func(o *Options) { o.Provider.Issuer, o.Provider.ClientID = "http://127.0.0.1:1", "console" })
	b := h.browser()
	require.Contains(t, b.get(signInPath).text, "Sign in with 127.0.0.1:1")
	require.Equal(t, 502, b.get(oidcPath).status)
	require.Equal(t, 200, b.post(signInPath, "token", adminToken).status, "the admin token still does")
}
