package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"millrace/api/bounded"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/cmd/millrace/operate"
)

// The bootstrap file, and the workspace of --demo.

// demo is the workspace of `make run`.
//
//go:embed demo.yaml
var demo []byte

const demoKey = "millrace-demo-key"

// readBootstrap reads the bootstrap file, nil if there is none.
func (c *serveCommand) readBootstrap() (*document.BootstrapFile, error) {
	if c.Bootstrap == "" {
		return nil, nil
	}
	text, err := bounded.ReadFile(c.Bootstrap, bounded.LargeFile)
	if err != nil {
		return nil, fmt.Errorf("--bootstrap: %w", err)
	}
	f, err := document.ParseBootstrap(text)
	if err != nil {
		return nil, fmt.Errorf("--bootstrap: %q: %w", c.Bootstrap, err)
	}
	return f, nil
}

// awaitBootstrap is readBootstrap, but doesn't wait beyond the end of ctx for a pipe that nobody writes into.
func (c *serveCommand) awaitBootstrap(ctx context.Context) (*document.BootstrapFile, error) {
	var f *document.BootstrapFile
	read := make(chan error, 1)
	go func() {
		var err error
		f, err = c.readBootstrap()
		read <- err
	}()
	select {
	case err := <-read:
		return f, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// bootstrap applies the demo and the bootstrap file, if there is one.
func (s *serving) bootstrap(ctx context.Context, f *document.BootstrapFile) error {
	if s.Demo {
		d, err := document.ParseBootstrap(demo)
		if err != nil {
			return err
		}
		if err := applyBootstrap(ctx, s.node.control, d, s.stdout); err != nil {
			return err
		}
	}
	if f == nil {
		return nil
	}
	if err := applyBootstrap(ctx, s.node.control, f, s.stdout); err != nil {
		return fmt.Errorf("--bootstrap: %q: %w", s.Bootstrap, err)
	}
	return nil
}

// applyBootstrap prints the keys that it makes, since they are never shown again.
func applyBootstrap(
	ctx context.Context, c *control.Control, f *document.BootstrapFile, stdout io.Writer,
) error {
	made, err := c.Bootstrap(ctx, control.Actor{Name: "bootstrap file"}, f)
	for _, k := range made {
		if _, failed := fmt.Fprintln(stdout, k); failed != nil {
			// Not the failure itself: a full standard output is no full disk of the server.
			return errors.Join(err, fmt.Errorf("%w: %v", operate.ErrKeysUnseen, failed))
		}
	}
	return err
}

func (s *serving) greet() {
	fmt.Fprintf(s.stdout, `
Millrace serves http://%[1]s with the key %[2]s. Try it from another terminal:

  curl -s http://%[1]s/users/track -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' \
    -d '{"attributes":[{"external_id":"ada","first_name":"Ada","email":"ada@example.com","plan":"pro"}],"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-31T09:30:00Z"}]}'
  curl -s http://%[1]s/users/export/ids -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' -d '{"external_ids":["ada"]}'
  curl -s http://%[1]s/preference_center/v1/demo/url/ada -H 'Authorization: Bearer %[2]s'

The last one answers with a link: Ada's preference page, to open in a browser.
`, s.listener.Addr(), demoKey)
	if s.node.consoleAddress != "" {
		fmt.Fprintf(s.stdout, `
The console, with all of it to see: %s
It asks for the admin token, which is in %s.
`, s.node.consoleAddress, filepath.Join(s.Data, "admin-token"))
	}
	fmt.Fprintln(s.stdout)
}
