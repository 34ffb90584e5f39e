package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"

	"millrace/ingest/files"
	"millrace/wal/pause"
)

// found is a file to take: one of this machine, or an object of a bucket.
type found struct {
	path     string // absolute; for an object s3://BUCKET/KEY
	size     int64
	modified time.Time
	changed  syscall.Timespec // of a file: also when somebody was permitted to read it
	object   *object          // nil: it is a file of this machine
}

// etag returns the etag of an object, "" for a file.
func (f *found) etag() string {
	if f.object == nil {
		return ""
	}
	return f.object.etag
}

func (f *found) name() string { return nameOf(f.path) }

func nameOf(file string) string { return path.Base(filepath.ToSlash(file)) }

// list returns the files to take, in order.
func (i *importer) list(ctx context.Context, w *watcher) (all []found, err error) {
	for _, path := range i.o.Paths {
		var some []found
		if isBucket(path) {
			some, err = i.bucket.list(ctx, path)
		} else {
			some, err = i.listDirectory(path, w)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range some {
			if w.settled(&f) {
				all = append(all, f)
			}
		}
	}
	w.forget()
	return all, nil
}

// listDirectory returns the files of a directory; a file is a directory of itself. A link counts as what it leads to,
// under its own name; one that leads nowhere is listed, so that opening it reports that. Files that rest aren't listed.
func (i *importer) listDirectory(path string, w *watcher) (all []found, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is neither a file nor a directory", path)
	}
	if !info.IsDir() {
		return []found{{path: path, size: info.Size(), modified: modified(info), changed: changed(info)}}, nil
	}
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return nil, err
	}
	turns := 1 + len(entries)/leftPerRound
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		if w.rests(name, turns) || e.IsDir() || !i.isOurs(name) {
			continue
		}
		info, err := os.Stat(name)
		switch {
		case err != nil && e.Type()&fs.ModeSymlink != 0:
			all = append(all, found{path: name})
		case err != nil: // it is gone
		case info.IsDir():
			i.passOver(name, "it is a link to a directory")
		case !info.Mode().IsRegular():
			i.passOver(name, "it is not a regular file")
		default:
			all = append(all, found{path: name, size: info.Size(), modified: modified(info), changed: changed(info)})
		}
	}
	return all, nil
}

// modified returns when a file was last written to. Some file systems keep times that JSON, and so a state, can't hold:
// another time, which changes as they do, stands for one of them.
func modified(info os.FileInfo) time.Time {
	t := info.ModTime()
	if year := t.Year(); year < 0 || year > 9999 {
		t = time.Unix(int64(uint64(t.Unix())%(1<<37)), int64(t.Nanosecond()))
	}
	return t
}

// isOurs reports whether one of many files is to be taken, by its name.
func (i *importer) isOurs(file string) bool {
	switch name := nameOf(file); {
	case strings.HasSuffix(file, "/"): // a folder of a bucket, which the path names
		i.passOver(file, "it is a folder: only a path that ends with / has its objects")
		return false
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, refusedEnding):
		return false
	case i.o.Format == "" && files.FormatOf(name) == "":
		i.passOver(file, "its name doesn't tell its format")
		return false
	}
	return true
}

// passOver reports, once, a file among many that is not taken.
func (i *importer) passOver(file, reason string) {
	name := nameOf(file)
	if !slices.Contains(i.report.Unknown, name) && len(i.report.Unknown) < maxUnknown {
		i.report.Unknown = append(i.report.Unknown, name)
		i.o.Logger.Warn("skipped: "+reason, "file", file)
	}
}

const maxUnknown = 1000

