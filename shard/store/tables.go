package store

import (
	"bufio"
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
	return &tableFile{f, bufio.NewWriterSize(f, tableWrite)}, nil
}

// tableFile keeps what is written until it is enough, or has to be there. After a write that failed, all fails.
type tableFile struct {
	vfs.File
	buf *bufio.Writer
}

// Write keeps p, or writes what there is.
func (f *tableFile) Write(p []byte) (int, error) { return f.buf.Write(p) }

// Sync makes all that was written durable.
func (f *tableFile) Sync() error {
	if err := f.buf.Flush(); err != nil {
		return err
	}
	return f.File.Sync()
}

// SyncData does the same, but for times.
func (f *tableFile) SyncData() error {
	if err := f.buf.Flush(); err != nil {
		return err
	}
	return f.File.SyncData()
}

// Close writes what is left. Pebble closes a table without a sync only when it gives it up.
func (f *tableFile) Close() error { return errors.Join(f.buf.Flush(), f.File.Close()) }
