package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"millrace/wal/durable"
)

// Export is `millrace export events`.
type Export struct {
	Target
	What      string   `arg:"" enum:"events" help:"${enum}."`
	Workspace string   `help:"Only events of this workspace."`
	Since     string   `help:"Only events that happened at this time or later (ISO 8601)."`
	Until     string   `help:"Only events that happened before this time (ISO 8601)."`
	Name      []string `help:"Only these events and products."`
	Kind      []string `help:"Only this kind: event or purchase; default: both."`
	Format    string   `default:"ndjson" enum:"ndjson,parquet" help:"Format of the output: ${enum}."`
	Output    string   `short:"o" help:"File to write; - or nothing: standard output." type:"path"`
}

// Run streams the events. The file is complete, or there is an error and no file (durable.WriteFile).
func (c *Export) Run(ctx context.Context, stdout io.Writer) (err error) {
	q := given("format", c.Format, "workspace", c.Workspace, "since", c.Since, "until", c.Until)
	q["name"], q["kind"] = c.Name, c.Kind
	body, err := c.call(ctx, http.MethodGet, "/admin/events?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if c.Output == "" || c.Output == "-" {
		_, err = io.Copy(stdout, body)
		return err
	}
	return durable.WriteFile(c.Output, func(w io.Writer) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// ErrRefused is the error of an import that has refused lines or rows and taken the others.
var ErrRefused = errors.New("refused, and are not imported")

// ImportProfiles is `millrace import profiles`.
type ImportProfiles struct {
	Target
	File      string `arg:"" help:"NDJSON, each line a user in the shape of /users/export/ids; - reads standard input."`
	Workspace string `required:"" help:"Workspace to import the users into."`
}

// Run sends the file and prints how many profiles were taken.
func (c *ImportProfiles) Run(ctx context.Context, stdout io.Writer) error {
	in := io.Reader(os.Stdin)
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	body, err := c.call(ctx, http.MethodPost, inWorkspace(c.Workspace, "profiles"), in)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if _, printed := stdout.Write(text); err != nil || printed != nil {
		return errors.Join(err, printed)
	}
	var answer struct{ Imported, Refused int }
	if err := json.Unmarshal(text, &answer); err != nil || answer.Refused == 0 {
		return err
	}
	return fmt.Errorf("%d of %d lines were %w", answer.Refused, answer.Imported+answer.Refused, ErrRefused)
}
