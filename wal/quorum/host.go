package quorum

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// HostOptions configure a Host.
type HostOptions struct {
	Node   Node
	Listen string // HOST:PORT, for all groups and for calls between nodes
	// TLS has the node's certificate, and the authority (RootCAs, and ClientCAs when it differs) that signs the
	// certificates of all nodes. Names in certificates don't count unless ServerName is set. nil means plain TCP, for
	// loopback and for networks that are trusted as much.
	TLS *tls.Config
	// Resolve returns the addresses where a node may be, the likeliest first, or none when that is not known. It is
	// called whenever a connection is made. The addresses are tried one after the other, beginning with the one where
	// the node was last reached.
	Resolve func(Node) (addresses []string)
	Logger  *slog.Logger

	sockets *sockets // nil: TCP
}

// Host is a node's one port for other nodes: connections of raft groups, and connections for calls (package cluster).
// Each connection begins with a handshake, which says which cluster and node it comes from and what it is for. A
// connection of another cluster is closed.
type Host struct {
	opts     HostOptions
	server   *tls.Config
	client   *tls.Config
	port     net.Listener
	calls    *listener
	requests *listener // also for calls, kept apart from the others
	doubtful doubtful  // connections whose handshake is under way
	done     chan struct{}
	loops    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	cluster string
	groups  map[uint32]*groupListeners
	conns   map[*Conn]struct{}
	last    map[Node]string // where nodes were last reached, or are to be looked for first
	warned  time.Time       // when a connection that is not of this cluster was last logged
	unsaid  int             // how many have not been logged since then
}

// groupListeners accept the connections of one group.
type groupListeners struct{ raft, state *listener }

// Conn is a connection between nodes.
type Conn struct {
	net.Conn
	Node    Node   // the other side
	Cluster string // as the other side knows it; empty: it doesn't know yet
	host    *Host
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.host.mu.Lock()
	delete(c.host.conns, c)
	c.host.mu.Unlock()
	return c.Conn.Close()
}

const (
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 64
	keepAlive        = 5 * time.Second // a node that is gone without a word is noticed after four times as long
)

// Listen opens the port.
func Listen(o HostOptions) (*Host, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Node == 0 || o.Resolve == nil {
		return nil, errors.New("quorum: a Host needs a node's number and Resolve")
	}
	if o.sockets == nil {
		o.sockets = tcp
	}
	h := &Host{
		opts:   o,
		done:   make(chan struct{}),
		groups: map[uint32]*groupListeners{},
		conns:  map[*Conn]struct{}{},
		last:   map[Node]string{},
	}
	h.setTLS(o.TLS)
	port, err := o.sockets.listen(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	h.port = port
	h.calls, h.requests = newListener(port.Addr()), newListener(port.Addr())
	h.loops.Go(h.accept)
	return h, nil
}

// sockets are the functions by which a Host listens and dials.
type sockets struct {
	listen func(address string) (net.Listener, error)
	dial   func(address string, deadline time.Time) (net.Conn, error)
}

var (
	tcp = &sockets{
		listen: func(address string) (net.Listener, error) {
			config := net.ListenConfig{KeepAliveConfig: aliveConfig}
			return config.Listen(context.Background(), "tcp", address)
		},
		dial: func(address string, deadline time.Time) (net.Conn, error) {
			dialer := net.Dialer{Deadline: deadline, KeepAliveConfig: aliveConfig}
			return dialer.Dial("tcp", address)
		},
	}
	aliveConfig = net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 3}
)

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

// DialRequests opens a connection for calls of the second kind. Its errors are those of DialCalls.
func (h *Host) DialRequests(to Node, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeRequests, 0, timeout)
}

// DialCalls opens a connection for calls to a node. When the connection is closed, what has not been sent yet is
// dropped. Errors: ErrUnauthenticated, or an error of the network.
func (h *Host) DialCalls(to Node, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeCalls, 0, timeout)
}

// DialAddress opens a connection for calls to whichever node is at an address. Errors: a StrangerError when the node is
// of another cluster, or those of DialCalls.
func (h *Host) DialAddress(address string, timeout time.Duration) (*Conn, error) {
	return h.dial(address, handshake{purpose: purposeCalls}, time.Now().Add(handshakeWithin(timeout)))
}

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
	conns := h.conns
	h.conns = map[*Conn]struct{}{}
	h.mu.Unlock()
	err := h.port.Close()
	for c := range conns {
		_ = c.Conn.Close()
	}
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
	c := &Conn{Conn: raw, host: h}
	if !h.track(c) {
		return
	}
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
		h.warnOf(raw.RemoteAddr(), err)
	} else {
		handshakesFailed.Inc()
	}
	_ = c.Close()
}

