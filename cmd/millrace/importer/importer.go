// Package importer brings files of rows (package ingest/files) into a server, through /users/track and /users/delete.
//
// A file is read twice: once to check all of it and to know its hash, then to send it. What the check has found out
// about rows of NDJSON is remembered, as far as it fits, so that they are taken apart only once (files.Notes). Each row
// goes to the lane of the user that it names. A lane combines its rows into requests, and has one request under way at
// a time. So the rows of one user that are of one kind take effect in the order of the file, as long as they name the
// user in the same way. Rows of several kinds do so where it matters (request.takes).
//
// Each row takes effect once, whatever is killed and when:
//   - Which rows are in which request depends only on the file and on the settings with which it was begun, and so does
//     the request's Idempotency-Key.
//   - What was answered is noted in the file's state, with the end of the refused file (state.go). Requests that were
//     answered after the last note are sent again, with the same key, and get the same answers.
//
// The reader owns the open requests, and a lane owns the one that it sends; a mutex guards the ledger, which all share.
package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"millrace/ingest/files"
	"millrace/wal/durable"
	"millrace/wal/pause"
)

// Options of an import. The zero value of a field means its default.
type Options struct {
	// URL of the server. The nodes of a cluster get requests in turn if several are given. Required.
	URL []string
	// Key is the API key, with the permission users.track or, with Bulk, users.track.bulk, and users.delete for
	// deletions. Required.
	Key string
	// Paths are files, directories whose files are taken in the order of their names, and s3://BUCKET/PREFIX, whose
	// objects are taken in the order of their keys. Required.
	Paths []string
	// S3 says how buckets are reached.
	S3 S3
	// State is the directory that remembers what was taken (default: .millrace-import in the directory of the first
	// path, for a bucket in the working directory). It is made when absent, and so is Refused.
	State string
	// Refused is the directory of the refused files (default: beside each file, for objects the one in State).
	Refused string
	// MaxCopyBytes bounds the copy that is made in State of an object, and of a packed file after unpacking (default 64
	// GiB).
	MaxCopyBytes int64

	// Kind of the rows that don't have another one (default: attributes).
	Kind files.Kind
	// Format of all files (default: by their names).
	Format files.Format
	// Malformed says what an unreadable row refuses: the whole file, or only the row (default: file in NDJSON, row in
	// CSV).
	Malformed string
	// MaxRowBytes, MaxColumns and MaxPageBytes bound what is read of a file, see files.Options.
	MaxRowBytes, MaxColumns, MaxPageBytes int
	// NoteBytes is how much may be remembered of a file from its check until it is sent, 32 bytes per row (default 64
	// MiB). Rows of NDJSON after that are taken apart twice.
	NoteBytes int
	// UpdateExistingOnly leaves out rows of users who don't exist.
	UpdateExistingOnly bool

	// Connections, each with one request under way (default 16).
	Connections int
	// Objects bounds the objects of each array in a request (default 75).
	Objects int
	// Bulk sends rows to /users/track/bulk, up to 1,000 in a request, and Objects counts for deletions alone. The key
	// needs the permission users.track.bulk.
	Bulk bool
	// RequestBytes is the size at which a request is full, whatever it has (default 1 MiB).
	RequestBytes int
	// Rate bounds the rows that are sent in a second; 0: as fast as they are taken.
	Rate float64
	// Timeout of a request, and how long the service of a bucket may say nothing (default 30 s).
	Timeout time.Duration
	// Patience is how long the server may be unreachable before the import gives up (default 10 min).
	Patience time.Duration
	// Late continues files that were interrupted so long ago that the server may have forgotten which requests it has
	// had.
	Late bool
	// Changed takes a file as a whole if it was begun and interrupted, and has changed since.
	Changed bool

	// Watch makes the import look for files until the context ends.
	Watch bool
	// Settle is how long a file must have been left alone before it is taken from a watched directory; 0: it is taken
	// at once, half written or not.
	Settle time.Duration
	// Poll is how often a watched directory is checked (default 2 s).
	Poll time.Duration

	// Terminal shows a bar, and messages unless there is a Logger; nil: none.
	Terminal io.Writer
	// Logger gets messages (default: no messages).
	Logger *slog.Logger

	dial func() (net.Conn, error) // for tests; nil: the network
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Kind = cmp.Or(o.Kind, files.Attributes)
	o.Connections = cmp.Or(o.Connections, 16)
	o.Objects = cmp.Or(o.Objects, 75)
	o.RequestBytes = cmp.Or(o.RequestBytes, 1<<20)
	o.NoteBytes = cmp.Or(o.NoteBytes, 64<<20)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Patience = cmp.Or(o.Patience, 10*time.Minute)
	o.Poll = cmp.Or(o.Poll, 2*time.Second)
	o.MaxCopyBytes = cmp.Or(o.MaxCopyBytes, 64<<30)
	o.S3.Endpoint = cmp.Or(o.S3.Endpoint, defaultEndpoint)
	if o.State == "" && len(o.Paths) > 0 {
		o.State = filepath.Join(directoryOf(o.Paths[0]), ".millrace-import")
	}
	switch {
	case o.Logger == nil && o.Terminal != nil:
		o.Logger = slog.New(slog.NewTextHandler(inPlaceOfBar{o.Terminal}, nil))
	case o.Logger == nil:
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func directoryOf(path string) string {
	if isBucket(path) {
		return "."
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return filepath.Dir(filepath.Clean(path))
}

// rows returns what is said of the rows of each file, without the defaults, which are theirs.
func (o *Options) rows() files.Options {
	return files.Options{Kind: o.Kind, MaxRowBytes: o.MaxRowBytes, MaxColumns: o.MaxColumns,
		MaxPageBytes: o.MaxPageBytes}
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	for _, u := range o.URL {
		if p, err := url.Parse(u); err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" {
			return fmt.Errorf("--url %q: want http://HOST:PORT or https://HOST", u)
		}
	}
	for _, p := range o.Paths {
		if err := checkBucket(p); err != nil {
			return err
		}
	}
	if err := o.S3.validate(); err != nil {
		return err
	}
	rows := o.rows()
	rows.EnsureDefaults()
	switch {
	case len(o.URL) == 0:
		return errors.New("URL is required")
	case o.Key == "":
		return errors.New("Key is required")
	case len(o.Paths) == 0:
		return errors.New("Paths are required")
	case o.Malformed != "" && o.Malformed != "file" && o.Malformed != "row":
		return fmt.Errorf("Malformed %q: want file or row", o.Malformed)
	case o.Connections < 1 || o.Connections > 1024:
		return fmt.Errorf("Connections %d: must be 1 to 1024", o.Connections)
	case o.Objects < 1 || o.Objects > 100_000:
		return fmt.Errorf("Objects %d: must be 1 to 100000", o.Objects)
	case o.RequestBytes < 1<<10 || o.RequestBytes > 1<<30:
		return fmt.Errorf("RequestBytes %d: must be 1 KiB to 1 GiB", o.RequestBytes)
	case o.NoteBytes < 0:
		return errors.New("NoteBytes must not be negative")
	case o.MaxCopyBytes < 1:
		return errors.New("MaxCopyBytes must be positive")
	case o.Rate < 0 || o.Timeout < 0 || o.Patience < 0 || o.Settle < 0 || o.Poll < 0:
		return errors.New("Rate, Timeout, Patience, Settle and Poll must not be negative")
	}
	return rows.Validate()
}

// Report is what an import has done.
type Report struct {
	Files    int           `json:"files"`             // taken to their ends
	Before   int           `json:"before"`            // taken by an earlier run
	Unknown  []string      `json:"unknown,omitempty"` // skipped: names don't say what the files are, or they aren't files
	Bad      int           `json:"bad"`               // of these nothing was taken, or not all
	Counts                 // of the rows of this run and, for a resumed file, of earlier ones
	Sent     int64         `json:"sent"` // rows of this run
	Duration time.Duration `json:"duration_ns"`
}

// Counts are about rows.
type Counts struct {
	Rows     int64 `json:"rows"`
	Taken    int64 `json:"taken"`
	Warned   int64 `json:"warned"`   // taken, except for a value that was left out
	Refused  int64 `json:"refused"`  // see the refused files
	Deleted  int64 `json:"deleted"`  // users
	Nobody   int64 `json:"not_here"` // rows of deletions of users who don't exist
	Replayed int64 `json:"replayed"` // of those taken, rows that the server had already had
}

func (c *Counts) add(d Counts) {
	c.Rows += d.Rows
	c.Taken += d.Taken
	c.Warned += d.Warned
	c.Refused += d.Refused
	c.Deleted += d.Deleted
	c.Nobody += d.Nobody
	c.Replayed += d.Replayed
}

// importer is one run.
type importer struct {
	o      Options
	client *client
	states *states
	report Report
	bar    *bar

	bucket   *buckets // nil: no path is a bucket's
	patience patience // with the bucket
}

// Run takes the files. It returns a report of what was done even with an error: a *FileErrors if files were bad, the
// context's error if it was interrupted. The next run with the same State continues what was interrupted.
func Run(ctx context.Context, o Options) (Report, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	if err := o.makeDirs(); err != nil {
		return Report{}, err
	}
	lock, err := durable.Lock(filepath.Join(o.State, "lock"))
	if errors.Is(err, durable.ErrLocked) {
		return Report{}, fmt.Errorf("another import is using %q: %w", o.State, err)
	} else if err != nil {
		return Report{}, err
	}
	defer lock.Close()
	i := &importer{o: o, client: newClient(&o), patience: patience{most: o.Patience}}
	if slices.ContainsFunc(o.Paths, isBucket) {
		if i.bucket, err = newBuckets(&i.o.S3, i.o.Timeout, i.isOurs); err != nil {
			return Report{}, err
		}
	}
	if i.states, err = openStates(o.State); err != nil {
		return Report{}, err
	}
	i.bar = newBar(o.Terminal)
	defer i.bar.stop()
	begun := time.Now()
	err = i.run(ctx)
	i.report.Duration = time.Since(begun)
	return i.report, err
}

// makeDirs makes the directories that the import writes into and that are its own.
func (o *Options) makeDirs() error {
	if o.Refused != "" {
		if err := durable.MakeDir(nil, o.Refused, 0o700); err != nil {
			return err
		}
	}
	return durable.MakeDir(nil, o.State, 0o700)
}

// run takes all files that exist and, when watching, those that come.
func (i *importer) run(ctx context.Context) error {
	seen := &watcher{settle: i.o.Settle}
	if !i.o.Watch {
		seen.settle = 0
	}
	var bad FileErrors
	for ctx.Err() == nil {
		err := i.round(ctx, seen, &bad)
		_, isAway := errors.AsType[*awayError](err)
		switch {
		case i.o.Watch && isAway && ctx.Err() == nil && i.patience.away():
			i.o.Logger.Warn("the buckets can't be reached; trying again", "error", err)
		case err != nil:
			return err
		case !i.o.Watch:
			return bad.orNil()
		default:
			i.patience.since = time.Time{}
		}
		_ = pause.For(ctx, i.o.Poll) // the loop ends with ctx
	}
	return bad.orNil()
}

// round takes the files that exist now.
func (i *importer) round(ctx context.Context, seen *watcher, bad *FileErrors) error {
	all, err := i.list(ctx, seen)
	if i.o.Watch && ctx.Err() != nil { // it was interrupted while it looked: nothing is left off
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range all {
		err := i.file(ctx, &f)
		if fault, ok := errors.AsType[*FileError](err); ok {
			i.report.Bad++
			i.o.Logger.Error("the file was not imported, or only in part", "file", f.path, "reason", fault.Err)
			*bad = append(*bad, fault)
		} else if err != nil {
			return err
		}
		seen.leave(f.path)
	}
	return nil
}

// strict reports whether an unreadable row is a fault of its file.
func (o *Options) strict(format files.Format) bool {
	return o.Malformed == "file" || o.Malformed == "" && format != files.CSV
}

// FileError says why nothing of a file was taken, or not all of it.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.File, e.Err) }

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// FileErrors are the errors of a run.
type FileErrors []*FileError

func (e FileErrors) Error() string {
	var lines []string
	for _, f := range e {
		lines = append(lines, f.Error())
	}
	return "not imported, or only in part: " + strings.Join(lines, "\n")
}

func (e FileErrors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
