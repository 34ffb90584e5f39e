package api

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/goccy/go-json"

	"millrace/api/control"
	"millrace/api/keys"
	"millrace/api/ratelimit"
)

// adminTokenFile is where the admin token lies in the data directory.
const adminTokenFile = "admin-token"

// AdminToken reads the admin token of a data directory, or makes it at the first start: a file that only its owner may read. Print path, never the token.
func AdminToken(dir string) (token, path string, err error) {
	path = filepath.Join(dir, adminTokenFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return makeAdminToken(path)
	}
	if err != nil {
		return "", path, fmt.Errorf("read the admin token: %w", err)
	}
	if token = strings.TrimSpace(string(text)); len(token) < 16 {
		return "", path, fmt.Errorf("the admin token in %q has fewer than 16 characters", path)
	}
	return token, path, nil
}

func makeAdminToken(path string) (string, string, error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	token := hex.EncodeToString(random[:])
	// Written whole under another name: a crash leaves no half token behind.
	if err := os.WriteFile(path+".new", []byte(token+"\n"), 0o600); err != nil {
		return "", path, fmt.Errorf("write the admin token: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", path, fmt.Errorf("write the admin token: %w", err)
	}
	return token, path, nil
}

// AdminServer makes the HTTP server of the second listener: health and metrics for everybody who reaches it, pprof and the admin API for holders of the token
// (Authorization: Bearer, or as the password of Basic). Serve and shut it down like any http.Server.
func (s *Server) AdminServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) { adminAnswer(w, http.StatusOK, success{}) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.ready(); err != nil {
			adminAnswer(w, http.StatusServiceUnavailable, failure{err.Error()})
			return
		}
		adminAnswer(w, http.StatusOK, success{})
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		metrics.WritePrometheus(w, true)
	})
	mux.HandleFunc("GET /docs", documentPage)
	closed := http.NewServeMux()
	closed.HandleFunc("/debug/pprof/", pprof.Index)
	closed.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	closed.HandleFunc("/debug/pprof/profile", pprof.Profile)
	closed.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	closed.HandleFunc("/debug/pprof/trace", pprof.Trace)
	for _, rt := range s.adminRoutes() {
		closed.HandleFunc(rt.pattern, s.serveAdmin(rt.handler))
	}
	for pattern, handler := range s.options.AdminHandlers {
		closed.HandleFunc(pattern, handler)
	}
	closed.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		adminAnswer(w, http.StatusNotFound, failure{textNotFound})
	})
	mux.Handle("/", s.requireToken(closed))
	return &http.Server{
		Handler:           http.NewCrossOriginProtection().Handler(mux),
		ReadHeaderTimeout: s.options.ReadTimeout,
		ReadTimeout:       s.options.ReadTimeout,
		WriteTimeout:      5 * time.Minute, // a CPU profile takes its time
		IdleTimeout:       s.options.IdleTimeout,
		MaxHeaderBytes:    s.options.MaxHeaderBytes,
	}
}

type adminRoute struct {
	pattern string
	handler func(by control.Actor, r *http.Request) (any, error)
}

