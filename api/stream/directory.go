package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"syscall"

	"millrace/wal/durable"
)

// directory is a directory of the machine. A file is renamed into place, or left alone if it is already there.
// Unfinished files are in <root>/.millrace.
type directory struct {
	folders *folders
	root    string
	room    func(dir string) error
	touched map[string]bool // directories with new names in them
}

func (d *directory) open(context.Context) error {
	d.touched = map[string]bool{}
	return nil
}

// hasRoom reports an error if the disk is too full: what is written here would take the log's room.
func (d *directory) hasRoom() error { return d.room(d.root) }

func (d *directory) put(_ context.Context, path, name string, again bool) error {
	to := filepath.Join(d.root, filepath.FromSlash(name))
	folder := filepath.Dir(to)
	if err := d.folders.make(folder); err != nil {
		return err
	}
	d.touched[folder] = true
	if again && d.folders.disk.Exists(to) {
		return d.folders.disk.Remove(path)
	}
	return d.folders.disk.Rename(path, to)
}

func (d *directory) settle() error {
	for folder := range maps.Keys(d.touched) {
		if err := d.folders.disk.SyncDir(folder); err != nil {
			return err
		}
		delete(d.touched, folder)
	}
	return nil
}

// folders makes directories below base, durably.
type folders struct {
	disk    disk
	base    string          // belongs to the server
	durable map[string]bool // those that are certainly on disk
}

// forget makes folders check directories again: somebody may have removed them.
func (f *folders) forget() { f.durable = map[string]bool{} }

// make makes a directory and its parents. An existing one may come from a process that was killed before the directory
// was on disk.
func (f *folders) make(dir string) error {
	switch {
	case dir == f.base:
		return durable.MakeDirOn(f.disk, dir)
	case f.durable[dir]:
		return nil
	}
	parent := filepath.Dir(dir)
	if err := f.make(parent); err != nil {
		return err
	}
	if err := f.disk.Mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := f.disk.SyncDir(parent); err != nil {
		return err
	}
	f.durable[dir] = true
	return nil
}

// disk is what a directory needs from the machine.
type disk interface {
	// Create begins a file, replacing an existing one. What it returns may have a method Sync() error.
	Create(path string) (io.WriteCloser, error)
	// Append opens a file for writing after its last whole line, creating it if necessary, and returns its size. What
	// follows that line was cut off by a crash, and is removed.
	Append(path string) (f io.WriteCloser, size int64, err error)
	Rename(from, to string) error
	Remove(path string) error
	Exists(path string) bool
	// FileSystem returns the number of the file system that a directory is in.
	FileSystem(dir string) (uint64, error)
	List(dir string) (names []string, err error)
	Mkdir(dir string) error
	SyncDir(dir string) error
}

type machine struct{}

func (machine) Create(path string) (io.WriteCloser, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
}

func (machine) Append(path string) (io.WriteCloser, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		whole := int64(0)
		if whole, err = endOfLines(f, size); err == nil && whole < size {
			size, err = whole, f.Truncate(whole)
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, size, nil
}

// endOfLines returns where the last whole line of a file ends.
func endOfLines(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, 4<<10)
	for size > 0 {
		piece := buf[:min(size, int64(len(buf)))]
		if _, err := f.ReadAt(piece, size-int64(len(piece))); err != nil {
			return 0, err
		}
		if end := bytes.LastIndexByte(piece, '\n'); end >= 0 {
			return size - int64(len(piece)) + int64(end) + 1, nil
		}
		size -= int64(len(piece))
	}
	return 0, nil
}

func (machine) Rename(from, to string) error { return os.Rename(from, to) }
func (machine) Remove(path string) error     { return os.Remove(path) }
func (machine) Mkdir(dir string) error       { return os.Mkdir(dir, 0o755) }
func (machine) SyncDir(dir string) error     { return durable.SyncDir(nil, dir) }

func (machine) Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (machine) FileSystem(dir string) (uint64, error) {
	var s syscall.Stat_t
	if err := syscall.Stat(dir, &s); err != nil {
		return 0, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return s.Dev, nil
}

func (machine) List(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
