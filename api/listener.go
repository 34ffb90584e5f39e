package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/bounded"
	"millrace/api/ratelimit"
	"millrace/wal/throttle"
)

// limitListener bounds connections, in all and per address. fasthttp could do that, but it answers in plain text and
// does not bound IPv6.
type limitListener struct {
	net.Listener
	maxConns, maxPerIP int
	maxBody            int
	writeTimeout       time.Duration // as in Options
	open               atomic.Int64
	perIP              *xsync.MapOf[netip.Addr, int]
	closing            sync.Once
	logger             *slog.Logger
	lacks              throttle.Lines // none can be taken
}

// Close may be called more than once.
func (l *limitListener) Close() (err error) {
	l.closing.Do(func() { err = l.Listener.Close() })
	return err
}

func (s *Server) limit(ln net.Listener) net.Listener {
	l := &limitListener{Listener: ln, maxConns: s.options.MaxConns, maxPerIP: s.options.MaxConnsPerIP,
		perIP: xsync.NewMapOf[netip.Addr, int](), logger: s.options.Logger, maxBody: s.options.MaxBodyBytes,
		writeTimeout: s.options.WriteTimeout}
	if t, ok := ln.(*tlsListener); ok { // count below TLS, so that a refused connection costs no handshake
		l.Listener = t.inner
		return &tlsListener{l, l, t.config}
	}
	return l
}

const (
	refusedBusy = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n" +
		"Connection: close\r\nRetry-After: 1\r\nContent-Length: 52\r\n\r\n" +
		`{"message":"There are too many connections at once"}`
	refusedIP = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n" +
		"Connection: close\r\nRetry-After: 1\r\nContent-Length: 65\r\n\r\n" +
		`{"message":"There are too many connections from your IP address"}`
)

// Accept returns the next connection within the bounds; others are told the reason and closed.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if lacksRoom(err) {
			l.lacks.Error(l.logger, "new connections wait: no file descriptors or kernel memory left", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return nil, err
		}
		if l.open.Load() >= int64(l.maxConns) {
			rejectedConns.Inc()
			refuseConn(c, refusedBusy)
			continue
		}
		ip := ratelimit.Network(addrOf(c.RemoteAddr()))
		if l.maxPerIP > 0 && !l.register(ip) {
			rejectedIPConns.Inc()
			refuseConn(c, refusedIP)
			continue
		}
		l.open.Add(1)
		return &limitConn{Conn: c, listener: l, ip: ip}, nil
	}
}

// acceptPause is the time between two attempts to accept a connection for which there was no room.
const acceptPause = 50 * time.Millisecond

