package backup

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The backup of a cluster is an archive like any other: BACKUP says that it is one, and the files of each group are
// under groups/<group>/. Package cluster, which knows what a cluster is, writes and reads it.

// ReadCluster writes the files of a cluster's backup into a directory, under the names that they have in the archive.
// When it returns nil, they are on disk and as they were written; otherwise they may be anything, so call it in Make.
// Errors: ErrArchive, ErrFormat, ErrAlone, those of r and of the file system. A nil fs is the operating system's.
func ReadCluster(ctx context.Context, fs vfs.FS, dir string, r io.Reader) (about About, err error) {
	fs = cmp.Or(fs, vfs.Default)
	s := &restore{fs: fs, dir: dir}
	about, err = read(ctx, r, func(name string) (io.WriteCloser, error) {
		if !isOfGroup(name) {
			return nil, ErrAlone
		}
		return s.create(name)
	})
	if err == nil && (about.Cluster == nil || about.Replica) {
		err = ErrAlone
	}
	if err != nil {
		return about, err
	}
	var errs []error
	for _, made := range s.created { // and their parents, down to dir
		for d := made; d != dir && d != fs.PathDir(d); d = fs.PathDir(d) {
			errs = append(errs, s.sync(d))
		}
	}
	return about, errors.Join(errs...)
}
