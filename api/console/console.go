// Package console serves the web console of a running server: pages rendered in Go, and the forms that change things.
//
// The console reaches data in no way of its own: its pages read through the admin API, in this process, and its verbs
// are the admin API's, with the person's name in the entry of the audit log. Its own are only who the person is
// (sign-in, sessions) and what the person may do (rights): the table of routes says which right each page and each verb
// needs, and nothing is served that isn't in the table.
//
// Names, attributes and HTML come from tracked clients, and must not run in a page: html/template escapes whatever is
// shown, no page has inline code, and the policy of every answer forbids code that isn't the console's own. Each
// request that changes something carries a token that is derived from the session's.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"

	"millrace/api/console/figures"
	"millrace/api/console/rights"
	"millrace/api/console/signin"
	"millrace/api/control"
)

// Options of a Console.
type Options struct {
	// Options of sign-ins, with the documents and the clock of the console.
	signin.Options
	// API is the admin API, which serves whoever comes; As says who makes a request. Required.
	API http.Handler
	As  func(*http.Request, control.Actor) *http.Request
	// Hold has the memory of a form count among that of all bodies. Where there is no room for it, reading fails with
	// an error that call.FailureOf knows, and the rest doesn't count. Required.
	Hold func(io.ReadCloser) Held
	// Figures appends the metrics of this process, in the text format that Prometheus reads. Required.
	Figures func(dst []byte) []byte
	// Document returns the page that describes the public API, which has its style inline and no code. Required.
	Document func() []byte
	// Permissions are all the permissions that an API key may have.
	Permissions []string
}

// Held is a body that counts until it is released.
type Held interface {
	io.ReadCloser
	Release()
}

// Validate returns an error that names the first wrong option.
func (o *Options) Validate() error {
	if o.API == nil || o.As == nil || o.Hold == nil || o.Figures == nil || o.Document == nil {
		return errors.New("console: API, As, Hold, Figures or Document is not set")
	}
	return o.Options.Validate()
}

// Console serves the pages. Make it with New, end it with Close.
type Console struct {
	options  Options
	sessions *signin.Sessions
	needs    map[string]rights.Right // of each route, by "GET /console/account"
	mux      *http.ServeMux
	samples  figures.Ring
	turns    turns
	stop     context.CancelFunc
	done     chan struct{}
}

// home is the page behind /.
const home = "/console/"

// policy lets a page load the console's own style and code, nothing inline and nothing foreign; a page may show
// previews in frames, and is itself shown in none.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP serves one request.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("X-Robots-Tag", "noindex")
	h.Set("Cache-Control", "no-store")
	if isSecure(r, c.options.Provider.URL) {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // it is never wrapped
				panic(p)
			}
			c.options.Logger.Error("panic in the console", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
			http.Error(w, "The console failed to show this page.", http.StatusInternalServerError)
		}
	}()
	body := c.options.Hold(http.MaxBytesReader(w, r.Body, maxFormBytes))
	defer body.Release()
	r.Body = body
	c.mux.ServeHTTP(w, r)
}

// maxFormBytes bounds a form: the largest has the three texts of a preference center, 256 KiB each, percent-encoded.
const maxFormBytes = 3 << 20

// maxStrangersFormBytes bounds the form of the sign-in: thousands of strangers may send one at a time.
const maxStrangersFormBytes = 16 << 10

// isSecure says whether the browser has come by https: to this process, or to the proxy that publicURL names.
func isSecure(r *http.Request, publicURL string) bool {
	if r.TLS != nil {
		return true
	}
	u, err := url.Parse(publicURL)
	return err == nil && u.Scheme == "https" && u.Host == r.Host
}
