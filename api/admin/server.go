// Package admin is the operator's door: health, metrics and the API's documentation for everybody who reaches its
// listener, pprof and the admin API for holders of the admin token. The console calls the admin API on behalf of
// people.
//
// Its verbs are those of package control, and each change has an entry of the audit log that names who asked. What both
// doors need belongs to the public one (package api): store, documents, bounds.
package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/goccy/go-json"

	"millrace/api"
	"millrace/api/call"
	"millrace/api/census"
	"millrace/api/control"
	"millrace/api/keys"
	"millrace/api/live"
	"millrace/api/openapi"
)

// Options of a Server.
type Options struct {
	// Public is the public door, whose store, control documents and bounds are the operator's too. Required.
	Public *api.Server
	// Token opens the admin API; see the function Token. Empty: the API is closed; health and metrics are still served.
	Token string
	// Handlers are further routes, by pattern; like the admin API they are served to holders of the token.
	Handlers map[string]http.HandlerFunc
	// Live shows what is applied to those who watch; it is the engine's Tap. nil: nobody can watch.
	Live *live.Hub
	// Census counts consent. nil: counting is not possible.
	Census *census.Counter
	// Cluster is the cluster that this server is a node of; nil: the server is alone.
	Cluster Cluster
}

// Server is the operator's door. Make it with New.
type Server struct {
	options Options
	public  *api.Server
	common  *api.Options // of the public door
}

// New makes a Server.
func New(o Options) *Server { return &Server{options: o, public: o.Public, common: o.Public.Options()} }

// HTTPServer makes the HTTP server of the second listener. Everybody who reaches it gets health, metrics and the API's
// documentation. Holders of the token (Authorization: Bearer, or as the password of Basic) get pprof and the admin API.
// The console authenticates in its own way; nil means that there is none. Serve and shut the server down like any
// http.Server.
func (s *Server) HTTPServer(console http.Handler) *http.Server {
	mux := http.NewServeMux()
	open := func(path string, handler http.HandlerFunc) { // like all paths, with and without a trailing slash (D1)
		mux.HandleFunc("GET "+path, handler)
		mux.HandleFunc("GET "+path+"/{$}", handler)
	}
	open("/livez", func(w http.ResponseWriter, r *http.Request) {
		Answer(w, http.StatusOK, success{})
	})
	open("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.public.Ready(); err != nil {
			Refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		Answer(w, http.StatusOK, success{})
	})
	open("/metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		metrics.WritePrometheus(w, true)
		metrics.WriteFDMetrics(w) // how many files are open, and may be
	})
	open("/docs", documentPage)
	if console != nil {
		mux.Handle("GET /{$}", console)
		mux.Handle("/console/", console)
	}
	closed := http.NewServeMux()
	closed.HandleFunc("/debug/pprof/", pprof.Index)
	closed.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	closed.HandleFunc("/debug/pprof/profile", pprof.Profile)
	closed.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	closed.HandleFunc("/debug/pprof/trace", pprof.Trace)
	closed.Handle("/", s.API())
	mux.Handle("/", s.requireToken(closed))
	return s.httpServer(mux)
}

// ConsoleServer makes the HTTP server of a listener that serves only the console.
func (s *Server) ConsoleServer(console http.Handler) *http.Server { return s.httpServer(console) }

func (s *Server) httpServer(handler http.Handler) *http.Server {
	ownPages := http.NewCrossOriginProtection()
	ownPages.SetDenyHandler(http.HandlerFunc(refuseOtherSite))
	return &http.Server{
		Handler:           ownPages.Handler(handler),
		ReadHeaderTimeout: s.common.ReadTimeout,
		ReadTimeout:       s.common.ReadTimeout,
		WriteTimeout:      5 * time.Minute, // a CPU profile takes its time
		IdleTimeout:       s.common.IdleTimeout,
		MaxHeaderBytes:    s.common.MaxHeaderBytes,
		ErrorLog:          log.New(errorLog{s.common.Logger}, "", 0),
	}
}

func refuseOtherSite(w http.ResponseWriter, _ *http.Request) {
	Refuse(w, http.StatusForbidden, "A page of another site has sent this request")
}

// errorLog takes what net/http logs. Except for panics it is trouble of connections, which is logged at debug level:
// otherwise anybody who connects, even a port scanner, would cause a log line.
type errorLog struct{ to *slog.Logger }

// Write takes one line.
func (l errorLog) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(line, []byte("panic")) {
		level = slog.LevelError
	}
	l.to.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// API serves the admin API without asking for the token. It is for callers that authenticate in another way, and say by
