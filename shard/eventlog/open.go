package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/wal"
	"millrace/wal/durable"
)

// Open opens the event log in a directory, or creates it, and begins to work in the background. It holds the engine's
// log from the first record that isn't packed; until then the engine must hold it (HoldName among
// replica.Options.Readers). Close the event log before the engine. Errors: ErrCorrupt when STATE is damaged or not of
// this engine; ErrLost when files are missing. A damaged block is no error here.
func Open(src Source, opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	l := &Log{opts: opts, src: src, gone: make(chan struct{})}
	l.stop, l.end = context.WithCancel(context.Background())
	l.deleted.Store(&erased.Set{})
	if err := l.open(); err != nil {
		if l.lock != nil {
			_ = l.lock.Close()
		}
		return nil, err
	}
	go l.run()
	return l, nil
}

func (l *Log) open() (err error) {
	fs, dir := l.opts.FS, l.opts.Dir
	if err := wal.MakeDir(fs, dir); err != nil {
		return fmt.Errorf("make event log %q: %w", dir, err)
	}
	if l.lock, err = fs.Lock(fs.PathJoin(dir, "LOCK")); err != nil {
		return fmt.Errorf("lock event log %q: %w", dir, err)
	}
	l.pack.groupRows = l.opts.groupRows
	s, known, err := readState(fs, l.statePath())
	if err != nil {
		return err
	}
	if known && s.packed > l.src.AppliedPosition() && l.opts.Group == "" {
		return fmt.Errorf("%w: %q is at position %d, the engine at %d: they don't belong together",
			ErrCorrupt, l.statePath(), s.packed, l.src.AppliedPosition())
	}
	names, err := fs.List(dir)
	if err != nil {
		return fmt.Errorf("list event log %q: %w", dir, err)
	}
	files := slices.DeleteFunc(names, func(name string) bool { return !isListed(name) })
	lost, err := l.findLoss(&s, known, files)
	if err != nil {
		return err
	}
	if err := l.settleLoss(&s, &lost); err != nil {
		return err
	}
	if !known && !lost.any() {
		s.packed = l.src.FirstPosition() - 1
	}
	if !known || lost.any() {
		if err := durable.ReplaceFileOn(fs, l.statePath(), s.encode()); err != nil {
			return err
		}
	}
	if err := errors.Join(l.forgetAcceptance(), l.removeLeftovers(&s), l.firstNote(s.packed)); err != nil {
		return err
	}
	var runs []*erased.Run
	for _, x := range s.runs {
		r, err := erased.Read(fs, l.runPath(x.first, x.last))
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	for _, b := range s.blocks {
		l.blocks = append(l.blocks, l.loadBlock(b))
	}
	l.packed, l.scanned = s.packed, s.packed
	l.deleted.Store(&erased.Set{Packed: runs})
	l.src.HoldLog(HoldName, l.packed+1)
	l.countBlocks(1)
	l.opts.Share.join(l.deletedBytes())
	return nil
}

// isListed reports whether a file is one of those that STATE lists.
func isListed(name string) bool {
	return strings.HasSuffix(name, blockSuffix) && len(name) == len(blockName(0, 0)) ||
		strings.HasSuffix(name, erased.Suffix) && len(name) == len(erased.Name(0, 0))
}

// removeLeftovers removes what a crash has left: unfinished files, and blocks and runs that STATE doesn't list yet, or
// no longer lists.
func (l *Log) removeLeftovers(s *state) error {
	fs, dir := l.opts.FS, l.opts.Dir
	names, err := fs.List(dir)
	if err != nil {
		return fmt.Errorf("list event log %q: %w", dir, err)
	}
	kept := map[string]bool{}
	for _, b := range s.blocks {
		kept[blockName(b.first, b.last)] = true
	}
	for _, r := range s.runs {
		kept[erased.Name(r.first, r.last)] = true
	}
	removed := false
	for _, name := range names {
		if !strings.HasSuffix(name, durable.Temporary) && (!isListed(name) || kept[name]) {
			continue
		}
		path := fs.PathJoin(dir, name)
		if err := fs.Remove(path); err != nil {
			return fmt.Errorf("remove what a crash left, %q: %w", path, err)
		}
		removed = true
	}
	if removed {
		return durable.SyncDir(fs, dir)
	}
	return nil
}

// firstNote makes the engine know of this event log from now on, so that a removed directory is missed.
func (l *Log) firstNote(packed uint64) error {
	if _, noted, err := l.src.PackedPosition(); noted || err != nil {
		return err
	}
	return l.src.NotePacked(packed, false)
}

// loadBlock opens an existing block.
func (l *Log) loadBlock(of listed) *block {
	b := &block{path: l.blockPath(of.first, of.last), listed: of}
	r, err := blocks.Open(l.opts.FS, b.path)
	if err != nil {
		b.err = err
		if !errors.Is(err, ErrCorrupt) {
			b.err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		damagedBlocks.Inc()
		l.opts.Logger.Error("event log: a block can't be read", "error", b.err)
		return b
	}
	b.info, b.listed = r.Info, listedOf(of.first, of.last, r.Info)
	_ = r.Close() // it was only read
	return b
}
