package host

import (
	"net"
	"sync"
)

// Conns are connections that end together. Each leaves them when it is closed. The zero value is ready for use, and its
// methods are safe for concurrent use.
type Conns struct {
	mu     sync.Mutex
	closed bool
	open   map[*member]struct{}
}

// member is a connection among Conns.
type member struct {
	net.Conn
	of *Conns
}

// Close closes the connection.
func (m *member) Close() error {
	m.of.mu.Lock()
	delete(m.of.open, m)
	m.of.mu.Unlock()
	return m.Conn.Close()
}

// Add takes a connection, which its user closes by what Add returns. The error is net.ErrClosed, and the connection is
// closed, when no more are let in.
func (s *Conns) Add(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	if s.open == nil {
		s.open = map[*member]struct{}{}
	}
	m := &member{c, s}
	s.open[m] = struct{}{}
	return m, nil
}

// End closes those that are there.
func (s *Conns) End() {
	s.mu.Lock()
	open := s.open
	s.open = nil
	s.mu.Unlock()
	for m := range open {
		_ = m.Conn.Close()
	}
}

// Close closes those that are there, and lets no more in.
func (s *Conns) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.End()
}
