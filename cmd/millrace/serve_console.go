package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api"
	"millrace/api/admin"
	"millrace/api/bounded"
	"millrace/api/console"
	"millrace/api/console/signin"
	"millrace/api/openapi"
)

// checkConsole refuses settings with surprising effects.
func (c *serveCommand) checkConsole() error {
	for _, f := range []struct{ name, url string }{
		{"--console-url", c.ConsoleURL}, {"--oidc-issuer", c.OIDCIssuer},
	} {
		if f.url != "" {
			if err := signin.CheckAddress(f.url); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	switch {
	case c.OIDCIssuer == "" && (c.OIDCClientID != "" || c.OIDCClientSecret != "" || c.OIDCClientSecretFile != ""):
		return errors.New("--oidc-client-id and its secret go with --oidc-issuer")
	case c.OIDCIssuer != "" && (c.OIDCClientID == "" || c.ConsoleURL == ""):
		return errors.New("--oidc-issuer needs --oidc-client-id and --console-url")
	case c.ConsoleLife < c.ConsoleIdle:
		return errors.New("--console-life must be at least --console-idle")
	case c.OIDCClientSecret != "" && c.OIDCClientSecretFile != "":
		return errors.New("--oidc-client-secret and --oidc-client-secret-file: give only one of them")
	case c.Console == "":
		return nil
	}
	loopback, err := isLoopback(c.Console)
	if err != nil {
		return fmt.Errorf("--console: %w", err)
	}
	if !loopback && c.TLSCert == "" && !c.InsecureHTTP {
		return errors.New("--console: an address other than loopback needs --tls-cert and --tls-key, or " +
			"--insecure-http and a TLS proxy in front of it")
	}
	return nil
}

// consoleOptions returns the options from the flags; those from the node come later.
func (c *serveCommand) consoleOptions(logger *slog.Logger) (console.Options, error) {
	o := console.Options{Options: signin.Options{Idle: c.ConsoleIdle, Life: c.ConsoleLife, MaxSessions: c.MaxSessions,
		Logger: logger, Provider: signin.Provider{Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID,
			ClientSecret: c.OIDCClientSecret, Claim: c.OIDCClaim, URL: strings.TrimSuffix(c.ConsoleURL, "/")}}}
	if c.OIDCClientSecretFile != "" {
		text, err := bounded.ReadFile(c.OIDCClientSecretFile, bounded.SmallFile)
		if err != nil {
			return o, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		o.Provider.ClientSecret = strings.TrimSpace(string(text))
	}
	return o, nil
}

// openConsole makes the console of a node.
func (n *node) openConsole(o console.Options, adminToken string) (err error) {
	o.API, o.As, o.Control, o.AdminToken, o.Document = n.admin.API(), admin.As, n.control, adminToken, openapi.Page
	o.Permissions = api.Permissions()
	o.Hold = func(body io.ReadCloser) console.Held { return n.server.Hold(body) }
	o.Figures = func(dst []byte) []byte {
		b := bytes.NewBuffer(dst)
		metrics.WritePrometheus(b, true)
		return b.Bytes()
	}
	if n.console, err = console.New(o); err != nil {
		return err
	}
	n.ends = append(n.ends, n.console.Close)
	return nil
}
