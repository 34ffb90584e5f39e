package eventlog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/eventlog/erased"
	"millrace/wal"
	"millrace/wal/durable"
)

// Image copies the event log into a directory, by hard links where the file system has them, and returns the position
// up to which the copy is packed. With the engine's log from the next position on, the copy is what Open would find
// after a crash (replica.Image).
//
// Image waits for nobody. It reads STATE and the deletions first, and these allow for whatever happens to the blocks
// afterwards. A block that is packed later is left out, and packed again from the log. A block that is rewritten has
// lost events of users whose deletion is still there, or in the log. A block that has gone had expired, or had only
// such events; the image's STATE doesn't list it either.
func (l *Log) Image(dir string) (packed uint64, err error) {
	fs := l.opts.FS
	if err := wal.MakeDir(fs, dir); err != nil {
		return 0, fmt.Errorf("make %q: %w", dir, err)
	}
	s, err := l.copyRuns(dir)
	if err != nil {
		return 0, err
	}
	var copied []listed
	for _, b := range s.blocks {
		name := blockName(b.first, b.last)
		err := vfs.LinkOrCopy(fs, fs.PathJoin(l.opts.Dir, name), fs.PathJoin(dir, name))
		if oserror.IsNotExist(err) && !l.lists(b) {
			continue
		} else if err != nil {
			return 0, fmt.Errorf("copy block %q: %w", name, err)
		}
		copied = append(copied, b)
	}
	s.blocks = copied
	return s.packed, durable.ReplaceFileOn(fs, fs.PathJoin(dir, stateName), s.encode())
}

// copyRuns copies the deletions that STATE lists into a directory, and returns that STATE. While it copies them, they
// may become part of others, or be done, and their files go: then it begins anew.
func (l *Log) copyRuns(dir string) (s state, err error) {
	fs := l.opts.FS
	for {
		if s, _, err = readState(fs, l.statePath()); err != nil {
			return s, err
		}
		if err = l.copyRunsOf(&s, dir); !oserror.IsNotExist(err) {
			return s, err
		}
		if now, _, stateErr := readState(fs, l.statePath()); stateErr != nil || slices.Equal(now.runs, s.runs) {
			return s, errors.Join(err, stateErr)
		}
	}
}

func (l *Log) copyRunsOf(s *state, dir string) error {
	fs := l.opts.FS
	for _, r := range s.runs {
		name := erased.Name(r.first, r.last)
		err := vfs.LinkOrCopy(fs, fs.PathJoin(l.opts.Dir, name), fs.PathJoin(dir, name))
		if err != nil && !oserror.IsExist(err) { // the file of a name is always the same
			return fmt.Errorf("copy %q: %w", name, err)
		}
	}
	return nil
}

// lists reports whether there is still a block of these positions.
func (l *Log) lists(of listed) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.blocks, func(b *block) bool { return b.first == of.first && b.last == of.last })
}
