package admin

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"millrace/api/bounded"
	"millrace/wal/durable"
)

// tokenFile is the file of the admin token in the data directory.
const tokenFile = "admin-token"

// Token reads the admin token of a data directory, or makes it at the first start, in a file that only its owner may
// read. Callers may print path, but never the token.
func Token(dir string) (token, path string, err error) {
	path = filepath.Join(dir, tokenFile)
	text, err := bounded.ReadFile(path, bounded.SmallFile)
	if errors.Is(err, os.ErrNotExist) {
		return makeToken(path)
	}
	if err != nil {
		return "", path, fmt.Errorf("read the admin token: %w", err)
	}
	if token = strings.TrimSpace(string(text)); len(token) < 16 {
		return "", path, fmt.Errorf("the admin token in %q has fewer than 16 characters", path)
	}
	return token, path, nil
}

func makeToken(path string) (string, string, error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	token := hex.EncodeToString(random[:])
	if err := durable.ReplaceFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", path, fmt.Errorf("write the admin token: %w", err)
	}
	return token, path, nil
}
