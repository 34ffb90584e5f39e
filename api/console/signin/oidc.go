package signin

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

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"millrace/api/bounded"
)

// Provider is the identity provider that signs dashboard users in: OpenID Connect, code flow with PKCE.
type Provider struct {
	Issuer   string // https://…; http on loopback alone. Empty: there is none
	ClientID string
	// ClientSecret is empty for a client that has none: then PKCE alone ties the answer to the question.
	ClientSecret string
	// Claim names the claim, of the ID token or of the provider's user info, that has the userName of the dashboard
	// user. Default: email, which must be verified.
	Claim string
	// URL is where browsers find the console: https://console.example.com. The provider leads back there.
	URL string
	// Client makes the requests to the provider. Default: one that waits for ten seconds.
	Client *http.Client
}

// CallbackPath is where the provider leads back to.
const CallbackPath = "/console/sign-in/callback"

const (
	flowSeconds = 10 * 60 // for what a person does at the provider

	discoveryPause = 5 * time.Second // after a provider could not be reached
	maxAsking      = 64              // requests that wait for it at a time
	defaultClaim   = "email"
)

func (p *Provider) validate() error {
	if p.Issuer == "" {
		return nil
	}
	for _, address := range []struct{ name, text string }{{"issuer", p.Issuer}, {"console's URL", p.URL}} {
		if err := CheckAddress(address.text); err != nil {
			return fmt.Errorf("console: %s: %w", address.name, err)
		}
	}
	if p.ClientID == "" {
		return errors.New("console: an issuer needs a client id")
	}
	return nil
}

// CheckAddress refuses what is no address of a server: by https, or by http on this machine.
func CheckAddress(text string) error {
	u, err := url.Parse(text)
	if err == nil && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		host := u.Hostname()
		if u.Scheme == "https" ||
			u.Scheme == "http" && (host == "localhost" || host == "127.0.0.1" || host == "::1") {
			return nil
		}
	}
	return fmt.Errorf("%q: want https://host, or http on loopback", text)
}

// provider is a Provider, and what it has said of itself. It is asked at the first sign-in, so that a server starts
// without it.
type provider struct {
	Provider
	asking   chan struct{} // one element for each request that waits for the provider
	mu       sync.Mutex    // guards what follows
	failed   time.Time     // when it could not be reached last
	found    *oidc.Provider
	verifier *oidc.IDTokenVerifier
}

// enter returns false when too many requests wait for the provider; otherwise leave follows.
func (p *provider) enter() bool {
	select {
	case p.asking <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *provider) leave() { <-p.asking }

func (p *provider) isSet() bool { return p.Issuer != "" }

func (p *provider) host() string {
	u, err := url.Parse(p.Issuer)
	if err != nil {
		return ""
	}
	return u.Host
}

func (p *provider) claim() string { return cmp.Or(p.Claim, defaultClaim) }

// flow is a sign-in for which the person is at the provider now. The browser keeps it.
type flow struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	Next     string `json:"next"`
}

func newFlow(next string) flow {
	return flow{State: randomText(), Nonce: randomText(), Verifier: oauth2.GenerateVerifier(), Next: next}
}

// keep has the browser keep the flow.
func (f flow) keep(w http.ResponseWriter) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	setCookie(w, flowCookie, base64.RawURLEncoding.EncodeToString(text), http.SameSiteLaxMode, flowSeconds)
	return nil
}

func (p *provider) context(ctx context.Context) context.Context {
	client := http.Client{Timeout: 10 * time.Second}
	if p.Client != nil {
		client = *p.Client
	}
	if client.Transport == nil {
		client.Transport = http.DefaultTransport
	}
	client.Transport = bounded.Transport{Base: client.Transport, Bytes: maxProviderAnswer}
	return oidc.ClientContext(ctx, &client)
}

// maxProviderAnswer bounds each answer of the provider: about itself, its keys, or who signs in.
const maxProviderAnswer = 1 << 20

// config asks the provider for its addresses, unless it has already answered.
func (p *provider) config(now func() int64) (*oauth2.Config, *oidc.IDTokenVerifier, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found == nil {
		if time.Since(p.failed) < discoveryPause {
			return nil, nil, errors.New("the identity provider could not be reached a moment ago; not asked again yet")
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
		RedirectURL: p.URL + CallbackPath, Scopes: scopes}, p.verifier, nil
}

// begin returns the address at the provider where a flow begins.
func (p *provider) begin(now func() int64, f flow) (address string, err error) {
	config, _, err := p.config(now)
	if err != nil {
		return "", err
	}
	return config.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
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
func (p *provider) identify(
	ctx context.Context, now func() int64, code string, f flow,
) (string, error) {
	config, verifier, err := p.config(now)
	if err != nil {
		return "", err
	}
	ctx = p.context(ctx)
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
		return "", errors.New("the ID token belongs to another sign-in")
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return "", fmt.Errorf("claims: %w", err)
	}
	// A provider may leave the claims of the scopes out of the ID token, and give them only to those who ask for user
	// info.
	if _, there := claims[p.claim()]; !there {
		info, err := p.found.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
		if err != nil {
			return "", fmt.Errorf("ask for claims: %w", err)
		}
		if info.Subject != token.Subject {
			return "", errors.New("the claims belong to another person")
		}
		if err := info.Claims(&claims); err != nil {
			return "", fmt.Errorf("claims: %w", err)
		}
	}
	return userNameOf(claims, p.claim())
}

// isOutOfReach says whether the provider didn't answer, or answered that it can't, as far as an error shows it.
func isOutOfReach(err error) bool {
	if _, ok := errors.AsType[*url.Error](err); ok {
		return true
	}
	answer, ok := errors.AsType[*oauth2.RetrieveError](err)
	return ok && answer.Response != nil && answer.Response.StatusCode >= http.StatusInternalServerError
}

// userNameOf returns the claim that names the dashboard user. An email address that the provider has not verified may
// be anybody's.
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
