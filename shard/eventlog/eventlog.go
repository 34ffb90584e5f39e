// Package eventlog keeps every accepted event and purchase for a retention time (decisions.md D3) and passes them on to
// readers. The hot path writes nothing for it, since the write-ahead log holds every event already. A packer turns what
// the engine has checkpointed into compressed blocks and then lets the log go.
//
//	log: … | packed, let go | unpacked tail ──────────────────────▶ applied
//	         blocks on disk   the log itself, held by HoldLog
//
// Which ops are events: each Event and Purchase of a record, alone or in a Message, that the engine did not list as
// dropped. An op in a Deferred or Resume is sent on as a message and counts there. For streams there are rows of other
// kinds, too (package event): each Delete that found somebody, and each change of a state, merge and identify that the
// engine says an op has made.
//
// Invariants:
//   - STATE says up to which position everything is packed and lists the blocks, and the files of deletions. It alone
//     decides (package files). The log is let go only after STATE is on disk, and what was not in STATE is packed
//     again. So no event is lost and none is there twice.
//   - A STATE older than what the engine has noted (NotePacked, after STATE is on disk) or let go is a loss. Open
//     refuses a loss, unless an operator has accepted it.
//   - A block covers positions without a gap to the next block, unless what lay between had no events or has expired.
//     Its file is never changed: taking deleted users out writes a new file and renames it over the old one.
//   - A deleted user's events are gone for readers as soon as the Delete is applied. They leave the disk when the
//     blocks are rewritten, which is after half of DeleteWithin, or at once when deletions take too much memory; the
//     deletion is remembered until then.
//   - A file is written anew, synced and renamed. When it is unknown whether a rename is on disk, nothing more is
//     packed until the next Open finds out; the engine's log keeps what is not packed.
//
// In a group, one of the logs packs, and the others take its blocks (ahead.go).
//
// Locks: mu guards the list of blocks and the positions. work is held for packing, expiring and rewriting, one at a
// time. tail is held for reading while the unpacked tail is read, and for writing while the packer lets the log go. The
// turn among the logs of a node (Share) is taken before work. Order: turn, work, scan, tail, mu.
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/errors/oserror"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/files"
	"millrace/wal"
)

// errEnough ends a read of the log by a reader that has enough.
var errEnough = errors.New("enough")

// enough returns nil for errEnough.
func enough(err error) error {
	if err == errEnough {
		return nil
	}
	return err
}

// Log is an open event log. Its methods are safe for concurrent use.
type Log struct {
	opts Options
	src  Source
	dir  files.Dir
	lock io.Closer
	// counted is what this log has added to the gauges of the backlog and of the deletions.
	counted struct{ positions, bytes, deletions, deletionBytes float64 }

	mu      sync.Mutex
	blocks  []*block // by position
	packed  uint64   // everything up to here is in blocks, or has gone
	scanned uint64   // the deletions up to here are known; never below packed
	failure error    // wraps errFailed

	deleted atomic.Pointer[erased.Set] // replaced under mu, never changed; what is packed, under work, too
	expired atomic.Uint64              // up to here events have expired since Open
	said    sync.Map                   // the texts of the errors about damage that were logged

	work sync.Mutex
	pack packer        // guarded by work
	scan chan struct{} // of capacity 1, full while somebody looks for deletions
	tail sync.RWMutex

	young young

	stop context.Context // ends with Close
	end  context.CancelFunc
	gone chan struct{} // closed when the background worker has returned
}

// block is a file of packed events. Its fields never change: a rewrite replaces the block.
type block struct {
	path string
	files.Block
	info *blocks.Info
	err  error // why info can't be read; wraps ErrCorrupt
}

// deletedBytes is how much memory the deletions take that are packed. It changes only under work.
func (l *Log) deletedBytes() int64 { return erased.Bytes(l.deleted.Load().Packed) }

// Close stops the background worker and releases the directory. The engine's log stays held.
func (l *Log) Close() error {
	if l.stop.Err() != nil {
		return nil
	}
	l.end()
	<-l.gone
	l.work.Lock()
	defer l.work.Unlock()
	l.countBlocks(-1)
	l.countBacklog(&Stats{})
	l.opts.Share.leave(l.deletedBytes())
	return l.lock.Close()
}

