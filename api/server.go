// Package api is the door: it listens, bounds, authenticates, counts and routes. What a request means is decided behind
// it.
//
// A request passes, in this order: connection limits, HTTP grammar (fasthttp, and for what it lets pass checkHeaders),
// route, method, key, permission, the key's addresses, rate limit, media type, size (decompressed), barrier, handler.
// The first check that fails answers. Every answer is a JSON object with a string `message` (hosted pages: HTML) and
// carries X-Request-Id; every answer to a valid key carries the rate-limit headers.
//
// Nothing of a fasthttp.RequestCtx outlives the handler. Bodies are lent to handlers until they return. A workspace
// comes from the key, never from the request.
package api

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"
	"github.com/klauspost/compress/zstd"
	"github.com/puzpuzpuz/xsync/v3"
	"github.com/valyala/fasthttp"

	"millrace/api/center"
	"millrace/api/ratelimit"
	"millrace/api/scim"
)

// Server serves the public API. Make it with New, and give it a listener with Serve.
type Server struct {
	options    Options
	router     *router
	http       *fasthttp.Server
	inflight   *xsync.MapOf[idempotencyID, chan struct{}]
	badKeys    *ratelimit.Minutes // by address
	pages      *center.Pages
	company    ratelimit.Windows // for the buckets that are counted per company
	scim       *scim.Users
	scimGroups *scim.Groups
	draining   atomic.Bool
	zstd       *zstd.Decoder // used for DecodeAll only, which is stateless
	bodies     *room         // memory of the bodies of requests under way
	replies    *room         // memory of large answers
	reads      *room         // memory of what is read for answers

	decompressing chan struct{} // one element for each body that is being decompressed

	conns     sync.Map   // that are open, as keys
	mu        sync.Mutex // guards listeners, and draining in Serve
	listeners []net.Listener

	requestSeed    uint64
	requestCounter atomic.Uint64
	exchanges      sync.Pool
}

// appendRequestID makes an id that is unique in this process, and most probably everywhere.
func (s *Server) appendRequestID(dst []byte) []byte {
	n := s.requestCounter.Add(1)
	return hex.AppendEncode(dst, binary.BigEndian.AppendUint64(nil, s.requestSeed^(n*0x9E3779B97F4A7C15)))
}

var errDraining = errors.New("the server is stopping")

// Ready returns why no requests are served, or nil if they are.
func (s *Server) Ready() error {
	if s.draining.Load() {
		return errDraining
	}
	return s.options.Store.Ready()
}

var (
	requestsInFlight atomic.Int64
	unknownRoute     = newRouteMetrics("unknown")

	handlerPanics     = metrics.NewCounter(`millrace_http_panics_total`)
	rejectedMalformed = metrics.NewCounter(`millrace_http_rejected_total{reason="malformed"}`)
	rejectedHeaders   = metrics.NewCounter(`millrace_http_rejected_total{reason="headers"}`)
	rejectedRate      = metrics.NewCounter(`millrace_http_rejected_total{reason="rate limit"}`)
	rejectedBodies    = metrics.NewCounter(`millrace_http_rejected_total{reason="bodies"}`)
	rejectedAnswers   = metrics.NewCounter(`millrace_http_rejected_total{reason="answers"}`)
	rejectedConns     = metrics.NewCounter(`millrace_http_rejected_total{reason="connections"}`)
	rejectedIPConns   = metrics.NewCounter(`millrace_http_rejected_total{reason="connections of one address"}`)
	badKeyRequests    = metrics.NewCounter(`millrace_http_auth_failures_total{reason="key"}`)
	deniedPermission  = metrics.NewCounter(`millrace_http_auth_failures_total{reason="permission"}`)
	deniedAddress     = metrics.NewCounter(`millrace_http_auth_failures_total{reason="address"}`)

	_ = metrics.NewGauge(`millrace_http_requests_in_flight`, func() float64 { return float64(requestsInFlight.Load()) })
)