// lacksRoom reports whether a connection could not be accepted for lack of open files, of this process or of the
// machine, or of the kernel's memory.
func lacksRoom(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

func (l *limitListener) register(ip netip.Addr) (ok bool) {
	l.perIP.Compute(ip, func(n int, _ bool) (int, bool) {
		if ok = n < l.maxPerIP; ok {
			n++
		}
		return n, false
	})
	return ok
}

func (l *limitListener) release(ip netip.Addr) {
	l.open.Add(-1)
	if l.maxPerIP > 0 {
		l.perIP.Compute(ip, func(n int, _ bool) (int, bool) { return n - 1, n <= 1 })
	}
}

// refuseConn writes into the empty send buffer of a fresh connection, which doesn't wait.
func refuseConn(c net.Conn, text string) {
	_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = c.Write([]byte(text))
	_ = c.Close()
}

type limitConn struct {
	net.Conn
	listener *limitListener
	ip       netip.Addr
	once     sync.Once
	patience atomic.Int64 // how long Close waits for what the client still sends; a time.Duration
	heard
	wanted           time.Time // the deadline for the next Read; the reader's
	reading, writing deadline
	isOld            atomic.Bool // whether something was read since the deadline for writing was set
}

func (c *limitConn) Read(p []byte) (int, error) {
	c.isOld.Store(true)
	if err := c.reading.ask(c.wanted, c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.note(c.Conn.Read(p))
}

// SetReadDeadline belongs to the connection's reader, as Read does: of the deadlines that are set between two of its
// Reads, only the last counts.
func (c *limitConn) SetReadDeadline(at time.Time) error {
	c.wanted = at
	return nil
}

// Write gives what is written after a Read a time of its own. fasthttp gives it to answers of handlers alone: 100
// Continue, and the answer to a request that came too late, would be written by the deadline of the answer before.
func (c *limitConn) Write(p []byte) (int, error) {
	if t := c.listener.writeTimeout; t > 0 && c.isOld.Load() {
		if err := c.SetWriteDeadline(time.Now().Add(t)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

func (c *limitConn) SetWriteDeadline(at time.Time) error {
	c.isOld.Store(false)
	return c.writing.ask(at, c.Conn.SetWriteDeadline)
}

func (c *limitConn) SetDeadline(at time.Time) error {
	_ = c.SetReadDeadline(at)
	return c.SetWriteDeadline(at)
}

// heard knows whether the client has sent anything, which everybody may ask, and whether it has ended a connection. It
// belongs to the connection's reader.
type heard struct {
	some atomic.Bool
	end  bool
}

// note reports the end separately, after the last bytes. TLS 1.2 may report both at once, and a buffered reader would
// then learn of the end before it has looked at those bytes.
func (h *heard) note(n int, err error) (int, error) {
	if n > 0 && !h.some.Load() {
		h.some.Store(true)
	}
	if n > 0 && err == io.EOF {
		return n, nil // the next Read reports it again
	}
	h.end = h.end || err == io.EOF
	return n, err
}

func (h *heard) hasBegun() bool { return h.some.Load() }
func (h *heard) hasEnded() bool { return h.end }

// linger makes Close wait up to patience until the client has sent everything. A connection that is closed while bytes
// arrive is reset, and a client that sends its whole body before it reads would thereby lose the answer.
func (c *limitConn) linger(patience time.Duration) { c.patience.Store(int64(patience)) }

// giveUp ends the wait for what the client might send.
func (c *limitConn) giveUp() { _ = c.Conn.SetReadDeadline(time.Unix(1, 0)) }

// maxLinger is how many bytes, besides those of the largest body, are read for the sake of such a client: with a fast
// link, and bodies without an end, it would be gigabytes a second.
const maxLinger = 64 << 20

func (c *limitConn) Close() error {
	patience := time.Duration(c.patience.Load())
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && patience > 0 && half.CloseWrite() == nil {
		_ = c.Conn.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxLinger+int64(c.listener.maxBody)))
	}
	c.once.Do(func() { c.listener.release(c.ip) })
	return c.Conn.Close()
}

// TLS holds a certificate that can be replaced while it is in use. Versions below 1.2 are refused.
type TLS struct {
	certFile, keyFile string
	check             func(*tls.Certificate) error // nil: every certificate will do
	certificate       atomic.Pointer[tls.Certificate]
}

// LoadTLS reads a certificate chain and its key, PEM.
func LoadTLS(certFile, keyFile string) (*TLS, error) {
	t := &TLS{certFile: certFile, keyFile: keyFile}
	return t, t.Reload()
}

// Reload reads the files again (on SIGHUP); new connections get the new certificate. After an error the old one stays.
func (t *TLS) Reload() error {
	pair, err := readPair(t.certFile, t.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate and key: %w", err)
	}
	if t.check != nil {
		if err := t.check(&pair); err != nil {
			return fmt.Errorf("certificate %q: %w", t.certFile, err)
		}
	}
	t.certificate.Store(&pair)
	return nil
}

func readPair(certFile, keyFile string) (pair tls.Certificate, err error) {
	cert, err := bounded.ReadFile(certFile, bounded.SmallFile)
	if err != nil {
		return pair, err
	}
	key, err := bounded.ReadFile(keyFile, bounded.SmallFile)
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil { // which says in which of them the fault is
		err = fmt.Errorf("%q, %q: %w", certFile, keyFile, err)
	}
	return pair, err
}

// Require reads the files again, and takes only certificates that pass check, now and later. It is called before the
// certificate is in use.
func (t *TLS) Require(check func(*tls.Certificate) error) error {
	t.check = check
	return t.Reload()
}

// Certificate returns the current certificate.
func (t *TLS) Certificate() *tls.Certificate { return t.certificate.Load() }

// Config returns a configuration for servers: HTTP/1.1 with the current certificate.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.certificate.Load(), nil },
	}
}

// Listener puts TLS in front of ln.
func (t *TLS) Listener(ln net.Listener) net.Listener { return &tlsListener{ln, ln, t.Config()} }

// tlsListener keeps the listener below it for limit. By itself it would serve without TLS, so only limit takes
// connections from it.
type tlsListener struct {
	net.Listener
	inner  net.Listener
	config *tls.Config
}

func (l *tlsListener) Accept() (net.Conn, error) {
	c, err := l.inner.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsConn{Conn: tls.Server(c, l.config)}, nil
}

type tlsConn struct {
	*tls.Conn
	heard
}

func (c *tlsConn) linger(patience time.Duration) { c.NetConn().(*limitConn).linger(patience) }

func (c *tlsConn) giveUp() { c.NetConn().(*limitConn).giveUp() }

func (c *tlsConn) Read(p []byte) (int, error) { return c.note(c.Conn.Read(p)) }
