package store

import (
	"errors"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableFS writes tables in large pieces. Pebble writes them block by block, with two calls for each, which was one part
// in eighteen of the CPU of sustained load.
type tableFS struct{ vfs.FS }

// tableWrite is how much of a table is written at a time.
const tableWrite = 256 << 10

// Unwrap is for Pebble, which looks below wrappers.
func (fs tableFS) Unwrap() vfs.FS { return fs.FS }

// Create makes a file.
func (fs tableFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil || filepath.Ext(name) != ".sst" {
		return f, err
	}
	return &tableFile{File: f, buf: make([]byte, 0, tableWrite)}, nil
}

// tableFile keeps what is written until it is enough, or has to be there.
type tableFile struct {
	vfs.File
	buf []byte
}

// Write keeps p, or writes what there is.
func (f *tableFile) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), cap(f.buf)-len(f.buf))
		f.buf, rest = append(f.buf, rest[:n]...), rest[n:]
		if len(f.buf) == cap(f.buf) {
			if err := f.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (f *tableFile) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.File.Write(f.buf)
	f.buf = f.buf[:0]
	return err
}

// Sync makes all that was written durable.
func (f *tableFile) Sync() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync()
}

// SyncData does the same, but for times.
func (f *tableFile) SyncData() error {
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.SyncData()
}

// Close writes what is left. Pebble closes a table without a sync only when it gives it up.
func (f *tableFile) Close() error { return errors.Join(f.flush(), f.File.Close()) }
