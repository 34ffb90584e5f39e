// Package wal is the write-ahead log: numbered, checksummed records, made durable in groups, in the record format of
// Pebble. It knows bytes and positions, but not what the records mean.
//
// What always holds:
//   - Positions are 1, 2, 3, … without gaps, across restarts too. Append gives a record its position, and records are
//     on disk in that order.
//   - OnDurable sees a record only after the fsync that covers it, in position order, from one goroutine at a time.
//   - A record that OnDurable has seen is there after the next Open, or the log refuses: Open returns ErrMissing when
//     the log ends too early, and ErrCorrupt when its last segment is damaged; Replay and Read return ErrCorrupt when
//     an earlier one is. Open drops only what was never acknowledged, and counts it.
//   - So whoever opens a log replays it from where they have everything themselves, before anything is appended.
//   - A failed write or fsync is final. Nothing is acknowledged after it, and the file is not tried again: after a
//     failed fsync the kernel may have dropped the pages, and a second fsync would report success.
//   - Whatever waits is bounded. Append waits for the disk only when its record asks for that (Record.Waits).
//
// Ownership: Append puts records in order into a ring, under mu. One goroutine, the committer (commit.go), takes all
// waiting records, writes them, waits for one fsync, advances the high-water mark and hands the records back. Only the
// committer, or a caller of Append that holds its place (commitHere), creates, writes and closes segments. Another
// goroutine, the keeper, syncs the high-water mark now and then and watches the free space. segMu guards the list of
// segments (read.go). A reader pins the segments that it reads, and Trim skips every segment that is pinned or held.
//
// Each process writes to new segments only. The tail that a crash left behind therefore stays as it is, and the next
// segment continues after the last valid record before it.
//
// The obvious design was rejected: each Append would call WriteRecord with a wait group of its own, as Pebble's commit
// does. That costs two goroutine switches per record; this design costs a few per group.
package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

var (
	// ErrCorrupt is returned by Open, Replay and Read when something in the middle of the log is damaged or missing.
	// Restore, or take the node's state from a peer: a log that has lost acknowledged records must not serve.
	ErrCorrupt = errors.New("wal: the log is damaged")
	// ErrMissing is returned by Open when the log ends before what was acknowledged, and by Replay and Read for records
	// that the log no longer has, or does not have. The remedy is that of ErrCorrupt.
	ErrMissing = errors.New("wal: records are missing")
	// ErrBusy is returned by Append when the records that wait for the disk have reached their bound. Refuse the
	// request and let the client try again.
	ErrBusy = errors.New("wal: too much waits for the disk")
	// ErrDiskFull is returned by Append while the free space is below the floor. Append takes records again once there
	// is enough free space.
	ErrDiskFull = errors.New("wal: the disk is full: less is free than min-free-bytes or min-free-percent ask for")
	// ErrFailed is returned by Append, Trim and Close after a write or an fsync has failed. It is final; the process
	// should exit.
	ErrFailed = errors.New("wal: the log has failed")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("wal: the log is closed")
	// ErrNotLeader is returned by Append of a log that several nodes share (package quorum) where another node leads.
	// Nothing was done.
	ErrNotLeader = errors.New("wal: another node leads this log")
	// ErrRecordTooLarge is returned by Append for a record above MaxRecordBytes.
	ErrRecordTooLarge = errors.New("wal: the record is too large")
)

