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

// leastToken is how many characters a token has that an operator has chosen. The server's own have 64.
const leastToken = 16

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
	if token = strings.TrimSpace(string(text)); len(token) < leastToken {
		return "", path, fmt.Errorf("the admin token in %q has fewer than %d characters: put one of your own there, "+
			"or remove the file, and the server makes a new one", path, leastToken)
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
