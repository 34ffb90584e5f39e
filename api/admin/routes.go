package admin

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/openapi"
)

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
	metrics.ExposeMetadata(true)
	open("/metrics", serveMetrics)
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
	var silent sync.Map // the connections on which nothing was sent yet
	server := &http.Server{
		Handler:           ownPages.Handler(handler),
		ReadHeaderTimeout: s.common.ReadTimeout,
		ReadTimeout:       s.common.ReadTimeout,
		WriteTimeout:      5 * time.Minute, // a CPU profile takes its time
		IdleTimeout:       s.common.IdleTimeout,
		MaxHeaderBytes:    s.common.MaxHeaderBytes,
		ErrorLog:          log.New(errorLog{s.common.Logger}, "", 0),
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateNew {
				silent.Store(c, nil)
			} else {
				silent.Delete(c)
			}
		},
	}
	server.RegisterOnShutdown(func() { // net/http takes them for busy for 5 s
		time.AfterFunc(time.Second, func() {
			for c := range silent.Range {
				_ = c.(net.Conn).Close()
			}
		})
	})
	return server
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

// Patterns returns the routes of the admin API, except for those of Options.Handlers. It is for tests.
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

func (s *Server) routes() []route {
	c := s.common.Control
	return slices.Concat(
		s.workspaceRoutes(),
		documentRoutes(s, ofWorkspace, "apps", c.Apps, nil),
		documentRoutes(s, ofWorkspace, "subscription_groups", c.Groups, nil),
		s.keyRoutes(),
		documentRoutes(s, ofWorkspace, "preference_centers", c.PreferenceCenters, summariseCenter),
		documentRoutes(s, ofWorkspace, "campaigns", c.Campaigns, summariseCampaign),
		documentRoutes(s, ofWorkspace, "canvases", c.Canvases, summariseCanvas),
		documentRoutes(s, ofWorkspace, "streams", c.Streams, nil),
		s.streamRoutes(),
		documentRoutes(s, ofCompany, "permission_sets", c.PermissionSets, summariseSet),
		s.scimRoutes(),
		s.userRoutes(),
		s.consentRoutes(),
		s.censusRoutes(),
		s.requestRoutes(),
		s.auditRoutes(),
		s.refusedRoutes(),
		[]route{{"POST /admin/bootstrap", s.taking(s.bootstrap)}},
	)
}