// warnAgain is how often connections that are not of this cluster are logged. A process that looks for a node at an old
// address tries again and again.
const warnAgain = time.Minute

func (h *Host) warnOf(remote net.Addr, err error) {
	h.mu.Lock()
	unsaid := h.unsaid
	isSaid := h.warned.IsZero() || time.Since(h.warned) >= warnAgain
	if h.unsaid++; isSaid {
		h.warned, h.unsaid = time.Now(), 0
	}
	h.mu.Unlock()
	if isSaid {
		h.opts.Logger.Warn("closed a connection that doesn't belong to this cluster", "remote", remote.String(),
			"error", err, "others_since_last_said", unsaid)
	}
}

// track registers a connection, so that Close ends it.
func (h *Host) track(c *Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		_ = c.Conn.Close()
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *Host) admit(c *Conn) (*listener, error) {
	in, err := readHandshake(c.Conn)
	if err != nil {
		return nil, err
	}
	mine := h.clusterID()
	answer := handshake{from: h.opts.Node, to: in.from, cluster: mine, purpose: in.purpose, group: in.group}
	var to *listener
	switch {
	case in.to != 0 && in.to != h.opts.Node, !h.related(in, mine):
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
		return nil, fmt.Errorf("%w: node %d of %q, looking for node %d", ErrUnauthenticated, in.from, in.cluster, in.to)
	case statusAbsent:
		return nil, errAbsent
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

var errAbsent = errors.New("quorum: the node does not have this group")

func (h *Host) listenerFor(in handshake) *listener {
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
		return g.raft
	case in.purpose == purposeState:
		return g.state
	}
	return nil
}

// openGroup creates the listeners of a group.
func (h *Host) openGroup(group uint32) (*groupListeners, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	if h.groups[group] != nil {
		return nil, fmt.Errorf("quorum: group %d is open already", group)
	}
	g := &groupListeners{raft: newListener(nodeAddr(h.opts.Node)), state: newListener(nodeAddr(h.opts.Node))}
	h.groups[group] = g
	return g, nil
}

func (h *Host) closeGroup(group uint32) {
	h.mu.Lock()
	g := h.groups[group]
	delete(h.groups, group)
	h.mu.Unlock()
	if g != nil {
		_ = g.raft.Close()
		_ = g.state.Close()
	}
}

func (h *Host) dialNode(to Node, purpose byte, group uint32, timeout time.Duration) (*Conn, error) {
	addresses := h.addressesOf(to)
	if len(addresses) == 0 {
		return nil, fmt.Errorf("quorum: where node %d is is not known", to)
	}
	deadline := time.Now().Add(handshakeWithin(timeout))
	var failures []error
	for _, address := range addresses {
		c, err := h.dial(address, handshake{to: to, purpose: purpose, group: group}, deadline)
		if err == nil || errors.Is(err, errAbsent) {
			h.setLast(to, address)
			return c, err
		}
		if failures = append(failures, err); !time.Now().Before(deadline) {
			break
		}
	}
	h.setLast(to, addresses[1%len(addresses)]) // the first one may have taken all the time
	return nil, errors.Join(failures...)
}

func (h *Host) setLast(node Node, address string) {
	h.mu.Lock()
	h.last[node] = address
	h.mu.Unlock()
}

// addressesOf returns the addresses where a node may be, in the order in which they are tried.
func (h *Host) addressesOf(node Node) []string {
	addresses := slices.Clone(h.opts.Resolve(node))
	h.mu.Lock()
	last := h.last[node]
	h.mu.Unlock()
	if i := slices.Index(addresses, last); i > 0 {
		addresses[0], addresses[i] = last, addresses[0]
	}
	return addresses
}

// handshakeWithin bounds the time for a connection and its handshake.
func handshakeWithin(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return handshakeTimeout
	}
	return min(timeout, handshakeTimeout)
}

func (h *Host) dial(address string, out handshake, deadline time.Time) (*Conn, error) {
	raw, err := h.opts.sockets.dial(address, deadline)
	if err != nil {
		return nil, err
	}
	if out.purpose == purposeCalls || out.purpose == purposeRequests {
		discardOnClose(raw)
	}
	_ = raw.SetDeadline(deadline)
	if h.client != nil {
		raw = tls.Client(raw, h.client)
	}
	c := &Conn{Conn: raw, host: h}
	if !h.track(c) {
		return nil, net.ErrClosed
	}
	if err := h.introduce(c, out); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to node %d at %s: %w", out.to, address, err)
	}
	_ = raw.SetDeadline(time.Time{})
	return c, nil
}

