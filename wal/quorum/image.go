package quorum

import (
	"errors"
	"fmt"

	"millrace/wal"
)

// Image is not for logs that several nodes share: it always returns errors.ErrUnsupported. The state of a replica is
// taken without its log, and fresh enough to need none (package backup, Send).
func (l *Log) Image(string, uint64, uint64) ([]wal.File, error) {
	return nil, fmt.Errorf("quorum: an image of the log: %w", errors.ErrUnsupported)
}
