// Package admin is the operator's door: health, metrics and the API's documentation for everybody who reaches its
// listener, pprof and the admin API for holders of the admin token. The console calls the admin API on behalf of
// people.
//
// Its verbs are those of package control, and each change has an entry of the audit log that names who asked. What both
// doors need belongs to the public one (package api): store, documents, bounds.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/goccy/go-json"

	"millrace/api"
	"millrace/api/call"
	"millrace/api/census"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/live"
	"millrace/api/refused"
	"millrace/shard"
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

// Cluster is what the admin API needs of the cluster that this server is a node of. Errors wrap document.ErrInvalid,
// control.ErrNotFound, control.ErrConflict (the change is refused, and the text says why), or are those of a Store.
// entry makes the entry of the audit log for the changed document; it may be called more than once, and its last result
// is stored.
type Cluster interface {
	// Status is encoded as JSON: an object.
	Status(ctx context.Context) (any, error)
	// Add adds a node at HOST:PORT. For a known node it changes the address, unless that is empty, or revokes a drain.
	Add(ctx context.Context, node uint32, address string, entry ClusterEntry) error
	// Drain makes a node give away what it has.
	Drain(ctx context.Context, node uint32, entry ClusterEntry) error
	// Remove removes a node for good; with force it may be a node that isn't drained.
	Remove(ctx context.Context, node uint32, force bool, entry ClusterEntry) error
}

// ClusterEntry makes an encoded entry of the audit log: what was done to the document of that kind and id, whose
// contents were before and are now after. details are pairs of names and values.
type ClusterEntry = func(what, kind, id string, before, after []byte, details []any) []byte

// Server is the operator's door. Make it with New.
type Server struct {
	options Options
	public  *api.Server
	common  *api.Options  // of the public door
	sending chan struct{} // one element while a request sends refused objects again
}

// New makes a Server.
func New(o Options) *Server {
	return &Server{options: o, public: o.Public, common: o.Public.Options(), sending: make(chan struct{}, 1)}
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
		isAllowed := s.options.Token != "" && subtle.ConstantTimeCompare(have[:], want[:]) == 1
		if isAllowed {
			next.ServeHTTP(w, r)
		}
		if r.Header.Get("Expect") == "" { // such a client reads before it sends its body
			drain(r) // which most routes don't read
		}
		if isAllowed {
			return
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

func refuseOtherSite(w http.ResponseWriter, _ *http.Request) {
	Refuse(w, http.StatusForbidden, "A page of another site has sent this request")
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
		body := s.public.Hold(r.Body)
		defer body.Release()
		r.Body = body
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
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(err, ErrCutOff):
		status, err = http.StatusRequestTimeout, ErrCutOff
	case errors.Is(err, document.ErrInvalid), errors.Is(err, ErrCutOff):
		status = http.StatusBadRequest
	case errors.Is(err, control.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, control.ErrExists), errors.Is(err, control.ErrConflict):
		status = http.StatusConflict
	case errors.Is(err, errStale):
		status = http.StatusPreconditionFailed
	case errors.Is(err, refused.ErrAway):
		status = http.StatusServiceUnavailable
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

// incomplete is the error of a request of which a part is done.
type incomplete struct {
	error
	made []control.MadeKey
}

// Unwrap returns what went wrong.
func (e incomplete) Unwrap() error { return e.error }

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
		if !errors.Is(err, shard.ErrBusy) {
			err = fmt.Errorf("%w: %w", ErrCutOff, err)
		}
		return nil, err
	}
	return text, nil
}

// ErrCutOff is the error of a body that did not come to its end.
var ErrCutOff = errors.New("the body could not be read to its end")

// drain takes in what the client still sends, as long as ReadTimeout lets it: a connection that is closed while bytes
// arrive is reset, and a client that sends its whole body before it reads would thereby lose the answer. None of that
// is kept, nor what was read before.
func drain(r *http.Request) {
	if body, isHeld := r.Body.(*api.HeldBody); isHeld {
		body.Release()
	}
	_, _ = io.Copy(io.Discard, r.Body)
}

// queryNumber reads a number of a query; it returns otherwise if the number is missing.
func queryNumber(query url.Values, name string, otherwise, most uint64) (uint64, error) {
	if !query.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(query.Get(name), 10, 64)
	if err != nil || n == 0 || n > most {
		return 0, fmt.Errorf("%w: %s: want a number from 1 to %d", document.ErrInvalid, name, most)
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
