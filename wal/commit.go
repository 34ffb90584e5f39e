package wal

import (
	"fmt"
	"log/slog"
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
	group   []*Record        // written or about to be
	durable []*Record        // synced, not handed back yet
	// groupBytes bounds a group, and so the memory of Pebble's blocks and how far a segment passes SegmentBytes.
	groupBytes int64
	synced     sync.WaitGroup
	syncErr    error
}

const maxGroupBytes = 8 << 20

func (c *committer) init(l *Log) {
	c.group = make([]*Record, 0, len(l.ring))
	c.durable = make([]*Record, 0, len(l.ring))
	c.groupBytes = min(maxGroupBytes, l.opts.SegmentBytes)
}

// commitLoop makes records durable, group by group. A group is what came while the disk was at the one before, so that its size follows
// from the load. Handing back a group overlaps with the fsync of the next one; with nothing waiting it happens at once.
func (l *Log) commitLoop() {
	defer close(l.done)
	c := &l.commit
	for {
		more := l.take()
		if len(c.group) > 0 {
			if err := l.write(); err != nil {
				l.fail(err)
				return
			}
		}
		if !l.handBack() {
			return
		}
		if len(c.group) == 0 {
			if more {
				continue
			}
			if err := l.finishSegment(); err != nil {
				l.fail(err)
			}
			return
		}
		if err := l.sync(); err != nil {
			l.fail(err)
			return
		}
		if c.offset >= l.opts.SegmentBytes {
			if !l.handBack() {
				return
			}
			if err := l.finishSegment(); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// take moves what waits into the group, up to groupBytes. It blocks while there is nothing to do; more is false when there never will be.
func (l *Log) take() (more bool) {
	c := &l.commit
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.queued == 0 && len(c.durable) == 0 && !l.closing && l.failure == nil {
		l.idle = true
		l.wake.Wait()
	}
	l.idle = false
	var size int64
	for l.queued > 0 && size < c.groupBytes {
		r := l.ring[l.head]
		l.ring[l.head] = nil
		l.head = (l.head + 1) % len(l.ring)
		l.queued--
		size += int64(len(r.Data))
		c.group = append(c.group, r)
	}
	return !l.closing || l.queued > 0 || len(c.group) > 0
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
		sealHeader(r.Data, r.Position, r.Count, durable)
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

// sync waits until the group is durable, and has the witness say so before anybody acknowledges it.
func (l *Log) sync() error {
	c := &l.commit
	c.synced.Wait()
	if c.syncErr != nil {
		return fmt.Errorf("sync segment %q: %w", c.segment.path, c.syncErr)
	}
	position := c.group[len(c.group)-1].Position
	if err := l.witness.advance(position); err != nil {
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
	c.group, c.durable = c.durable, c.group

	l.ioStart.Store(0)
	return nil
}

// latency gets the duration of each fsync from Pebble's flush loop; of the histogram, only Observe is ever called.
type latency struct {
	prometheus.Histogram
	log *Log
}

// Observe takes nanoseconds.
func (h latency) Observe(ns float64) {
	h.log.syncNs.Store(int64(ns))
	syncsTotal.Inc()
	syncSeconds.Update(ns / 1e9)
}

// handBack returns what is durable to its owners; false when the log has failed meanwhile, since nothing is acknowledged after that.
func (l *Log) handBack() bool {
	c := &l.commit
	if l.Err() != nil {
		return false
	}
	if len(c.durable) > 0 {
		l.opts.OnDurable(c.durable)
		clear(c.durable)
		c.durable = c.durable[:0]
	}
	return true
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

// finishSegment ends the current segment, if there is one: an end mark, an fsync, and the witness synced.
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
	return l.witness.sync()
}

// segmentEvents is what Pebble's log package tells. Its Fatalf must not end the process: the error comes back from Create as well.
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
	segmentsGauge = metrics.NewCounter("millrace_wal_segments")
)