// Stats describes the log at one moment.
type Stats struct {
	Blocks  int
	Bytes   int64 // size of the blocks
	Events  int64 // in the blocks
	Damaged int   // blocks that can't be read
	Packed  uint64
	// positions that are applied but not packed; in a group, whose positions have gaps, more than there are records
	BacklogPositions uint64
	BacklogBytes     int64 // about
	Deletions        int   // those whose events are, or may be, still on disk
	DeletionBytes    int64 // memory that they take
	Oldest           time.Time
	Failed           error // why nothing is packed any more, or nil
}

// Stats reports on the log.
func (l *Log) Stats() Stats {
	applied := l.src.AppliedPosition()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Blocks: len(l.blocks), Packed: l.packed, Failed: l.failure}
	s.Deletions, s.DeletionBytes = l.deleted.Load().Count()
	s.BacklogPositions, s.BacklogBytes = l.backlog(applied)
	for _, b := range l.blocks {
		if b.err != nil {
			s.Damaged++
			continue
		}
		s.Bytes += b.info.Bytes
		s.Events += int64(b.info.Rows)
		if t := time.UnixMicro(b.info.MinAccepted); s.Oldest.IsZero() || t.Before(s.Oldest) {
			s.Oldest = t
		}
	}
	return s
}

// backlog returns how much of what is applied waits to be packed. The caller holds mu.
func (l *Log) backlog(applied uint64) (positions uint64, bytes int64) {
	positions = max(applied, l.packed) - l.packed
	return positions, int64(float64(positions) * l.pack.recordBytes.load())
}

// isBehind reports whether so much waits to be packed that packing is no longer throttled.
func (l *Log) isBehind() bool { return l.backlogBytes() > l.opts.MaxBacklogBytes }

// backlogBytes returns how many bytes of the log wait to be packed.
func (l *Log) backlogBytes() int64 {
	applied := l.src.AppliedPosition()
	l.mu.Lock()
	defer l.mu.Unlock()
	_, bytes := l.backlog(applied)
	return bytes
}

// Verify reads every block in full and checks it. It returns the errors of all damaged blocks, joined; each wraps
// ErrCorrupt and names the file.
func (l *Log) Verify(ctx context.Context) error {
	var errs []error
	for from := uint64(0); ; {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		b := l.blockFrom(from)
		if b == nil {
			return errors.Join(errs...)
		}
		from = b.Last + 1
		if err := l.readBlock(ctx, b, func(*blocks.Rows) error { return nil }); err != nil {
			errs = append(errs, err)
		}
	}
}

// Image copies the event log into a directory, by hard links where the file system has them, and returns the position
// up to which the copy is packed. With the engine's log from the next position on, the copy is what Open would find
// after a crash (replica.Image).
//
// Image waits for nobody. It reads STATE and the deletions first, and these allow for whatever happens to the blocks
// afterwards. A block that is packed later is left out, and packed again from the log. A block that is rewritten has
// lost events of users whose deletion is still there, or in the log. A block that has gone had expired, or had only
// such events; the image's STATE doesn't list it either.
func (l *Log) Image(dir string) (packed uint64, err error) {
	if err := wal.MakeDir(l.opts.FS, dir); err != nil {
		return 0, fmt.Errorf("make %q: %w", dir, err)
	}
	s, err := l.dir.Copy(files.Dir{FS: l.opts.FS, Path: dir}, l.lists)
	if err != nil {
		return 0, err
	}
	return s.Packed, nil
}

// lists reports whether there is still a block of these positions.
func (l *Log) lists(of files.Block) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.blocks, func(b *block) bool { return b.First == of.First && b.Last == of.Last })
}

// blockFrom returns the first block that covers a position at or after from, nil when there is none.
func (l *Log) blockFrom(from uint64) *block {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.blocks, from, func(b *block, p uint64) int {
		if b.Last < p {
			return -1
		}
		return 1
	})
	if i == len(l.blocks) {
		return nil
	}
	return l.blocks[i]
}

// has reports whether a block is still there: it may have expired since it was looked up.
func (l *Log) has(b *block) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.blocks, b)
}

// readBlock calls f with the rows of a block, some records at a time. They are lent for the call. A block that is gone
// has none.
func (l *Log) readBlock(ctx context.Context, b *block, f func(*blocks.Rows) error) error {
	r, err := l.openBlock(b)
	if err == errGone {
		return nil
	} else if err != nil {
		return err
	}
	defer r.Close()
	var g blocks.Group
	for i := range r.Info.Groups {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.Load(i, &g); err != nil {
			return l.noteDamage(err)
		}
		if err := l.eachRows(&g, f); err != nil {
			return err
		}
	}
	return nil
}

