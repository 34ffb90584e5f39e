package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/goccy/go-json"
	"github.com/valyala/fasthttp"

	"millrace/shard/cluster/placement"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// remote is another node, as this one knows it.
//
// It has two pools of connections. Calls of requests (commit, release) may last until what they have caused on other
// groups is visible, and so wait for messages of the node that is called, and for its reads. Those go through the
// second pool, whose calls wait for nobody but a group's own log. With one pool, two nodes full of each other's
// requests would stand still. A third has the ping alone: it waits for nothing at all, so that it isn't answered means
// something.
//
// There is one verdict for all calls. A node that hasn't answered a ping, nor anything else since, in PingTimeout, is
// silent: it is paused, or its link is cut, perhaps in one direction. Then all calls of it that are under way end at
// once, and further ones are not made until it has answered a ping. Who called turns to whoever leads now. A call that
// comes to its own, shorter end says nothing of the node. What of a call had not arrived when it ended does not arrive
// later, since closing its connection drops it (quorum.Host).
type remote struct {
	n        *Node
	node     quorum.Node
	requests *fasthttp.HostClient
	services *fasthttp.HostClient
	pings    *fasthttp.HostClient
	effects  effects

	linesMu sync.Mutex
	lines   map[*line]struct{} // of the first two pools

	up     atomic.Bool // the last call was answered
	silent atomic.Bool // it has not answered a ping, nor anything since
	// succeeding: others are being found to lead its groups.
	succeeding atomic.Bool
	seen       atomic.Int64 // when a call or an answer of it last came, Unix ns
	answer     atomic.Int64 // when an answer of it last came, Unix ns
	report     atomic.Pointer[placement.Report]
	ahead      atomic.Int64  // by how much its clock is ahead of this node's, at least, ns; negative: behind
	kick       chan struct{} // of capacity 1: say ping now
	gone       chan struct{} // closed when the node is let go
	end        sync.Once
}

func (n *Node) newRemote(node quorum.Node) *remote {
	r := &remote{n: n, node: node, kick: make(chan struct{}, 1), gone: make(chan struct{})}
	r.lines = map[*line]struct{}{}
	requests, services := r.lineOf(n.host.DialRequests), r.lineOf(n.host.DialCalls)
	r.requests, r.services, r.pings = client(requests, n.opts.MaxCalls), client(services, n.opts.MaxCalls),
		client(r.dialBy(n.host.DialCalls), maxPings)
	for _, pool := range []*fasthttp.HostClient{r.requests, r.services, r.pings} {
		pool.MaxResponseBodySize = n.opts.maxCallBytes()
	}
	r.effects.init(r)
	return r
}

// dialBy connects as dial does. left of the call, 0: it has no end.
func (r *remote) dialBy(dial func(quorum.Node, time.Duration) (net.Conn, error)) fasthttp.DialFuncWithTimeout {
	return func(_ string, left time.Duration) (net.Conn, error) {
		limit := r.n.opts.DialTimeout
		if left > 0 {
			limit = min(limit, left)
		}
		c, err := dial(r.node, limit)
		if err != nil {
			return nil, notSent{err}
		}
		return c, nil
	}
}

// line is a connection that ends when the node is silent.
type line struct {
	net.Conn
	r *remote
}

// Close closes the connection.
func (l *line) Close() error {
	l.r.linesMu.Lock()
	delete(l.r.lines, l)
	l.r.linesMu.Unlock()
	return l.Conn.Close()
}

// lineOf is dialBy, of lines.
func (r *remote) lineOf(dial func(quorum.Node, time.Duration) (net.Conn, error)) fasthttp.DialFuncWithTimeout {
	connect := r.dialBy(dial)
	return func(address string, left time.Duration) (net.Conn, error) {
		c, err := connect(address, left)
		if err != nil {
			return nil, err
		}
		l := &line{c, r}
		r.linesMu.Lock()
		defer r.linesMu.Unlock()
		if r.silent.Load() { // since a moment ago: nobody would end what goes by it
			_ = c.Close()
			return nil, notSent{errSilent}
		}
		r.lines[l] = struct{}{}
		return l, nil
	}
}

// endCalls ends all calls that are under way.
func (r *remote) endCalls() {
	r.linesMu.Lock()
	defer r.linesMu.Unlock()
	for l := range r.lines {
		_ = l.Conn.Close()
	}
	clear(r.lines)
}

