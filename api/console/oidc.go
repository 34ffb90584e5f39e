package console

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"millrace/api/control"
)

// Provider is who signs dashboard users in: OpenID Connect, code flow with PKCE.
type Provider struct {
	Issuer   string // https://…; http on loopback alone. Empty: there is none
	ClientID string
	// ClientSecret is empty for a client that has none: PKCE alone ties the answer to the question.
	ClientSecret string
	// Claim, of the ID token or of what the provider says of the person, is the userName of the dashboard user.
	// Default: email, which must be verified.
	Claim string
	// URL is where browsers find the console: https://console.example.com. The provider leads back there.
	URL string
	// Client makes the requests to the provider. Default: one that waits for ten seconds.
	Client *http.Client
}

const (
	oidcPath     = "/console/sign-in/oidc"
	callbackPath = "/console/sign-in/callback"
	flowSeconds  = 10 * 60 // for what a person does at the provider

	discoveryPause = 5 * time.Second // after a provider could not be reached
	maxAsking      = 64              // requests that wait for it at a time
	defaultClaim   = "email"
)

func (p *Provider) validate() error {
	if p.Issuer == "" {
		return nil
	}
	for _, address := range []struct{ name, text string }{{"issuer", p.Issuer}, {"console's URL", p.URL}} {
		if !isAddress(address.text) {
			return fmt.Errorf("console: %s %q: want https://host, or http on loopback", address.name, address.text)
		}
	}
	if p.ClientID == "" {
		return errors.New("console: an issuer needs a client id")
	}
	return nil
}

// isAddress says whether text is the address of a server: by https, or by http on this machine.
func isAddress(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	host := u.Hostname()
	return u.Scheme == "https" || u.Scheme == "http" && (host == "localhost" || host == "127.0.0.1" || host == "::1")
}

// provider is a Provider, and what it has said of itself. It is asked when somebody signs in first, so that a server
// starts without it.
type provider struct {
	Provider
	asking   chan struct{} // one element for each request that waits for the provider
	mu       sync.Mutex    // guards what follows
	failed   time.Time     // when it could not be reached last
	found    *oidc.Provider
	verifier *oidc.IDTokenVerifier
}

func (p *provider) isSet() bool { return p.Issuer != "" }

func (p *provider) host() string {
	u, err := url.Parse(p.Issuer)
	if err != nil {
		return ""
	}
	return u.Host
}

func (p *provider) claim() string { return cmp.Or(p.Claim, defaultClaim) }

// flow is a sign-in that is with the provider. The browser keeps it.
type flow struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	Next     string `json:"next"`
}

func (p *provider) context(ctx context.Context) context.Context {
	client := p.Client
	if client == nil {
		client = &http.Client{Timeout: 10 * time.Second}
	}
	return oidc.ClientContext(ctx, client)
}

// config asks the provider for its addresses, once.
func (p *provider) config(now func() int64) (*oauth2.Config, *oidc.IDTokenVerifier, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found == nil {
		if time.Since(p.failed) < discoveryPause {
			return nil, nil, errors.New("the identity provider could not be reached a moment ago")
		}
		found, err := oidc.NewProvider(p.context(context.Background()), p.Issuer) // it keeps the context, for new keys
		if err != nil {
			p.failed = time.Now()
			return nil, nil, fmt.Errorf("ask the identity provider: %w", err)
		}
		p.found = found
		p.verifier = found.Verifier(&oidc.Config{ClientID: p.ClientID,
			Now: func() time.Time { return time.UnixMilli(now()) }})
	}
	scopes := []string{oidc.ScopeOpenID, "email", "profile"}
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: p.found.Endpoint(),
		RedirectURL: p.URL + callbackPath, Scopes: scopes}, p.verifier, nil
}

// startOIDC serves GET /console/sign-in/oidc: it leads to the provider.
func (c *Console) startOIDC(v *visit) error {
	if !c.oidc.isSet() {
		return notFound()
	}
	config, _, err := c.oidc.config(c.options.Now)
	if err != nil {
		c.options.Logger.Error("sign-in", "error", err)
		return &fault{http.StatusBadGateway, "The identity provider can't be reached. The log of the server says why."}
	}
	f := flow{State: randomText(), Nonce: randomText(), Verifier: oauth2.GenerateVerifier(),
		Next: nextOf(v.r.URL.Query().Get("next"))}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	setCookie(v.w, flowCookie, base64.RawURLEncoding.EncodeToString(text), http.SameSiteLaxMode, flowSeconds)
	http.Redirect(v.w, v.r, config.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)),
		http.StatusSeeOther)
	return nil
}

