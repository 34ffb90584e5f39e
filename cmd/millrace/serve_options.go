package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"millrace/api"
	"millrace/api/admin"
	"millrace/api/keys"
	"millrace/ingest"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/procs"
	"millrace/shard/stamp"
	"millrace/wal"
)

// What the flags of serve mean: which settings are refused, and the options of the rooms.

// check refuses settings with surprising effects.
func (c *serveCommand) check() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key go together")
	}
	loopback, err := isLoopback(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if !loopback && c.TLSCert == "" && !c.InsecureHTTP {
		return errors.New("--listen: an address other than loopback needs --tls-cert and --tls-key, or --insecure-http")
	}
	if !loopback && c.Demo {
		return errors.New("--demo works on loopback only, because its key is publicly known")
	}
	if err := c.checkMemory(); err != nil {
		return err
	}
	switch {
	case c.MaxBodies != 0 && c.MaxBodies < c.MaxBody:
		return errors.New("--max-bodies must be at least --max-body")
	case c.EventRetention < c.EventPackAfter:
		return errors.New("--event-retention must be at least --event-pack-after")
	case c.RefusedQueue < c.RefusedObject:
		return errors.New("--refused-queue must be at least --refused-object")
	}
	if c.Admin != "off" {
		if loopback, err = isLoopback(c.Admin); err != nil {
			return fmt.Errorf("--admin: %w", err)
		}
		if !loopback && !c.InsecureHTTP {
			return errors.New("--admin: an address other than loopback needs --insecure-http; put a TLS proxy in " +
				"front of it")
		}
	}
	if err := api.CheckPublicURL(c.PublicURL); err != nil {
		return fmt.Errorf("--public-url: %w", err)
	}
	if err := api.CheckPublicHosts(c.PublicHosts); err != nil {
		return fmt.Errorf("--public-hosts: %w", err)
	}
	return cmp.Or(c.checkConsole(), c.checkCluster())
}

func isLoopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, err
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}

// nodeOptions returns the options of a node that is alone.
func (c *serveCommand) nodeOptions(logger *slog.Logger) (o nodeOptions, err error) {
	o = nodeOptions{engine: c.engineOptions(logger), events: c.eventOptions(logger), streams: c.streamOptions(logger),
		live: c.liveOptions(), census: c.censusOptions(),
		decoder: ingest.Options{MaxDepth: c.MaxDepth, MaxProperties: c.MaxProperties,
			MaxPropertiesBytes: c.MaxPropertiesBytes},
		documents: int64(c.MaxDocuments)}
	if o.documents == 0 {
		o.documents = int64(max(c.Memory/8, 64<<20))
	}
	if o.refused, err = c.refusedOptions(logger); err != nil {
		return o, err
	}
	c.planMemory().apply(&o.engine, &o.events)
	if o.door, err = c.doorOptions(logger); err != nil {
		return o, err
	}
	if o.admin.Token, err = c.adminToken(logger); err != nil {
		return o, err
	}
	o.console, err = c.consoleOptions(logger)
	return o, err
}