// discardOnClose makes the kernel drop unsent data when a connection is closed, or the process ends: a call that was
// given up must not arrive later, when the network has recovered. Callers only close connections whose answers they no
// longer wait for.
func discardOnClose(c net.Conn) {
	if c, ok := c.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0)
	}
}

func (h *Host) introduce(c *Conn, out handshake) error {
	out.from, out.cluster = h.opts.Node, h.clusterID()
	if _, err := c.Conn.Write(out.append(nil)); err != nil {
		return err
	}
	in, err := readHandshake(c.Conn)
	switch {
	case err != nil:
		return err
	case in.status == statusAbsent:
		return errAbsent
	case in.status != statusWelcome, out.to != 0 && in.from != out.to, !h.related(in, out.cluster):
		return &StrangerError{in.from, in.cluster}
	}
	c.Node, c.Cluster = in.from, in.cluster
	return nil
}

// StrangerError says who was found at an address instead of whoever was looked for. It is an ErrUnauthenticated.
type StrangerError struct {
	Node    Node
	Cluster string // empty: of none yet
}

// Error names the node and its cluster.
func (e *StrangerError) Error() string {
	return fmt.Sprintf("%v: node %d of %q is there", ErrUnauthenticated, e.Node, e.Cluster)
}

// Unwrap returns ErrUnauthenticated.
func (e *StrangerError) Unwrap() error { return ErrUnauthenticated }

// handshake is the first thing that both sides send:
//
//	 0  8  "millrace"
//	 8  1  version
//	 9  1  purpose
//	10  1  status; 0 from the side that dials
//	11  1  length of the cluster's id
//	12  4  from, to, group, little endian
//	24     the cluster's id
type handshake struct {
	purpose, status byte
	from, to        Node
	group           uint32
	cluster         string
}

const (
	handshakeMagic   = "millrace"
	handshakeVersion = 4
	handshakeBytes   = 24
	maxClusterBytes  = 255

	purposeCalls    = 1
	purposeRaft     = 2
	purposeState    = 3
	purposeRequests = 4

	statusWelcome         = 0
	statusUnauthenticated = 1
	statusAbsent          = 2
)

func (m handshake) append(b []byte) []byte {
	b = append(b, handshakeMagic...)
	b = append(b, handshakeVersion, m.purpose, m.status, byte(len(m.cluster)))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.from))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.to))
	b = binary.LittleEndian.AppendUint32(b, m.group)
	return append(b, m.cluster...)
}

// readHandshake reads no byte beyond the handshake.
func readHandshake(r io.Reader) (m handshake, err error) {
	var b [handshakeBytes + maxClusterBytes]byte
	if _, err := io.ReadFull(r, b[:handshakeBytes]); err != nil {
		return m, err
	}
	if string(b[:8]) != handshakeMagic || b[8] != handshakeVersion {
		return m, fmt.Errorf("%w: it doesn't speak version %d", ErrUnauthenticated, handshakeVersion)
	}
	m.purpose, m.status = b[9], b[10]
	m.from, m.to = Node(binary.LittleEndian.Uint32(b[12:])), Node(binary.LittleEndian.Uint32(b[16:]))
	m.group = binary.LittleEndian.Uint32(b[20:])
	id := b[handshakeBytes : handshakeBytes+int(b[11])]
	if _, err := io.ReadFull(r, id); err != nil {
		return m, err
	}
	m.cluster = string(id)
	return m, nil
}

// listener is a net.Listener to which connections are offered.
type listener struct {
	addr  net.Addr
	conns chan *Conn
	done  chan struct{}
	once  sync.Once
}

func newListener(addr net.Addr) *listener {
	return &listener{addr: addr, conns: make(chan *Conn, 16), done: make(chan struct{})}
}

// offer returns false when nobody will take the connection.
func (d *listener) offer(c *Conn) bool {
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
func (d *listener) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Addr is the address that the listener was made with.
func (d *listener) Addr() net.Addr { return d.addr }

// Close lets no more connections in.
func (d *listener) Close() error {
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

// nodeAddr is the address of a node as raft sees it.
type nodeAddr Node

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(Node(a).id()) }

var (
	unauthenticatedTotal = metrics.NewCounter("millrace_quorum_unauthenticated_total")
	handshakesFailed     = metrics.NewCounter("millrace_quorum_handshakes_failed_total")
	handshakesRefused    = metrics.NewCounter("millrace_quorum_handshakes_refused_total")
)
