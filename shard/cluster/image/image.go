// Package image makes images of groups, as files, for a backup, and lends them to the node that makes it.
//
// The image of a group is the state of one of its replicas at one position, taken while the replica goes on
// (replica.Image). Store and event log are copied first. What the log has after them is added up to that position,
// which is chosen when all groups have their copies:
//
//	state/…  events/…  log/TAIL
//
// The files lie in the replica's directory until they are released. Images on other nodes are read part by part
// (Lender, BeginFar).
package image

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Image is the image of one group, here or on another node. It begins without its end.
type Image interface {
	// End fixes the position. From then on the replica's log is no longer held.
	End(position uint64) error
	// Files returns the files that the image has after End, and Open opens one of them. Open also returns an error when
	// the node is better off without the image.
	Files() []File
	Open(file int) (io.ReadCloser, error)
	// Release removes the image.
	Release() error
}

// File is a file of an image, by its name in the image, with slashes.
type File struct {
	Name string
	Size int64
}

// ErrGone is returned by images that have already ended or were released.
var ErrGone = errors.New("the image is not there any more")

// FilesOf returns the files of a directory.
func FilesOf(dir string) (files []File, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, File{filepath.ToSlash(name), info.Size()})
		return err
	})
	return files, err
}
