package wal

import (
	"fmt"
	"runtime"

	"github.com/VictoriaMetrics/metrics"
)

// committer is the state of the commit loop. Only the loop's goroutine touches it, and the goroutine that holds its
// place (commitHere).
type committer struct {
	writer  *writer   // nil: the next record begins a segment
	segment *segment  // the segment that writer writes to
	buf     []byte    // the writer's buffer, kept from segment to segment
	group   []*Record // the records that are being made durable
	// groupBytes bounds a group, and thereby how far a segment exceeds SegmentBytes.
	groupBytes int64
}

const maxGroupBytes = 8 << 20

func (c *committer) init(l *Log) {
	c.group = make([]*Record, 0, len(l.ring))
	c.groupBytes = min(maxGroupBytes, l.opts.SegmentBytes)
}

// commitLoop makes records durable, group by group. A group is what arrived while the disk was busy with the previous
// one, so its size follows from the load.
//
// Handing records back could overlap with the fsync of the next group. It doesn't, because that would split the waiting
// callers into two halves that take turns. There would be twice as many fsyncs, and they cost more CPU than anything
// else here.
func (l *Log) commitLoop() {
	defer close(l.done)
	for l.take() {
		if !l.commitGroup() {
			return
		}
	}
	if l.Err() == nil {
		if err := l.finishSegment(); err != nil {
			l.fail(err)
		}
	}
}

// commitHere makes the waiting records durable in the goroutine of the caller, which holds the committer's place
// (lent). A request that is alone then waits for its fsync only, and not for two goroutine wake-ups as well. commitHere
// commits one group and leaves what arrived meanwhile to the committer.
func (l *Log) commitHere() {
	runtime.Gosched() // for the reason given at take
	l.mu.Lock()
	l.gather()
	l.mu.Unlock()
	if len(l.commit.group) > 0 {
		l.commitGroup()
	}
	l.mu.Lock()
	l.lent = false
	l.idle = l.rests()
	wake := !l.idle
	l.mu.Unlock()
	if wake {
		l.wake.Signal()
	}
}

// commitGroup makes the group durable and hands it back. It returns false when the log has failed.
func (l *Log) commitGroup() bool {
	c := &l.commit
	err := l.write()
	if err == nil {
		err = l.sync()
	}
	if err != nil {
		l.fail(err)
		return false
	}
	if l.Err() != nil { // the keeper could not sync the high-water mark: nothing is acknowledged after that
		return false
	}
	l.opts.OnDurable(c.group)
	clear(c.group)
	c.group = c.group[:0]
	if c.writer.end() >= l.opts.SegmentBytes {
		if err := l.finishSegment(); err != nil {
			l.fail(err)
			return false
		}
	}
	return true
}

// take moves waiting records into the group, up to groupBytes. It blocks while nothing waits, and returns false when
// nothing will be committed any more.
//
// It lets other goroutines run first. Those that were just answered, or are about to append as well, then get into this
// group instead of the next one. Otherwise the committer, woken by the first of many records, would sync that one
// alone.
func (l *Log) take() bool {
	runtime.Gosched()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rests() {
		for l.rests() || l.lent {
			l.idle = !l.lent
			l.wake.Wait()
		}
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	l.idle = false
	if l.failure != nil { // commitHere may have left a group behind; it is not tried again
		return false
	}
	l.gather()
	return len(l.commit.group) > 0
}

// rests reports whether there is nothing to commit and no reason to end. The caller holds l.mu.
func (l *Log) rests() bool { return l.queued == 0 && !l.closing && l.failure == nil }

// gather moves waiting records into the group, or nothing when the log has failed. The caller holds l.mu.
func (l *Log) gather() {
	c := &l.commit
	if l.failure != nil {
		return
	}
	var size int64
	for l.queued > 0 && size < c.groupBytes {
		r := l.ring[l.head]
		l.ring[l.head] = nil
		l.head = (l.head + 1) % len(l.ring)
		l.queued--
		size += int64(len(r.Data))
		c.group = append(c.group, r)
	}
}

// write copies the group to the writer.
func (l *Log) write() error {
	c := &l.commit
	l.begin(&l.ioStart)
	if c.writer == nil {
		if err := l.beginSegment(c.group[0].Position); err != nil {
			return err
		}
	}
	durable := l.durable.Load()
	before := c.writer.end()
	for _, r := range c.group {
		sealHeader(r.Data, r.Position, r.Count, durable, l.salt)
		if at := c.writer.end(); c.segment.wantsMark(at) {
			l.segMu.Lock()
			c.segment.note(r.Position, at)
			l.segMu.Unlock()
		}
		if err := c.writer.append(r.Data); err != nil {
			return fmt.Errorf("write segment %q: %w", c.segment.path, err)
		}
	}
	recordsTotal.Add(len(c.group))
	bytesTotal.Add(int(c.writer.end() - before))
	return nil
}

// sync makes the group durable, and records that in the high-water mark before anybody acknowledges it.
func (l *Log) sync() error {
	c := &l.commit
	if err := c.writer.sync(); err != nil {
		return fmt.Errorf("sync segment %q: %w", c.segment.path, err)
	}
	position := c.group[len(c.group)-1].Position
	if err := l.highWater.advance(position); err != nil {
		return err
	}
	l.segMu.Lock()
	c.segment.last = position
	c.segment.bytes = max(c.segment.bytes, c.writer.end())
	l.segMu.Unlock()
	l.durable.Store(position)

	var size int64
	for _, r := range c.group {
		size += int64(len(r.Data))
	}
	l.mu.Lock()
	l.records -= len(c.group)
	l.bytes -= size
	l.mu.Unlock()
	l.ioStart.Store(0)
	return nil
}

// beginSegment creates the segment that begins with the given position. The segment's name is durable when beginSegment
// returns.
func (l *Log) beginSegment(position uint64) error {
	c := &l.commit
	num := l.nextNum
	writer, path, size, err := l.create(num)
	if err != nil {
		return fmt.Errorf("create segment %d: %w", num, err)
	}
	c.writer = writer
	c.segment = &segment{num: num, path: path, first: position, last: position - 1, bytes: size, open: true, own: true}
	l.segMu.Lock()
	l.nextNum++
	l.segments = append(l.segments, c.segment)
	l.segMu.Unlock()
	segmentsGauge.Inc()
	return nil
}

// finishSegment ends the current segment, if there is one: it writes an end mark, fsyncs the segment, and syncs the
// high-water mark.
func (l *Log) finishSegment() error {
	c := &l.commit
	if c.writer == nil {
		return nil
	}
	l.begin(&l.ioStart)
	defer l.ioStart.Store(0)
	err := c.writer.close()
	c.buf, c.writer = c.writer.buf[:0], nil
	if err != nil {
		return fmt.Errorf("close segment %q: %w", c.segment.path, err)
	}
	l.segMu.Lock()
	c.segment.open = false
	l.segMu.Unlock()
	c.segment = nil
	return l.highWater.sync()
}

var (
	recordsTotal = metrics.NewCounter("millrace_wal_records_total")
	bytesTotal   = metrics.NewCounter("millrace_wal_bytes_total")
	syncsTotal   = metrics.NewCounter("millrace_wal_syncs_total")
	syncSeconds  = metrics.NewPrometheusHistogramExt("millrace_wal_sync_seconds",
		metrics.ExponentialBuckets(25e-6, 2, 20))
	segmentsGauge = metrics.NewGauge("millrace_wal_segments", nil)
	directGauge   = metrics.NewGauge("millrace_wal_direct", nil)
)