// Options configure a Log. The zero value of a field means its default.
type Options struct {
	FS  vfs.FS // default vfs.Default
	Dir string // made when absent; belongs to the log alone
	// SegmentBytes is the size beyond which the next record begins a new segment. Default 128 MiB.
	SegmentBytes int64
	// MaxRecycled is how many trimmed segments are kept to be overwritten, which is cheaper to sync than a new file.
	// Default 4; a negative value means none.
	MaxRecycled int
	// Buffered makes the log write and read segments through the page cache. Otherwise it does so only where the file
	// system can't bypass the page cache.
	Buffered bool
	// MaxPendingRecords and MaxPendingBytes bound the records that wait for the disk. Beyond either, Append returns
	// ErrBusy. Defaults 4096, 256 MiB.
	MaxPendingRecords int
	MaxPendingBytes   int64
	// MaxRecordBytes bounds len(Record.Data). Default 64 MiB.
	MaxRecordBytes int
	// HighWaterInterval is how often the high-water mark is synced. It bounds how much of the newest log could go
	// missing unnoticed when a loss of power coincides with damage to the log. Default 1 s.
	HighWaterInterval time.Duration
	// MinFreeBytes and MinFreePercent are the floor: with less free space than either, Append returns ErrDiskFull.
	// Defaults 2 GB and 5; a negative value means no floor.
	MinFreeBytes   int64
	MinFreePercent float64
	// StallAfter is how long the disk may take for one group before Stalled reports true. This often the disk is tried
	// even when nothing is to be written. Default 5 s.
	StallAfter time.Duration
	Logger     *slog.Logger // default slog.Default()
	// OnDurable gets records that have become durable, in position order, from one goroutine at a time. The slice is
	// lent for the call; the records belong to the caller of Append again. Nothing is written while OnDurable runs, so
	// it should hand the records over and return. It must not call Close. Required.
	OnDurable func([]*Record)
	// OnFailure is called once, when a write or an fsync has failed, from a goroutine of the log or from one that
	// calls Append, Trim or Close. It must not call Close.
	OnFailure func(error)

	diskInterval time.Duration // how often the free space is checked; default 1 s
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.FS = cmp.Or(o.FS, vfs.Default)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	o.SegmentBytes = cmp.Or(o.SegmentBytes, 128<<20)
	o.MaxRecycled = cmp.Or(o.MaxRecycled, 4)
	o.MaxPendingRecords = cmp.Or(o.MaxPendingRecords, 4096)
	o.MaxPendingBytes = cmp.Or(o.MaxPendingBytes, 256<<20)
	o.MaxRecordBytes = cmp.Or(o.MaxRecordBytes, 64<<20)
	o.HighWaterInterval = cmp.Or(o.HighWaterInterval, time.Second)
	o.MinFreeBytes = cmp.Or(o.MinFreeBytes, 2_000_000_000)
	o.MinFreePercent = cmp.Or(o.MinFreePercent, 5)
	o.StallAfter = cmp.Or(o.StallAfter, 5*time.Second)
	o.diskInterval = cmp.Or(o.diskInterval, time.Second)
}

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("wal: Dir is not set")
	case o.OnDurable == nil:
		return errors.New("wal: OnDurable is not set")
	case o.SegmentBytes < blockBytes:
		return fmt.Errorf("wal: SegmentBytes %d is below %d", o.SegmentBytes, blockBytes)
	case o.MaxPendingRecords < 1:
		return fmt.Errorf("wal: MaxPendingRecords %d is below 1", o.MaxPendingRecords)
	case o.MaxRecordBytes < HeaderBytes:
		return fmt.Errorf("wal: MaxRecordBytes %d is below %d", o.MaxRecordBytes, HeaderBytes)
	case o.HighWaterInterval < 0 || o.StallAfter < 0 || o.diskInterval < 0:
		return fmt.Errorf("wal: HighWaterInterval %v or StallAfter %v is negative", o.HighWaterInterval, o.StallAfter)
	case o.MaxPendingBytes < int64(o.MaxRecordBytes):
		return fmt.Errorf("wal: MaxPendingBytes %d is below MaxRecordBytes %d: such a record would never be taken",
			o.MaxPendingBytes, o.MaxRecordBytes)
	}
	return nil
}

// Log is an open log. Its methods are safe for concurrent use unless they say otherwise.
type Log struct {
	opts      Options
	dir       vfs.File // synced after a segment has been created
	highWater *highWater
	salt      salt // as the high-water mark has it
	lock      io.Closer

	mu       sync.Mutex // guards the ring and the states below
	wake     sync.Cond  // the committer waits on it
	ring     []*Record  // circular, with room for MaxPendingRecords
	head     int        // index of the oldest record in ring
	queued   int        // number of records in ring
	records  int        // number of records that wait for the disk, in the ring or written
	bytes    int64
	appended uint64 // the last position given out
	touched  bool   // whether anything was appended since Open
	idle     bool   // the committer waits, and nobody holds its place
	lent     bool   // a goroutine that has appended a record holds the committer's place (commitHere)
	closing  bool
	failure  error // wraps ErrFailed

	last    atomic.Uint64 // same as appended, for readers without mu
	durable atomic.Uint64
	room    Room
	ioStart atomic.Int64 // when the committer began to use the disk, in ns since started; 0: it does not use it
	keeping atomic.Int64 // the same for the keeper

	segMu    sync.Mutex // guards the list, and the segments in it
	segments []*segment // by number, without gaps
	nextNum  uint64
	recycled []recycledFile
	holds    Holds
	trimMu   sync.Mutex // one Trim at a time; before segMu

	commit  committer
	done    chan struct{} // closed when the committer has returned
	stop    chan struct{} // tells the keeper to return
	kept    chan struct{} // closed when the keeper has returned
	closeMu sync.Mutex
	closed  bool
	started time.Time
}

