package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/klauspost/compress/zstd"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"millrace/api/admin"
	"millrace/api/control"
	"millrace/cmd/millrace/operate"
	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/cluster/founding"
	"millrace/shard/eventlog"
	"millrace/wal/durable"
)

// backups is what a node knows of its backups, of which one runs at a time.
type backups struct {
	running sync.Mutex
	stop    context.Context // ends with the admin listener
	end     context.CancelFunc
	log     *slog.Logger
}

func newBackups(log *slog.Logger) *backups {
	b := &backups{log: log}
	b.stop, b.end = context.WithCancel(context.Background())
	return b
}

// backupBytesHeader says about how many bytes an archive will have.
const backupBytesHeader = "X-Backup-Bytes"

// serveBackup is GET /admin/backup: the archive of package backup, uncompressed.
func (n *node) serveBackup(w http.ResponseWriter, r *http.Request) {
	if !n.backups.running.TryLock() {
		admin.Refuse(w, http.StatusConflict, "another backup is running")
		return
	}
	defer n.backups.running.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := http.NewResponseController(w)
	defer context.AfterFunc(n.backups.stop, func() {
		cancel()
		_ = c.SetWriteDeadline(time.Now()) // for a Write that waits
	})()
	started, by := time.Now(), admin.ActorOf(r)
	if err := untilTaken(ctx, func() error { return n.control.Audit(by, "backup begun", "") }); err != nil {
		admin.Refuse(w, http.StatusServiceUnavailable, "no backup was made: "+err.Error())
		return
	}
	image, err := n.takeImage(ctx, started)
	if err != nil {
		n.backups.failed(n.control, by, err)
		admin.Refuse(w, http.StatusServiceUnavailable, "no backup was made: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set(backupBytesHeader, strconv.FormatInt(image.bytes, 10))
	out := &streamed{ResponseWriter: w}
	// What a backup holds on the disk grows as long as it runs.
	size, err := image.write(ctx, impatient{out, c, ctx})
	if err = errors.Join(err, image.release()); err != nil {
		n.backups.failed(n.control, by, err)
		out.fail(err)
		return
	}
	took := time.Since(started)
	backupsTotal.Inc()
	backupTime.Set(float64(started.Unix()))
	backupDuration.Set(took.Seconds())
	backupBytes.Set(float64(size))
	err = untilTaken(ctx, func() error {
		return n.control.Audit(by, "backup finished", "", "position", image.position, "bytes", size,
			"seconds", int64(took.Seconds()))
	})
	if err != nil {
		n.backups.log.Warn("the end of a backup was not recorded in the audit log", "error", err)
	}
}

// takenImage is the image of this node, or of the cluster.
type takenImage struct {
	bytes    int64
	position uint64
	write    func(context.Context, io.Writer) (int64, error)
	release  func() error
}

func (n *node) takeImage(ctx context.Context, now time.Time) (*takenImage, error) {
	if n.cluster != nil {
		b, err := n.cluster.Backup(ctx, version, now)
		if err != nil {
			return nil, err
		}
		return &takenImage{b.Bytes, b.About.Position, b.Write, b.Release}, nil
	}
	i, err := backup.Take(ctx, n.engine.Replica(), n.events.(*eventlog.Log), version, now)
	if err != nil {
		return nil, err
	}
	return &takenImage{i.Bytes, i.About.Position, i.Write, i.Release}, nil
}

func (b *backups) failed(c *control.Control, by control.Actor, err error) {
	backupFailures.Inc()
	b.log.Error("backup failed", "error", err)
	err = untilTaken(b.stop, func() error { return c.Audit(by, "backup failed", "") })
	if err != nil && !errors.Is(err, shard.ErrClosed) {
		b.log.Warn("the end of a backup was not recorded in the audit log", "error", err)
	}
}

// backupCommand is `millrace backup`.
type backupCommand struct {
	operate.Target
	To          string `arg:"" help:"File to write; a directory, for a file named after the time; or - for standard output."`
	Compression string `default:"zstd" enum:"zstd,none" help:"How the backup is compressed: ${enum}."`
}

// Run writes the backup, checking it on the way. The file is complete, or there is an error and no file
// (durable.WriteFile).
func (c *backupCommand) Run(ctx context.Context, stdout io.Writer) error {
	response, err := c.Request(ctx, http.MethodGet, "/admin/backup", nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	total, err := strconv.ParseInt(response.Header.Get(backupBytesHeader), 10, 64)
	if err != nil {
		total = -1
	}
	body, stop := withProgress(response.Body, total, "backup")
	defer stop()
	var about backup.About
	save := func(w io.Writer) (err error) {
		about, err = c.save(ctx, w, body)
		return err
	}
	if c.To == "-" {
		return save(stdout)
	}
	path := c.To
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "millrace-"+time.Now().UTC().Format("20060102T150405Z")+c.suffix())
	}
	size := sizer{}
	err = durable.WriteFile(path, func(w io.Writer) error { return save(io.MultiWriter(w, &size)) })
	if err != nil {
		return err
	}
	stop()
	if isStdout(path) { // /dev/stdout: nothing else may get into the backup, or after it
		return nil
	}
	_, err = fmt.Fprintf(stdout, "%s: %d bytes, of %s, up to position %d\n", path, size.n,
		about.Created.Format(time.RFC3339), about.Position)
	return err
}

// isStdout reports whether a path is the standard output of the process.
func isStdout(path string) bool {
	to, err := os.Stat(path)
	own, ownErr := os.Stdout.Stat()
	return err == nil && ownErr == nil && os.SameFile(to, own)
}

// sizer counts what is written to it.
type sizer struct{ n int64 }

// Write counts.
func (s *sizer) Write(p []byte) (int, error) {
	s.n += int64(len(p))
	return len(p), nil
}

func (c *backupCommand) suffix() string {
	if c.Compression == "zstd" {
		return ".tar.zst"
	}
	return ".tar"
}

// save writes the archive to w and checks it at the same time.
func (c *backupCommand) save(ctx context.Context, w io.Writer, archive io.Reader) (about backup.About, err error) {
	if c.Compression == "zstd" {
		var z *zstd.Encoder
		z, err = zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
		if err != nil {
			return about, err
		}
		defer func() { // what it still has to write may find the disk full
			if closed := z.Close(); err == nil {
				err = closed
			}
		}()
		w = z
	}
	about, err = backup.Verify(ctx, io.TeeReader(archive, w))
	if !errors.Is(err, backup.ErrArchive) {
		err = ofBackup(err)
	}
	return about, err
}

// ofBackup says what it means when a server breaks off its answer: it gives up the backup so, or was killed.
func ofBackup(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the server ended the backup early: see its log for the reason, and run the command again: "+
			"%w", err)
	}
	return err
}