// adminRoutes is the admin API. Settings are read and written as JSON in the shape of the bootstrap file (D7).
func (s *Server) adminRoutes() []adminRoute {
	c := s.options.Control
	return []adminRoute{
		{"GET /admin/workspaces", func(_ control.Actor, r *http.Request) (any, error) {
			return struct {
				Workspaces []control.Settings `json:"workspaces"`
			}{Workspaces: mapSlice(c.Snapshot().Workspaces(), func(w *Workspace) control.Settings { return w.Settings })}, nil
		}},
		{"POST /admin/workspaces", func(by control.Actor, r *http.Request) (any, error) {
			settings, err := readAdmin[control.Settings](s, r)
			if err != nil {
				return nil, err
			}
			w, err := c.CreateWorkspace(by, settings)
			if err != nil {
				return nil, err
			}
			return created{w.Settings}, nil
		}},
		{"GET /admin/workspaces/{workspace}", func(_ control.Actor, r *http.Request) (any, error) {
			w, err := s.adminWorkspace(r)
			if err != nil {
				return nil, err
			}
			return describe(w), nil
		}},
		{"PATCH /admin/workspaces/{workspace}", s.patchWorkspace},
		{"GET /admin/workspaces/{workspace}/apps", func(_ control.Actor, r *http.Request) (any, error) {
			w, err := s.adminWorkspace(r)
			if err != nil {
				return nil, err
			}
			return struct {
				Apps []*control.App `json:"apps"`
			}{Apps: sortedValues(w.Apps)}, nil
		}},
		{"POST /admin/workspaces/{workspace}/apps", func(by control.Actor, r *http.Request) (any, error) {
			app, err := readAdmin[control.App](s, r)
			if err == nil {
				var made *control.App
				if made, err = c.Apps.Create(by, r.PathValue("workspace"), app); err == nil {
					return created{made}, nil
				}
			}
			return nil, err
		}},
		{"GET /admin/workspaces/{workspace}/subscription_groups", func(_ control.Actor, r *http.Request) (any, error) {
			w, err := s.adminWorkspace(r)
			if err != nil {
				return nil, err
			}
			return struct {
				Groups []*control.Group `json:"subscription_groups"`
			}{Groups: sortedValues(w.Groups)}, nil
		}},
		{"POST /admin/workspaces/{workspace}/subscription_groups", func(by control.Actor, r *http.Request) (any, error) {
			group, err := readAdmin[control.Group](s, r)
			if err == nil {
				var made *control.Group
				if made, err = c.Groups.Create(by, r.PathValue("workspace"), group); err == nil {
					return created{made}, nil
				}
			}
			return nil, err
		}},
		{"GET /admin/workspaces/{workspace}/api_keys", func(_ control.Actor, r *http.Request) (any, error) {
			w, err := s.adminWorkspace(r)
			if err != nil {
				return nil, err
			}
			return struct {
				Keys []adminKey `json:"api_keys"`
			}{Keys: mapSlice(w.Keys, s.describeKey)}, nil
		}},
		{"POST /admin/workspaces/{workspace}/api_keys", s.createKey},
		{"DELETE /admin/workspaces/{workspace}/api_keys/{key}", func(by control.Actor, r *http.Request) (any, error) {
			return success{}, c.RevokeKey(by, r.PathValue("workspace"), r.PathValue("key"))
		}},
		{"POST /admin/bootstrap", s.bootstrap},
	}
}

// createKey answers with the token, this once.
func (s *Server) createKey(by control.Actor, r *http.Request) (any, error) {
	spec, err := readAdmin[control.KeySpec](s, r)
	if err != nil {
		return nil, err
	}
	d, token, err := s.options.Control.CreateKey(by, r.PathValue("workspace"), spec)
	if err != nil {
		return nil, err
	}
	return created{struct {
		adminKey
		Token string `json:"key"`
	}{s.describeKey(&d), token}}, nil
}

// bootstrap applies a bootstrap file, YAML, sent as the body; the answer has the keys that were made.
func (s *Server) bootstrap(by control.Actor, r *http.Request) (any, error) {
	text, err := s.readAll(r)
	if err != nil {
		return nil, err
	}
	file, err := control.ParseBootstrap(text)
	if err != nil {
		return nil, err
	}
	made, err := s.options.Control.Bootstrap(by, file)
	return struct {
		Made []control.MadeKey `json:"made_keys"`
	}{Made: made}, err
}

func (s *Server) patchWorkspace(by control.Actor, r *http.Request) (any, error) {
	text, err := s.readAll(r)
	if err != nil {
		return nil, err
	}
	w, err := s.options.Control.UpdateSettings(by, r.PathValue("workspace"), func(settings *control.Settings) error {
		return settings.Patch(text)
	})
	if err != nil {
		return nil, err
	}
	return describe(w), nil
}

func (s *Server) adminWorkspace(r *http.Request) (*Workspace, error) {
	if w := s.options.Control.Snapshot().Lookup(r.PathValue("workspace")); w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("workspace %q %w", r.PathValue("workspace"), control.ErrNotFound)
}

// Answers of the admin API: objects with a string message, like all others.
type (
	success struct{}
	failure struct {
		Message string `json:"message"`
	}
	created struct{ v any }

	adminKey struct {
		ID          string   `json:"id"`
		Name        string   `json:"name"`
		Hint        string   `json:"hint"`
		Permissions []string `json:"permissions"`
		IPAllowList []string `json:"ip_allowlist"`
		CreatedAt   string   `json:"created_at"`
		LastUsedAt  string   `json:"last_used_at,omitempty"` // to the minute
		RevokedAt   string   `json:"revoked_at,omitempty"`
	}
	adminWorkspace struct {
		control.Settings
		Limits map[string]string `json:"effective_rate_limits"`
	}
)