// Open opens the log in a directory, or creates it. It checks that the log is complete, reads the last segment, drops a
// torn tail, and replays nothing. The records of the other segments are checked when they are read. Open returns
// ErrCorrupt, ErrMissing, or an error of the file system; the directory then stays as it was.
func Open(opts Options) (*Log, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	l := &Log{
		opts:    opts,
		room:    Room{Floor: Floor{opts.MinFreeBytes, opts.MinFreePercent}, Logger: opts.Logger},
		ring:    make([]*Record, opts.MaxPendingRecords),
		done:    make(chan struct{}),
		stop:    make(chan struct{}),
		kept:    make(chan struct{}),
		started: time.Now(),
	}
	l.wake.L = &l.mu
	if err := l.open(); err != nil {
		l.release()
		return nil, err
	}
	l.checkDisk()
	segmentsGauge.Add(float64(len(l.segments)))
	go l.commitLoop()
	go l.keep()
	return l, nil
}

func (l *Log) open() (err error) {
	fs, dir := l.opts.FS, l.opts.Dir
	if err := MakeDir(fs, dir); err != nil {
		return fmt.Errorf("make log directory %q: %w", dir, err)
	}
	if l.lock, err = fs.Lock(fs.PathJoin(dir, "LOCK")); err != nil {
		return fmt.Errorf("lock log directory %q: %w", dir, err)
	}
	if err := l.load(); err != nil {
		return fmt.Errorf("recover log in %q: %w", dir, err)
	}
	if l.dir, err = fs.OpenDir(dir); err != nil {
		return fmt.Errorf("open log directory %q: %w", dir, err)
	}
	l.commit.init(l)
	return nil
}

// ID is that of this log and of its images, and so of the log that a restore makes of one. It never changes, and no log
// of another origin has it.
func (l *Log) ID() uint64 { return l.salt.id() }

// Append gives the record its position and queues it. OnDurable hands the record back. Append waits for the disk only
// when the record says so (Record.Waits). After an error the record still belongs to the caller and has got no
// position. Errors: ErrBusy, ErrDiskFull, ErrFailed, ErrClosed, ErrRecordTooLarge.
func (l *Log) Append(r *Record) error {
	size := len(r.Data)
	if size < HeaderBytes || r.Count == 0 {
		panic(fmt.Sprintf("BUG: wal: Append of %d bytes, count %d", size, r.Count))
	}
	if size > l.opts.MaxRecordBytes {
		return ErrRecordTooLarge
	}
	sealPayload(r.Data)
	l.mu.Lock()
	switch {
	case l.failure != nil:
		l.mu.Unlock()
		return l.failure
	case l.closing:
		l.mu.Unlock()
		return ErrClosed
	case l.room.IsFull() && !r.Urgent:
		l.mu.Unlock()
		rejectedTotal.Inc()
		return ErrDiskFull
	case l.records >= len(l.ring) || l.bytes+int64(size) > l.opts.MaxPendingBytes:
		l.mu.Unlock()
		rejectedTotal.Inc()
		return ErrBusy
	}
	l.appended++
	r.Position = l.appended
	l.last.Store(l.appended)
	l.touched = true
	l.ring[(l.head+l.queued)%len(l.ring)] = r
	l.queued++
	l.records++
	l.bytes += int64(size)
	isIdle := l.idle
	l.idle, l.lent = false, l.lent || isIdle && r.Waits
	l.mu.Unlock()
	switch {
	case isIdle && r.Waits:
		l.commitHere()
	case isIdle:
		l.wake.Signal()
	}
	return nil
}

// LastPosition is the position of the last record appended, durable or not; 0 before the first.
func (l *Log) LastPosition() uint64 { return l.last.Load() }

// DurablePosition is the position up to which all records are on disk.
func (l *Log) DurablePosition() uint64 { return l.durable.Load() }

