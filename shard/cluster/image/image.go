// Package image is the images of groups, as files, which a backup is made of.
//
// The image of a group is the state of one of its replicas at one position, while the replica goes on (replica.Image):
// store and event log, which are copied first, and what the log has behind them up to that position, which is chosen
// when all groups have theirs:
//
//	state/…  events/…  log/TAIL
//
// They lie in the replica's directory until they are let go. Those of other nodes are read part by part (Lender,
// BeginFar).
package image

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Image is the image of one group, here or on another node. It is made without its end.
type Image interface {
	// End fixes the position. The replica's log is not held from then on.
	End(position uint64) error
	// Files are what it has then, and Open opens one. Its errors say, too, when the node is better off without the
	// image.
	Files() []File
	Open(file int) (io.ReadCloser, error)
	// Release removes the image.
	Release() error
}

// File is a file of an image: its name there, with slashes.
type File struct {
	Name string
	Size int64
}

// ErrGone is returned by images that have ended, or were let go, before.
var ErrGone = errors.New("the image is not there any more")

// FilesOf are those of a directory.
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
