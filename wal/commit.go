package wal

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	pebblewal "github.com/cockroachdb/pebble/v2/wal"
	"github.com/prometheus/client_golang/prometheus"
)

// committer is the state of the commit loop. Only that goroutine touches it.
type committer struct {
	writer  pebblewal.Writer // nil: the next record begins a segment
	segment *segment         // what writer writes to
	offset  int64            // its logical end
	group   []*Record        // what is being made durable
	// groupBytes bounds a group, and so the memory of Pebble's blocks and how far a segment passes SegmentBytes.
	groupBytes int64
	synced     sync.WaitGroup
	syncErr    error
}

const maxGroupBytes = 8 << 20

func (c *committer) init(l *Log) {
	c.group = make([]*Record, 0, len(l.ring))
	c.groupBytes = min(maxGroupBytes, l.opts.SegmentBytes)
}

// commitLoop makes records durable, group by group. A group is what came while the disk was at the one before, so that
// its size follows from the load.
//
// Handing back could overlap with the fsync of the next group. It doesn't: of those who wait for their records, that
// makes two halves that take turns, and so twice the fsyncs, which cost more CPU than anything else here.
func (l *Log) commitLoop() {
	defer close(l.done)
	c := &l.commit
	for l.take() {
		err := l.write()
		if err == nil {
			err = l.sync()
		}
		if err != nil {
			l.fail(err)
			return
		}
		if l.Err() != nil { // of the high-water mark, found by the keeper: nothing is acknowledged after it
			return
		}
		l.opts.OnDurable(c.group)
		clear(c.group)
		c.group = c.group[:0]
		if c.offset >= l.opts.SegmentBytes {
			if err := l.finishSegment(); err != nil {
				l.fail(err)
				return
			}
		}
	}
	if l.Err() == nil {
		if err := l.finishSegment(); err != nil {
			l.fail(err)
		}
	}
}

// take moves what waits into the group, up to groupBytes. It blocks while nothing waits, and returns false when nothing
// ever will.
//
// It lets other goroutines run first: those that were just answered, or are about to append as well, get into this
// group instead of the next one. Woken by the first of many, the committer would otherwise sync that one record alone.
func (l *Log) take() bool {
	c := &l.commit
	runtime.Gosched()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queued == 0 && !l.closing && l.failure == nil {
		for l.queued == 0 && !l.closing && l.failure == nil {
			l.idle = true
			l.wake.Wait()
		}
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	l.idle = false
	if l.failure != nil {
		return false
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
	return len(c.group) > 0
}

// write gives the group to Pebble, which copies it, and asks for a sync with the last record.
func (l *Log) write() error {
	c := &l.commit
	l.ioStart.Store(max(int64(time.Since(l.started)), 1))
	if c.writer == nil {
		if err := l.beginSegment(c.group[0].Position); err != nil {
			return err
		}
	}
	durable := l.durable.Load()
	before := c.offset
	for i, r := range c.group {
		sealHeader(r.Data, r.Position, r.Count, durable, l.salt)
		if n := len(c.segment.marks); n == 0 || c.offset-c.segment.marks[n-1].offset >= markInterval {
			l.segMu.Lock()
			c.segment.note(r.Position, c.offset)
			l.segMu.Unlock()
		}
		var opts pebblewal.SyncOptions
		if i == len(c.group)-1 {
			c.synced.Add(1)
			opts = pebblewal.SyncOptions{Done: &c.synced, Err: &c.syncErr}
		}
		offset, err := c.writer.WriteRecord(r.Data, opts, nil)
		if err != nil {
			return fmt.Errorf("write segment %q: %w", c.segment.path, err)
		}
		c.offset = offset
	}
	recordsTotal.Add(len(c.group))
	bytesTotal.Add(int(c.offset - before))
	return nil
}

// sync waits until the group is durable, and has the high-water mark say so before anybody acknowledges it.
func (l *Log) sync() error {
	c := &l.commit
	c.synced.Wait()
	if c.syncErr != nil {
		return fmt.Errorf("sync segment %q: %w", c.segment.path, c.syncErr)
	}
	position := c.group[len(c.group)-1].Position
	if err := l.highWater.advance(position); err != nil {
		return err
	}
	l.segMu.Lock()
	c.segment.last = position
	c.segment.bytes = max(c.segment.bytes, c.offset)
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

// latency gets the duration of each fsync from Pebble's flush loop; of the histogram, only Observe is ever called.
type latency struct{ prometheus.Histogram }

// Observe takes nanoseconds.
func (latency) Observe(ns float64) {
	syncsTotal.Inc()
	syncSeconds.Update(ns / 1e9)
}

// beginSegment makes the segment whose first record has that position. Its name is durable when it returns.
func (l *Log) beginSegment(position uint64) error {
	c := &l.commit
	num := l.nextNum
	writer, err := l.manager.Create(pebblewal.NumWAL(num), int(num))
	if err != nil {
		return fmt.Errorf("create segment %d: %w", num, err)
	}
	c.writer, c.offset = writer, 0
	c.segment = &segment{num: num, path: l.events.path, first: position, last: position - 1, open: true, own: true}
	if info, err := l.opts.FS.Stat(c.segment.path); err == nil { // a recycled file has its size already
		c.segment.bytes = info.Size()
	}
	l.segMu.Lock()
	l.nextNum++
	l.segments = append(l.segments, c.segment)
	l.segMu.Unlock()
	segmentsGauge.Inc()
	return nil
}

// finishSegment ends the current segment, if there is one: an end mark, an fsync, and the high-water mark synced.
func (l *Log) finishSegment() error {
	c := &l.commit
	if c.writer == nil {
		return nil
	}
	l.ioStart.Store(max(int64(time.Since(l.started)), 1))
	defer l.ioStart.Store(0)
	_, err := c.writer.Close()
	c.writer = nil
	if err != nil {
		return fmt.Errorf("close segment %q: %w", c.segment.path, err)
	}
	l.segMu.Lock()
	c.segment.open = false
	l.segMu.Unlock()
	c.segment = nil
	return l.highWater.sync()
}

// segmentEvents is what Pebble's log package tells. Its Fatalf must not end the process: the error comes back from
// Create as well.
type segmentEvents struct {
	logger *slog.Logger
	path   string // of the segment made last
}

func (e *segmentEvents) LogCreated(info pebblewal.CreateInfo) {
	e.path = info.Path
	if info.Err == nil {
		e.logger.Debug("wal: segment begun", "path", info.Path, "recycled", uint64(info.RecycledFileNum))
	}
}

func (e *segmentEvents) Infof(format string, args ...any) {
	e.logger.Debug("wal: " + fmt.Sprintf(format, args...))
}

func (e *segmentEvents) Errorf(format string, args ...any) {
	e.logger.Error("wal: " + fmt.Sprintf(format, args...))
}

func (e *segmentEvents) Fatalf(format string, args ...any) {
	e.logger.Error("wal: " + fmt.Sprintf(format, args...))
}

var (
	recordsTotal  = metrics.NewCounter("millrace_wal_records_total")
	bytesTotal    = metrics.NewCounter("millrace_wal_bytes_total")
	syncsTotal    = metrics.NewCounter("millrace_wal_syncs_total")
	syncSeconds   = metrics.NewHistogram("millrace_wal_sync_seconds")
	segmentsGauge = metrics.NewGauge("millrace_wal_segments", nil)
)
