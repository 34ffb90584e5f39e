package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"millrace/api"
	"millrace/shard/cluster/facts"
)

// serving is one run of the server, from its certificates to its end.
type serving struct {
	*serveCommand
	logger      *slog.Logger
	stdout      io.Writer
	certificate *api.TLS     // of the API; nil: without TLS
	inUse       certificates // which SIGHUP reads again
	failed      chan error   // the engine's failure
	hup         chan os.Signal
	listener    net.Listener // of the API
	node        *node

	operatorConns int // most connections to each of the operators' listeners
	callConns     int // most connections for calls between this node and others
}

// run opens the node and serves.
func (s *serving) run(ctx context.Context) error {
	if err := s.boundConns(); err != nil {
		return err
	}
	s.hup = make(chan os.Signal, 1)      // before the files are read: one that comes later has them read again
	signal.Notify(s.hup, syscall.SIGHUP) // until the process ends: one that comes while it stops must not kill it
	o, err := s.options()
	if err != nil {
		return err
	}
	// Listen before recovery, so that a taken port is known at once; connections wait in the backlog until they can be
	// served.
	if s.listener, err = net.Listen("tcp", s.Listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer s.listener.Close()
	if err := s.tryInner(); err != nil {
		return err
	}
	err = s.open(ctx, o)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		s.logger.Info("stopped before the server was ready")
		return nil
	}
	if err != nil {
		return err
	}
	return s.serve(ctx)
}

// options reads the certificates and returns the options of the node.
func (s *serving) options() (o nodeOptions, err error) {
	if s.certificate, err = s.tls(s.logger); err != nil {
		return o, err
	}
	if o, err = s.nodeOptions(s.logger); err != nil {
		return o, err
	}
	o.engine.OnFailure = s.fail
	if s.certificate != nil {
		s.inUse = append(s.inUse, usedCertificate{"api", s.certificate, nil})
	}
	if s.Node != 0 {
		link, config, err := s.linkTLS()
		if err != nil {
			return o, err
		}
		if link != nil {
			s.inUse = append(s.inUse, usedCertificate{"nodes", link, config.RootCAs})
		}
		o.cluster = s.clusterOptions(config, s.logger)
		o.cluster.CallConns = s.callConns
	} else if err := facts.CheckAlone(s.Data); err != nil {
		return o, err
	}
	s.inUse.gauges()
	s.inUse.warnOfExpiry(s.logger)
	return o, nil
}

// tryInner finds out whether the ports of the other listeners are free, for the same reason. It closes them again:
// until there is something to show, a connection to them shall be refused, not kept waiting.
func (s *serving) tryInner() error {
	for _, of := range []struct{ flag, address string }{{"--admin", s.Admin}, {"--console", s.Console}} {
		if of.address == "" || of.address == "off" {
			continue
		}
		l, err := net.Listen("tcp", of.address)
		if err != nil {
			return fmt.Errorf("%s: %w", of.flag, err)
		}
		defer l.Close() // when all are tried: two may be one
	}
	return nil
}

// open opens the node and applies the bootstrap file. A node of a cluster may have to wait for others, perhaps for
// long; clients that come meanwhile are told so.
func (s *serving) open(ctx context.Context, o nodeOptions) error {
	f, err := s.awaitBootstrap(ctx) // once, since it may be a pipe
	if err != nil {
		return err
	}
	if o.cluster != nil {
		room, err := openWaitingRoom(s.listener, s.MaxConns, s.certificate)
		if err != nil {
			return err
		}
		defer room.close()
	}
	if s.node, err = openNode(ctx, o); err != nil {
		return err
	}
	apply := func() error { return s.bootstrap(ctx, f) }
	if o.cluster != nil {
		err = patiently(ctx, s.failed, s.logger, apply)
	} else {
		err = apply()
	}
	if err != nil {
		return errors.Join(err, s.node.close())
	}
	return nil
}

