package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/store"
	"millrace/wal"
)

// ErrImage is returned by BeginImage while another image is being taken. Wait until that one is released.
var ErrImage = errors.New("an image of the engine is being taken already")

// RestoreMarker is a file in Options.Dir while a restore fills the directory. Open refuses a directory that has it,
// since the files there are not complete.
const RestoreMarker = "RESTORING"

// ReceivedMarker is a file in a replica's Options.Dir from the moment at which a state from another node has been
// received completely until it has replaced the old one (package backup). Open refuses a directory that has it.
const ReceivedMarker = "RECEIVED"

const (
	imageHold = "image" // name of the hold on the log
	imageDir  = "image" // in Options.Dir; copies of those files of an image that would go away
)

// Image is what Options.Dir holds at one moment, as files that stay unchanged while the engine goes on: a start from
// them is like a start after a loss of power at that moment. It is taken in this order, and no other makes it whole:
//
//	BeginImage  the log is held, so that nothing that the store lacks goes away; then the store is copied
//	others      copy their own files (package eventlog) to Path. These may be ahead of the copied store: the log has
//	            what is between
//	End         fixes the position at which the log of the image ends. It comes last, since neither store nor event
//	            log may be ahead of the log
//
// End is left out for an image of a replica's state for another node, which has the log from its group.
//
// Copies are hard links where the file system has them. They, and the log that is held, take disk space until Release.
// Not safe for concurrent use.
type Image struct {
	e            *Replica
	dir          string
	checkpointed uint64 // the copied store has at least the effects up to here
	position     uint64
	log          []wal.File
}

// BeginImage writes a checkpoint and copies the store. Errors: ErrImage, those of Ready, and those of the file system;
// after an error nothing is left behind.
func (e *Replica) BeginImage(ctx context.Context) (*Image, error) {
	if err := e.Ready(); err != nil {
		return nil, err
	}
	if !e.imaging.CompareAndSwap(false, true) {
		return nil, ErrImage
	}
	i := &Image{e: e, dir: e.opts.FS.PathJoin(e.opts.Dir, imageDir)}
	if err := i.begin(ctx); err != nil {
		return nil, errors.Join(err, i.Release())
	}
	return i, nil
}

func (i *Image) begin(ctx context.Context) error {
	e, fs := i.e, i.e.opts.FS
	e.log.Hold(imageHold, 0)
	if err := e.removeImage(); err != nil {
		return err
	}
	if err := fs.MkdirAll(i.dir, 0o700); err != nil {
		return fmt.Errorf("make %q: %w", i.dir, err)
	}
	select { // so that a start from the image has little to replay
	case <-e.requestCheckpoint():
	case <-ctx.Done():
		return ctx.Err()
	case <-e.ending.Done():
		return cmp.Or(e.Failed(), ErrClosed)
	}
	return i.copyStore()
}

// copyStore copies what the store has flushed: whole batches, in the order in which they were written.
func (i *Image) copyStore() error {
	e := i.e
	e.checkpoints.busy.Lock() // Close waits for this lock
	defer e.checkpoints.busy.Unlock()
	if err := i.Err(); err != nil {
		return err
	}
	i.checkpointed = e.checkpointed.Load()
	if err := e.store.DB.Checkpoint(i.Path("state")); err != nil {
		return fmt.Errorf("%w: copy: %w", store.ErrStore, err)
	}
	return nil
}

// Path is where other packages put their copies: a directory of this name that stands for the one in Options.Dir. They
// make it themselves.
func (i *Image) Path(name string) string { return i.e.opts.FS.PathJoin(i.dir, name) }

// End fixes the image's position: everything acknowledged by now is in the image. The log of the image has what the
// copied store lacks, and all records behind position packed, for a reader that has the earlier ones.
func (i *Image) End(packed uint64) (err error) {
	i.position = max(i.e.log.DurablePosition(), i.checkpointed, packed) // a replica's state may be ahead of its log
	i.log, err = i.e.log.Image(imageHold, min(i.checkpointed, packed)+1, i.position)
	return err
}

// Checkpointed is the position up to which the copied store has all effects.
func (i *Image) Checkpointed() uint64 { return i.checkpointed }

// Position is that of the last record in the image.
func (i *Image) Position() uint64 { return i.position }

// Files lists the files of the image by their paths in Options.Dir. Read them in order: the log's files come first, and
// each is let go when it was read and closed.
func (i *Image) Files() (files []wal.File, err error) {
	for _, f := range i.log {
		f.Name = "log/" + f.Name
		files = append(files, f)
	}
	dirs, err := i.e.opts.FS.List(i.dir)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", i.dir, err)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		if files, err = i.appendFiles(files, dir); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (i *Image) appendFiles(files []wal.File, dir string) ([]wal.File, error) {
	fs := i.e.opts.FS
	path := i.Path(dir)
	names, err := fs.List(path)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", path, err)
	}
	slices.Sort(names)
	for _, name := range names {
		f, err := wal.FileAt(fs, fs.PathJoin(path, name))
		if err != nil {
			return nil, err
		}
		f.Name = dir + "/" + name
		files = append(files, f)
	}
	return files, nil
}

// Err is why the image should be given up: the engine has failed or is closing, or the disk is full while the image
// takes space.
func (i *Image) Err() error {
	e := i.e
	switch err := e.Failed(); {
	case err != nil:
		return err
	case e.closing.Load():
		return ErrClosed
	case e.log.DiskFull():
		return ErrDiskFull
	}
	return nil
}

// Release removes the image. Nothing of it may be read any more.
func (i *Image) Release() error {
	err := i.e.removeImage()
	i.e.log.Hold(imageHold, math.MaxUint64)
	i.e.imaging.Store(false)
	return err
}

// removeImage removes the copies of an image, also those of a process that was killed.
func (e *Replica) removeImage() error {
	dir := e.opts.FS.PathJoin(e.opts.Dir, imageDir)
	if err := e.opts.FS.RemoveAll(dir); err != nil && !oserror.IsNotExist(err) {
		return fmt.Errorf("remove %q: %w", dir, err)
	}
	return nil
}

// CheckRestored refuses a directory whose restore has not finished, and one whose state is to be replaced by a received
// one. Open calls it. A caller that makes other files in the directory first calls it before that, since a restore
// begins in an empty directory. A nil fs is the operating system's.
func CheckRestored(fs vfs.FS, dir string) error {
	fs = cmp.Or(fs, vfs.Default)
	for name, what := range map[string]string{
		RestoreMarker:  "a restore into this directory has not ended; restore again",
		ReceivedMarker: "a state that was received has not been put in its place",
	} {
		path := fs.PathJoin(dir, name)
		if _, err := fs.Stat(path); err == nil {
			return fmt.Errorf("%q is there: %s", path, what)
		} else if !oserror.IsNotExist(err) {
			return err
		}
	}
	return nil
}