// errSilent ends calls of a node that doesn't answer.
var errSilent = errors.New("cluster: the node does not answer")

func client(dial fasthttp.DialFuncWithTimeout, conns int) *fasthttp.HostClient {
	return &fasthttp.HostClient{
		Addr: "node", DialTimeout: dial, MaxConns: conns, MaxConnWaitTimeout: connWait, MaxIdleConnDuration: idleTime,
		WriteTimeout:             callReadTime,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
		ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
		// A call is made once: who is called may have done it although no answer came.
		MaxIdemponentCallAttempts: 1, RetryIfErr: func(*fasthttp.Request, int, error) (bool, bool) {
			return false, false
		},
	}
}

// maxPings are under way to a node at once: this node's, and one of its reconciler.
const maxPings = 2

// connWait is how long a call waits for a connection when all are in use.
const connWait = time.Second

// notSent is an error of a call that the other node has seen nothing of.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// wasNotSent says that the other node has seen nothing of the call.
func wasNotSent(err error) bool {
	return errors.As(err, &notSent{})
}

// remote is the node with that number, which need not be there.
func (n *Node) remote(node quorum.Node) *remote {
	if r, ok := n.remotes.Load(node); ok {
		return r
	}
	r, loaded := n.remotes.LoadOrCompute(node, func() *remote { return n.newRemote(node) })
	if !loaded {
		n.background.start(r.keepInTouch)
	}
	return r
}

// post makes a call. body has room for the header (headerBytes) in front. answer gets what was asked for, lent for the
// call; it may be nil. Errors: what the other node says (codes), one for which wasNotSent, or shard.ErrUnknown.
func (r *remote) post(
	pool *fasthttp.HostClient, path string, body []byte, deadline time.Time, answer func(*reader) error,
) error {
	begun := time.Now()
	if pool != r.pings && r.silent.Load() {
		return notSent{errSilent}
	}
	err := r.n.exchange(pool, path, body, deadline, answer)
	switch {
	case err == nil || errors.As(err, &answered{}):
		r.heard()
	case errors.Is(err, fasthttp.ErrNoFreeConns):
		return notSent{replica.ErrBusy}
	case pool != r.pings && r.silent.Load(): // remembered
	default:
		r.lost(begun, err)
	}
	if err == nil || wasNotSent(err) || errors.As(err, &answered{}) {
		return err
	}
	return fmt.Errorf("%w: call of node %d: %w", replica.ErrUnknown, r.node, err)
}

// answered is an error that the other side has answered with.
type answered struct{ error }

func (e answered) Unwrap() error { return e.error }

// exchange makes a call over some connection. Errors: answered, one for which wasNotSent, or one after which nobody
// knows.
func (n *Node) exchange(
	pool *fasthttp.HostClient, path string, body []byte, deadline time.Time, answer func(*reader) error,
) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	binary.LittleEndian.PutUint64(body, uint64(n.clock.Last()))
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI("http://node" + path)
	req.SetBodyRaw(body)
	if err := pool.DoDeadline(req, resp, deadline); err != nil {
		return err
	}
	out := resp.Body()
	if resp.StatusCode() != fasthttp.StatusOK || len(out) < answerHeader {
		return notSent{fmt.Errorf("%w: status %d to the call %s", errRemote, resp.StatusCode(), path)}
	}
	if err := n.observe(int64(binary.LittleEndian.Uint64(out))); err != nil {
		return err
	}
	if code := errCode(out[headerBytes]); code != codeOK {
		return answered{remoteError(code, out[answerHeader:])}
	}
	if answer == nil {
		return nil
	}
	x := &reader{rest: out[answerHeader:]}
	if err := answer(x); err != nil {
		return err
	}
	return x.err()
}

// ask makes a call of the second pool with a body that has no room for a header, and returns a copy of the answer.
func (r *remote) ask(path string, body []byte, deadline time.Time) (out []byte, err error) {
	b := append(make([]byte, headerBytes, headerBytes+len(body)), body...)
	err = r.post(r.services, path, b, deadline, func(x *reader) error {
		out = append([]byte{}, x.rest...)
		return nil
	})
	return out, err
}

func (r *remote) heard() {
	now := time.Now().UnixNano()
	r.seen.Store(now)
	r.answer.Store(now)
	r.silent.Store(false)
	if !r.up.Load() && !r.up.Swap(true) {
		r.n.log.Info("node is reached", "node", r.node)
	}
}

