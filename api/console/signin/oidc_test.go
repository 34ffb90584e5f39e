package signin

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProviderSettings(t *testing.T) {
	good := Provider{Issuer: "https://idp.example", ClientID: "c", URL: "https://console.example.com"}
	require.NoError(t, good.validate())
	for _, edit := range []func(*Provider){
		func(p *Provider) { p.Issuer = "http://idp.example" }, func(p *Provider) { p.Issuer = "idp.example" }, func(p *Provider) { p.URL = "" },
		func(p *Provider) { p.URL = "http://console.example.com" }, func(p *Provider) { p.URL = "https://console.example.com?x" }, func(p *Provider) { p.ClientID = "" },
	} {
		p := good
		edit(&p)
		require.Error(t, p.validate(), "%+v", p)
	}
}

// A provider that has no end of things to say of itself is not listened to.
func TestProviderThatSaysTooMuch(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		issuer := "http://" + r.Host
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"jwks_uri":%q,"more":%q}`, issuer, issuer, issuer, issuer, strings.Repeat("x", maxProviderAnswer))
	}))
	defer server.Close()
	p := &provider{Provider: Provider{Issuer: server.URL, ClientID: "c"}}
	_, _, err := p.config(func() int64 { return time.Now().UnixMilli() })
	require.ErrorContains(t, err, "the answer has more than")
}

// Strangers who begin and forge sign-ins don't fill the log.
func TestFailedSignInsAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		away := &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })}
		s := New(Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() int64 { return time.Now().UnixMilli() },
			Provider: Provider{Issuer: "https://idp.example", ClientID: "c", Client: away}})
		for range maxFailedLines {
			_, err := s.Start(httptest.NewRecorder(), "/")
			require.Equal(t, outOfReach, err)
			_, err = s.Finish(httptest.NewRecorder(), comingBack(t))
			require.Error(t, err)
		}
		require.Equal(t, maxFailedLines, strings.Count(log.String(), "msg="))
		time.Sleep(time.Minute)
		_, err := s.Start(httptest.NewRecorder(), "/")
		require.Error(t, err)
		require.Contains(t, log.String(), fmt.Sprintf("left_out=%d", maxFailedLines))
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// comingBack is a request from the provider for a flow that nobody has begun.
func comingBack(t *testing.T) *http.Request {
	kept := httptest.NewRecorder()
	require.NoError(t, flow{State: "s", Nonce: "n", Verifier: "v"}.keep(kept))
	r := httptest.NewRequest(http.MethodGet, CallbackPath+"?state=s", nil)
	r.AddCookie(kept.Result().Cookies()[0])
	return r
}

// Only so many requests wait for a provider, whether a sign-in begins or ends.
func TestFewAskTheProvider(t *testing.T) {
	s := New(Options{Provider: Provider{Issuer: "https://idp.example", ClientID: "c"}})
	for range maxAsking {
		require.True(t, s.oidc.enter())
	}
	_, err := s.Start(httptest.NewRecorder(), "/")
	require.Equal(t, tooMany, err)
	_, err = s.Finish(httptest.NewRecorder(), comingBack(t))
	require.Equal(t, tooMany, err)
}