// tls returns the certificate of the API, nil for none. One that clients refuse, because it has expired for instance,
// doesn't keep the server from starting, since there is no other one; but it never takes the place of another one.
func (c *serveCommand) tls(logger *slog.Logger) (*api.TLS, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	t, err := api.LoadTLS(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	if err := t.Require(checkUse); err != nil {
		logger.Warn("--tls-cert: clients refuse this certificate", "error", err)
	}
	return t, nil
}

// checkUse returns an error when no client would accept a certificate, whomever it trusts: it has expired, isn't valid
// yet, or isn't for servers.
func checkUse(own *tls.Certificate) error {
	trusted := x509.NewCertPool()
	trusted.AddCert(own.Leaf)
	_, err := own.Leaf.Verify(x509.VerifyOptions{Roots: trusted})
	return err
}

func (c *serveCommand) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, err
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

func (c *serveCommand) engineOptions(logger *slog.Logger) shard.Options {
	return shard.Options{
		Dir: c.Data, Workers: c.Workers, MaxMergesWaiting: c.MaxMergesWaiting,
		CheckpointBytes: int64(c.CheckpointBytes), CheckpointInterval: c.CheckpointInterval,
		Clock: &stamp.Clock{MaxOffset: c.MaxClockOffset, Logger: logger}, MaxDeltaChanges: orNone(c.MaxDeltaChanges),
		Reading: procs.NewReading(c.ReadProcs, c.underWay(c.MaxAnswers, 0)/4),
		Log: wal.Options{
			SegmentBytes: int64(c.SegmentBytes), Buffered: c.BufferedLog, StallAfter: c.StallAfter,
			MinFreeBytes: orNone(int64(c.MinFreeBytes)), MinFreePercent: orNone(c.MinFreePercent),
		},
		Logger: logger,
	}
}

func (c *serveCommand) eventOptions(logger *slog.Logger) eventlog.Options {
	return eventlog.Options{
		Dir: filepath.Join(c.Data, "events"), Retention: c.EventRetention, MaxBacklogBytes: int64(c.EventBacklog),
		PackAfter: c.EventPackAfter,
		MaxDuty:   c.EventDuty, DeleteWithin: c.EventDeleteTime, Logger: logger,
	}
}

// orNone turns the command line's "no floor" into that of the log.
func orNone[T int | int64 | float64 | time.Duration](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func (c *serveCommand) doorOptions(logger *slog.Logger) (api.Options, error) {
	o := api.Options{
		MaxBodyBytes: int(c.MaxBody), MaxBulkBodyBytes: int(c.MaxBulkBody),
		MaxBodiesBytes:  c.underWay(c.MaxBodies, 2*c.MaxBody),
		MaxAnswersBytes: c.underWay(c.MaxAnswers, 0),
		ReadTimeout:     c.ReadTimeout, WriteTimeout: c.WriteTimeout, IdleTimeout: c.IdleTimeout,
		MaxHeaderBytes: c.MaxHeaderBytes, MaxHeaders: c.MaxHeaders, MaxConns: c.MaxConns,
		MaxConnsPerIP: c.MaxConnsPerIP, MaxRequestsPerConn: c.MaxRequestsPerConn,
		MaxBadKeysPerMinute: c.MaxBadKeysPerMinute,
		PublicURL:           c.PublicURL, PublicHosts: c.publicHosts(), PreferenceLinkLife: c.PreferenceLinkLife,
		MaxPagesPerMinute: c.MaxPagesPerMinute,
		AccessLog:         c.AccessLog, Logger: logger,
	}
	var err error
	if o.TrustedProxies, err = keys.ParseNetworks(c.TrustedProxies); err != nil {
		return o, fmt.Errorf("--trusted-proxies: %w", err)
	}
	return o, nil
}

// underWay returns --max-bodies or --max-answers; 0: derived from memory, and at least least.
func (c *serveCommand) underWay(set, least byteSize) int64 {
	if set == 0 {
		return int64(max(c.Memory/8, 128<<20, least))
	}
	return int64(set)
}

// adminToken returns the admin token; empty: there is no listener that would take it.
func (c *serveCommand) adminToken(logger *slog.Logger) (string, error) {
	if c.Admin == "off" && c.Console == "" {
		return "", nil
	}
	token, path, err := admin.Token(c.Data)
	if err != nil {
		return "", err
	}
	logger.Info("the admin token is in this file", "path", path)
	return token, nil
}

// publicHosts returns the hosts in the setting, and the host of --listen if that is a name.
func (c *serveCommand) publicHosts() []string {
	host, _, err := net.SplitHostPort(c.Listen)
	if _, notName := netip.ParseAddr(host); err != nil || host == "" || notName == nil {
		return c.PublicHosts
	}
	return append([]string{c.Listen}, c.PublicHosts...)
}