// lost: a call that began then did not come through. Connections that were open are not trusted any more. A call from
// before the last answer shows nothing: those that a node was paused under come to their deadlines one by one, long
// after it goes on. Nor does one that had less time than a ping has.
func (r *remote) lost(begun time.Time, err error) {
	if begun.UnixNano() < r.answer.Load() {
		return
	}
	late := isLate(err)
	if late && time.Since(begun) < r.n.opts.PingTimeout*7/8 { // a ping's own deadline was set a moment before
		r.ring()
		return
	}
	if late && !r.silent.Swap(true) {
		silences.Inc()
		r.endCalls()
	}
	if !r.up.Swap(false) {
		return
	}
	r.n.log.Warn("node is not reached", "node", r.node, "error", err)
	if !r.succeeding.Swap(true) && !r.n.background.start(r.succeed) {
		r.succeeding.Store(false)
	}
	r.requests.CloseIdleConnections()
	r.services.CloseIdleConnections()
	r.ring()
}

// isLate: no answer came in time, which is all that is known.
func isLate(err error) bool {
	var timeout net.Error
	return errors.Is(err, fasthttp.ErrTimeout) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) &&
		timeout.Timeout()
}

// ring has ping said now.
func (r *remote) ring() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// keepInTouch says ping now and then: so each node knows which others can be reached, where leaders are, and what time
// it is.
func (r *remote) keepInTouch() {
	tick := time.NewTicker(r.n.opts.PingInterval)
	defer tick.Stop()
	for {
		if err := r.ping(r.n.context); err != nil { // remembered
			r.n.log.Debug("no ping", "node", r.node, "error", err)
		}
		select {
		case <-tick.C:
		case <-r.kick: // it may have been one connection only
		case <-r.gone:
			return
		case <-r.n.stop:
			return
		}
	}
}

func (r *remote) ping(ctx context.Context) error {
	deadline := time.Now().Add(r.n.opts.PingTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	var report placement.Report
	begun := r.n.clock.Time()
	err := r.post(r.pings, callPing, make([]byte, headerBytes), deadline, func(x *reader) error {
		return json.Unmarshal(x.bytes(len(x.rest)), &report)
	})
	if err != nil {
		return err
	}
	r.report.Store(&report)
	r.compareClocks(begun, report.Now, r.n.clock.Time())
	r.n.routes.learn(&report)
	return nil
}

func (n *Node) servePing(from *quorum.Conn, dst, _ []byte) ([]byte, error) {
	n.remote(from.Node).seen.Store(time.Now().UnixNano())
	report := n.report()
	text, err := json.Marshal(report)
	return append(dst, text...), err
}

// sayBye tells the others that this node is about to close, so that they send it nothing any more over connections that
// it is closing.
func (n *Node) sayBye() {
	deadline := time.Now().Add(byeTime)
	var saying sync.WaitGroup
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		if r.up.Load() {
			// A node that isn't told finds out by itself, so an error is let go.
			saying.Go(func() { _ = r.post(r.services, callBye, make([]byte, headerBytes), deadline, nil) })
		}
		return true
	})
	saying.Wait()
}

// byeTime bounds the good-byes.
const byeTime = time.Second

func (n *Node) serveBye(from *quorum.Conn, dst, _ []byte) ([]byte, error) {
	r := n.remote(from.Node)
	if r.up.Swap(false) {
		n.log.Info("node is closing", "node", r.node)
		r.requests.CloseIdleConnections()
		r.services.CloseIdleConnections()
	}
	return dst, nil
}

// letGo ends what is kept for a node that is of the cluster no more.
func (r *remote) letGo() {
	r.end.Do(func() {
		close(r.gone)
		r.n.remotes.Delete(r.node)
		for _, pool := range []*fasthttp.HostClient{r.requests, r.services, r.pings} {
			pool.CloseIdleConnections()
		}
	})
}

var silences = metrics.NewCounter("millrace_cluster_silences_total")

// buffers are bodies of calls.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

const maxPooledBytes = 1 << 20

func giveBuffer(buf *[]byte, used []byte) {
	if cap(used) <= maxPooledBytes {
		*buf = used[:0]
		buffers.Put(buf)
	}
}
