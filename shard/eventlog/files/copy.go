package files

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/eventlog/erased"
)

// Copy copies the event log into another directory that exists, by hard links where the file system has them, while it
// changes: files as STATE lists them at one moment, but for blocks that go meanwhile. lists reports whether a block is
// still listed: it must stop doing so before the block's file goes. Copy returns the STATE of the copy.
func (d Dir) Copy(to Dir, lists func(Block) bool) (s State, err error) {
	if s, err = d.copyRuns(to); err != nil {
		return s, err
	}
	var copied []Block
	for _, b := range s.Blocks {
		name := BlockName(b.First, b.Last)
		err := vfs.LinkOrCopy(d.FS, d.path(name), to.path(name))
		if oserror.IsNotExist(err) && !lists(b) {
			continue
		} else if err != nil {
			return s, fmt.Errorf("copy block %q: %w", name, err)
		}
		copied = append(copied, b)
	}
	s.Blocks = copied
	return s, to.Write(&s)
}

// copyRuns copies the deletions that STATE lists, and returns that STATE. While it copies them, they may become part of
// others, or be done, and their files go: then it begins anew.
func (d Dir) copyRuns(to Dir) (s State, err error) {
	for {
		if s, _, err = d.Read(); err != nil {
			return s, err
		}
		if err = d.copyRunsOf(&s, to); !oserror.IsNotExist(err) {
			return s, err
		}
		if now, _, stateErr := d.Read(); stateErr != nil || slices.Equal(now.Runs, s.Runs) {
			return s, errors.Join(err, stateErr)
		}
	}
}

func (d Dir) copyRunsOf(s *State, to Dir) error {
	for _, r := range s.Runs {
		name := erased.Name(r.First, r.Last)
		err := vfs.LinkOrCopy(d.FS, d.path(name), to.path(name))
		if err != nil && !oserror.IsExist(err) { // the file of a name is always the same
			return fmt.Errorf("copy %q: %w", name, err)
		}
	}
	return nil
}
