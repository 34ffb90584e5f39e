package host

import (
	"net"
	"sync"
	"time"
)

// Group accepts the connections of one group.
type Group struct{ Raft, State *Listener }

// Listener is a net.Listener to which connections are offered.
type Listener struct {
	addr  net.Addr
	conns chan *Conn
	done  chan struct{}
	once  sync.Once
}

func newListener(addr net.Addr) *Listener {
	return &Listener{addr: addr, conns: make(chan *Conn, 16), done: make(chan struct{})}
}

// offer returns false when nobody will take the connection.
func (d *Listener) offer(c *Conn) bool {
	select {
	case <-d.done:
		return false
	default:
	}
	select {
	case d.conns <- c:
		return true
	case <-d.done:
		return false
	case <-time.After(handshakeTimeout):
		return false
	}
}

// Accept waits for the next connection.
func (d *Listener) Accept() (net.Conn, error) { return d.AcceptUntil(nil) }

// AcceptUntil is Accept, which also ends, with net.ErrClosed, when end is closed.
func (d *Listener) AcceptUntil(end <-chan struct{}) (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
	case <-end:
	}
	return nil, net.ErrClosed
}

// Addr is the address that the listener was made with.
func (d *Listener) Addr() net.Addr { return d.addr }

// Close lets no more connections in.
func (d *Listener) Close() error {
	d.once.Do(func() { close(d.done) })
	for {
		select {
		case c := <-d.conns:
			_ = c.Close()
		default:
			return nil
		}
	}
}
