package calls

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"millrace/wal/quorum/host"
)

// Handler answers a call: it appends the result to dst. dst, and the body that x reads, are lent.
type Handler func(from *host.Conn, dst Body, x *Reader) (Body, error)

// StreamHandler answers a call with a stream. write writes the stream after the answer's header, except for its end,
// which it returns. An error is the whole answer. The body is lent until the handler returns.
type StreamHandler func(x *Reader) (write func(w io.Writer) (end []byte), err error)

// Server serves calls. It has two doors, as a Peer has two pools: on this side, too, calls of requests must not keep
// the others out, however many nodes there are and however many requests of each of them wait. MaxCallsServed bounds
// each door.
type Server struct {
	Requests, Services map[string]Handler
	Streams            map[string]StreamHandler // for Services
	// Admit returns the status with which a call is turned away, or 0 when it is served. The connection of a refused
	// call is closed, since the next call may be welcome.
	Admit func(from *host.Conn, path string) (status int)
	// Failed is called when calls are no longer served although the host was not closed.
	Failed func(error)

	*Options
	servers   []*fasthttp.Server
	serving   sync.WaitGroup
	streaming sync.WaitGroup // answers that are streams
}

// Serve serves calls until the host is closed.
func (s *Server) Serve(o *Options) {
	s.Options = o
	s.servers = []*fasthttp.Server{s.door(s.Requests, nil), s.door(s.Services, s.Streams)}
	for i, door := range []net.Listener{s.Host.Requests(), s.Host.Calls()} {
		s.serving.Go(func() {
			if err := s.servers[i].Serve(door); err != nil {
				s.Failed(err)
			}
		})
	}
}

func (s *Server) door(handlers map[string]Handler, streams map[string]StreamHandler) *fasthttp.Server {
	return &fasthttp.Server{
		Handler: func(x *fasthttp.RequestCtx) { s.serve(handlers, streams, x) },
		Name:    "millrace", NoDefaultServerHeader: true, NoDefaultDate: true, NoDefaultContentType: true,
		DisableHeaderNamesNormalizing: true,
		// A connection is silent between calls, and while an answer is awaited.
		IdleTimeout: 2 * idleTime, ReadTimeout: Patience, WriteTimeout: Patience,
		MaxRequestBodySize: s.MaxBytes, Concurrency: s.MaxCallsServed, ReadBufferSize: 16 << 10,
		WriteBufferSize: 16 << 10,
		Logger:          quiet{}, // the end of a connection is no news
	}
}

type quiet struct{}

// Printf logs nothing.
func (quiet) Printf(string, ...any) {}

// Drain closes the doors. Calls that are under way have timeout to end; those that don't end with the host.
func (s *Server) Drain(timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var ending sync.WaitGroup
	for _, server := range s.servers {
		ending.Go(func() { _ = server.ShutdownWithContext(ctx) })
	}
	ending.Wait()
}

// WaitStreams returns when no answer is being streamed any more.
func (s *Server) WaitStreams() { s.streaming.Wait() }

// Wait returns when nothing is served any more, after the host was closed.
func (s *Server) Wait() { s.serving.Wait() }

func (s *Server) serve(handlers map[string]Handler, streams map[string]StreamHandler, x *fasthttp.RequestCtx) {
	conn, ok := x.Conn().(*host.Conn)
	body := x.PostBody()
	if !ok || len(body) < headerBytes {
		x.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	path := string(x.Path())
	if status := s.Admit(conn, path); status != 0 {
		x.SetStatusCode(status)
		x.SetConnectionClose()
		return
	}
	callsServed.Inc()
	if err := s.Observe(int64(binary.LittleEndian.Uint64(body))); err != nil {
		x.Response.SetBody(s.refusal(nil, err))
		return
	}
	body = body[headerBytes:]
	if h := streams[path]; h != nil {
		s.stream(h, x, body)
		return
	}
	h := handlers[path]
	if h == nil {
		x.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	buf, out := TakeBuffer()
	out, err := h(conn, append(out, byte(OK)), NewReader(body))
	if err != nil {
		out = s.refusal(out, err)
	}
	binary.LittleEndian.PutUint64(out, uint64(s.Stamp()))
	x.Response.SetBody(out)
	GiveBuffer(buf, out)
}

// refusal replaces out by an answer that says what is wrong.
func (s *Server) refusal(out Body, err error) Body {
	return append(out[:0].U64(uint64(s.Stamp())).Byte(byte(CodeOf(err))), err.Error()...)
}

func (s *Server) stream(h StreamHandler, x *fasthttp.RequestCtx, body []byte) {
	write, err := h(NewReader(body))
	if err != nil {
		x.Response.SetBody(s.refusal(nil, err))
		return
	}
	header := Body{}.U64(uint64(s.Stamp())).Byte(byte(OK))
	conn := x.Conn()
	s.streaming.Add(1)
	x.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer s.streaming.Done()
		_, _ = w.Write(header)
		end := write(&steady{w: w, conn: conn})
		_ = conn.SetWriteDeadline(time.Now().Add(Patience))
		_, _ = w.Write(end) // the reader misses it
		_ = w.Flush()
	})
}

// steady is the body of a stream. At least steadyBytes of it must leave within each Patience.
type steady struct {
	w       *bufio.Writer
	conn    net.Conn
	written int
}

const steadyBytes = 64 << 10

// Write writes a part of the body.
func (s *steady) Write(p []byte) (int, error) {
	if s.written += len(p); s.written > steadyBytes {
		s.written = 0
		if err := s.conn.SetWriteDeadline(time.Now().Add(Patience)); err != nil {
			return 0, err
		}
	}
	return s.w.Write(p)
}

var callsServed = metrics.NewCounter("millrace_cluster_calls_served_total")
