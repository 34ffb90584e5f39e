package files

import (
	"fmt"
	"strings"

	"millrace/shard/eventlog/erased"
	"millrace/wal/durable"
)

// RemoveLeftovers removes what a crash has left: unfinished files, and blocks and runs that STATE doesn't list yet, or
// no longer lists.
func (d Dir) RemoveLeftovers(s *State) error {
	names, err := d.list()
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, b := range s.Blocks {
		kept[BlockName(b.First, b.Last)] = true
	}
	for _, r := range s.Runs {
		kept[erased.Name(r.First, r.Last)] = true
	}
	removed := false
	for _, name := range names {
		if !strings.HasSuffix(name, durable.Temporary) && (!isListed(name) || kept[name]) {
			continue
		}
		path := d.path(name)
		if err := d.FS.Remove(path); err != nil {
			return fmt.Errorf("remove what a crash left, %q: %w", path, err)
		}
		removed = true
	}
	if removed {
		return durable.SyncDir(d.FS, d.Path)
	}
	return nil
}

// Remove removes files that STATE no longer lists.
func (d Dir) Remove(paths []string) error {
	for _, path := range paths {
		if err := d.FS.Remove(path); err != nil {
			return fmt.Errorf("remove %q: %w", path, err)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return durable.SyncDir(d.FS, d.Path)
}