// finishOIDC serves GET /console/sign-in/callback, where the provider leads back to. The session's cookie goes with
// requests of this site alone, and a redirect would still be one of the provider's: so a page leads on.
func (c *Console) finishOIDC(v *visit) error {
	f, ok := flowOf(v.r)
	query := v.r.URL.Query()
	if !c.oidc.isSet() || !ok || !same(query.Get("state"), f.State) {
		return &fault{http.StatusBadRequest,
			"This sign-in was not begun in this browser, or it took too long. Please sign in again."}
	}
	setCookie(v.w, flowCookie, "", http.SameSiteLaxMode, -1)
	if code := query.Get("error"); code != "" {
		return &fault{http.StatusForbidden,
			fmt.Sprintf("The identity provider says: %.80s. Please sign in again.", code)}
	}
	select {
	case c.oidc.asking <- struct{}{}:
	default:
		return &fault{http.StatusServiceUnavailable, "Too many people sign in at this moment. Please try again."}
	}
	name, err := c.identify(v.r.Context(), query.Get("code"), f)
	<-c.oidc.asking
	if err != nil {
		signInsFailed.Inc()
		c.options.Logger.Warn("sign-in failed", "address", v.r.RemoteAddr, "error", err)
		return &fault{http.StatusForbidden,
			"The identity provider's answer can't be accepted. The log of the server says why."}
	}
	user, permissions := c.users.Named(name)
	if user == nil || user.Inactive {
		signInsRefused.Inc()
		c.options.Logger.Warn("sign-in refused: no dashboard user, or an inactive one",
			"address", v.r.RemoteAddr, "user", name)
		return &fault{http.StatusForbidden,
			fmt.Sprintf("%.200s may not use this console. Ask whoever looks after your accounts.", name)}
	}
	if r := rightsOf(permissions); r.company == 0 && len(r.workspaces) == 0 {
		c.options.Logger.Info("somebody without any right here signs in", "user", user.UserName)
	}
	if err := c.begin(v.w, v.r, user); err != nil {
		return faultOf(err)
	}
	signIns.Inc()
	return v.render("onward", "Signed in", f.Next)
}

func flowOf(r *http.Request) (f flow, ok bool) {
	cookie, err := r.Cookie(flowCookie)
	if err != nil {
		return f, false
	}
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	return f, err == nil && json.Unmarshal(text, &f) == nil && f.State != "" && f.Nonce != "" && f.Verifier != ""
}

// identify exchanges the code for an ID token and returns the userName in it.
func (c *Console) identify(ctx context.Context, code string, f flow) (string, error) {
	config, verifier, err := c.oidc.config(c.options.Now)
	if err != nil {
		return "", err
	}
	ctx = c.oidc.context(ctx)
	tokens, err := config.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return "", fmt.Errorf("exchange the code: %w", err)
	}
	raw, ok := tokens.Extra("id_token").(string)
	if !ok {
		return "", errors.New("the answer has no ID token")
	}
	token, err := verifier.Verify(ctx, raw)
	if err != nil {
		return "", fmt.Errorf("ID token: %w", err)
	}
	if !same(token.Nonce, f.Nonce) {
		return "", errors.New("the ID token is of another sign-in")
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return "", fmt.Errorf("claims: %w", err)
	}
	// A provider may give the claims of scopes to who asks for them alone.
	if _, there := claims[c.oidc.claim()]; !there {
		info, err := c.oidc.found.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
		if err != nil {
			return "", fmt.Errorf("ask for claims: %w", err)
		}
		if info.Subject != token.Subject {
			return "", errors.New("the claims are somebody else's")
		}
		if err := info.Claims(&claims); err != nil {
			return "", fmt.Errorf("claims: %w", err)
		}
	}
	return userNameOf(claims, c.oidc.claim())
}

// userNameOf is the claim that names the dashboard user. An email that the provider has not verified is anybody's.
func userNameOf(claims map[string]any, claim string) (string, error) {
	name, _ := claims[claim].(string)
	if name == "" {
		return "", fmt.Errorf("there is no claim %q", claim)
	}
	if verified, _ := claims["email_verified"].(bool); claim == defaultClaim && !verified {
		return "", errors.New("the email address is not verified: see --oidc-claim")
	}
	return name, nil
}

// faultOf shows what control refuses; other errors stay what they are.
func faultOf(err error) error {
	switch {
	case errors.Is(err, control.ErrInvalid):
		return &fault{http.StatusBadRequest, sentence(err.Error())}
	case errors.Is(err, control.ErrNotFound):
		return &fault{http.StatusNotFound, sentence(err.Error())}
	case errors.Is(err, control.ErrExists), errors.Is(err, control.ErrConflict):
		return &fault{http.StatusConflict, sentence(err.Error())}
	}
	return err
}

var (
	signIns        = metrics.NewCounter(`millrace_console_sign_ins_total{result="in"}`)
	signInsRefused = metrics.NewCounter(`millrace_console_sign_ins_total{result="refused"}`)
	signInsFailed  = metrics.NewCounter(`millrace_console_sign_ins_total{result="failed"}`)
)
