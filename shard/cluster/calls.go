package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal/quorum"
)

// A call is an HTTP request over a connection of quorum.Host: POST, the path is its name, and bodies are bytes in the
// form that the two sides of the call have in their file. Each body and each answer begins with the sender's clock (8
// bytes); behind it an answer has a code (1 byte), and then what was asked for, or the text of the error. All integers
// are little endian.
const (
	callFacts    = "/facts"    // what a node must know to be of the cluster (start.go)
	callPing     = "/ping"     // how the node is (remote.go)
	callCommit   = "/commit"   // parts of a request (mesh.go)
	callRelease  = "/release"  // the deferred rest of one
	callMessages = "/messages" // messages between groups (messages.go)
	callEffects  = "/effects"  // what has become of their effects
	callBarrier  = "/barrier"  // where logs end (barrier.go)
	callEntry    = "/entry"    // one entry (reads.go)
	callEvents   = "/events"   // those of a group (events.go)
	callSpread   = "/spread"   // wait for control documents
	callLost     = "/lost"     // a leader is not reached (succeed.go)
	callBye      = "/bye"      // the node is about to close (remote.go)
	callCut      = "/cut"      // where logs end, together (cut.go)
	callImage    = "/image"    // the state of a group for a backup (image.go)
	callStep     = "/step"     // change the members of a group (operator.go)
	callService  = "/service/" // + name: what stands above this package (services.go)
	headerBytes  = 8           // of a call
	answerHeader = headerBytes + 1
)

// errCode says over the wire what an error is.
type errCode byte

const (
	codeOK          errCode = 0
	codeNotLeader   errCode = 1 // all up to codeDiskFull: nothing was done
	codeBusy        errCode = 2
	codeUnavailable errCode = 3
	codeTooLarge    errCode = 4
	codeDiskFull    errCode = 5
	codeUnknown     errCode = 6 // of what was taken: it may have been done
	codeReplaced    errCode = 7
	codeMembers     errCode = 8
	codeDamaged     errCode = 9
	codeOther       errCode = 10 // the text says
	codeClock       errCode = 11
)

var codes = map[errCode]error{
	codeNotLeader: replica.ErrNotLeader, codeBusy: replica.ErrBusy, codeUnavailable: replica.ErrUnavailable,
	codeTooLarge: replica.ErrTooLarge,
	codeDiskFull: replica.ErrDiskFull, codeUnknown: replica.ErrUnknown, codeReplaced: placement.ErrReplaced,
	codeMembers: placement.ErrMembers, codeDamaged: eventlog.ErrCorrupt,
	codeClock: stamp.ErrClock,
}

func codeOf(err error) errCode {
	switch {
	case err == nil:
		return codeOK
	case errors.Is(err, replica.ErrNotLeader):
		return codeNotLeader
	case errors.Is(err, replica.ErrBusy):
		return codeBusy
	case errors.Is(err, replica.ErrUnavailable), errors.Is(err, replica.ErrClosed):
		return codeUnavailable
	case errors.Is(err, replica.ErrTooLarge):
		return codeTooLarge
	case errors.Is(err, replica.ErrDiskFull):
		return codeDiskFull
	case errors.Is(err, replica.ErrUnknown):
		return codeUnknown
	case errors.Is(err, placement.ErrReplaced):
		return codeReplaced
	case errors.Is(err, placement.ErrMembers):
		return codeMembers
	case errors.Is(err, eventlog.ErrCorrupt):
		return codeDamaged
	case errors.Is(err, stamp.ErrClock):
		return codeClock
	}
	return codeOther
}

// err is the error that c stands for.
func (c errCode) err() error {
	if c == codeOK {
		return nil
	}
	if err, ok := codes[c]; ok {
		return err
	}
	return errRemote
}

// errRemote is wrapped by errors of another node that have no code of their own.
var errRemote = errors.New("cluster: the other node says")

// reader reads the fields of a body. What is missing is zero, and sets short.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) u8() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// sized reads a length (4 bytes) and so many bytes.
func (r *reader) sized() []byte { return r.bytes(int(r.u32())) }

// err is not nil when the body was not all there.
func (r *reader) err() error {
	if r.short {
		return errMalformed
	}
	return nil
}

var errMalformed = errors.New("cluster: malformed call")

func appendSized(dst, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(b))), b...)
}

var (
	appendU16 = binary.LittleEndian.AppendUint16
	appendU32 = binary.LittleEndian.AppendUint32
	appendU64 = binary.LittleEndian.AppendUint64
)

// appendEffects and effects: how many references u16, so many u64; how many outcomes u16, then for each: reference u16,
// outcome u8.
func appendEffects(dst []byte, e replica.Effects) []byte {
	dst = appendU16(dst, uint16(len(e.Deferred)))
	for _, ref := range e.Deferred {
		dst = appendU64(dst, ref)
	}
	dst = appendU16(dst, uint16(len(e.Outcomes)))
	for _, o := range e.Outcomes {
		dst = append(appendU16(dst, o.Ref), byte(o.Outcome))
	}
	return dst
}

