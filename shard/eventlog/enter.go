package eventlog

import (
	"errors"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/files"
	"millrace/wal/durable"
)

// hasExpired reports whether a stretch has expired before it was packed, and counts its events then.
func (l *Log) hasExpired(newest int64, events int, last uint64) bool {
	if !time.UnixMicro(newest).Before(l.src.Time().Add(-l.opts.Retention)) {
		return false
	}
	expiredEvents.Add(events)
	l.noteExpired(last)
	return true
}

// enter makes the stretch that is next, up to last, a packed one. found are its deletions; write writes its block, if
// there is one, once these are known; forget says that the engine has noted something of it.
func (l *Log) enter(last uint64, found []*erased.Run, forget bool, write func() (*block, error)) error {
	l.learn(found, last)
	runs := l.deleted.Load().Packed // changes only under work
	// Those for which blocks are being rewritten stay apart: merged with them, later ones would seem to be as old.
	n := 0
	for n < len(runs) && runs[n].Last <= l.pack.rewriting {
		n++
	}
	later := runs[n:]
	for _, r := range found {
		later = erased.Add(later, r, erased.MaxBytes)
	}
	runs = slices.Concat(runs[:n], later)
	old, err := l.writeRuns(runs)
	if err != nil {
		return l.undo(err, runs, nil)
	}
	b, err := write()
	if err != nil {
		return l.undo(err, runs, nil)
	}
	known := l.blocks // changes only under work
	if b != nil {
		known = append(slices.Clip(known), b)
	}
	if err := l.writeState(known, runs, last); err != nil {
		return l.undo(err, runs, b)
	}
	l.mu.Lock()
	if b != nil {
		countBlock(b.info, 1)
		packedEvents.Add(b.info.Rows)
	}
	l.blocks, l.packed = known, last
	l.learnPacked(runs, last)
	l.mu.Unlock()
	return errors.Join(l.letGo(last, forget), l.dir.Remove(old))
}

// undo removes what was written for a state that is not to be: the files of runs, and a block or nil. It returns the
// cause.
func (l *Log) undo(cause error, runs []*erased.Run, b *block) error {
	if errors.Is(cause, errFailed) {
		return cause // the next Open sees which of the two states is on disk
	}
	for _, r := range runs {
		if !slices.Contains(l.deleted.Load().Packed, r) {
			// It may not be there. What stays, the next Open removes.
			_ = l.opts.FS.Remove(l.dir.RunPath(r.First, r.Last))
		}
	}
	if b == nil {
		return cause
	}
	// The next stretch may have another end, and its block and this one must never both be there.
	if again := l.dir.Remove([]string{b.path}); again != nil {
		return l.fail(again)
	}
	return cause
}

// letGo gives up the log up to a position, once those who read it there have finished. STATE is on disk by now: what
// the engine notes is never ahead of it.
func (l *Log) letGo(last uint64, dropped bool) error {
	l.tail.Lock()
	defer l.tail.Unlock()
	l.src.HoldLog(HoldName, last+1)
	return l.src.NotePacked(last, dropped)
}

// writeBlock writes a block file, replacing one that has the same positions.
func (l *Log) writeBlock(rs *blocks.Rows, first, last uint64) (*block, error) {
	data, info, err := l.pack.writer.Write(rs, first, last)
	if err != nil {
		return nil, err
	}
	return l.putBlock(data, info, first, last)
}

func (l *Log) putBlock(data []byte, info *blocks.Info, first, last uint64) (*block, error) {
	b := &block{path: l.dir.BlockPath(first, last), Block: files.BlockOf(first, last, info), info: info}
	return b, l.certain(durable.ReplaceFileOn(l.opts.FS, b.path, data))
}

// writeRuns writes the runs that have no files yet, and returns the files of those that are to be replaced by these.
func (l *Log) writeRuns(runs []*erased.Run) (old []string, err error) {
	packed := l.deleted.Load().Packed // changes only under work
	for _, r := range runs {
		if !slices.Contains(packed, r) {
			path := l.dir.RunPath(r.First, r.Last)
			if err := l.certain(durable.ReplaceFileOn(l.opts.FS, path, r.Encode())); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range packed {
		if !slices.Contains(runs, r) {
			old = append(old, l.dir.RunPath(r.First, r.Last))
		}
	}
	return old, nil
}

// writeState makes STATE say that everything up to packed is packed, in these blocks, and that these deletions are not
// done.
func (l *Log) writeState(known []*block, runs []*erased.Run, packed uint64) error {
	s := files.State{Packed: packed}
	for _, b := range known {
		s.Blocks = append(s.Blocks, b.Block)
	}
	for _, r := range runs {
		s.Runs = append(s.Runs, files.Run{First: r.First, Last: r.Last})
	}
	return l.certain(l.dir.Write(&s))
}

// certain ends packing if it is unknown what is on disk after an error.
func (l *Log) certain(err error) error {
	if errors.Is(err, durable.ErrUncertain) {
		return l.fail(err)
	}
	return err
}

// noteExpired notes that events up to a position have expired. It is called under work.
func (l *Log) noteExpired(position uint64) { l.expired.Store(max(position, l.expired.Load())) }

var (
	packedEvents  = metrics.NewCounter("millrace_eventlog_packed_events_total")
	expiredEvents = metrics.NewCounter("millrace_eventlog_expired_events_total")
)
