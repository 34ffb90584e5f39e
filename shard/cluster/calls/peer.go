package calls

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"millrace/shard/replica"
	"millrace/wal/quorum/host"
)

// Peer is another node, as its callers know it.
//
// It has two pools of connections. Calls of requests may last until what they have caused in other groups is visible,
// so they wait for messages of the called node, and for its reads. Those go through the second pool, whose calls wait
// only for a group's own log. With a single pool, two nodes full of each other's requests would come to a standstill. A
// third pool is for the ping alone, which waits for nothing at all, so a missing answer to it means something.
//
// There is one verdict for all calls. A node that for PingTimeout has answered neither a ping nor anything else is
// silent: it is paused, or its link is cut, perhaps in one direction. All calls to it that are under way then end at
// once, and no further ones are made until it has answered a ping. The callers turn to the nodes that lead now. A call
// that reaches its own, shorter deadline says nothing about the node.
type Peer struct {
	Node host.Node
	// Kick receives when a ping is due at once. It has capacity 1.
	Kick chan struct{}

	o     *Options
	pools [kinds]*fasthttp.HostClient
	lost  func() // called when the node is no longer reached

	lines host.Conns // connections of the first two pools

	up     atomic.Bool  // the last call was answered
	silent atomic.Bool  // the node has answered neither a ping nor anything else since
	seen   atomic.Int64 // when a call or an answer of the node last came, as a time of the method now; 0: never
	answer atomic.Int64 // when an answer of the node last came, likewise
	epoch  time.Time
}

// Kind is the kind of a call. It decides which connections the call uses.
type Kind int

// The kinds of calls.
const (
	Requests Kind = iota // these may wait for Services
	Services
	Pings
	kinds
)

// maxPings bounds the pings that are under way to a node at once: one of this node, and one of its reconciler.
const maxPings = 2

// NewPeer makes a Peer. lost is called when the node was reached and is no longer.
func (o *Options) NewPeer(node host.Node, lost func()) *Peer {
	p := &Peer{Node: node, o: o, lost: lost, Kick: make(chan struct{}, 1), epoch: time.Now().Add(-time.Hour)}
	p.pools = [kinds]*fasthttp.HostClient{
		Requests: client(p.lineOf(o.Host.DialRequests), o.MaxCalls, o.MaxBytes),
		Services: client(p.lineOf(o.Host.DialCalls), o.MaxCalls, o.MaxBytes),
		Pings:    client(p.dialBy(o.Host.DialCalls), maxPings, o.MaxBytes),
	}
	return p
}

// Bound sets how many calls of each kind but pings may be under way from now on. Connections beyond it end when they
// have been idle for a while.
func (p *Peer) Bound(calls int) {
	p.pools[Requests].SetMaxConns(calls)
	p.pools[Services].SetMaxConns(calls)
}

// dialBy connects as dial does. left is the time left for the call; with 0, the call has no deadline.
func (p *Peer) dialBy(dial func(host.Node, time.Duration) (net.Conn, error)) fasthttp.DialFuncWithTimeout {
	return func(_ string, left time.Duration) (net.Conn, error) {
		limit := p.o.DialTimeout
		if left > 0 {
			limit = min(limit, left)
		}
		c, err := dial(p.Node, limit)
		if err != nil {
			return nil, notSent{err}
		}
		return c, nil
	}
}

// lineOf is dialBy for connections that are closed when the node becomes silent.
func (p *Peer) lineOf(dial func(host.Node, time.Duration) (net.Conn, error)) fasthttp.DialFuncWithTimeout {
	connect := p.dialBy(dial)
	return func(address string, left time.Duration) (net.Conn, error) {
		c, err := connect(address, left)
		if err != nil {
			return nil, err
		}
		l, err := p.lines.Add(c)
		if err == nil && p.silent.Load() { // since a moment ago: nobody may end the calls over it
			_ = l.Close()
			return nil, notSent{errSilent}
		}
		return l, err
	}
}

// errSilent ends calls to a node that doesn't answer.
var errSilent = errors.New("cluster: the node does not answer")

