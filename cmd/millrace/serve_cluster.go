package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/net/netutil"

	"millrace/api"
	"millrace/api/bounded"
	"millrace/api/control"
	"millrace/api/ratelimit"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/cluster"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// The part of serve that is for a node of a cluster.

// nodeAddresses are nodes with their addresses: 1=HOST:PORT,2=HOST:PORT.
type nodeAddresses map[uint32]string

// UnmarshalText adds nodes. It refuses duplicate nodes, and two nodes at one address: one of them would be forgotten.
func (a *nodeAddresses) UnmarshalText(text []byte) error {
	if *a == nil {
		*a = nodeAddresses{}
	}
	for member := range strings.SplitSeq(string(text), ",") {
		number, address, found := strings.Cut(member, "=")
		node, err := strconv.ParseUint(number, 10, 32)
		if !found || err != nil {
			return fmt.Errorf("%q: want NUMBER=HOST:PORT", member)
		}
		if before, given := (*a)[uint32(node)]; given {
			return fmt.Errorf("%q: node %d is given twice, first at %q", member, node, before)
		}
		for other, at := range *a {
			if strings.EqualFold(at, address) {
				return fmt.Errorf("%q: nodes %d and %d have the same address", member, other, node)
			}
		}
		(*a)[uint32(node)] = address
	}
	return nil
}

// clusterFlags mean nothing to a server that is alone.
var clusterFlags = []string{"raft", "members", "groups", "replicas",
	"raft-insecure", "raft-cert", "raft-key", "raft-ca", "max-moves", "raft-timeout", "disk-timeout", "commit-timeout"}

// AfterApply refuses flags without a meaning. The parser calls it when all flags have their values.
func (c *serveCommand) AfterApply(command *kong.Context) error {
	for _, f := range command.Flags() {
		if c.Node == 0 && slices.Contains(clusterFlags, f.Name) && !hasDefault(f) {
			return fmt.Errorf("--%s is for nodes of a cluster and needs --node", f.Name)
		}
	}
	return nil
}

// checkCluster refuses settings of a cluster that make no sense together.
func (c *serveCommand) checkCluster() error {
	if c.Node == 0 {
		return nil
	}
	secured := c.RaftCert != "" || c.RaftKey != "" || c.RaftCA != ""
	if c.Raft == "" || len(c.Members) == 0 {
		return errors.New("--node: a node of a cluster needs --raft and --members")
	}
	switch {
	case c.RaftInsecure && secured:
		return errors.New("--raft-insecure can't be combined with --raft-cert, --raft-key and --raft-ca")
	case !c.RaftInsecure && (c.RaftCert == "" || c.RaftKey == "" || c.RaftCA == ""):
		return errors.New("--node: nodes of a cluster authenticate one another; give --raft-cert, --raft-key and " +
			"--raft-ca, or --raft-insecure on loopback")
	case c.RaftTimeout > c.CommitTimeout:
		return fmt.Errorf("--commit-timeout %v must be at least --raft-timeout %v, or no request waits until a group "+
			"without a leader has elected a new one", c.CommitTimeout, c.RaftTimeout)
	}
	return c.checkAddresses()
}

// checkAddresses refuses members that can't be reached, and insecure ones on other machines.
func (c *serveCommand) checkAddresses() error {
	for _, number := range slices.Sorted(maps.Keys(c.Members)) {
		address := c.Members[number]
		host, port, err := net.SplitHostPort(address)
		switch {
		case number == 0:
			return errors.New("--members: node numbers start at 1")
		case err != nil:
			return fmt.Errorf("--members: node %d: %w", number, err)
		case port == "" || port == "0":
			return fmt.Errorf("--members: node %d: %q has no port", number, address)
		case host == "" || host == "0.0.0.0" || host == "::":
			return fmt.Errorf("--members: node %d: %q is not an address that other nodes can reach", number, address)
		}
		if loopback, _ := isLoopback(address); c.RaftInsecure && !loopback {
			return fmt.Errorf("--raft-insecure: node %d at %q is not on loopback", number, address)
		}
	}
	loopback, err := isLoopback(c.Raft)
	if err != nil {
		return fmt.Errorf("--raft: %w", err)
	}
	if c.RaftInsecure && !loopback {
		return errors.New("--raft-insecure: an address other than loopback needs --raft-cert, --raft-key and --raft-ca")
	}
	return nil
}