// serve runs the listeners until the end and closes everything in order.
func (s *serving) serve(ctx context.Context) error {
	n, ended := s.node, make(chan error, 3)
	inner, err := s.serveInner(ended) // first: it is there once the API is ready
	if err != nil {
		return errors.Join(err, n.close())
	}
	listener := s.listener
	if s.certificate != nil {
		listener = s.certificate.Listener(listener)
	}
	go func() { ended <- n.server.Serve(listener) }()
	s.logger.Info("serving", "address", listener.Addr().String(), "data", s.Data)
	if s.Demo && s.greets() {
		s.greet()
	}
	stop := make(chan struct{})
	defer close(stop)
	go n.keepUsage(stop)
	go s.inUse.watchExpiry(stop, s.logger)
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		s.reloadOnHUP(ctx)
	}()
	select {
	case err := <-ended:
		return errors.Join(fmt.Errorf("listener: %w", err), n.close())
	case err := <-s.failed:
		return exitError{err, exitDiskFailed} // nothing is closed in order any more: the next start recovers
	case <-ctx.Done():
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop(inner, reloaded) }()
	select {
	case err := <-stopped:
		return err
	case err := <-s.failed: // as above: parts that have failed may never end
		return exitError{err, exitDiskFailed}
	}
}

// fail is told that the engine has failed. The first failure ends the process.
func (s *serving) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// stop lets requests in flight finish and closes everything in order.
func (s *serving) stop(inner []*http.Server, reloaded <-chan struct{}) error {
	s.logger.Info("stopping")
	drain, cancel := context.WithTimeout(context.Background(), s.DrainTimeout)
	defer cancel()
	err := s.node.server.Shutdown(drain)
	for _, server := range inner {
		err = errors.Join(err, server.Shutdown(drain))
	}
	if err != nil {
		s.logger.Warn("not all requests finished in time", "error", err)
	}
	select {
	case <-reloaded:
	case <-drain.Done(): // a pipe that nobody writes into, or a file system that hangs; or requests took all the time
		select {
		case <-reloaded:
		default:
			s.logger.Warn("SIGHUP: a file could not be read in time")
		}
	}
	if err := s.node.close(); err != nil {
		return err
	}
	s.logger.Info("stopped")
	return nil
}

// serveInner runs the operators' listeners: the admin listener, and the console's own.
func (s *serving) serveInner(ended chan<- error) (servers []*http.Server, err error) {
	n := s.node
	serve := func(name, address string, server *http.Server, secure bool) error {
		l, err := listenToOperators(address)
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		l = netutil.LimitListener(l, s.operatorConns)
		scheme := "http"
		if secure {
			l, scheme = tls.NewListener(l, s.certificate.Config()), "https"
		}
		servers, n.consoleAddress = append(servers, server), scheme+"://"+l.Addr().String()+"/"
		go func() { ended <- server.Serve(l) }()
		s.logger.Info(name+" listener", "address", l.Addr().String())
		return nil
	}
	if s.Admin != "off" {
		server := n.admin.HTTPServer(n.console)
		server.RegisterOnShutdown(n.backups.end) // a backup may take hours
		server.RegisterOnShutdown(n.endLive)
		if err := serve("admin", s.Admin, server, false); err != nil {
			return nil, err
		}
	}
	if s.Console != "" {
		server := n.admin.ConsoleServer(n.console)
		server.RegisterOnShutdown(n.endLive)
		if err := serve("console", s.Console, server, s.certificate != nil); err != nil {
			return servers, err
		}
	}
	return servers, nil
}

// reloadPatience is how long reading the files again takes until it is said: further signals wait for it.
const reloadPatience = 2 * time.Second

// reloadOnHUP reads certificates and bootstrap file again whenever SIGHUP comes, until ctx ends.
func (s *serving) reloadOnHUP(ctx context.Context) {
	for {
		select {
		case <-s.hup:
			late := time.AfterFunc(reloadPatience, func() {
				s.logger.Warn("SIGHUP: a file can't be read; until it can, nothing is reloaded")
			})
			s.reload(ctx)
			late.Stop()
		case <-ctx.Done():
			return
		}
	}
}

// reload reads certificates and bootstrap file again. What is wrong with them is logged, and the old state stays.
func (s *serving) reload(ctx context.Context) {
	good := true
	note := func(err error) {
		if err != nil {
			good = false
			s.logger.Error("reload", "error", err)
		}
	}
	for _, certificate := range s.inUse {
		note(certificate.Reload())
	}
	s.inUse.warnOfExpiry(s.logger)
	f, err := s.readBootstrap()
	if err == nil {
		err = s.bootstrap(ctx, f)
	}
	note(err)
	if good {
		s.logger.Info("reloaded")
	}
}
