package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/replica"
	"millrace/wal"
)

// ErrCluster is returned by Restore for the backup of a cluster.
var ErrCluster = fmt.Errorf("%w: it is the backup of a cluster", ErrFormat)

// ErrAlone is returned by ReadCluster for any other backup.
var ErrAlone = fmt.Errorf("%w: it is not the backup of a cluster", ErrFormat)

// ErrNotEmpty is wrapped by Restore when the directory is not empty. Restore into an empty one.
var ErrNotEmpty = errors.New("the directory is not empty")

// tolerated are files that may be in the directory: the server's lock and token, and what file systems have in their
// root.
var tolerated = []string{"LOCK", "admin-token", "lost+found"}

// Verify reads an archive and checks every byte of it. Errors: ErrArchive, ErrFormat, and those of r.
func Verify(ctx context.Context, r io.Reader) (About, error) {
	return read(ctx, r, nil)
}

// Restore makes a data directory from an archive: all of it, synced, or nothing. It makes the directory when there is
// none; otherwise the directory must be empty, or have what a killed restore has left. The caller keeps servers off it.
// A nil fs is the operating system's.
//
// Restore works in place, since a data directory is often a mount point, or in a directory that the user may not write
// to, so that nothing could be renamed to it. Instead a marker (replica.RestoreMarker), which is on disk before the
// first file and is removed after the last, keeps the engine from opening the directory meanwhile. Errors: ErrNotEmpty,
// ErrArchive, ErrFormat, those of r and of the file system; the directory is then as it was.
func Restore(ctx context.Context, fs vfs.FS, dir string, r io.Reader) (about About, err error) {
	fs = cmp.Or(fs, vfs.Default)
	s := &restore{fs: fs, dir: dir, owns: directories}
	err = s.make(func() (err error) {
		about, err = read(ctx, r, func(name string) (io.WriteCloser, error) {
			if isOfGroup(name) {
				return nil, ErrCluster
			}
			return s.create(name)
		})
		if err == nil && about.Replica {
			err = fmt.Errorf("%w: it is the state of one replica, not the backup of a node", ErrFormat)
		}
		return err
	})
	return about, err
}

// Make has fill make a data directory, as Restore does: all of it, or nothing. owns are the names that fill makes in
// the directory. When fill returns nil, everything below those names must be on disk; Make syncs the names themselves.
// Errors: ErrNotEmpty, that of fill, and those of the file system; the directory is then as it was.
func Make(fs vfs.FS, dir string, owns []string, fill func() error) error {
	s := &restore{fs: cmp.Or(fs, vfs.Default), dir: dir, owns: owns}
	return s.make(fill)
}

// restore is a restore that is under way.
type restore struct {
	fs      vfs.FS
	dir     string
	isNew   bool     // the directory did not exist
	filled  bool     // the directory has, or may have, files of an archive
	owns    []string // the names that it makes in the directory
	created []string
}

func (s *restore) marker() string { return s.fs.PathJoin(s.dir, replica.RestoreMarker) }

func (s *restore) make(fill func() error) error {
	if err := s.begin(); err != nil {
		return err
	}
	err := fill()
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return errors.Join(err, s.undo())
	}
	return nil
}

// begin checks the directory and sets the marker.
func (s *restore) begin() error {
	names, err := s.fs.List(s.dir)
	if oserror.IsNotExist(err) {
		s.isNew = true
		err = wal.MakeDir(s.fs, s.dir)
	}
	if err != nil {
		return err
	}
	unfinished := slices.Contains(names, replica.RestoreMarker)
	for _, name := range names {
		if !slices.Contains(tolerated, name) &&
			!(unfinished && (name == replica.RestoreMarker || slices.Contains(s.owns, name))) {
			return fmt.Errorf("%w: %q has %q", ErrNotEmpty, s.dir, name)
		}
	}
	s.filled = unfinished
	if err = s.mark(replica.RestoreMarker); err == nil {
		s.filled = true
		err = s.clear()
	}
	if err != nil {
		return errors.Join(err, s.undo())
	}
	return nil
}

// mark sets a marker, and returns when it is on disk. One that is there stays: to create it again would remove it
// first, and a crash in between would leave the rest without it.
func (s *restore) mark(name string) error {
	path := s.fs.PathJoin(s.dir, name)
	switch _, err := s.fs.Stat(path); {
	case err == nil:
		return s.sync(s.dir)
	case !oserror.IsNotExist(err):
		return fmt.Errorf("look for %q: %w", path, err)
	}
	f, err := s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %q: %w", path, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return s.sync(s.dir)
}

// create makes a file of the archive.
func (s *restore) create(name string) (io.WriteCloser, error) {
	path := s.fs.PathJoin(s.dir, name)
	if dir := s.fs.PathDir(path); !slices.Contains(s.created, dir) {
		if err := s.fs.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make %q: %w", dir, err)
		}
		s.created = append(s.created, dir)
	}
	f, err := s.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("create %q: %w", path, err)
	}
	return &restored{vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 8 << 20}), path}, nil
}

// restored is a file that is on disk once it is closed without an error.
type restored struct {
	vfs.File
	path string
}

// Write names the file in its error, as on a full disk.
func (f *restored) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if err != nil {
		err = fmt.Errorf("write %q: %w", f.path, err)
	}
	return n, err
}

// Close syncs the file.
func (f *restored) Close() error {
	if err := errors.Join(f.File.Sync(), f.File.Close()); err != nil {
		return fmt.Errorf("write %q: %w", f.path, err)
	}
	return nil
}

// end removes the marker, once everything else is on disk.
func (s *restore) end() error {
	for _, dir := range append(slices.Clone(s.created), s.dir) {
		if err := s.sync(dir); err != nil {
			return err
		}
	}
	if err := s.fs.Remove(s.marker()); err != nil {
		return err
	}
	return s.sync(s.dir)
}

// clear removes all files of the archive.
func (s *restore) clear() error {
	for _, name := range s.owns {
		if err := s.fs.RemoveAll(s.fs.PathJoin(s.dir, name)); err != nil && !oserror.IsNotExist(err) {
			return fmt.Errorf("remove what was restored: %w", err)
		}
	}
	return s.sync(s.dir)
}

// undo leaves the directory as it was; when it can't, the marker stays. The marker may be gone already, by an end that
// could not sync.
func (s *restore) undo() error {
	if s.filled {
		if err := s.mark(replica.RestoreMarker); err != nil {
			return err
		}
		if err := s.clear(); err != nil {
			return err
		}
	}
	if err := s.fs.Remove(s.marker()); err != nil && !oserror.IsNotExist(err) {
		return err
	}
	if !s.isNew {
		return s.sync(s.dir)
	}
	_ = s.fs.Remove(s.dir) // unless somebody else has put something there
	return nil
}

func (s *restore) sync(dir string) error {
	f, err := s.fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("open %q: %w", dir, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %q: %w", dir, err)
	}
	return nil
}
