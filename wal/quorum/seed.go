package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"millrace/wal/durable"
	"millrace/wal/quorum/disk"
)

// Seed creates the log of a new group whose state was made elsewhere, imported or restored from a backup, before there
// is a node that could open it. base is the last position of that state. The group has one voter, node, which adds
// others later. Seed returns the position after which the log begins, which is base or above; the state must then claim
// to have everything up to there. The log is on disk when Seed returns. dir must not have a log.
func Seed(dir string, group uint32, node Node, base uint64, logger *slog.Logger) (begin uint64, err error) {
	if _, err := os.Stat(filepath.Join(dir, identityName)); err == nil {
		return 0, fmt.Errorf("%q has a log already", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	// There is a state even if no position was ever given out for it.
	l := &Log{opts: Options{Group: group, Dir: dir, Voters: []Node{node}, Base: max(base, 1), Disk: new(disk.Disk),
		Logger: logger},
		self: node}
	l.opts.EnsureDefaults()
	defer l.release()
	if err := l.open(); err != nil {
		return 0, fmt.Errorf("make the log of group %d in %q: %w", group, dir, err)
	}
	return endOf(l.identity.Base), errors.Join(durable.SyncDir(nil, l.path(logDir)), durable.SyncDir(nil, dir))
}
