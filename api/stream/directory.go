package stream

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
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

func newFolders(o *Options) *folders {
	return &folders{disk: o.disk, base: filepath.Clean(o.Dir), durable: map[string]bool{}}
}

// forget makes folders check directories again: somebody may have removed them.
func (f *folders) forget() { f.durable = map[string]bool{} }

// make makes a directory and its parents. An existing one may come from a process that was killed before the directory
// was on disk.
func (f *folders) make(dir string) error {
	switch {
	case dir == f.base:
		return makeDir(f.disk, dir)
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
