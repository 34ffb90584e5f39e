package eventlog

import (
	"context"
	"errors"
	"fmt"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/files"
	"millrace/wal"
)

// Open opens the event log in a directory, or creates it, and begins to work in the background. It holds the engine's
// log from the first record that isn't packed; until then the engine must hold it (HoldName among
// replica.Options.Readers). Close the event log before the engine. Errors: ErrCorrupt when STATE is damaged or not of
// this engine; files.ErrLost when files are missing. A damaged block is no error here.
func Open(src Source, opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	l := &Log{opts: opts, src: src, dir: files.Dir{FS: opts.FS, Path: opts.Dir}, scan: make(chan struct{}, 1),
		gone: make(chan struct{})}
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
	l.pack.groupRows, l.pack.hasher = l.opts.groupRows, l.src.Hasher()
	s, err := l.openState()
	if err != nil {
		return err
	}
	if err := errors.Join(l.dir.ForgetAcceptance(), l.dir.RemoveLeftovers(&s), l.firstNote(s.Packed)); err != nil {
		return err
	}
	var runs []*erased.Run
	for _, x := range s.Runs {
		r, err := erased.Read(fs, l.dir.RunPath(x.First, x.Last))
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	for _, b := range s.Blocks {
		l.blocks = append(l.blocks, l.loadBlock(b))
	}
	l.packed, l.scanned = s.Packed, s.Packed
	l.deleted.Store(&erased.Set{Packed: runs})
	l.src.HoldLog(HoldName, l.packed+1)
	l.countBlocks(1)
	l.opts.Share.join(l.deletedBytes())
	return nil
}

// openState reads STATE, or makes a new one. When files are gone, it is what is left, if their loss was accepted.
func (l *Log) openState() (s files.State, err error) {
	s, known, err := l.dir.Read()
	if err != nil {
		return s, err
	}
	if known && s.Packed > l.src.AppliedPosition() && l.opts.Group == "" {
		return s, fmt.Errorf("%w: %q is at position %d, the engine at %d: they don't belong together",
			ErrCorrupt, l.dir.StatePath(), s.Packed, l.src.AppliedPosition())
	}
	// The engine never notes more than was on disk here (NotePacked), and gives up no log before that.
	noted, isNoted, err := l.src.PackedPosition()
	if err != nil {
		return s, err
	}
	lost, err := l.dir.FindLoss(&s, known, max(noted, l.src.FirstPosition()-1), isNoted)
	if err != nil {
		return s, err
	}
	switch {
	case lost.Any():
		if err := l.dir.Accept(&s, &lost); err != nil {
			return s, err
		}
		l.opts.Logger.Error("event log: events are lost; their loss was accepted", "directory", l.opts.Dir,
			"lost", lost.String())
		lostPositions.Add(int(lost.Positions()))
		l.noteExpired(lost.Last()) // tells streams that were to have them of the gap
	case known:
		return s, nil
	default:
		s.Packed = l.src.FirstPosition() - 1
	}
	return s, l.dir.Write(&s)
}

// firstNote makes the engine know of this event log from now on, so that a removed directory is missed.
func (l *Log) firstNote(packed uint64) error {
	if _, noted, err := l.src.PackedPosition(); noted || err != nil {
		return err
	}
	return l.src.NotePacked(packed, false)
}

// loadBlock opens an existing block.
func (l *Log) loadBlock(of files.Block) *block {
	b := &block{path: l.dir.BlockPath(of.First, of.Last), Block: of}
	r, err := blocks.Open(l.opts.FS, b.path, l.src.Hasher())
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		b.err = l.noteDamage(err)
		return b
	}
	b.info, b.Block = r.Info, files.BlockOf(of.First, of.Last, r.Info)
	_ = r.Close() // it was only read
	return b
}
