// Package durable writes single files so that neither a crash nor a power loss leaves half a file (ReplaceFile, and
// WriteFile for files that a person has named). It also overwrites small files so that their last state is never lost
// (Slots), makes directories (MakeDir, MakeDirOn), and locks files (Lock).
package durable

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Temporary is the suffix of the name of an unfinished file. An interrupted ReplaceFile leaves that file behind, and
// the next ReplaceFile of the same path overwrites it.
const Temporary = ".tmp"

// ErrUncertain is wrapped by errors of ReplaceFile after which a crash may leave either the old or the new file.
var ErrUncertain = errors.New("whether it was kept is unknown")

// ReplaceFile makes path a file with this text and mode, or leaves the file as it was. When it returns nil, the file is
// on disk under its name.
func ReplaceFile(path string, text []byte, mode fs.FileMode) error {
	return replace(vfs.Default, path, text, func(path string) (file, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	})
}

// ReadFileOn reads a whole file of any file system.
func ReadFileOn(on vfs.FS, path string) ([]byte, error) {
	f, err := on.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	return data, nil
}

// ReplaceFileOn is ReplaceFile on any file system, with that file system's mode for new files. A nil file system is the
// operating system's.
func ReplaceFileOn(on vfs.FS, path string, text []byte) error {
	on = cmp.Or(on, vfs.Default)
	return replace(on, path, text,
		func(path string) (file, error) { return on.Create(path, vfs.WriteCategoryUnspecified) })
}

type file interface {
	io.WriteCloser
	Sync() error
}

func replace(on vfs.FS, path string, text []byte, create func(path string) (file, error)) error {
	temporary := path + Temporary
	f, err := create(temporary)
	if err != nil {
		return fmt.Errorf("create %q: %w", temporary, err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = on.Remove(temporary)
		return fmt.Errorf("write %q: %w", temporary, err)
	}
	if err := on.Rename(temporary, path); err != nil {
		return fmt.Errorf("rename %q: %w: %w", temporary, ErrUncertain, err)
	}
	if err := SyncDir(on, on.PathDir(path)); err != nil {
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable. A nil file system is the operating system's.
func SyncDir(on vfs.FS, dir string) error {
	d, err := cmp.Or(on, vfs.Default).OpenDir(dir)
	if err != nil {
		return fmt.Errorf("open %q: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %q: %w", dir, err)
	}
	return nil
}

// MakeDir creates a directory and its missing parents with this mode. When it returns nil, their names are on disk: a
// loss of power must not lose a file because its directory is gone. That of an existing directory is synced as well,
// since a process that was killed may have just made it. A nil file system is the operating system's.
func MakeDir(on vfs.FS, dir string, mode fs.FileMode) error {
	return MakeDirOn(dirs{cmp.Or(on, vfs.Default), mode}, dir)
}

// Dirs is what MakeDirOn needs from a disk.
type Dirs interface {
	Exists(path string) bool
	// Mkdir makes a directory whose parent exists. For one that is there, it returns nil or an fs.ErrExist.
	Mkdir(dir string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// MakeDirOn is MakeDir on any disk.
func MakeDirOn(on Dirs, dir string) error {
	dir = filepath.Clean(dir) // without a slash at its end, behind which Dir would take it for the parent
	parent := filepath.Dir(dir)
	if parent == dir {
		return nil
	}
	exists := on.Exists(dir)
	if !exists {
		if err := MakeDirOn(on, parent); err != nil {
			return err
		}
	}
	if err := on.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := on.SyncDir(parent)
	mayNot := oserror.IsPermission(err) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL)
	if exists && mayNot {
		return nil // no process like this one has made a directory there
	}
	return err
}

// dirs makes the directories of a file system, with a mode.
type dirs struct {
	vfs.FS
	mode fs.FileMode
}

func (d dirs) Exists(path string) bool {
	_, err := d.Stat(path)
	return err == nil
}

func (d dirs) Mkdir(dir string) error   { return d.MkdirAll(dir, d.mode) }
func (d dirs) SyncDir(dir string) error { return SyncDir(d.FS, dir) }
