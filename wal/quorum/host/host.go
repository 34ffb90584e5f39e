// Package host is a node's one port for other nodes: for the raft groups that it has, for the states that they send one
// another, and for calls. Each connection begins with a handshake, which says which cluster and node it comes from and
// what it is for. A connection of another cluster is closed; only calls are let through while one of the sides doesn't
// know its cluster yet. Connections whose handshake is under way are bounded, and none keeps the others out.
//
// The package knows nothing of what goes over a connection.
package host

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/wal/throttle"
)

// Options configure a Host.
type Options struct {
	Node   Node
	Listen string // HOST:PORT, for all groups and for calls between nodes
	// TLS has the node's certificate, and the authority (RootCAs, and ClientCAs when it differs) that signs the
	// certificates of all nodes. Names in certificates don't count unless ServerName is set. nil means plain TCP, for
	// loopback and for networks that are trusted as much.
	TLS *tls.Config
	// Records is the version of the records in the logs of groups. Nodes with records of another version are refused:
	// neither side could apply what the other one has appended, and would fail, however many nodes there are of it.
	Records uint32
	// Resolve returns the addresses where a node may be, the likeliest first, or none when that is not known. It is
	// called whenever a connection is made. The addresses are tried one after the other, beginning with the one where
	// the node was last reached.
	Resolve func(Node) (addresses []string)
	Logger  *slog.Logger

	// Sockets are for tests of nodes in one process. Default: TCP.
	Sockets *Sockets
}

// Host is a node's port. Its methods are safe for concurrent use.
type Host struct {
	opts     Options
	server   *tls.Config
	client   *tls.Config
	port     net.Listener
	calls    *Listener
	requests *Listener // also for calls, kept apart from the others
	doubtful doubtful  // connections whose handshake is under way
	conns    Conns     // all that came or went through the port
	done     chan struct{}
	loops    sync.WaitGroup
	// strangers are lines about connections that are not of this cluster: a process that looks for a node at an old
	// address tries again and again.
	strangers throttle.Lines

	mu      sync.Mutex
	closed  bool
	cluster string
	groups  map[uint32]*Group
	last    map[Node]string // where nodes were last reached, or are to be looked for first
}

