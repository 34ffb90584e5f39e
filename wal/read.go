package wal

import (
	"errors"
	"fmt"
	"io"
)

// FirstPosition is the position of the oldest record that the log still holds, or would hold if it were not empty.
func (l *Log) FirstPosition() uint64 {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	return l.firstLocked()
}

func (l *Log) firstLocked() uint64 {
	if len(l.segments) == 0 {
		return l.durable.Load() + 1
	}
	return l.segments[0].first
}

// Bytes is the size of the log on disk, including the trimmed segments that are kept to be overwritten.
func (l *Log) Bytes() int64 {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	n := int64(0)
	for _, f := range l.recycled {
		n += f.size
	}
	for _, s := range l.segments {
		n += s.bytes
	}
	return n
}

// Replay calls f for all records from a position on, in order, as Open found them; 0 stands for the oldest. It returns
// ErrMissing when some of the wanted records are trimmed, or when the log ends before from-1: the caller has then
// applied records that the log doesn't know. The payload is valid during the call. An error of f ends the replay and is
// returned. Replay may be called only before the first Append.
func (l *Log) Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error {
	l.mu.Lock()
	touched, last := l.touched, l.appended
	l.mu.Unlock()
	if touched {
		return errors.New("wal: Replay after Append")
	}
	if from == 0 {
		from = l.FirstPosition()
	}
	if from-1 > last {
		return fmt.Errorf("%w: the log ends at position %d, but %d was applied", ErrMissing, last, from-1)
	}
	return l.read(from, last, true, f)
}

// Read calls f for the durable records at the positions from to to, both included, in order; a to beyond the durable
// position means that position. It may run beside Append and Trim. It returns ErrMissing when from is trimmed. The
// payload is valid during the call. An error of f ends the reading and is returned.
func (l *Log) Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	return l.read(from, min(to, l.durable.Load()), false, f)
}

func (l *Log) read(from, to uint64, isReplay bool, f func(uint64, uint32, []byte) error) error {
	for from <= to {
		s, last, err := l.pin(from)
		if err != nil {
			return err
		}
		last = min(last, to)
		err = l.readSegment(s, from, last, isReplay, f)
		l.unpin(s)
		if err != nil {
			return err
		}
		from = last + 1
	}
	return nil
}

// pin finds the segment of a durable position, and that segment's last durable position, and keeps the segment from
// being trimmed.
func (l *Log) pin(position uint64) (s *segment, last uint64, err error) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	if first := l.firstLocked(); position < first {
		return nil, 0, fmt.Errorf("%w: record %d is trimmed, the log begins at %d", ErrMissing, position, first)
	}
	for _, s := range l.segments {
		if s.first <= position && position <= s.last {
			s.pins++
			return s, s.last, nil
		}
	}
	return nil, 0, fmt.Errorf("%w: record %d is in no segment", ErrCorrupt, position)
}

func (l *Log) unpin(s *segment) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	s.pins--
}

// readSegment calls f for the records from from to to. With isLast no other record may follow in the segment.
func (l *Log) readSegment(s *segment, from, to uint64, isLast bool, f func(uint64, uint32, []byte) error) error {
	l.segMu.Lock()
	start := s.startOf(from)
	l.segMu.Unlock()
	r, err := l.openSegment(s.path, start)
	if err != nil {
		return err
	}
	defer r.close()
	marked := start
	err = r.walk(from, to, func(position uint64, count uint32, payload []byte) error {
		if r.offset-marked >= markInterval {
			marked = r.offset
			l.segMu.Lock()
			s.note(position, marked)
			l.segMu.Unlock()
		}
		if position < from { // marks must begin at the segment's start, or those who read there later find none
			return nil
		}
		return f(position, count, payload)
	})
	if err == nil && isLast {
		err = r.end(to)
	}
	return err
}

// walk calls f for the records up to to, of which those from from on must be there.
func (r *segmentReader) walk(from, to uint64, f func(uint64, uint32, []byte) error) error {
	for next := uint64(0); next <= to; {
		h, payload, err := r.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errTorn):
			return fmt.Errorf("%w: segment %q ends at %d, before record %d", ErrCorrupt, r.path,
				r.offset, max(next, from))
		case err != nil:
			return err
		case next == 0 && h.position > from, next != 0 && h.position != next:
			return fmt.Errorf("%w: record %d instead of %d in segment %q at %d", ErrCorrupt, h.position,
				max(next, from), r.path, r.offset)
		}
		next = h.position + 1
		if err := f(h.position, h.count, payload); err != nil {
			return err
		}
	}
	return nil
}

// end checks that no record follows the last one. A torn record may, and what is behind a lost page, as in
// checkSegment.
func (r *segmentReader) end(last uint64) error {
	h, _, err := r.next()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, errTorn):
		return nil
	case err != nil:
		return err
	case h.position > last+1:
		return nil
	}
	return fmt.Errorf("%w: record %d follows in segment %q at %d, but the next segment has what follows record %d",
		ErrCorrupt, h.position, r.path, r.offset, last)
}

// Hold keeps the records from a position on for a named reader, until it is called again with a higher position;
// math.MaxUint64 releases them. Holds are not stored on disk: after Open, a reader must call Hold before anybody calls
// Trim.
func (l *Log) Hold(name string, from uint64) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	l.holds.Set(name, from)
}

// Trim gives up the segments that hold only records before a position, except those that a reader holds or is reading
// and the one that is being written to. Such segments are recycled or removed. Trim syncs the high-water mark, so it is
// not for the hot path.
func (l *Log) Trim(before uint64) error {
	l.trimMu.Lock()
	defer l.trimMu.Unlock()
	l.mu.Lock()
	failure, closing := l.failure, l.closing
	l.mu.Unlock()
	if failure != nil {
		return failure
	} else if closing {
		return ErrClosed
	}
	trimmed, state := l.cut(before)
	if len(trimmed) == 0 {
		return nil
	}
	segmentsGauge.Add(-float64(len(trimmed)))
	// The high-water mark goes first: a segment that it still counts on must not be gone.
	if err := l.highWater.trim(state.segment, state.first); err != nil {
		l.fail(err)
		return l.Err()
	}
	for _, s := range trimmed {
		if !l.recycle(s) {
			l.remove(s.path)
		}
	}
	return nil
}

// cut removes from the list what may be trimmed, and returns it with the new beginning of the log.
func (l *Log) cut(before uint64) (trimmed []*segment, state highWaterState) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	before = l.holds.Before(before)
	n := 0
	for n < len(l.segments) && l.segments[n].last < before && l.segments[n].pins == 0 && !l.segments[n].open {
		n++
	}
	trimmed = l.segments[:n:n]
	if n == 0 {
		return trimmed, state
	}
	state = highWaterState{segment: l.segments[n-1].num + 1, first: l.segments[n-1].last + 1}
	l.segments = append([]*segment(nil), l.segments[n:]...)
	return trimmed, state
}
