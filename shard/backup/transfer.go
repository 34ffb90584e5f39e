package backup

import (
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
)

// The state of a replica on its way to another node of its group:
//
//	Send     state made fresh ▶ store and event log copied ▶ archive
//	Receive  *.incoming written, checked, synced ▶ RECEIVED set
//	Finish   old directories removed ▶ *.incoming renamed to their names ▶ RECEIVED off
//
// RECEIVED is the moment of truth: before it the old state counts, from then on the new one, of which nothing is
// missing. Who opens a replica calls Finish first, so a crash at any point is nothing.

const incoming = ".incoming"

// moved are the directories that Send takes along, and Finish swaps.
var moved = []string{"state", "events"}

// Send writes the state of a replica, with the effects of at least all records up to position, as an archive for
// Receive. events may be nil: a control group has none. All records up to position must have been dispatched. The
// replica goes on meanwhile; its log is held, so that the receiver finds there what comes next. When another image of
// the engine is being taken, Send waits until that is released. It ends early with the error of ctx, or when the node
// is better off without the image (replica.Image.Err).
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
		About: About{Format: formatVersion, Created: time.Now().UTC().Truncate(time.Second), Position: position,
			Replica: true}}
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

// beginImage waits while another image is there.
func beginImage(ctx context.Context, e *replica.Replica) (*replica.Image, error) {
	tick := time.NewTicker(imagePause)
	defer tick.Stop()
	for {
		image, err := e.BeginImage(ctx)
		if !errors.Is(err, replica.ErrImage) {
			return image, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

const imagePause = 100 * time.Millisecond

// Receive reads what Send has written into a replica's directory (replica.Options.Dir, with the event log's in it under
// "events"), beside the state that is there and may be in use. When it returns nil, all of it is on disk: then Finish
// puts it in the place of the old state. Errors: ErrArchive, ErrFormat, those of r and of the file system; what is
// there stays as it was. A nil fs is the operating system's.
func Receive(ctx context.Context, fs vfs.FS, dir string, r io.Reader) (about About, err error) {
	if fs == nil {
		fs = vfs.Default
	}
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

// receive makes a file of the archive, beside the one that counts.
func (s *restore) receive(name string) (io.WriteCloser, error) {
	dir, file, _ := strings.Cut(name, "/")
	if dir != moved[0] && dir != moved[1] {
		return nil, fmt.Errorf("%w: %q does not belong to a replica", ErrFormat, name)
	}
	return s.create(dir + incoming + "/" + file)
}

// received says that all is there.
func (s *restore) received() error {
	for _, name := range moved { // each, so that of the old one nothing stays
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

// discard removes what was received and not put in its place; first the marker, without which it counts for nothing.
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

// Finish puts a state that Receive has taken in into its place, if there is one: nothing of the directory may be open.
// After a crash, or an error, it goes on where it was when it is called again. Call it before a replica is opened.
func Finish(fs vfs.FS, dir string) error {
	if fs == nil {
		fs = vfs.Default
	}
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

// swap puts one received directory in the place of the old one, unless it is there already.
func (s *restore) swap(name string) error {
	path := s.fs.PathJoin(s.dir, name)
	if _, err := s.fs.Stat(path + incoming); oserror.IsNotExist(err) {
		return s.sync(s.dir) // whoever has renamed it may not have come so far
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

// unmark takes a marker off, if it is there, and returns when that is on disk.
func (s *restore) unmark(name string) error {
	path := s.fs.PathJoin(s.dir, name)
	if err := s.fs.Remove(path); oserror.IsNotExist(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %q: %w", path, err)
	}
	return s.sync(s.dir)
}