// eachRows calls f with the rows of a group, some records at a time.
func (l *Log) eachRows(g *blocks.Group, f func(*blocks.Rows) error) error {
	for {
		rs, err := g.Next()
		if err != nil {
			return l.noteDamage(err)
		}
		if rs == nil {
			return nil
		}
		if err := f(rs); err != nil {
			return err
		}
	}
}

// errGone says that a block is no longer there: its events have expired, or all were those of deleted users.
var errGone = errors.New("event log: the block is gone")

// openBlock opens a block that blockFrom has returned; errGone when it has gone since.
func (l *Log) openBlock(b *block) (*blocks.Reader, error) {
	if b.err != nil {
		return nil, b.err
	}
	r, err := blocks.Open(l.opts.FS, b.path, l.src.Hasher())
	if err != nil {
		if oserror.IsNotExist(err) && !l.has(b) {
			return nil, errGone
		}
		return nil, l.noteDamage(err)
	}
	return r, nil
}

func (l *Log) noteDamage(err error) error {
	if errors.Is(err, ErrCorrupt) {
		l.sayDamage(err, "event log: a block can't be read")
	}
	return err
}

// readLog reads the engine's log. A start reads only what is to be replayed, so damage before that shows here first.
func (l *Log) readLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	err := l.src.ReadLog(from, to, f)
	if errors.Is(err, wal.ErrCorrupt) {
		l.sayDamage(err, "event log: the log can't be read: events from there on are neither packed nor exported",
			"from", from)
	}
	return err
}

// sayDamage counts a read that met damage. Each damage is logged once: streams try again and again, each where it is.
func (l *Log) sayDamage(err error, message string, about ...any) {
	damagedReads.Inc()
	if _, known := l.said.LoadOrStore(err.Error(), nil); !known {
		l.opts.Logger.Error(message, append(about, "error", err)...)
	}
}

// fail ends packing. The first cause is kept.
func (l *Log) fail(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = fmt.Errorf("%w: %w", errFailed, cause)
		failures.Inc()
		l.opts.Logger.Error("event log: nothing more is packed until the next start", "error", cause)
	}
	return l.failure
}

// ready returns nil, or why no work may be done.
func (l *Log) ready() error {
	if l.stop.Err() != nil {
		return errClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// countBlocks adds all blocks to the gauges, or with -1 subtracts them.
func (l *Log) countBlocks(sign int) {
	for _, b := range l.blocks {
		countBlock(b.info, sign)
	}
}

// countBacklog updates the gauges, which all logs of the process share. It is called under work, or when nobody works
// any more.
func (l *Log) countBacklog(s *Stats) {
	c := &l.counted
	backlogPositions.Add(float64(s.BacklogPositions) - c.positions)
	backlogBytes.Add(float64(s.BacklogBytes) - c.bytes)
	c.positions, c.bytes = float64(s.BacklogPositions), float64(s.BacklogBytes)
	deletionsGauge.Add(float64(s.Deletions) - c.deletions)
	deletionBytes.Add(float64(s.DeletionBytes) - c.deletionBytes)
	c.deletions, c.deletionBytes = float64(s.Deletions), float64(s.DeletionBytes)
}

func countBlock(info *blocks.Info, sign int) {
	blocksGauge.Add(float64(sign))
	if info != nil {
		bytesGauge.Add(float64(sign) * float64(info.Bytes))
	}
}

var (
	blocksGauge      = metrics.NewGauge("millrace_eventlog_blocks", nil)
	bytesGauge       = metrics.NewGauge("millrace_eventlog_bytes", nil)
	backlogPositions = metrics.NewGauge("millrace_eventlog_backlog_positions", nil)
	backlogBytes     = metrics.NewGauge("millrace_eventlog_backlog_bytes", nil)
	deletionsGauge   = metrics.NewGauge("millrace_eventlog_deletions", nil)
	deletionBytes    = metrics.NewGauge("millrace_eventlog_deletion_bytes", nil)
	damagedReads     = metrics.NewCounter("millrace_eventlog_damaged_reads_total")
	lostPositions    = metrics.NewCounter("millrace_eventlog_lost_positions_total")
	failures         = metrics.NewCounter("millrace_eventlog_failures_total")
)
