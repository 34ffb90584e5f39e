package eventlog

import (
	"fmt"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal"
)

// Image copies the event log into a directory, by hard links where the file system has them, and returns up to which
// position it is packed there. With the engine's log from the next position on, it is what Open would find after a
// crash (replica.Image).
//
// It waits for nobody. STATE is copied first: what happens to the blocks after that, the copied STATE allows for. A
// block that is packed since is left out, and packed again from the log. One that is rewritten has lost events of users
// whose deletion that STATE, or the log behind it, still tells of. One that has gone had expired, or nothing but such
// events.
func (l *Log) Image(dir string) (packed uint64, err error) {
	fs := l.opts.FS
	if err := wal.MakeDir(fs, dir); err != nil {
		return 0, fmt.Errorf("make %q: %w", dir, err)
	}
	copied := fs.PathJoin(dir, fs.PathBase(l.statePath()))
	if err := vfs.LinkOrCopy(fs, l.statePath(), copied); err != nil {
		return 0, fmt.Errorf("copy %q: %w", l.statePath(), err)
	}
	s, _, err := readState(fs, copied)
	if err != nil {
		return 0, err
	}
	names, err := fs.List(l.opts.Dir)
	if err != nil {
		return 0, fmt.Errorf("list event log %q: %w", l.opts.Dir, err)
	}
	for _, name := range names {
		if _, last, ok := parseBlockName(name); !ok || last > s.packed {
			continue
		}
		err := vfs.LinkOrCopy(fs, fs.PathJoin(l.opts.Dir, name), fs.PathJoin(dir, name))
		if err != nil && !oserror.IsNotExist(err) {
			return 0, fmt.Errorf("copy block %q: %w", name, err)
		}
	}
	return s.packed, nil
}