// Stalled reports whether the disk has been busy with one group, or with the high-water mark, for longer than
// StallAfter.
func (l *Log) Stalled() bool {
	now := time.Since(l.started)
	for _, start := range [...]*atomic.Int64{&l.ioStart, &l.keeping} {
		if begun := time.Duration(start.Load()); begun != 0 && now-begun > l.opts.StallAfter {
			return true
		}
	}
	return false
}

// begin notes that use of the disk begins; start is one of the fields for that.
func (l *Log) begin(start *atomic.Int64) { start.Store(max(int64(time.Since(l.started)), 1)) }

// Err returns the error that the log has failed with, which wraps ErrFailed, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// DiskFull reports whether Append refuses records for lack of free space.
func (l *Log) DiskFull() bool { return l.room.IsFull() }

// Close refuses further records, waits until all waiting records are durable and handed back, and leaves an exact
// high-water mark. It returns the error of a log that has failed. A second Close returns nil.
func (l *Log) Close() error {
	l.closeMu.Lock()
	defer l.closeMu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.wake.Signal()
	<-l.done
	close(l.stop)
	<-l.kept
	l.trimMu.Lock() // let a running Trim finish first
	defer l.trimMu.Unlock()
	err := l.Err()
	if err == nil {
		if err = l.highWater.settle(); err != nil {
			l.fail(err)
			err = l.Err()
		}
	}
	l.segMu.Lock()
	segmentsGauge.Add(-float64(len(l.segments)))
	l.segMu.Unlock()
	l.release()
	return err
}

// release frees what Open has acquired, as far as Open got.
func (l *Log) release() {
	if w := l.commit.writer; w != nil {
		_ = w.file.Close() // only the writer of a failed log is still open here
	}
	if l.dir != nil {
		_ = l.dir.Close()
	}
	if l.highWater != nil {
		_ = l.highWater.slots.Close() // already synced, or the log has failed
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}

// fail ends the log. The first cause is kept.
func (l *Log) fail(cause error) {
	l.mu.Lock()
	if l.failure != nil {
		l.mu.Unlock()
		return
	}
	l.failure = fmt.Errorf("%w: %w", ErrFailed, cause)
	failure := l.failure
	l.mu.Unlock()
	l.wake.Signal()
	failuresTotal.Inc()
	l.opts.Logger.Error("wal: the log has failed; nothing is acknowledged any more", "error", cause,
		"durable", l.durable.Load())
	l.opts.OnFailure(failure)
}

// keep syncs the high-water mark and checks the free space until Close. Every StallAfter it writes the mark even if it
// is as before: a disk that hangs would otherwise show only to whoever writes next. It logs that the disk hangs, and
// when it answers again.
func (l *Log) keep() {
	defer close(l.kept)
	renewed := time.Now()
	mark, disk := time.NewTicker(l.opts.HighWaterInterval), time.NewTicker(l.opts.diskInterval)
	defer mark.Stop()
	defer disk.Stop()
	for {
		use := l.checkDisk
		select {
		case <-l.stop:
			return
		case <-mark.C:
			if l.Err() != nil {
				continue
			}
			sync := l.highWater.sync
			if time.Since(renewed) >= l.opts.StallAfter {
				sync, renewed = l.highWater.renew, time.Now()
			}
			use = func() {
				if err := sync(); err != nil {
					l.fail(err)
				}
			}
		case <-disk.C:
		}
		begun := time.Now()
		l.begin(&l.keeping)
		stalls := time.AfterFunc(l.opts.StallAfter, func() {
			l.opts.Logger.Warn("wal: the disk does not answer", "for", l.opts.StallAfter.String())
		})
		use()
		l.keeping.Store(0)
		if !stalls.Stop() {
			l.opts.Logger.Info("wal: the disk answers again", "after", time.Since(begun).String())
		}
	}
}

func (l *Log) checkDisk() {
	u, err := l.opts.FS.GetDiskUsage(l.opts.Dir)
	if err != nil { // unknown does not mean full; a disk that is gone shows at the next fsync
		l.opts.Logger.Debug("wal: free space is unknown", "error", err)
		return
	}
	l.room.Note(u.AvailBytes, u.TotalBytes)
}

// MakeDir is durable.MakeDir for a directory of the owner alone.
func MakeDir(fs vfs.FS, dir string) error { return durable.MakeDir(fs, dir, 0o700) }

var (
	rejectedTotal = metrics.NewCounter("millrace_wal_rejected_total")
	failuresTotal = metrics.NewCounter("millrace_wal_failures_total")
)