func describe(w *Workspace) adminWorkspace {
	limits := map[string]string{}
	for b := ratelimit.None + 1; int(b) < len(w.Limits); b++ {
		limits[b.String()] = w.Limits[b].String()
		if w.Limits[b].Burst != 0 {
			limits[b.String()+".burst"] = w.Limits[b].BurstString()
		}
	}
	return adminWorkspace{Settings: w.Settings, Limits: limits}
}

func (s *Server) describeKey(d *control.KeyDocument) adminKey {
	return adminKey{ID: d.ID, Name: d.Name, Hint: d.Hint, Permissions: d.Permissions, IPAllowList: d.IPAllowList, CreatedAt: timeText(d.CreatedAt),
		LastUsedAt: timeText(s.options.Control.LastUsed(d.Number) * 60_000), RevokedAt: timeText(d.RevokedAt)}
}

func timeText(millis int64) string {
	if millis == 0 {
		return ""
	}
	return time.UnixMilli(millis).UTC().Format(time.RFC3339)
}

func mapSlice[A, B any](list []A, f func(A) B) []B {
	out := make([]B, 0, len(list))
	for _, a := range list {
		out = append(out, f(a))
	}
	return out
}

func sortedValues[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// requireToken lets holders of the admin token pass. Wrong ones are counted per address like wrong API keys.
func (s *Server) requireToken(next http.Handler) http.Handler {
	want := keys.DigestOf([]byte(s.options.AdminToken))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, password, ok := r.BasicAuth(); ok && !isBearer {
			token = password
		}
		have := keys.DigestOf([]byte(token))
		if s.options.AdminToken != "" && subtle.ConstantTimeCompare(have[:], want[:]) == 1 {
			next.ServeHTTP(w, r)
			return
		}
		badKeyRequests.Inc()
		if addr, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil && !s.badKeys.allow(addrOf(addr), s.options.Now(), s.options.MaxBadKeysPerMinute) {
			w.Header().Set("Retry-After", "60")
			adminAnswer(w, http.StatusTooManyRequests, failure{"Too many requests with an invalid admin token. Please try again later."})
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="millrace admin"`)
		adminAnswer(w, http.StatusUnauthorized, failure{"Invalid admin token"})
	})
}

func (s *Server) serveAdmin(handler func(control.Actor, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				handlerPanics.Inc()
				s.options.Logger.Error("panic in the admin API", "path", r.Pattern, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				adminAnswer(w, http.StatusInternalServerError, failure{textInternal})
			}
		}()
		v, err := handler(control.Actor{Name: "admin token", Number: control.AdminActor, Address: r.RemoteAddr}, r)
		if err != nil {
			s.failAdmin(w, r, err)
			return
		}
		if c, ok := v.(created); ok {
			adminAnswer(w, http.StatusCreated, c.v)
			return
		}
		adminAnswer(w, http.StatusOK, v)
	}
}

func (s *Server) failAdmin(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		status, err = http.StatusRequestEntityTooLarge, errors.New(textTooLarge)
	case errors.Is(err, control.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, control.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, control.ErrExists), errors.Is(err, control.ErrConflict):
		status = http.StatusConflict
	default:
		s.options.Logger.Error("admin request failed", "path", r.Pattern, "err", err)
		for _, a := range answers {
			if errors.Is(err, a.err) {
				status, err = a.status, errors.New(a.text)
				break
			}
		}
		if status == http.StatusInternalServerError {
			err = errors.New(textInternal)
		}
	}
	adminAnswer(w, status, failure{err.Error()})
}

func adminAnswer(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, appendMessage(nil, textInternal)
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

// withSuccess puts the message into an answer.
func withSuccess(object []byte) []byte {
	out := append([]byte(nil), object[:len(object)-1]...)
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(out, `"message":"success"}`...)
}

func readAdmin[T any](s *Server, r *http.Request) (v T, err error) {
	text, err := s.readAll(r)
	if err != nil {
		return v, err
	}
	return v, control.DecodeStrict(text, &v)
}

func (s *Server) readAll(r *http.Request) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, int64(s.options.MaxBodyBytes)))
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return text, nil
}
