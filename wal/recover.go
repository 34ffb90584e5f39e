package wal

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	pebblewal "github.com/cockroachdb/pebble/v2/wal"

	"github.com/VictoriaMetrics/metrics"

	"millrace/wal/durable"
)

// load finds out what the log holds and whether it holds everything that it must. Only then does load change anything:
// it syncs what it has found. A record that survived a kill may still be in the page cache alone. A later loss of power
// must not take it when newer records after it have been acknowledged.
func (l *Log) load() error {
	fs, dir := l.opts.FS, l.opts.Dir
	mark, err := openHighWater(fs, dir)
	if err != nil {
		return err
	}
	l.highWater = mark
	files, err := pebblewal.Scan(pebblewal.Dir{FS: fs, Dirname: dir})
	if err != nil {
		return fmt.Errorf("list segments: %w", err)
	}
	if mark == nil {
		if len(files) > 0 {
			return fmt.Errorf("%w: there are %d segments, but no high-water mark", ErrMissing, len(files))
		}
		if l.highWater, err = createHighWater(fs, dir); err != nil {
			return err
		}
	}
	state := l.highWater.state
	l.salt = state.salt
	obsolete, err := l.list(files, state)
	if err != nil {
		return err
	}
	last, err := l.check(state)
	if err != nil {
		return err
	}
	if err := l.settle(last, obsolete); err != nil {
		return err
	}
	l.appended = last
	l.last.Store(last)
	l.durable.Store(last)
	return nil
}

// list makes the list of segments from the files, and returns the paths of those that were trimmed.
func (l *Log) list(files pebblewal.Logs, state highWaterState) (obsolete []string, err error) {
	l.nextNum = state.segment
	for _, file := range files {
		if file.NumSegments() != 1 {
			return nil, fmt.Errorf("%w: segment %d consists of %d files",
				ErrCorrupt, uint64(file.Num), file.NumSegments())
		}
		_, path := file.SegmentLocation(0)
		num := uint64(file.Num)
		if num < state.segment {
			obsolete = append(obsolete, path)
			continue
		}
		if num != l.nextNum {
			return nil, fmt.Errorf("%w: segment %d is missing before %q", ErrCorrupt, l.nextNum, path)
		}
		size, err := file.PhysicalSize()
		if err != nil {
			return nil, fmt.Errorf("size of segment %q: %w", path, err)
		}
		l.segments = append(l.segments, &segment{num: num, path: path, bytes: int64(size)})
		l.nextNum++
	}
	return obsolete, nil
}

// check finds out which records each segment has, and returns the position at which the log ends. At the end of the log
// an invalid record is acceptable when nothing says that it was ever acknowledged.
func (l *Log) check(state highWaterState) (last uint64, err error) {
	last, tail, offset, err := l.findEnd(state.first)
	if err != nil {
		return 0, err
	}
	var found remains
	for i := tail; i < len(l.segments); i++ {
		if err := l.salvage(l.segments[i], offset, &found); err != nil {
			return 0, err
		}
		offset = 0
	}
	next, name, isTorn := last+1, l.tailName(tail), found.torn || found.records > 0
	switch {
	case found.durable >= next:
		return 0, fmt.Errorf("%w: record %d at the end of %s can't be read, "+
			"but a later one (up to %d) says that %d was durable", ErrCorrupt, next, name, found.highest, found.durable)
	case state.acked >= next && isTorn:
		return 0, fmt.Errorf("%w: record %d at the end of %s can't be read, but %d was acknowledged",
			ErrCorrupt, next, name, state.acked)
	case state.acked >= next:
		return 0, fmt.Errorf("%w: the log ends at position %d, in %s, but %d was acknowledged",
			ErrMissing, last, name, state.acked)
	case isTorn:
		dropped := max(found.records, 1)
		tornRecordsTotal.Add(dropped)
		l.opts.Logger.Warn("wal: dropped a torn tail, which was never acknowledged", "segment", name,
			"last", last, "records", dropped)
	}
	return last, nil
}