// Post makes a call. answer gets the result, lent for the call; it may be nil. The error is one with which the other
// node has answered (Code), one for which WasNotSent returns true, or replica.ErrUnknown.
func (p *Peer) Post(kind Kind, path string, body Body, deadline time.Time, answer func(*Reader) error) error {
	begun := time.Now()
	if kind != Pings && p.silent.Load() {
		return notSent{errSilent}
	}
	err := p.exchange(kind, path, body, deadline, answer)
	switch {
	case err == nil || errors.As(err, &answered{}):
		p.heard()
	case errors.Is(err, fasthttp.ErrNoFreeConns):
		return notSent{replica.ErrBusy}
	case kind != Pings && p.silent.Load(): // already known
	default:
		p.failed(begun, err)
	}
	if err == nil || WasNotSent(err) || errors.As(err, &answered{}) {
		return err
	}
	return fmt.Errorf("%w: call of node %d: %w", replica.ErrUnknown, p.Node, err)
}

// exchange makes a call. Nodes compare their clocks by pings, so a clock that is wrong must not keep a ping from being
// answered: it brings no stamp, and its answer is read before the stamp in it is judged.
func (p *Peer) exchange(kind Kind, path string, body Body, deadline time.Time, answer func(*Reader) error) error {
	if kind != Pings {
		return p.o.exchange(p.pools[kind], path, body, deadline, answer)
	}
	o, stamp := *p.o, int64(0)
	o.Stamp = func() int64 { return 0 }
	o.Observe = func(said int64) error { stamp = said; return nil }
	if err := o.exchange(p.pools[kind], path, body, deadline, answer); err != nil {
		return err
	}
	return p.o.Observe(stamp)
}

// Ask is Post with Services, and returns a copy of the answer.
func (p *Peer) Ask(path string, body Body, deadline time.Time) (out []byte, err error) {
	err = p.Post(Services, path, body, deadline, func(x *Reader) error {
		out = append([]byte{}, x.Rest...)
		return nil
	})
	return out, err
}

// Up reports whether the last call was answered.
func (p *Peer) Up() bool { return p.up.Load() }

// See notes that a call from the node has come.
func (p *Peer) See() { p.seen.Store(p.now()) }

// now is the time in ns by a clock that isn't set back, unlike the system's. 0 is long ago.
func (p *Peer) now() int64 { return int64(time.Since(p.epoch)) }

// Seen returns when a call or an answer of the node last came; the zero time means never.
func (p *Peer) Seen() (at time.Time) {
	if ns := p.seen.Load(); ns != 0 {
		at = time.Now().Add(time.Duration(ns - p.now()))
	}
	return at
}

func (p *Peer) heard() {
	now := p.now()
	p.seen.Store(now)
	p.answer.Store(now)
	p.silent.Store(false)
	if !p.up.Load() && !p.up.Swap(true) {
		p.o.Logger.Info("node is reachable", "node", p.Node)
	}
}

// failed notes that a call which began at begun did not come through. Open connections are not trusted any more. A call
// that began before the last answer shows nothing: calls that were under way when a node was paused reach their
// deadlines one by one, long after it goes on. Nor does a call that had less time than a ping has.
func (p *Peer) failed(begun time.Time, err error) {
	if int64(begun.Sub(p.epoch)) < p.answer.Load() {
		return
	}
	late := isLate(err)
	if late && time.Since(begun) < p.o.PingTimeout*7/8 { // a ping's own deadline was set a moment earlier
		p.ring()
		return
	}
	if late && !p.silent.Swap(true) {
		silences.Inc()
		p.lines.End() // and all calls that are under way
	}
	if !p.up.Swap(false) {
		return
	}
	p.o.Logger.Warn("node is unreachable", "node", p.Node, "error", err)
	p.lost()
	p.CloseIdle()
	p.ring()
}

// Leave notes that the node is about to close, so that nothing more is sent to it over connections that it closes. It
// reports whether the node was reached until now.
func (p *Peer) Leave() bool {
	was := p.up.Swap(false)
	if was {
		p.CloseIdle()
	}
	return was
}

// ring makes a ping go out at once.
func (p *Peer) ring() {
	select {
	case p.Kick <- struct{}{}:
	default:
	}
}

// CloseIdle closes the connections that no call uses.
func (p *Peer) CloseIdle() {
	for _, pool := range p.pools {
		pool.CloseIdleConnections()
	}
}

var silences = metrics.NewCounter("millrace_cluster_silences_total")
