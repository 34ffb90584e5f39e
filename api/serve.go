package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/puzpuzpuz/xsync/v3"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/center"
	"millrace/api/ratelimit"
	"millrace/api/scim"
)

// New makes a Server.
func New(options Options) (*Server, error) {
	options.EnsureDefaults()
	if err := options.Validate(); err != nil {
		return nil, err
	}
	s := &Server{options: options, inflight: xsync.NewMapOf[idempotencyID, chan struct{}](),
		bodies: newRoom(options.MaxBodiesBytes), replies: newRoom(options.MaxAnswersBytes),
		reads:         newRoom(options.MaxAnswersBytes / 2),
		decompressing: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	s.requestSeed = binary.LittleEndian.Uint64(seed[:])
	s.badKeys = ratelimit.NewMinutes()
	s.pages = center.NewPages(center.Options{URL: options.PublicURL, Hosts: options.PublicHosts,
		LinkLife: options.PreferenceLinkLife, MaxPerMinute: options.MaxPagesPerMinute})
	s.scim = scim.NewUsers(options.Control, options.Now)
	s.scimGroups = scim.NewGroups(options.Control)
	var err error
	if s.zstd, err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(max(options.MaxBodyBytes, zstdWindow))),
		zstd.WithDecoderConcurrency(0)); err != nil {
		return nil, fmt.Errorf("api: zstd: %w", err)
	}
	s.exchanges.New = func() any {
		o, x := &s.options, &exchange{s: s}
		x.heldReads.x = x
		x.Call = call.Call{Door: x, Store: o.Store, Control: o.Control, Refused: o.Refused,
			AppendPhoneKey: o.AppendPhoneKey, Reads: o.Store.NewReads(&x.heldReads)}
		if o.Refused != nil {
			x.note = x.noteFault
		}
		return x
	}
	s.router = newRouter(s.routes())
	s.http = &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.refuse,
		HeaderReceived:               s.headReceived,
		StreamRequestBody:            true,
		Name:                         "",
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		ReadTimeout:                  options.ReadTimeout,
		WriteTimeout:                 options.WriteTimeout,
		IdleTimeout:                  options.IdleTimeout,
		ReadBufferSize:               options.MaxHeaderBytes,
		MaxRequestBodySize:           options.MaxBodyBytes,
		MaxRequestsPerConn:           options.MaxRequestsPerConn,
		Concurrency:                  2 * options.MaxConns, // our listener refuses before that, and in JSON
		DisablePreParseMultipartForm: true,
		SecureErrorLogMessage:        true,
		CloseOnShutdown:              true,
		ConnState:                    s.noteConn,
		Logger:                       fasthttpLogger{options.Logger},
	}
	return s, nil
}

// Serve serves ln until Shutdown; ln then belongs to the Server, which closes it. For TLS pass the result of
// TLS.Listener.
func (s *Server) Serve(ln net.Listener) error {
	limited := s.limit(ln)
	s.mu.Lock()
	s.listeners = append(s.listeners, limited)
	if s.draining.Load() { // fasthttp forgets a Shutdown that came before its Serve
		limited.Close()
	}
	s.mu.Unlock()
	if err := s.http.Serve(limited); err != nil {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// Shutdown stops accepting, lets the requests under way finish, closes idle connections, and returns when none is left.
// /readyz fails from the beginning of Shutdown. Shutdown waits no longer than ctx allows, and a second for connections
// on which nothing was sent yet: fasthttp takes them for busy until ReadTimeout.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.draining.Store(true)
	for _, ln := range s.listeners {
		ln.Close()
	}
	s.mu.Unlock()
	defer time.AfterFunc(time.Second, s.endSilent).Stop()
	if err := s.http.ShutdownWithContext(ctx); err != nil {
		return fmt.Errorf("drain connections: %w", err)
	}
	return nil
}

// noteConn keeps account of the connections.
func (s *Server) noteConn(c net.Conn, state fasthttp.ConnState) {
	switch state {
	case fasthttp.StateNew:
		s.conns.Store(c, nil)
	case fasthttp.StateClosed:
		s.conns.Delete(c)
	}
}

// endSilent ends the connections on which nothing was sent.
func (s *Server) endSilent() {
	for c := range s.conns.Range {
		if c := c.(clientConn); !c.hasBegun() {
			c.giveUp()
		}
	}
}

// clientConn is a connection of limitListener, with or without TLS.
type clientConn interface {
	hasBegun() bool
	giveUp()
}

// handle serves one request. A panic in a handler is answered, counted and logged, and ends the connection, not the
// process.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	x := s.exchanges.Get().(*exchange)
	x.Ctx = ctx
	err := x.receive()
	unread := errors.Is(err, fasthttp.ErrBodyTooLarge) || errors.Is(err, errManyBodies)
	if err != nil && !unread {
		s.refuse(ctx, err)
		x.reset()
		s.exchanges.Put(x)
		return
	}
	start := time.Now()
	requestsInFlight.Add(1)
	x.Now = s.options.Now()
	defer s.finish(x, start)
	x.begin()
	if unread {
		x.refuseUnread(err)
		return
	}
	x.serve()
}

func (s *Server) finish(x *exchange, start time.Time) {
	requestsInFlight.Add(-1)
	if p := recover(); p != nil {
		handlerPanics.Inc()
		s.options.Logger.Error("panic in a handler", "route", x.routeName(), "request_id", string(x.requestID),
			"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		x.Ctx.Response.Reset()
		x.setStandardHeaders()
		x.Fail(fasthttp.StatusInternalServerError, textInternal)
		x.Ctx.SetConnectionClose()
		x.record(start)
		x.heldBody.release()
		x.heldReply.release()
		x.heldReads.release()
		return // not pooled: its state is unknown
	}
	x.record(start)
	x.reset()
	s.exchanges.Put(x)
}

func (x *exchange) record(start time.Time) {
	elapsed := time.Since(start)
	m := unknownRoute
	if x.route != nil {
		m = x.route.metrics
	}
	status := x.Ctx.Response.StatusCode()
	m.count(status)
	m.latency().Update(elapsed.Seconds())
	if !x.s.options.AccessLog {
		return
	}
	workspace, key := "", ""
	if x.Workspace != nil {
		workspace, key = x.Workspace.ID, x.Key.ID
	}
	x.s.options.Logger.LogAttrs(context.Background(), slog.LevelInfo, "request", slog.String("route", x.routeName()),
		slog.Int("status", status),
		slog.Duration("took", elapsed), slog.Int("body", len(x.Ctx.Request.Body())),
		slog.String("workspace", workspace), slog.String("key", key),
		slog.String("request_id", string(x.requestID)))
}

// fasthttpLogger takes fasthttp's log messages: troubles of connections, which don't matter one by one.
type fasthttpLogger struct{ log *slog.Logger }

func (l fasthttpLogger) Printf(format string, args ...any) {
	l.log.Debug("http: " + string(bytes.TrimSpace(fmt.Appendf(nil, format, args...))))
}
