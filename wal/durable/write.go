package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// WriteFile makes path a file with what write writes, on disk under its name, or leaves the file as it was. A link is
// followed. Anything but a regular file, such as a device or a pipe, must remain what it is and is therefore written
// into: there, what was written before an error stays written.
func WriteFile(path string, write func(io.Writer) error) error {
	to, isWhole, err := target(path)
	if err != nil {
		return err
	}
	if !isWhole {
		return writeInto(path, write)
	}
	dir := filepath.Dir(to)
	f, err := os.CreateTemp(dir, ".millrace-*")
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return SyncDir(nil, dir)
}

// maxLinks is how many links may lead to one another, the same as in the kernel.
const maxLinks = 40

// target returns the file that path leads to, which need not exist. isWhole is false for what can't be replaced as a
// whole: anything but a regular file, and a file that a process has open (/dev/stdout, /proc/self/fd/1), because that
// process would go on with the file that it has.
func target(path string) (to string, isWhole bool, err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return path, false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", false, err
		}
		if dir+"/" == "/proc/" || strings.HasPrefix(dir, "/proc/") {
			return path, false, nil
		}
		path = filepath.Join(dir, filepath.Base(path))
		link, err := os.Readlink(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EINVAL): // path is not a link
			return path, true, nil
		case err != nil:
			return "", false, err
		case filepath.IsAbs(link):
			path = link
		default:
			path = filepath.Join(dir, link)
		}
	}
	return "", false, fmt.Errorf("%q: %w", path, syscall.ELOOP)
}

// writeInto appends to what is there.
func writeInto(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	err = write(f)
	if synced := f.Sync(); !errors.Is(synced, syscall.EINVAL) && !errors.Is(synced, syscall.ENOTSUP) { // pipe
		err = errors.Join(err, synced)
	}
	return errors.Join(err, f.Close())
}