// As who asks.
func (s *Server) API() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		mux.HandleFunc(rt.pattern, s.serve(s.behindBarrier(rt.handler)))
	}
	for _, rt := range s.clusterRoutes() { // these must work even when the rest doesn't
		mux.HandleFunc(rt.pattern, s.serve(rt.handler))
	}
	mux.HandleFunc("GET /admin/live", s.serveLive)
	for pattern, handler := range s.options.Handlers {
		mux.HandleFunc(pattern, handler)
	}
	return withoutSlash(mux)
}

// Patterns returns the routes of the admin API, except for those of Options.Handlers.
func (s *Server) Patterns() (patterns []string) {
	for _, rt := range slices.Concat(s.routes(), s.clusterRoutes()) {
		patterns = append(patterns, rt.pattern)
	}
	return patterns
}

// withoutSlash serves the paths of the admin API with and without one trailing slash. It answers paths for which next
// has no pattern: with 405 if another method of the path has one.
func withoutSlash(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path := r.URL.EscapedPath(); strings.HasPrefix(path, "/admin/") && strings.HasSuffix(path, "/") &&
			len(path) > len("/admin/") {
			u := *r.URL
			u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
			r = r.Clone(r.Context())
			r.URL = &u
		}
		if _, pattern := next.Handler(r); pattern != "" {
			next.ServeHTTP(w, r)
			return
		}
		var allowed []string
		for _, method := range [...]string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := next.Handler(other); pattern != "" {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) == 0 {
			Answer(w, http.StatusNotFound, failureOf(http.StatusNotFound))
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		Answer(w, http.StatusMethodNotAllowed, failureOf(http.StatusMethodNotAllowed))
	})
}

// route is a line of the admin API; the lines are in routes. What a handler returns is the answer: a struct, a map, or
// one of the types below.
type route struct {
	pattern string
	handler handler
}

// handler does what a request of by asks for, and returns the answer.
type handler func(by control.Actor, r *http.Request) (any, error)

// Answers of the admin API: objects with a string message, like all others.
type (
	success struct{}
	failure struct {
		Message string `json:"message"`
	}
	// created is answered with 201.
	created struct{ v any }
	// tagged is a document that If-Match can name: the answer has its ETag.
	tagged struct {
		v     any // the answer
		tag   any // the value that the ETag is of
		isNew bool
	}
)

func (f failure) Error() string { return f.Message }

// failureOf returns a failure that says only its status.
func failureOf(status int) failure { return failure{http.StatusText(status)} }

// errStale is the answer to an If-Match that is no longer the document's ETag.
var errStale = errors.New("the document has changed since it was read: read it again")

