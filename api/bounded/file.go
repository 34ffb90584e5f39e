package bounded

import (
	"fmt"
	"io"
	"os"
)

// SmallFile is how many bytes a certificate, a secret or a configuration may have; LargeFile how many a bootstrap file
// may have, which sets up thousands of workspaces, and other input of commands.
const (
	SmallFile = 1 << 20
	LargeFile = 64 << 20
)

// ReadFile reads a file that somebody has named: it may turn out to be a device without an end.
func ReadFile(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, path, most)
}

// ReadAll is ReadFile for what is open already, and called so in errors.
func ReadAll(r io.Reader, name string, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(text) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}
