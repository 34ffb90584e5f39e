// Package durable puts single files of a directory in place so that neither a crash nor a loss of power leaves half of one.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// ReplaceFile makes path a file with this text and mode, or leaves it as it was. When it returns nil the file is on disk under its name. It is written as
// path.new first, which an interrupted call leaves behind and the next one writes over.
func ReplaceFile(path string, text []byte, mode fs.FileMode) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
