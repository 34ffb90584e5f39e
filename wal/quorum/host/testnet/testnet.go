// Package testnet is for tests: connections between nodes in memory, which can be cut and held, and certificates.
package testnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Simulated runs a test on a clock of its own, which goes on whenever all goroutines of the test wait. So no test
// depends on how busy the machine is, and timeouts cost nothing. All connections between its nodes are in memory, since
// the clock would not know who waits for a socket.
func Simulated(t *testing.T, f func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

// Network carries what nodes send one another, unless a partition is between them or the direction is held. N is the
// type of their numbers. A node's address is its number.
type Network[N ~uint32] struct {
	mu    sync.Mutex     // guards all below
	ports map[N]*port[N] // nil: of one that is down
	cut   map[[2]N]bool
	held  map[[2]N]bool
	conns map[*end[N]]struct{}
}

// New makes a network on which nobody listens yet.
func New[N ~uint32]() *Network[N] {
	return &Network[N]{ports: map[N]*port[N]{}, cut: map[[2]N]bool{}, held: map[[2]N]bool{},
		conns: map[*end[N]]struct{}{}}
}

// Listen returns the function by which a node listens.
func (n *Network[N]) Listen(self N) func(address string) (net.Listener, error) {
	return func(string) (net.Listener, error) {
		p := &port[N]{net: n, node: self, conns: make(chan net.Conn), done: make(chan struct{})}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ports[self] = p
		return p, nil
	}
}

// Dialer returns the function by which a node dials.
func (n *Network[N]) Dialer(self N) func(address string, deadline time.Time) (net.Conn, error) {
	return func(address string, _ time.Time) (net.Conn, error) {
		to, err := strconv.ParseUint(address, 10, 32)
		if err != nil {
			return nil, err
		}
		return n.Dial(self, N(to))
	}
}

// Resolve returns the addresses of a node.
func (n *Network[N]) Resolve(to N) []string { return []string{strconv.FormatUint(uint64(to), 10)} }

// Dial connects one node to another.
func (n *Network[N]) Dial(from, to N) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.ports[to]
	if p == nil || n.cut[[2]N{from, to}] {
		return nil, fmt.Errorf("node %d is not reached", to)
	}
	there, back := newBuffer(n.held[[2]N{from, to}]), newBuffer(n.held[[2]N{to, from}])
	here := &end[N]{net: n, from: from, to: to, in: back, out: there}
	far := &end[N]{net: n, from: to, to: from, in: there, out: back}
	n.conns[here], n.conns[far] = struct{}{}, struct{}{}
	go p.offer(far)
	return here, nil
}

// Partition lets only nodes of the same side reach one another. Nodes of no side reach nobody.
func (n *Network[N]) Partition(sides ...[]N) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for from := range n.ports {
		for to := range n.ports {
			n.cut[[2]N{from, to}] = len(sides) > 0 && !slices.ContainsFunc(sides, func(side []N) bool {
				return slices.Contains(side, from) && slices.Contains(side, to)
			})
		}
	}
	for c := range n.conns {
		if n.cut[[2]N{c.from, c.to}] {
			c.closeLocked()
		}
	}
}

// Hold keeps what one node sends another from arriving, without telling anybody, or lets it arrive again.
func (n *Network[N]) Hold(from, to N, held bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held[[2]N{from, to}] = held
	for c := range n.conns {
		if c.from == from && c.to == to {
			c.out.hold(held)
		} else if c.from == to && c.to == from {
			c.in.hold(held)
		}
	}
}

// port is where a node listens.
type port[N ~uint32] struct {
	net   *Network[N]
	node  N
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *port[N]) offer(c net.Conn) {
	select {
	case p.conns <- c:
	case <-p.done:
		_ = c.Close()
	}
}

func (p *port[N]) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *port[N]) Close() error {
	p.once.Do(func() { close(p.done) })
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.ports[p.node] == p {
		p.net.ports[p.node] = nil
	}
	return nil
}

func (p *port[N]) Addr() net.Addr { return addr(p.node) }

// end is one of the two ends of a connection.
type end[N ~uint32] struct {
	net      *Network[N]
	from, to N // whose it is, and whose the other end
	in, out  *buffer
}

func (e *end[N]) Read(b []byte) (int, error)         { return e.in.read(b) }
func (e *end[N]) Write(b []byte) (int, error)        { return e.out.write(b) }
func (e *end[N]) LocalAddr() net.Addr                { return addr(e.from) }
func (e *end[N]) RemoteAddr() net.Addr               { return addr(e.to) }
func (e *end[N]) SetWriteDeadline(time.Time) error   { return nil } // nothing waits to be written
func (e *end[N]) SetReadDeadline(at time.Time) error { e.in.until(at); return nil }
func (e *end[N]) SetDeadline(at time.Time) error     { return e.SetReadDeadline(at) }

func (e *end[N]) Close() error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.closeLocked()
	return nil
}

func (e *end[N]) closeLocked() {
	delete(e.net.conns, e)
	e.in.discard() // as with a socket: a side that has closed its end reads no more, whatever has arrived
	e.out.close()
}

// buffer is one direction of a connection. What was written before the end is read before it.
type buffer struct {
	mu    sync.Mutex // guards all below
	cond  sync.Cond
	b     []byte
	ended bool
	held  bool
	late  bool
	timer *time.Timer
}

func newBuffer(held bool) *buffer {
	b := &buffer{held: held}
	b.cond.L = &b.mu
	return b
}

func (b *buffer) read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for (len(b.b) == 0 || b.held) && !b.ended && !b.late && len(p) > 0 {
		b.cond.Wait()
	}
	switch {
	case len(b.b) > 0 && !b.held || len(p) == 0:
		n := copy(p, b.b)
		b.b = b.b[n:]
		return n, nil
	case b.ended:
		return 0, io.EOF
	}
	return 0, os.ErrDeadlineExceeded
}

func (b *buffer) write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, io.ErrClosedPipe
	}
	b.b = append(b.b, p...)
	b.cond.Broadcast()
	return len(p), nil
}

func (b *buffer) until(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer, b.late = nil, false
	if at.IsZero() {
		return
	}
	var mine *time.Timer
	mine = time.AfterFunc(time.Until(at), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.timer == mine {
			b.late = true
			b.cond.Broadcast()
		}
	})
	b.timer = mine
}

func (b *buffer) hold(held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = held
	b.cond.Broadcast()
}

// discard closes the buffer from the side that reads it.
func (b *buffer) discard() {
	b.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b = nil
}

func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.cond.Broadcast()
}

// addr is the address of a node.
type addr uint32

func (addr) Network() string  { return "node" }
func (a addr) String() string { return strconv.FormatUint(uint64(a), 10) }