// open opens a file for reading at any place, and returns its current state. An object, or a packed file, is copied
// first.
func (i *importer) open(ctx context.Context, f *found) (*os.File, error) {
	if f.object != nil {
		for tries := 1; ; tries++ { // a watching import would not look at it again
			copied, err := i.fetch(ctx, f)
			if _, isOther := errors.AsType[*sizeError](err); !isOther || tries == 3 {
				return copied, err
			}
			if err := pause.For(ctx, i.o.Poll); err != nil { // which says nothing about the object
				return nil, err
			}
		}
	}
	// Without O_NONBLOCK a pipe that has come instead of the file would wait for somebody who writes into it.
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil { // it has gone since the directory was read, or is not ours to read
		return nil, &FileError{f.path, err}
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if !info.Mode().IsRegular() { // it is no longer what was listed
		return nil, errors.Join(&FileError{f.path, errNoFile}, file.Close())
	}
	f.size, f.modified = info.Size(), modified(info)
	if !files.IsPacked(f.path) {
		return file, nil
	}
	defer file.Close()
	return i.unpack(ctx, f, file, info)
}

// fetch copies an object, as it was found.
func (i *importer) fetch(ctx context.Context, f *found) (*os.File, error) {
	r, err := i.bucket.open(ctx, f)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	copied, err := i.copyOf(ctx, f, r)
	if err == nil {
		i.patience.since = time.Time{} // the service is there, whatever it did before
	}
	return copied, err
}

// sizeError is that of an object that has ended where it should not: its service may not know conditions, or something
// between may have cut it.
type sizeError struct{ listed, has int64 }

func (e *sizeError) Error() string {
	return fmt.Sprintf("it was listed with %d bytes and has %d", e.listed, e.has)
}

// unpack copies a packed file, in the state in which it was opened.
func (i *importer) unpack(ctx context.Context, f *found, file *os.File, as os.FileInfo) (*os.File, error) {
	copied, err := i.copyOf(ctx, f, file)
	if err != nil {
		return nil, err
	}
	if now, err := file.Stat(); err != nil || !isSame(as, now) {
		return nil, errors.Join(cmp.Or(err, error(&FileError{f.path, errWritten})), copied.Close())
	}
	return copied, nil
}

var errNoFile = errors.New("it is not a regular file")

// errWritten: the copy may be incomplete.
var errWritten = errors.New("it was written to while it was read: nothing was imported from it")

// changed returns when a file last changed in any way. That can't be set back, as the time of the last write can.
func changed(info os.FileInfo) syscall.Timespec { return info.Sys().(*syscall.Stat_t).Ctim }

// isSame reports whether nobody has written to a file in between.
func isSame(before, after os.FileInfo) bool {
	return before.Size() == after.Size() && before.ModTime().Equal(after.ModTime()) && changed(before) == changed(after)
}

// isCopied reports whether open returns a copy, which nobody changes.
func (f *found) isCopied() bool { return f.object != nil || files.IsPacked(f.path) }

// copyOf copies a file, unpacked, into a file in the State directory that has no name: it disappears with the process.
func (i *importer) copyOf(ctx context.Context, f *found, r io.Reader) (to *os.File, err error) {
	if to, err = os.CreateTemp(i.o.State, "copy-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, to.Close())
		}
	}()
	if err := os.Remove(to.Name()); err != nil {
		return to, err
	}
	i.bar.begin("copying "+f.name(), f.size, "bytes")
	source := &countedReader{Reader: r, ctx: ctx, count: i.bar.add}
	from := io.Reader(source)
	if files.IsPacked(f.path) {
		packed, err := files.Unpack(f.path, source)
		if err != nil {
			return to, i.blame(f, source, err)
		}
		defer packed.Close()
		from = packed
	}
	n, err := io.Copy(to, io.LimitReader(from, i.o.MaxCopyBytes+1))
	switch {
	case err != nil:
		return to, i.blame(f, source, err)
	case n > i.o.MaxCopyBytes:
		return to, &FileError{f.path, fmt.Errorf("it is longer than %d bytes (--copy-bytes)", i.o.MaxCopyBytes)}
	case f.object != nil && source.n != f.size:
		return to, &FileError{f.path, &sizeError{f.size, source.n}}
	}
	return to, nil
}

// countedReader remembers how much its source had, and why it ended.
type countedReader struct {
	io.Reader
	ctx   context.Context // ends it, too
	count func(n int)
	n     int64
	err   error
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := 0, c.ctx.Err()
	if err == nil {
		n, err = c.Reader.Read(p)
	}
	c.count(n)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

// blame says whether a copy failed because of its source, of the file, or of the place to which it was copied.
func (i *importer) blame(f *found, source *countedReader, err error) error {
	_, isOfDisk := errors.AsType[*os.PathError](err)
	switch {
	case source.err != nil && source.err != io.EOF:
		if f.object != nil {
			return i.bucket.objectProblem(f, source.err)
		}
		return fmt.Errorf("%s: %w", f.path, source.err)
	case isOfDisk:
		return err
	case f.object != nil && source.err == io.EOF && source.n != f.size:
		return &FileError{f.path, &sizeError{f.size, source.n}}
	}
	return &FileError{f.path, fmt.Errorf("it can't be unpacked; it is damaged or truncated: %w", err)}
}

// watcher knows which files were looked at as they are, and how long others were left alone. It goes by rounds, and
// forgets what is gone.
type watcher struct {
	settle time.Duration
	round  int
	seen   map[string]look
}

// look is the state in which a file was found, and since when.
type look struct {
	size     int64
	modified time.Time
	changed  syscall.Timespec
	etag     string
	since    time.Time
	left     bool // taken, or bad
	round    int  // the last one in which it was there
}

// settled reports whether a file is to be taken: it has not changed for a while; an object is there as a whole or not
// at all. A file that was taken, or is bad, is skipped until it changes.
func (w *watcher) settled(f *found) bool {
	now := time.Now()
	was, known := w.seen[f.path]
	if !known || was.size != f.size || !was.modified.Equal(f.modified) || was.changed != f.changed ||
		was.etag != f.etag() {
		was = look{size: f.size, modified: f.modified, changed: f.changed, etag: f.etag(), since: now}
		if w.seen == nil {
			w.seen = map[string]look{}
		}
	}
	was.round = w.round
	w.seen[f.path] = was
	return !was.left && (f.object != nil || now.Sub(was.since) >= w.settle)
}

// leftPerRound is about how many files of a directory that were taken, or are bad, are looked at in a round. Where
// there are more, they take turns: most stay as they are, and to look at each costs more than to list them.
const leftPerRound = 10_000

// rests reports whether a file need not be looked at in this round, because it was taken and it is the turn of others.
func (w *watcher) rests(path string, turns int) bool {
	was := w.seen[path]
	if !was.left || xxh3.HashString(path)%uint64(turns) == uint64(w.round%turns) {
		return false
	}
	was.round = w.round
	w.seen[path] = was
	return true
}

// forget ends a round: it forgets the files that were not there in it.
func (w *watcher) forget() {
	maps.DeleteFunc(w.seen, func(_ string, l look) bool { return l.round < w.round })
	w.round++
}

// leave makes a file be skipped until it changes.
func (w *watcher) leave(path string) {
	l := w.seen[path]
	l.left = true
	w.seen[path] = l
}
