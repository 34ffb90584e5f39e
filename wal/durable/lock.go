package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked is wrapped by the error of Lock when the file is locked already.
var ErrLocked = errors.New("another process has it")

// Lock opens a file, or creates it for its owner alone, and locks it until it is closed, or the process ends.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return f, nil
	} else if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, f.Close())
}
