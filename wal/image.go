package wal

import (
	"bytes"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

// File is a file of an image. Open gives a reader of exactly Size bytes, whatever is written to the original meanwhile.
type File struct {
	Name string // path in the image, with slashes
	Size int64
	Open func() (io.ReadCloser, error)
}

// FileAt returns a whole file that is no longer written to, under its path.
func FileAt(fs vfs.FS, path string) (File, error) {
	info, err := fs.Stat(path)
	if err != nil {
		return File{}, err
	}
	return File{Name: path, Size: info.Size(), Open: func() (io.ReadCloser, error) { return fs.Open(path) }}, nil
}

// Image returns the files of a log that ends with the durable record to and has at least the records from from on, in
// the form that Open expects: the high-water mark, then segments, each cut after its last record. With from = to+1 the
// log has no record, and continues with that position.
//
// The caller must have held the log under the name hold, at from or earlier, since before it chose from. The files are
// to be read in order. A segment's records are checked when it is opened (ErrCorrupt), and a segment that was read and
// closed is released. Hold(hold, math.MaxUint64) ends the whole hold.
func (l *Log) Image(hold string, from, to uint64) ([]File, error) {
	if last := l.durable.Load(); from > to+1 || to > last {
		return nil, fmt.Errorf("wal: image of the records %d to %d of a log that is durable to %d", from, to, last)
	}
	spans, state, err := l.span(from, to)
	if err != nil {
		return nil, err
	}
	state.acked = to
	mark := durable.SlotsText(highWaterMagic, state.append(nil))
	files := []File{{Name: highWaterName, Size: int64(len(mark)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mark)), nil
	}}}
	for _, s := range spans {
		if s.size, err = l.sizeOf(&s); err != nil {
			return nil, err
		}
		files = append(files, File{Name: l.opts.FS.PathBase(s.path), Size: s.size,
			Open: func() (io.ReadCloser, error) { return l.openSpan(hold, s) }})
	}
	l.Hold(hold, from)
	return files, nil
}

// span is the part of a segment that belongs to an image.
type span struct {
	*segment
	first, last uint64 // last is first-1 when it has no record
	size        int64
}

// span lists the segments with the records from from to to, and returns what the high-water mark of that log has to
// say. The list includes segments without a record that lie between others, since numbers must have no gap.
func (l *Log) span(from, to uint64) (spans []span, state highWaterState, err error) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	if first := l.firstLocked(); from < first {
		return nil, state, fmt.Errorf("%w: record %d is trimmed, the log begins at %d", ErrMissing, from, first)
	}
	state = highWaterState{segment: l.nextNum, first: to + 1, salt: l.salt}
	if from > to {
		return nil, state, nil
	}
	for _, s := range l.segments {
		if s.first > to {
			break
		}
		if len(spans) > 0 || s.last >= from {
			spans = append(spans, span{segment: s, first: s.first, last: min(s.last, to)})
		}
	}
	if len(spans) == 0 || spans[0].first > from || spans[len(spans)-1].last < to {
		return nil, state, fmt.Errorf("%w: the records %d to %d are in no segment", ErrCorrupt, from, to)
	}
	state.segment, state.first = spans[0].num, spans[0].first
	return spans, state, nil
}

// sizeOf finds where the last record of a span ends.
func (l *Log) sizeOf(s *span) (int64, error) {
	if s.last < s.first {
		return 0, nil
	}
	l.segMu.Lock()
	start := s.startOf(s.last)
	l.segMu.Unlock()
	r, err := l.openSegment(s.path, start)
	if err != nil {
		return 0, err
	}
	defer r.close()
	if err := r.walk(s.last, s.last, skip); err != nil {
		return 0, err
	}
	_, _, _ = r.next() // the result doesn't matter, it may be half written: it begins where the last record ends
	return r.offset, nil
}

func skip(uint64, uint32, []byte) error { return nil }

// openSpan opens a span after it has checked the span's records, so that nobody keeps a copy that can't be opened.
func (l *Log) openSpan(hold string, s span) (io.ReadCloser, error) {
	if s.last >= s.first {
		if err := l.readSegment(s.segment, s.first, s.last, false, skip); err != nil {
			return nil, err
		}
	}
	f, err := l.opts.FS.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("open segment %q: %w", s.path, err)
	}
	return &spanReader{SectionReader: io.NewSectionReader(f, 0, s.size), file: f,
		close: func() { l.Hold(hold, s.last+1) }}, nil
}

type spanReader struct {
	*io.SectionReader
	file  vfs.File
	close func()
}

// Close closes the segment and releases it from the hold.
func (r *spanReader) Close() error {
	r.close()
	return r.file.Close()
}
