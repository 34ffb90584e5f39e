package bounded

import (
	"fmt"
	"io"
	"os"
	"time"
)

// SmallFile is how many bytes a certificate, a secret or a configuration may have; LargeFile how many a bootstrap file
// may have, which sets up thousands of workspaces, and other input of commands.
const (
	SmallFile = 1 << 20
	LargeFile = 64 << 20
)

// pipePatience is how long somebody who writes into a pipe may keep its reader waiting. Whoever made the pipe may have
// forgotten to write, and a process that waits for it can't even be told to stop.
const pipePatience = 30 * time.Second

// ReadFile reads a file that somebody has named: it may turn out to be a device without an end, or a pipe into which
// nobody writes.
func ReadFile(path string, most int) ([]byte, error) { return readFile(path, most, pipePatience) }

func readFile(path string, most int, patience time.Duration) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return readPipe(path, most, patience)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, path, most)
}

// readPipe gives up when nothing comes for so long. An attempt to open a pipe can't be ended, so it is left alone then.
func readPipe(path string, most int, patience time.Duration) (text []byte, err error) {
	opened := make(chan *os.File)
	failed := make(chan error, 1)
	givenUp := make(chan struct{})
	defer close(givenUp)
	go func() {
		f, err := os.Open(path)
		if err != nil {
			failed <- err
			return
		}
		select {
		case opened <- f:
		case <-givenUp:
			_ = f.Close()
		}
	}()
	select {
	case f := <-opened:
		defer f.Close()
		return ReadAll(pipe{f, patience}, path, most)
	case err := <-failed:
		return nil, err
	case <-time.After(patience):
		return nil, fmt.Errorf("%s is a pipe, and nobody has opened it for writing in %v", path, patience)
	}
}

// pipe is a pipe from which a Read waits for so long.
type pipe struct {
	*os.File
	patience time.Duration
}

// Read reads what has been written into the pipe.
func (p pipe) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(p.patience)) // pipes have deadlines
	return p.File.Read(b)
}

// ReadAll is ReadFile for what is open already, and called so in errors.
func ReadAll(r io.Reader, name string, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(text) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}
