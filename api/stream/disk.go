package stream

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"millrace/wal/durable"
)

// disk is what a directory needs from the machine.
type disk interface {
	// Create begins a file, replacing an existing one. What it returns may have a method Sync() error.
	Create(path string) (io.WriteCloser, error)
	// Append opens a file for writing after its last line, creating it if necessary, and returns its size.
	Append(path string) (f io.WriteCloser, size int64, err error)
	Rename(from, to string) error
	Remove(path string) error
	Exists(path string) bool
	List(dir string) (names []string, err error)
	Mkdir(dir string) error
	SyncDir(dir string) error
}

// makeDir makes a directory and its parents, durably. An existing one is taken to be on disk.
func makeDir(d disk, dir string) error {
	if d.Exists(dir) {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(d, parent); err != nil {
			return err
		}
	}
	if err := d.Mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return d.SyncDir(parent)
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
	last := []byte{'\n'}
	if err == nil && size > 0 {
		_, err = f.ReadAt(last, size-1)
	}
	if err == nil && last[0] != '\n' { // a crash has left a part of a line
		_, err = f.Write([]byte{'\n'})
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, size, nil
}

func (machine) Rename(from, to string) error { return os.Rename(from, to) }
func (machine) Remove(path string) error     { return os.Remove(path) }
func (machine) Mkdir(dir string) error       { return os.Mkdir(dir, 0o755) }
func (machine) SyncDir(dir string) error     { return durable.SyncDir(nil, dir) }

func (machine) Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (machine) List(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