// findEnd says which record is the last one, in which segment it is, and at which offset it ends there. It reads the
// last segment that has records, and those that no readable record follows; of any other one, the next segment says
// where it ends. A segment may end in an invalid record when the next one continues right after its last valid one:
// there was a crash, and then another process.
func (l *Log) findEnd(first uint64) (last uint64, tail int, offset int64, err error) {
	last = first - 1
	for i, s := range l.segments {
		s.first = last + 1
		if !l.isFollowed(i) {
			end, torn, err := l.checkSegment(s)
			if err != nil {
				return 0, 0, 0, err
			}
			if s.last >= s.first || i == 0 {
				tail, offset = i, end
			}
			if torn {
				l.opts.Logger.Info("wal: a segment was not closed cleanly", "segment", s.path, "offset", end,
					"last", s.last)
			}
		}
		last = s.last
	}
	return last, tail, offset, nil
}

// isFollowed reports whether segment i and the one after it begin with readable records, in order. If so, it sets the
// segment's last position, and its records are checked when they are read.
func (l *Log) isFollowed(i int) bool {
	if i+1 >= len(l.segments) {
		return false
	}
	s := l.segments[i]
	begins, ok := l.begins(s)
	follows, followed := l.begins(l.segments[i+1])
	if !ok || !followed || begins != s.first || follows <= begins {
		return false
	}
	s.last = follows - 1
	return true
}

// begins returns the position of a segment's first record; ok is false when that record can't be read.
func (l *Log) begins(s *segment) (position uint64, ok bool) {
	r, err := l.openSegment(s.path, 0)
	if err != nil {
		return 0, false
	}
	defer r.close()
	h, _, err := r.next()
	return h.position, err == nil
}

func (l *Log) tailName(tail int) string {
	if tail >= len(l.segments) {
		return "an empty log"
	}
	return fmt.Sprintf("segment %q", l.segments[tail].path)
}

// checkSegment reads a segment whose first position is set, and sets the rest. It returns where the valid records end,
// and whether the segment lacks a clean end there.
func (l *Log) checkSegment(s *segment) (end int64, torn bool, err error) {
	r, err := l.openSegment(s.path, 0)
	if err != nil {
		return 0, false, err
	}
	defer r.close()
	s.last = s.first - 1
	for {
		h, _, err := r.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTorn):
			return r.offset, err == errTorn, nil
		case err != nil:
			return 0, false, err
		case h.position > s.last+1: // Pebble's reader has skipped the zeros of a lost page at the end of a block
			return r.offset, true, nil
		case h.position != s.last+1:
			return 0, false, fmt.Errorf("%w: record %d follows record %d in segment %q at %d",
				ErrCorrupt, h.position, s.last, s.path, r.offset)
		}
		s.last = h.position
		s.note(h.position, r.offset)
	}
}

// settle makes what was found durable, records that in the high-water mark, and removes what was trimmed before.
func (l *Log) settle(last uint64, obsolete []string) error {
	fs := l.opts.FS
	for _, s := range l.segments {
		if err := syncFile(fs, s.path); err != nil {
			return fmt.Errorf("sync segment %q: %w", s.path, err)
		}
	}
	if err := durable.SyncDir(fs, l.opts.Dir); err != nil {
		return fmt.Errorf("sync log directory: %w", err)
	}
	if err := l.highWater.advance(last); err != nil {
		return err
	}
	if err := l.highWater.sync(); err != nil {
		return err
	}
	for _, path := range obsolete {
		l.remove(path)
	}
	return nil
}

// remove deletes a trimmed segment. If that fails, the next Open tries again.
func (l *Log) remove(path string) {
	if err := l.opts.FS.Remove(path); err != nil && !oserror.IsNotExist(err) {
		l.opts.Logger.Warn("wal: can't remove a trimmed segment", "segment", path, "error", err)
	}
}

func syncFile(fs vfs.FS, path string) error {
	f, err := fs.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

var tornRecordsTotal = metrics.NewCounter("millrace_wal_torn_tail_records_total")
