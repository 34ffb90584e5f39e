package wal

import (
	"bytes"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

// File is a file of an image: what Open gives has Size bytes, whatever is written to the original meanwhile.
type File struct {
	Name string // its path in the image, with slashes
	Size int64
	Open func() (io.ReadCloser, error)
}

// FileAt is a whole file that is not written to any more, under its path.
func FileAt(fs vfs.FS, path string) (File, error) {
	info, err := fs.Stat(path)
	if err != nil {
		return File{}, err
	}
	return File{Name: path, Size: info.Size(), Open: func() (io.ReadCloser, error) { return fs.Open(path) }}, nil
}

// Image returns the files of a log that ends with the durable record to and has at least the records from from on, as
// Open would have to find them: the high-water mark, then segments, each cut behind its last record. With from = to+1
// the log has no record, and goes on with that one.
//
// The caller has held the log under a name, from from or earlier, since before it chose from. The files are to be read
// in order: each segment that was read and closed is let go, and its records are checked when it is opened
// (ErrCorrupt). Hold(hold, math.MaxUint64) ends it all.
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

// span is a segment as far as an image has it.
type span struct {
	*segment
	first, last uint64 // last is first-1 when it has no record
	size        int64
}

// span lists the segments with the records from from to to, and says what the high-water mark of that log has to say.
// Segments without a record that lie between others are there too: their numbers have no gap.
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
	_, _, _ = r.next() // whatever comes there, or is being written: it begins where the last one ends
	return r.offset, nil
}

func skip(uint64, uint32, []byte) error { return nil }

// openSpan checks the records of a span, so that nobody keeps a copy that can't be opened, and opens it.
func (l *Log) openSpan(hold string, s span) (io.ReadCloser, error) {
	if s.last >= s.first {
		if err := l.readSegment(s.segment, s.first, s.last, skip); err != nil {
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

// Close lets the segment go.
func (r *spanReader) Close() error {
	r.close()
	return r.file.Close()
}