// greets reports whether this is the node of the cluster that tells what to try: one is enough.
func (c *serveCommand) greets() bool {
	return c.Node == 0 || c.Node == slices.Min(slices.AppendSeq([]uint32{c.Node}, maps.Keys(c.Members)))
}

// linkTLS returns the TLS of both sides of a connection between nodes, nil for none. The certificate can be read again;
// the authority is that of the start.
func (c *serveCommand) linkTLS() (*api.TLS, *tls.Config, error) {
	if c.RaftInsecure {
		return nil, nil, nil
	}
	link, err := api.LoadTLS(c.RaftCert, c.RaftKey)
	if err != nil {
		return nil, nil, fmt.Errorf("--raft-cert, --raft-key: %w", err)
	}
	text, err := bounded.ReadFile(c.RaftCA, bounded.SmallFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--raft-ca: %w", err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(text) {
		return nil, nil, fmt.Errorf("--raft-ca: %q has no certificate", c.RaftCA)
	}
	err = link.Require(func(own *tls.Certificate) error { return checkProof(own, authority) })
	if err != nil {
		return nil, nil, fmt.Errorf("--raft-cert: %w", err)
	}
	return link, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authority, ClientCAs: authority,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return link.Certificate(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return link.Certificate(), nil
		},
	}, nil
}

// checkProof returns an error when other nodes would turn this node's certificate away: then it would wait at their
// doors for ever.
func checkProof(own *tls.Certificate, authority *x509.CertPool) error {
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := prove(own, authority, usage); err != nil {
			return fmt.Errorf("the other nodes would refuse it by --raft-ca: it must be valid, for servers and for "+
				"clients: %w", err)
		}
	}
	return nil
}

// clusterOptions returns the options from the flags; those of engine and event log come later.
func (c *serveCommand) clusterOptions(link *tls.Config, logger *slog.Logger) *cluster.Options {
	members := map[quorum.Node]string{}
	for number, address := range c.Members {
		members[quorum.Node(number)] = address
	}
	admin := c.Admin
	if admin == "off" {
		admin = ""
	}
	return &cluster.Options{
		Plan: facts.Plan{
			Node: quorum.Node(c.Node), Dir: c.Data, Members: members, Groups: c.Groups, Replicas: c.Replicas,
		},
		Listen: c.Raft, TLS: link, API: c.Listen, Admin: admin, Pace: placement.Pace{Moves: c.MaxMoves},
		Quorum: quorum.Options{
			HeartbeatTimeout: c.RaftTimeout, DiskTimeout: orNone(c.DiskTimeout),
			MinFreeBytes:   orNone(int64(c.MinFreeBytes)),
			MinFreePercent: orNone(c.MinFreePercent), StallAfter: c.StallAfter,
		},
		CommitTimeout: c.CommitTimeout, Program: version, Logger: logger,
	}
}

// openMember makes this node a member of the cluster.
func (n *node) openMember(ctx context.Context, o *nodeOptions) error {
	options := *o.cluster
	options.Engine, options.Events, options.OnFailure = o.engine, o.events, o.engine.OnFailure
	options.OnDocument, options.Audit = n.control.Apply, reconcilerEntry(n.control)
	options.Services = map[string]func([]byte) ([]byte, error){
		limitService: n.parts.service(limitService), importService: n.imports.Serve,
	}
	if o.census != nil {
		options.Services[censusService] = n.parts.service(censusService)
	}
	if o.refused != nil {
		options.Services[refusedService] = n.parts.service(refusedService)
	}
	var err error
	if n.cluster, err = cluster.Open(ctx, options); err != nil {
		return err
	}
	made := n.cluster.Operator()
	warnOfFixed(options.Logger, "--groups", options.Groups, made.Groups)
	warnOfFixed(options.Logger, "--replicas", options.Replicas, made.Replicas)
	limiter := ratelimit.NewLimiter(n.cluster.Service(limitService), o.nowMillis)
	n.parts.open(limitService, limiter)
	n.imports.peers = n.cluster.Service(importService)
	n.engine, n.events, n.ends = n.cluster.Coordinator(), n.cluster, append(n.ends, n.cluster.Close)
	n.control.Start(store.Control(n.engine))
	o.door.Limiter, o.admin.Cluster = limiter, clusterDoor{n.cluster}
	o.streams.Node, o.streams.Parts = strconv.FormatUint(uint64(options.Node), 10), n.ledParts
	return nil
}