// restoreCommand is `millrace restore`.
type restoreCommand struct {
	File          string `arg:"" help:"What millrace backup has written; - reads standard input."`
	Data          string `help:"Data directory to make; it must not exist yet, or be empty." placeholder:"DIR"`
	VerifyOnly    bool   `help:"Read and check every byte of the backup; write nothing."`
	foundingFlags `group:"For the backup of a cluster:"`
}

// Run makes a data directory, or none if something fails.
func (c *restoreCommand) Run(ctx context.Context, stdout io.Writer) error {
	if c.Data == "" && !c.VerifyOnly {
		return errors.New("--data or --verify-only is required")
	}
	if len(c.Members) == 0 && (c.Node != 1 || c.Groups != 0 || c.Replicas != 0) {
		return errors.New("--node, --groups and --replicas go with --members")
	}
	in, size, err := c.open()
	if err != nil {
		return err
	}
	defer in.Close()
	archive, stop := withProgress(in, size, "restore")
	defer stop()
	var about backup.About
	what := "intact"
	var founded *founding.Founded
	switch {
	case c.VerifyOnly:
		about, err = backup.Verify(ctx, archive)
	case len(c.Members) > 0:
		what = "restored to " + c.Data
		err = inEmptyDir(c.Data, func() (err error) {
			founded, about, err = founding.RestoreBackup(ctx, archive, c.options(c.Data))
			return err
		})
	default:
		what = "restored to " + c.Data
		err = inEmptyDir(c.Data, func() (err error) {
			about, err = backup.Restore(ctx, nil, c.Data, archive)
			return err
		})
	}
	switch {
	case errors.Is(err, backup.ErrCluster):
		return fmt.Errorf("%s: %w; give the addresses of the new cluster's nodes in --members", c.File, err)
	case errors.Is(err, backup.ErrAlone):
		return fmt.Errorf("%s: %w; restore it without --members, and make a cluster of that by millrace cluster import",
			c.File, err)
	case err != nil:
		return fmt.Errorf("%s: %w", c.File, err)
	}
	stop()
	_, err = fmt.Fprintf(stdout, "%s: %s, of %s, up to position %d, written by version %s\n", c.File, what,
		about.Created.Format(time.RFC3339), about.Position,
		about.Program)
	if err != nil || founded == nil {
		return err
	}
	return c.next(stdout, c.Data, founded)
}

func (c *restoreCommand) open() (io.ReadCloser, int64, error) {
	if c.File == "-" {
		return io.NopCloser(os.Stdin), -1, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// withProgress draws a bar while r is read, on a terminal. total is -1 when it is not known. stop removes the bar; it
// may be called twice.
func withProgress(r io.Reader, total int64, what string) (_ io.Reader, stop func()) {
	bar, stop := newBar(total, what)
	if bar == nil {
		return r, stop
	}
	return io.TeeReader(r, bar), stop
}

// newBar makes a bar of bytes on a terminal, nil elsewhere. total is -1 when it is not known. stop removes the bar; it
// may be called twice.
func newBar(total int64, what string) (bar *progressbar.ProgressBar, stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil, func() {}
	}
	bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetWidth(30),
		progressbar.OptionShowBytes(true), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
	return bar, func() { _ = bar.Clear() }
}

var (
	backupsTotal   = metrics.NewCounter("millrace_backups_total")
	backupFailures = metrics.NewCounter("millrace_backup_failures_total")
	backupTime     = metrics.NewGauge("millrace_backup_last_time_seconds", nil)
	backupDuration = metrics.NewGauge("millrace_backup_last_duration_seconds", nil)
	backupBytes    = metrics.NewGauge("millrace_backup_last_bytes", nil)
)