// etag returns the ETag of a value: a digest of its JSON.
func etag(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// checkMatch returns errStale unless the request has no If-Match or its If-Match names v, which is nil if it doesn't
// exist.
func checkMatch[T any](r *http.Request, v *T) error {
	want := r.Header.Get("If-Match")
	if want == "" {
		return nil
	}
	if v != nil {
		for tag := range strings.SplitSeq(want, ",") {
			if tag = strings.TrimSpace(tag); tag == "*" || tag == etag(v) {
				return nil
			}
		}
	}
	return errStale
}

// requireToken lets holders of the admin token pass. Wrong tokens are counted per address, like wrong API keys. A
// browser remembers Basic credentials and adds them to whatever any page asks for, for example a backup or a CPU
// profile; to the browser, anything that listens on another port of this host belongs to the same site.
func (s *Server) requireToken(next http.Handler) http.Handler {
	want := keys.DigestOf([]byte(s.options.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, password, ok := r.BasicAuth(); ok && !isBearer {
			if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
				refuseOtherSite(w, r)
				return
			}
			token = password
		}
		have := keys.DigestOf([]byte(token))
		r.Header.Set("X-Request-Id", s.public.RequestID(r.Header.Get("X-Request-Id")))
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		if s.options.Token != "" && subtle.ConstantTimeCompare(have[:], want[:]) == 1 {
			next.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Expect") == "" { // such a client reads before it sends its body
			drain(r)
		}
		if addr, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil && token != "" &&
			!s.public.AllowsBadKey(addr) {
			w.Header().Set("Retry-After", "60")
			Refuse(w, http.StatusTooManyRequests,
				"Too many requests with an invalid admin token. Please try again later.")
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="millrace admin"`)
		Refuse(w, http.StatusUnauthorized, "Invalid admin token")
	})
}

// As returns the request as one made by by, who was authenticated in another way than by the token.
func As(r *http.Request, by control.Actor) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), actorKey{}, by))
}

type actorKey struct{}

// personOf returns the name of the person whom As has named; empty: the holder of the token.
func personOf(r *http.Request) string {
	by, _ := r.Context().Value(actorKey{}).(control.Actor)
	return by.Name
}

// ActorOf returns who makes a request of the admin API: whom As has named, or else the holder of the token.
func ActorOf(r *http.Request) control.Actor {
	if by, ok := r.Context().Value(actorKey{}).(control.Actor); ok {
		return by
	}
	return control.Actor{Name: "admin token", Number: control.AdminActor, Address: r.RemoteAddr,
		RequestID: r.Header.Get("X-Request-Id")}
}

// behindBarrier makes a handler see everything that any node has acknowledged before, because it reads, or judges by
// what exists.
func (s *Server) behindBarrier(handler handler) handler {
	return func(by control.Actor, r *http.Request) (any, error) {
		if err := s.common.Store.Barrier(); err != nil {
			return nil, err
		}
		return handler(by, r)
	}
}

func (s *Server) serve(handler handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				metrics.GetOrCreateCounter(`millrace_http_panics_total`).Inc()
				s.common.Logger.Error("panic in the admin API", "path", r.Pattern, "panic", fmt.Sprint(p),
					"stack", string(debug.Stack()))
				Answer(w, http.StatusInternalServerError, failureOf(http.StatusInternalServerError))
			}
		}()
		v, err := handler(ActorOf(r), r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		status := http.StatusOK
		switch t := v.(type) {
		case created:
			status, v = http.StatusCreated, t.v
		case tagged:
			w.Header().Set("ETag", etag(t.tag))
			if v = t.v; t.isNew {
				status = http.StatusCreated
			}
		}
		Answer(w, status, v)
	}
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	_, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	part, _ := errors.AsType[incomplete](err)
	switch {
	case isTooLarge:
		status, err = http.StatusRequestEntityTooLarge, failureOf(http.StatusRequestEntityTooLarge)
	case errors.Is(err, control.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, control.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, control.ErrExists), errors.Is(err, control.ErrConflict):
		status = http.StatusConflict
	case errors.Is(err, errStale):
		status = http.StatusPreconditionFailed
	default:
		s.common.Logger.Error("admin request failed", "path", r.Pattern, "err", err)
		f := call.FailureOf(err)
		if f == nil {
			err = failureOf(status)
			break
		}
		f.Count()
		status, err = f.Status, failure{f.Text}
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
	}
	if part.made == nil {
		Refuse(w, status, err.Error())
		return
	}
	Answer(w, status, map[string]any{"message": err.Error(), "made_keys": part.made})
}

// Refuse answers with a message.
func Refuse(w http.ResponseWriter, status int, message string) { Answer(w, status, failure{message}) }

// Answer answers with a value as JSON; to one that is an object, a status of success adds the message.
func Answer(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"message":"Internal Server Error"}`)
	}
	if len(text) > 1 && text[0] == '{' && status < 300 {
		text = withSuccess(text)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// withSuccess adds the message to an answer.
func withSuccess(object []byte) []byte {
	out := append([]byte(nil), object[:len(object)-1]...)
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(out, `"message":"success"}`...)
}

func (s *Server) readAll(r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, int64(s.common.MaxBodyBytes)))
	if err != nil {
		drain(r)
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return text, nil
}

// drain takes in what the client still sends, as long as ReadTimeout lets it: a connection that is closed while bytes
// arrive is reset, and a client that sends its whole body before it reads would thereby lose the answer.
func drain(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }

// queryNumber reads a number of a query; it returns otherwise if the number is missing.
func queryNumber(query url.Values, name string, otherwise, most uint64) (uint64, error) {
	if !query.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(query.Get(name), 10, 64)
	if err != nil || n == 0 || n > most {
		return 0, fmt.Errorf("%w: %s: want a number from 1 to %d", control.ErrInvalid, name, most)
	}
	return n, nil
}

// timeText shows Unix ms to the second, nothing for 0; microText does the same for Unix µs.
func timeText(millis int64) string {
	if millis == 0 {
		return ""
	}
	return time.UnixMilli(millis).UTC().Format(time.RFC3339)
}

func microText(micros int64) string {
	return time.UnixMicro(micros).UTC().Format("2006-01-02T15:04:05.000000Z")
}

// documentPage serves GET /docs. The page has no script, and its policy allows none.
func documentPage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(openapi.Page())
}