// warnOfFixed warns of a flag that asks for something else than what the cluster was made with.
func warnOfFixed(log *slog.Logger, flag string, asked, fixed int) {
	if asked != 0 && asked != fixed {
		log.Warn("flag ignored: the cluster was made with another value, which is fixed", "flag", flag,
			"given", asked, "of_the_cluster", fixed)
	}
}

// Names of the calls between nodes about rate limits, imports of profiles, counts of consent and refused objects.
const (
	limitService   = "ratelimit"
	importService  = "import"
	censusService  = "census"
	refusedService = "refused"
)

// parts answer other nodes, by name of their service, once they are open.
type parts struct{ byName sync.Map }

// part is a part of a node that has counterparts on other nodes.
type part interface {
	Serve(message []byte) ([]byte, error)
}

func (p *parts) open(name string, is part) { p.byName.Store(name, is) }

func (p *parts) service(name string) func([]byte) ([]byte, error) {
	return func(message []byte) ([]byte, error) {
		if is, open := p.byName.Load(name); open {
			return is.(part).Serve(message)
		}
		return nil, errOpening
	}
}

var errOpening = errors.New("the node is opening")

// isPassing reports whether an error of the engine will pass: it is too busy, or nodes of the cluster are missing.
func isPassing(err error) bool {
	return errors.Is(err, shard.ErrBusy) || errors.Is(err, shard.ErrUnavailable) ||
		errors.Is(err, shard.ErrNotLeader) || errors.Is(err, shard.ErrUnknown)
}

// patiently does what may fail while the cluster has no majority, or while others do the same.
func patiently(ctx context.Context, failed <-chan error, log *slog.Logger, do func() error) error {
	conflicts := 0
	for {
		err := do()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, control.ErrConflict) && conflicts < maxConflicts:
			conflicts++
		case isPassing(err):
		default:
			return err
		}
		log.Warn("the bootstrap file is not applied yet: waiting for the cluster", "error", err)
		select {
		case <-time.After(patience):
		case err := <-failed:
			return err
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

const (
	patience     = 500 * time.Millisecond
	maxConflicts = 20
)

// waitingRoom answers on a listener until the node is open: it is alive, but not ready.
type waitingRoom struct {
	server *http.Server
	ended  chan struct{}
}

// openWaitingRoom serves the listener's socket through a second descriptor; the listener stays as it is.
func openWaitingRoom(listener net.Listener, maxConns int, certificate *api.TLS) (*waitingRoom, error) {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("%s is not a TCP listener", listener.Addr())
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	own, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	own = netutil.LimitListener(own, maxConns)
	if certificate != nil {
		own = tls.NewListener(own, certificate.Config())
	}
	r := &waitingRoom{ended: make(chan struct{}), server: &http.Server{
		Handler: http.HandlerFunc(serveWaiting), ReadTimeout: waitingTimeout, WriteTimeout: waitingTimeout,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}}
	r.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(r.ended)
		_ = r.server.Serve(own)
	}()
	return r, nil
}

const waitingTimeout = 5 * time.Second

func serveWaiting(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.URL.Path == "/livez" {
		_, _ = io.WriteString(w, `{"message":"success"}`)
		return
	}
	h.Set("Retry-After", "5")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"message":"The node is starting. Nothing was done; please try again later."}`)
}

// close ends the room when its clients have their answers.
func (r *waitingRoom) close() {
	ctx, cancel := context.WithTimeout(context.Background(), waitingTimeout)
	defer cancel()
	if r.server.Shutdown(ctx) != nil {
		_ = r.server.Close()
	}
	<-r.ended
}
