package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/pause"
)

// The state of a replica on its way to another node of its group:
//
//	Send     state made fresh ▶ store and event log copied ▶ archive
//	Receive  *.incoming written, checked, synced ▶ RECEIVED set
//	Finish   old directories removed ▶ *.incoming renamed to their names ▶ RECEIVED off
//
// RECEIVED decides which state counts: before it is set, the old one; from then on the new one, which is complete.
// Whoever opens a replica calls Finish first, so a crash at any point does no harm.

const incoming = ".incoming"

// moved are the directories that Send sends, and Finish swaps.
var moved = []string{"state", "events"}

// Send writes the state of a replica, with the effects of at least all records up to position, as an archive for
// Receive. events may be nil: a control group has none. All records up to position must have been dispatched. The
// replica goes on meanwhile; its log is held, so that the receiver finds the records that come next there. When another
// image of the engine is being taken, Send waits until that one is released. It ends early with the error of ctx, or
// when the image should be given up (replica.Image.Err).
func Send(ctx context.Context, e *replica.Replica, events *eventlog.Log, position uint64, w io.Writer) error {
	e.Advance(position)
	if err := e.WaitApplied(position); err != nil {
		return err
	}
	image, err := beginImage(ctx, e) // writes a checkpoint
	if err != nil {
		return err
	}
	i := &Image{image: image,
		About: About{Created: time.Now().UTC().Truncate(time.Second), Position: position, Replica: true}}
	return errors.Join(i.send(ctx, events, position, w), i.Release())
}

func (i *Image) send(ctx context.Context, events *eventlog.Log, position uint64, w io.Writer) (err error) {
	if events != nil {
		if err := i.sendEvents(ctx, events, position); err != nil {
			return err
		}
	}
	if i.files, err = i.image.Files(); err != nil {
		return err
	}
	_, err = i.Write(ctx, w)
	return err
}

func (i *Image) sendEvents(ctx context.Context, events *eventlog.Log, position uint64) error {
	if err := events.PackTo(ctx, position); err != nil {
		return err
	}
	packed, err := events.Image(i.image.Path("events"))
	if err == nil && packed < position {
		err = fmt.Errorf("the event log is packed up to position %d only, not %d", packed, position)
	}
	return err
}

// beginImage waits while there is another image.
func beginImage(ctx context.Context, e *replica.Replica) (*replica.Image, error) {
	for {
		image, err := e.BeginImage(ctx)
		if !errors.Is(err, replica.ErrImage) {
			return image, err
		}
		if err := pause.For(ctx, imagePause); err != nil {
			return nil, err
		}
	}
}

const imagePause = 100 * time.Millisecond

// Receive reads what Send has written into a replica's directory (replica.Options.Dir, with the event log's in it under
// "events"), beside the present state, which may be in use. When it returns nil, everything is on disk: then Finish
// puts it in place of the old state. Errors: ErrArchive, ErrFormat, those of r and of the file system; the present
// state stays as it was. A nil fs is the operating system's.
func Receive(ctx context.Context, fs vfs.FS, dir string, r io.Reader) (about About, err error) {
	fs = cmp.Or(fs, vfs.Default)
	s := &restore{fs: fs, dir: dir}
	if err := errors.Join(wal.MakeDir(fs, dir), s.discard()); err != nil {
		return about, err
	}
	about, err = read(ctx, r, s.receive)
	if err == nil && !about.Replica {
		err = fmt.Errorf("%w: it is the backup of a node, not the state of a replica", ErrFormat)
	}
	if err == nil {
		err = s.received()
	}
	if err != nil {
		return about, errors.Join(err, s.discard())
	}
	return about, nil
}

// receive makes a file of the archive, beside the present one.
func (s *restore) receive(name string) (io.WriteCloser, error) {
	dir, file, _ := strings.Cut(name, "/")
	if dir != moved[0] && dir != moved[1] {
		return nil, fmt.Errorf("%w: %q does not belong to a replica", ErrFormat, name)
	}
	return s.create(dir + incoming + "/" + file)
}

// received sets the marker that says that everything is there.
func (s *restore) received() error {
	for _, name := range moved { // each of them, so that nothing stays of the old state
		path := s.fs.PathJoin(s.dir, name+incoming)
		if err := s.fs.MkdirAll(path, 0o700); err != nil {
			return fmt.Errorf("make %q: %w", path, err)
		}
		if err := s.sync(path); err != nil {
			return err
		}
	}
	if err := s.sync(s.dir); err != nil { // before the marker
		return err
	}
	return s.mark(replica.ReceivedMarker)
}

// discard removes what was received and not put in place: first the marker, without which the rest doesn't count.
func (s *restore) discard() error {
	if err := s.unmark(replica.ReceivedMarker); err != nil {
		return err
	}
	for _, name := range moved {
		path := s.fs.PathJoin(s.dir, name+incoming)
		if err := s.fs.RemoveAll(path); err != nil && !oserror.IsNotExist(err) {
			return fmt.Errorf("remove %q: %w", path, err)
		}
	}
	return s.sync(s.dir)
}

// Finish puts a state that Receive has read in place, if there is one. Nothing in the directory may be open. After a
// crash, or an error, another call continues where it was. Call it before a replica is opened.
func Finish(fs vfs.FS, dir string) error {
	fs = cmp.Or(fs, vfs.Default)
	s := &restore{fs: fs, dir: dir}
	if _, err := fs.Stat(dir); oserror.IsNotExist(err) {
		return nil
	}
	if _, err := fs.Stat(fs.PathJoin(dir, replica.ReceivedMarker)); oserror.IsNotExist(err) {
		return s.discard()
	} else if err != nil {
		return err
	}
	for _, name := range moved {
		if err := s.swap(name); err != nil {
			return err
		}
	}
	return s.unmark(replica.ReceivedMarker)
}

// swap puts one received directory in place of the old one, unless it is there already.
func (s *restore) swap(name string) error {
	path := s.fs.PathJoin(s.dir, name)
	if _, err := s.fs.Stat(path + incoming); oserror.IsNotExist(err) {
		return s.sync(s.dir) // an earlier call may have renamed it without getting this far
	} else if err != nil {
		return err
	}
	if err := s.fs.RemoveAll(path); err != nil && !oserror.IsNotExist(err) {
		return fmt.Errorf("remove %q: %w", path, err)
	}
	if err := s.fs.Rename(path+incoming, path); err != nil {
		return fmt.Errorf("rename %q: %w", path+incoming, err)
	}
	return s.sync(s.dir)
}

// unmark removes a marker, if there is one, and returns when that is on disk.
func (s *restore) unmark(name string) error {
	path := s.fs.PathJoin(s.dir, name)
	if err := s.fs.Remove(path); oserror.IsNotExist(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %q: %w", path, err)
	}
	return s.sync(s.dir)
}
