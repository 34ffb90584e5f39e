package store

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/throttle"
)

// ErrStore is wrapped by errors that the store's files cause: a damaged block, the version of another program.
var ErrStore = errors.New("state store")

// events sends Pebble's messages to slog, and tells the engine when the store can't be written any more.
type events struct {
	log             *slog.Logger
	errors, damages throttle.Lines
	onFailure       func(error)
	once, die       sync.Once
	err             error         // set before failed is closed
	failed          chan struct{} // the store can't be written any more
	closing         chan struct{} // closed by Store.Close
	dead            chan struct{} // closed by Fatalf: Pebble's goroutines are stopped for good
}

func newEvents(log *slog.Logger, onFailure func(error)) *events {
	return &events{log: log, errors: throttle.Lines{Most: 8}, damages: throttle.Lines{Most: 8}, onFailure: onFailure,
		failed: make(chan struct{}), closing: make(chan struct{}), dead: make(chan struct{})}
}

// fail makes the first error final.
func (l *events) fail(err error) {
	l.once.Do(func() {
		l.err = fmt.Errorf("%w: %w", ErrStore, err)
		close(l.failed)
		l.onFailure(l.err)
	})
}

func (l *events) Infof(f string, a ...any) { l.log.Debug("state store: " + fmt.Sprintf(f, a...)) }
func (l *events) Errorf(f string, a ...any) {
	l.errors.Error(l.log, "state store: "+fmt.Sprintf(f, a...))
}

// damaged is told of each read that has met a damaged block.
func (l *events) damaged(i pebble.DataCorruptionInfo) {
	l.damages.Error(l.log, "state store: damaged block", "detail", i.String())
}

// end is called when the store is about to be closed.
func (l *events) end() {
	close(l.closing)
	if left := l.errors.TakeLeft() + l.damages.TakeLeft(); left > 0 {
		l.log.Error("state store: more errors like these", "left_out", left)
	}
}

// Fatalf is called when Pebble can't go on, most often for want of a manifest, and must not return. The process has to
// end, but in the engine's way: with its reason and exit code.
func (l *events) Fatalf(f string, a ...any) {
	l.fail(fatal{fmt.Sprintf(f, a...), a})
	l.die.Do(func() { close(l.dead) })
	select {}
}

// fatal is why Pebble can't go on. It wraps the errors that its text was made of, whatever verbs have formatted them:
// whoever ends the process asks whether it was the disk.
type fatal struct {
	text string
	of   []any
}

func (f fatal) Error() string { return f.text }

func (f fatal) Unwrap() (causes []error) {
	for _, v := range f.of {
		if err, ok := v.(error); ok {
			causes = append(causes, err)
		}
	}
	return causes
}

// syncedFS calls Fatalf for a directory that can't be synced: otherwise Pebble would panic, on a goroutine of its own.
// When the store has failed, it makes files slowly.
type syncedFS struct {
	vfs.FS
	events *events
}

type syncedDir struct {
	vfs.File
	events *events
}

// Unwrap is for Pebble, which looks below wrappers.
func (fs syncedFS) Unwrap() vfs.FS { return fs.FS }

// retryPause is how long Pebble waits before it tries again what has failed.
const retryPause = time.Second

// Create makes a file. Pebble begins a flush by that, and tries one that has failed again at once and without end:
// until the process ends, that would be all that it does. Pebble holds none of the locks that readers need.
func (fs syncedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	select {
	case <-fs.events.failed:
		select {
		case <-time.After(retryPause):
		case <-fs.events.closing:
		}
	default:
	}
	return fs.FS.Create(name, category)
}

// OpenDir opens a directory to sync it.
func (fs syncedFS) OpenDir(name string) (vfs.File, error) {
	d, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return syncedDir{d, fs.events}, nil
}

// Sync does not return when it fails.
func (d syncedDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.events.Fatalf("%v", err)
	}
	return nil
}

// backgroundError is told that a flush or a compaction has failed. A damaged block is no reason to end: whoever needs
// it gets an error. Pebble's locks are held.
func (l *events) backgroundError(err error) {
	l.Errorf("background error: %s", err)
	if !pebble.IsCorruptionError(err) {
		l.fail(err)
	}
}
