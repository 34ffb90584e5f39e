package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"

	"millrace/cmd/millrace/importer"
	"millrace/cmd/millrace/operate"
	"millrace/ingest/files"
)

// importCommand is `millrace import`.
type importCommand struct {
	Profiles operate.ImportProfiles `cmd:"" help:"Import whole profiles from an export."`
	Files    importFiles            `cmd:"" help:"Import rows of NDJSON, CSV or Parquet: attributes, events, purchases, deletions. An interrupted import resumes where it stopped."`
}

// importFiles is `millrace import files`.
type importFiles struct {
	Path []string `arg:"" help:"Files; directories, whose files are taken in the order of their names; or s3://BUCKET/PREFIX, whose objects are taken in the order of their keys. .gz and .zst are unpacked."`

	URL    []string     `default:"http://127.0.0.1:8080" help:"Server; with several (the nodes of a cluster), requests go to each in turn."`
	Key    string       `required:"" help:"API key with users.track, and users.delete for deletions. Prefer the environment: other users of the machine can see the command line."`
	Kind   files.Kind   `env:"-" default:"attributes" enum:"attributes,events,purchases,deletions" help:"Kind of rows that don't name their kind: ${enum}."`
	Format files.Format `env:"-" default:"" enum:",ndjson,csv,parquet" help:"Format of the files: ndjson, csv, parquet; default: what their names say (.ndjson, .jsonl, .json, .csv, .parquet)."`

	State              string   `env:"-" help:"Directory that records which rows were imported; default: .millrace-import in the directory of the first path, or in the current directory for a bucket." placeholder:"DIR"`
	RefusedDir         string   `env:"-" help:"Directory for the files of refused rows; default: next to each file, or in --state for the objects of a bucket." placeholder:"DIR"`
	Malformed          string   `env:"-" default:"" enum:",file,row" help:"What is refused because of a row that can't be read: the file (default, except for CSV) or the row (default for CSV)."`
	UpdateExistingOnly bool     `env:"-" help:"Skip users who don't exist."`
	CopyBytes          byteSize `env:"-" default:"64GiB" bounds:"1KiB..1000TB" help:"Largest size of a bucket's object, or of a compressed file once it is unpacked; these are copied to --state."`
	Late               bool     `env:"-" help:"Resume files whose import was interrupted a day ago or longer."`
	Changed            bool     `env:"-" help:"Import files from their beginning when they have changed since their import was interrupted."`

	S3Endpoint   string `name:"s3-endpoint" env:"-" default:"https://s3.amazonaws.com" help:"URL of the S3 service. Credentials are found as by AWS tools: environment, file, role."`
	S3Region     string `name:"s3-region" env:"-" help:"Region of the buckets; default: the service is asked."`
	S3Addressing string `name:"s3-addressing" env:"-" default:"" enum:",path,host" help:"Where URLs name the bucket: path or host; default: host at AWS, else path."`

	Watch  bool          `env:"-" help:"Keep looking for new files until interrupted."`
	Settle time.Duration `env:"-" default:"10s" bounds:"0s..24h" help:"With --watch: a file is taken when it hasn't changed for this long."`
	Poll   time.Duration `env:"-" default:"2s" bounds:"10ms..24h" help:"With --watch: how often to look for files."`

	Connections  int           `env:"-" default:"16" bounds:"1..1024" help:"Number of connections, each with one request at a time."`
	Objects      int           `env:"-" default:"75" bounds:"1..100000" help:"Most objects that each array of a request may have."`
	Bulk         bool          `env:"-" help:"Send rows to /users/track/bulk, up to 1000 in a request, of which 100 may be about one user. The key needs users.track.bulk. --objects then counts for deletions alone."`
	RequestBytes byteSize      `env:"-" default:"1MiB" bounds:"1KiB..1GiB" help:"A request that reaches this size is sent, however few objects it has."`
	RowBytes     byteSize      `env:"-" default:"1MiB" bounds:"16..1GiB" help:"How long a row may be."`
	NoteBytes    byteSize      `env:"-" default:"64MiB" bounds:"1KiB..64GiB" help:"Memory for notes on the rows of an NDJSON file, from its check until it is sent: 32 bytes a row. Rows beyond that are parsed twice."`
	Columns      int           `env:"-" default:"1000" bounds:"1..1000000" help:"How many columns CSV and Parquet may have."`
	PageBytes    byteSize      `env:"-" default:"256MiB" bounds:"1KiB..2GiB" help:"How long a page of Parquet may be, compressed or not; it may have a quarter as many values."`
	Rate         float64       `env:"-" bounds:"0..1000000000" help:"Most rows a second; 0: as fast as the server takes them."`
	Timeout      time.Duration `env:"-" default:"30s" bounds:"10ms..24h" help:"How long to wait for the answer to a request."`
	Patience     time.Duration `env:"-" default:"10m" bounds:"0s..8760h" help:"How long the server may be unreachable before the import gives up."`

	JSON bool `name:"json" env:"-" help:"Print the report as JSON."`
}

// Run takes the files and prints a report.
func (c *importFiles) Run(ctx context.Context, stdout io.Writer) error {
	o := importer.Options{URL: c.URL, Key: c.Key, Paths: c.Path, State: c.State, Refused: c.RefusedDir, Kind: c.Kind,
		Format: c.Format, Malformed: c.Malformed,
		MaxRowBytes: int(c.RowBytes), MaxColumns: c.Columns, MaxPageBytes: int(c.PageBytes),
		NoteBytes: int(c.NoteBytes), UpdateExistingOnly: c.UpdateExistingOnly,
		Connections: c.Connections, Objects: c.Objects, Bulk: c.Bulk,
		RequestBytes: int(c.RequestBytes), Rate: c.Rate, Timeout: c.Timeout, Patience: c.Patience, Late: c.Late,
		Changed: c.Changed,
		Watch:   c.Watch, Settle: c.Settle, Poll: c.Poll, MaxCopyBytes: int64(c.CopyBytes),
		S3: importer.S3{Endpoint: c.S3Endpoint, Region: c.S3Region, Addressing: c.S3Addressing}}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		o.Terminal = os.Stderr
	} else {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	report, err := importer.Run(ctx, o)
	if report.Duration > 0 {
		err = errors.Join(c.print(stdout, &report), err)
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: run the same command to resume")
	}
	if err == nil && report.Refused > 0 {
		err = fmt.Errorf("%d of %d rows were %w", report.Refused, report.Rows, operate.ErrRefused)
	}
	return err
}

func (c *importFiles) print(stdout io.Writer, r *importer.Report) error {
	if c.JSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	lines := []struct {
		what string
		n    int64
	}{{"files imported", int64(r.Files)}, {"files imported before", int64(r.Before)},
		{"files not imported", int64(r.Bad)}, {"files skipped", int64(len(r.Unknown))},
		{"rows", r.Rows}, {"  of them by earlier runs", r.Rows - r.Sent},
		{"accepted", r.Taken}, {"  of them with a value left out", r.Warned},
		{"  of them the server had already", r.Replayed},
		{"  of them for nobody", r.Nobody}, {"users deleted", r.Deleted}, {"refused", r.Refused}}
	for i, l := range lines {
		if l.n == 0 && i != 0 && l.what != "rows" && l.what != "refused" {
			continue
		}
		if _, err := fmt.Fprintf(stdout, "%-31s %12d\n", l.what, l.n); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(stdout, "%-31s %12s, %.0f rows/s\n", "time", r.Duration.Round(time.Millisecond),
		float64(r.Sent)/r.Duration.Seconds())
	return err
}
