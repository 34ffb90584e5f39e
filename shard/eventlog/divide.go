package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/errors/oserror"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/files"
	"millrace/wal"
	"millrace/wal/durable"
)

// Division says how an event log is divided (Log.Divide).
type Division struct {
	Dirs []string // Options.Dir of the event logs to be made: absent or empty
	// Of returns the index of the log that gets the events of a number.
	Of func(number uint64) int
	// Packed is the position up to which the new logs count as packed: the logs of their engines begin after it.
	Packed uint64
	// Progress is called with how many bytes have been processed since the last call; may be nil.
	Progress func(bytes int64)
}

// Divide makes several event logs of this one. Each event keeps its place, that is its position and ordinal, so that
// deletions find it. Events of deleted users are left out. Everything that the engine has applied must be packed, and
// nothing may happen meanwhile. When Divide returns nil, the new logs are on disk. Errors: ErrCorrupt for a block that
// can't be read; it names the file.
func (l *Log) Divide(ctx context.Context, d Division) error {
	l.work.Lock()
	defer l.work.Unlock()
	if err := l.ready(); err != nil {
		return err
	}
	if applied := l.src.AppliedPosition(); l.packed < applied {
		return fmt.Errorf("the event log is packed up to position %d, the engine is at %d", l.packed, applied)
	}
	if d.Packed < l.packed {
		return fmt.Errorf("position %d is behind %d, where the event log is", d.Packed, l.packed)
	}
	for _, dir := range d.Dirs {
		if err := l.prepare(dir); err != nil {
			return err
		}
	}
	l.pack.borrow(l.opts.Share, false)
	defer l.pack.giveBack(l.opts.Share, false)
	parts, done := make([]blocks.Rows, len(d.Dirs)), make([]files.State, len(d.Dirs))
	for _, b := range l.blocks { // changes only under work
		if err := l.divideBlock(ctx, b, &d, parts, done); err != nil {
			return err
		}
		if d.Progress != nil {
			d.Progress(b.info.Bytes)
		}
	}
	for i, dir := range d.Dirs {
		done[i].Packed = d.Packed
		if err := (files.Dir{FS: l.opts.FS, Path: dir}).Write(&done[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) prepare(dir string) error {
	if names, err := l.opts.FS.List(dir); err == nil && len(names) > 0 {
		return fmt.Errorf("%q is not empty", dir)
	} else if err != nil && !oserror.IsNotExist(err) {
		return err
	}
	if err := wal.MakeDir(l.opts.FS, dir); err != nil {
		return fmt.Errorf("make event log %q: %w", dir, err)
	}
	return nil
}

// divideBlock shares out the events of a block, and lists the blocks that it has made of it. parts only provides
// memory.
func (l *Log) divideBlock(ctx context.Context, b *block, d *Division, parts []blocks.Rows, done []files.State) error {
	if b.err != nil {
		return b.err
	}
	for i := range parts {
		parts[i].Reset()
	}
	deleted := l.deleted.Load()
	err := l.readBlock(ctx, b, func(rs *blocks.Rows) error {
		for i := range rs.List {
			if r := &rs.List[i]; !deleted.Covers(r) {
				parts[d.Of(r.Number)].Adopt(rs, r)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.pack.pace.begin(ctx, 1)
	defer l.pack.pace.end()
	for i, dir := range d.Dirs {
		if len(parts[i].List) == 0 {
			continue
		}
		data, info, err := l.pack.writer.Write(&parts[i], b.First, b.Last)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		path := files.Dir{FS: l.opts.FS, Path: dir}.BlockPath(b.First, b.Last)
		if err := durable.ReplaceFileOn(l.opts.FS, path, data); err != nil {
			return err
		}
		done[i].Blocks = append(done[i].Blocks, files.BlockOf(b.First, b.Last, info))
	}
	return nil
}

// Bytes is the size of all blocks, which is what Divide has reported in the end.
func (l *Log) Bytes() int64 { return l.Stats().Bytes }