func (r *reader) effects() (e replica.Effects) {
	for n := r.u16(); n > 0 && !r.short; n-- {
		e.Deferred = append(e.Deferred, r.u64())
	}
	for n := r.u16(); n > 0 && !r.short; n-- {
		e.Outcomes = append(e.Outcomes, replica.ReportedOutcome{Ref: r.u16(), Outcome: replica.Outcome(r.u8())})
	}
	return e
}

// handler answers a call: it appends what was asked for to dst. body and dst are lent.
type handler func(from *quorum.Conn, dst, body []byte) ([]byte, error)

// requestHandlers are those of calls that may wait for calls of the other kind.
func (n *Node) requestHandlers() map[string]handler {
	return map[string]handler{callCommit: n.serveCommit, callRelease: n.serveRelease}
}

func (n *Node) serviceHandlers() map[string]handler {
	h := map[string]handler{
		callFacts: n.serveFacts, callPing: n.servePing, callLost: n.serveLost, callMessages: n.serveMessages,
		callEffects: n.serveEffects, callBarrier: n.serveBarrier, callEntry: n.serveEntry, callSpread: n.serveSpread,
		callStep: n.serveStep, callBye: n.serveBye,
		callCut: n.serveCut, callImage: n.serveImage,
	}
	for name, service := range n.opts.Services {
		h[callService+name] = func(from *quorum.Conn, dst, body []byte) ([]byte, error) {
			answer, err := service(from.Node, body)
			return append(dst, answer...), err
		}
	}
	return h
}

// newServer makes a server of calls. There are two, as there are two pools (remote.go): on this side, too, calls of
// requests must not keep the others out, however many nodes there are and however many of each one's requests wait.
// MaxCallsServed bounds each.
func (n *Node) newServer(handlers map[string]handler) *fasthttp.Server {
	return &fasthttp.Server{
		Handler: func(x *fasthttp.RequestCtx) { n.serve(handlers, x) },
		Name:    "millrace", NoDefaultServerHeader: true, NoDefaultDate: true, NoDefaultContentType: true,
		DisableHeaderNamesNormalizing: true,
		// A connection is silent between calls, and while an answer is waited for.
		IdleTimeout: 2 * idleTime, ReadTimeout: callReadTime, WriteTimeout: callReadTime,
		MaxRequestBodySize: n.opts.maxCallBytes(), Concurrency: n.opts.MaxCallsServed, ReadBufferSize: 16 << 10,
		WriteBufferSize: 16 << 10,
		Logger:          quiet{}, // connections that end are no news
	}
}

// serveCalls serves both kinds until the host is closed.
func (n *Node) serveCalls(requests, services map[string]handler) {
	n.servers = []*fasthttp.Server{n.newServer(requests), n.newServer(services)}
	for i, door := range []net.Listener{n.host.Requests(), n.host.Calls()} {
		n.serving.Add(1)
		go func() {
			defer n.serving.Done()
			if err := n.servers[i].Serve(door); err != nil && n.context.Err() == nil {
				n.fail(fmt.Errorf("calls between nodes are not served: %w", err))
			}
		}()
	}
}

const (
	// after which who calls closes a connection; who is called waits longer, so it never closes one that is being used
	idleTime     = 30 * time.Second
	callReadTime = 30 * time.Second
)

type quiet struct{}

// Printf says nothing.
func (quiet) Printf(string, ...any) {}

func (n *Node) serve(handlers map[string]handler, x *fasthttp.RequestCtx) {
	conn, ok := x.Conn().(*quorum.Conn)
	body := x.PostBody()
	if !ok || len(body) < headerBytes {
		x.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	if (conn.Cluster == "" || !n.furnished.Load()) && string(x.Path()) != callFacts {
		x.SetStatusCode(fasthttp.StatusForbidden)
		x.SetConnectionClose() // the next one may know the cluster
		return
	}
	if n.closing.Load() && string(x.Path()) == callPing {
		x.SetStatusCode(fasthttp.StatusServiceUnavailable)
		x.SetConnectionClose()
		return
	}
	callsServed.Inc()
	if err := n.observe(int64(binary.LittleEndian.Uint64(body))); err != nil {
		x.Response.SetBody(n.refusal(nil, err))
		return
	}
	if string(x.Path()) == callEvents {
		n.serveEvents(x, body[headerBytes:])
		return
	}
	h := handlers[string(x.Path())]
	if h == nil {
		x.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	buf := buffers.Get().(*[]byte)
	out, err := h(conn, append((*buf)[:0], make([]byte, answerHeader)...), body[headerBytes:])
	if err != nil {
		out = n.refusal(out, err)
	}
	binary.LittleEndian.PutUint64(out, uint64(n.clock.Last()))
	x.Response.SetBody(out)
	giveBuffer(buf, out)
}

// refusal is an answer, in the place of out, that says what is wrong.
func (n *Node) refusal(out []byte, err error) []byte {
	out = append(appendU64(out[:0], uint64(n.clock.Last())), byte(codeOf(err)))
	return append(out, err.Error()...)
}

var (
	callsServed = metrics.NewCounter("millrace_cluster_calls_served_total")
)

// remoteError is what another node has answered.
func remoteError(code errCode, text []byte) error {
	err, ok := codes[code]
	switch {
	case !ok:
		return fmt.Errorf("%w: %s", errRemote, text)
	case code == codeDamaged, code == codeClock: // the text names the file, or says by how much
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