// Listen opens the port.
func Listen(o Options) (*Host, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Node == 0 || o.Resolve == nil {
		return nil, errors.New("quorum: a Host needs a node's number and Resolve")
	}
	if o.Sockets == nil {
		o.Sockets = tcp
	}
	h := &Host{
		opts:   o,
		done:   make(chan struct{}),
		groups: map[uint32]*Group{},
		last:   map[Node]string{},
	}
	h.setTLS(o.TLS)
	port, err := o.Sockets.Listen(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	h.port = port
	h.calls, h.requests = newListener(port.Addr()), newListener(port.Addr())
	h.loops.Go(h.accept)
	return h, nil
}

// setTLS makes both sides present a certificate of the authority. Neither checks names, since a node's address may
// change.
func (h *Host) setTLS(c *tls.Config) {
	if c == nil {
		return
	}
	h.server, h.client = c.Clone(), c.Clone()
	if h.server.ClientCAs == nil {
		h.server.ClientCAs = c.RootCAs
	}
	h.server.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ServerName == "" && !c.InsecureSkipVerify {
		h.client.InsecureSkipVerify = true // of the name; the chain is verified below
		h.client.VerifyConnection = func(s tls.ConnectionState) error {
			options := x509.VerifyOptions{Roots: c.RootCAs, Intermediates: x509.NewCertPool(),
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			for _, cert := range s.PeerCertificates[1:] {
				options.Intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(options)
			return err
		}
	}
}

// SetCluster says which cluster this is. Until then, and from nodes that don't know their cluster yet, only connections
// for calls are let through, and marked (Conn.Cluster is empty).
func (h *Host) SetCluster(id string) {
	if len(id) > maxClusterBytes {
		panic(fmt.Sprintf("BUG: quorum: a cluster id of %d bytes", len(id)))
	}
	h.mu.Lock()
	h.cluster = id
	h.mu.Unlock()
}

func (h *Host) clusterID() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cluster
}

// Calls accepts connections for calls; each is a *Conn.
func (h *Host) Calls() net.Listener { return h.calls }

// Requests accepts connections for calls of a second kind (DialRequests). Whoever serves them can thereby keep them
// from exhausting what the first kind needs.
func (h *Host) Requests() net.Listener { return h.requests }

// Addr is the address at which the host listens.
func (h *Host) Addr() net.Addr { return h.port.Addr() }

// Node is this node's number.
func (h *Host) Node() Node { return h.opts.Node }

// Close closes the port and all connections that came or went through it.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	close(h.done)
	h.mu.Unlock()
	err := h.port.Close()
	h.conns.Close()
	_, _ = h.calls.Close(), h.requests.Close()
	h.loops.Wait()
	return err
}

// accept takes connections until the port is closed. At most maxHandshakes of them are in doubt at a time. When one
// more comes, either it or another one is closed at once (doubtful).
func (h *Host) accept() {
	for {
		raw, err := h.port.Accept()
		if err != nil {
			select {
			case <-h.done:
				return
			case <-time.After(50 * time.Millisecond): // too many open files, or the like
				continue
			}
		}
		if !h.doubtful.enter(raw) {
			handshakesRefused.Inc()
			_ = raw.Close()
			continue
		}
		h.loops.Go(func() {
			defer h.doubtful.leave(raw)
			h.welcome(raw)
		})
	}
}

// welcome reads the handshake of a connection and hands the connection to the listener that it is for.
func (h *Host) welcome(raw net.Conn) {
	_ = raw.SetDeadline(time.Now().Add(handshakeTimeout))
	if h.server != nil {
		raw = tls.Server(raw, h.server)
	}
	raw, err := h.conns.Add(raw)
	if err != nil {
		return
	}
	c := &Conn{Conn: raw}
	to, err := h.admit(c)
	if err == nil {
		_ = raw.SetDeadline(time.Time{})
		if to.offer(c) {
			return
		}
		err = net.ErrClosed
	}
	if errors.Is(err, ErrUnauthenticated) {
		unauthenticatedTotal.Inc()
		h.strangers.Warn(h.opts.Logger, "closed a connection that doesn't belong to this cluster",
			"remote", raw.RemoteAddr().String(), "error", err)
	} else {
		handshakesFailed.Inc()
	}
	_ = c.Close()
}

func (h *Host) admit(c *Conn) (*Listener, error) {
	in, err := readHandshake(c.Conn)
	if err != nil {
		return nil, err
	}
	mine := h.clusterID()
	answer := handshake{from: h.opts.Node, to: in.from, cluster: mine, purpose: in.purpose, group: in.group,
		records: h.opts.Records}
	var to *Listener
	switch {
	case in.records != h.opts.Records, in.to != 0 && in.to != h.opts.Node, !h.related(in, mine):
		answer.status = statusUnauthenticated
	default:
		if to = h.listenerFor(in); to == nil {
			answer.status = statusAbsent
		}
	}
	if _, err := c.Conn.Write(answer.append(nil)); err != nil {
		return nil, err
	}
	switch answer.status {
	case statusUnauthenticated:
		if err := h.checkRecords(in); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: node %d of %q, looking for node %d", ErrUnauthenticated, in.from, in.cluster, in.to)
	case statusAbsent:
		return nil, ErrAbsent
	}
	c.Node, c.Cluster = in.from, in.cluster
	return to, nil
}

// related reports whether the other side may be of this cluster. For calls, one side need not know its cluster yet.
func (h *Host) related(in handshake, mine string) bool {
	if in.purpose == purposeCalls && (in.cluster == "" || mine == "") {
		return true
	}
	return in.cluster == mine && mine != ""
}

func (h *Host) listenerFor(in handshake) *Listener {
	switch in.purpose {
	case purposeCalls:
		return h.calls
	case purposeRequests:
		return h.requests
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groups[in.group]
	switch {
	case g == nil:
		return nil
	case in.purpose == purposeRaft:
		return g.Raft
	case in.purpose == purposeState:
		return g.State
	}
	return nil
}

// OpenGroup creates the listeners of a group. Until then other nodes hear that this one doesn't have the group.
func (h *Host) OpenGroup(group uint32) (*Group, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	if h.groups[group] != nil {
		return nil, fmt.Errorf("quorum: group %d is open already", group)
	}
	g := &Group{Raft: newListener(nodeAddr(h.opts.Node)), State: newListener(nodeAddr(h.opts.Node))}
	h.groups[group] = g
	return g, nil
}

// CloseGroup closes the listeners of a group.
func (h *Host) CloseGroup(group uint32) {
	h.mu.Lock()
	g := h.groups[group]
	delete(h.groups, group)
	h.mu.Unlock()
	if g != nil {
		_ = g.Raft.Close()
		_ = g.State.Close()
	}
}

var (
	unauthenticatedTotal = metrics.NewCounter("millrace_quorum_unauthenticated_total")
	handshakesFailed     = metrics.NewCounter("millrace_quorum_handshakes_failed_total")
	handshakesRefused    = metrics.NewCounter("millrace_quorum_handshakes_refused_total")
)
