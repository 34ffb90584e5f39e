package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
	"millrace/wal/durable"
	"millrace/wal/pause"
)

// packer is what the worker needs to pack. It is used under Log.work.
type packer struct {
	stretch   stretch
	writer    *blocks.Writer // lent, as the memory of stretch's rows is (borrow)
	groupRows int
	pace      pace
	// recordBytes and eventBytes are the recent averages of a record's size and of how much its events count for
	// (stretch.size).
	recordBytes, eventBytes average
	looked                  uint64 // how many positions these are of; those of a sample are of all there were
	oldestAt                uint64 // position of the record
	oldest                  int64  // stamp of the record at oldestAt
	rewritten               time.Time
	rewriting               uint64       // blocks are being rewritten for deletions up to here; 0: for none
	deletedBefore           atomic.Int64 // what the deletions took when rewriting began, and then what was left behind
}

func (p *packer) init(o *Options) {
	p.groupRows = o.groupRows
}

// borrow gives the packer the memory that packing takes, several times that of the events: with the turn, that of the
// share. giveBack ends that; without the turn it lets the memory go. Between the two, a log has nothing of its own that
// grows with the events.
func (p *packer) borrow(s *Share, hasTurn bool) {
	if hasTurn {
		p.stretch.Rows, p.writer = s.rows, s.writer
		s.rows, s.writer = blocks.Rows{}, nil
	}
	if p.writer == nil {
		p.writer = blocks.NewWriter(nil)
	}
	p.writer.Rest, p.writer.GroupRows = p.pace.rest, p.groupRows
}

func (p *packer) giveBack(s *Share, hasTurn bool) {
	p.stretch.letGo()
	p.writer.Rest = nil
	if hasTurn {
		s.rows, s.writer = p.stretch.Rows, p.writer
	}
	p.stretch.Rows, p.writer = blocks.Rows{}, nil
}

// average is a number that other goroutines may read.
type average struct{ bits atomic.Uint64 }

func (a *average) load() float64 { return math.Float64frombits(a.bits.Load()) }

func (a *average) set(v float64) { a.bits.Store(math.Float64bits(v)) }

// pace keeps the worker to its share of a core: rest is called throughout the work and sleeps in proportion.
type pace struct {
	duty  float64 // 1: don't sleep
	stop  context.Context
	began time.Time
}

// minWork is how long the worker works before it sleeps.
const minWork = 5 * time.Millisecond

func (p *pace) begin(stop context.Context, duty float64) {
	p.stop, p.duty, p.began = stop, duty, time.Now()
}

func (p *pace) rest() error {
	if err := p.stop.Err(); err != nil {
		return ErrClosed
	}
	worked := time.Since(p.began)
	if p.duty == 1 || worked < minWork {
		return nil
	}
	workSeconds.Add(worked.Seconds())
	if pause.For(p.stop, time.Duration(float64(worked)*(1-p.duty)/p.duty)) != nil {
		return ErrClosed
	}
	p.began = time.Now()
	return nil
}

// end counts the work since the last sleep.
func (p *pace) end() { workSeconds.Add(time.Since(p.began).Seconds()) }

// packDue packs what is due, stretch by stretch, until deletions take too much memory.
func (l *Log) packDue() error {
	for {
		packed, err := l.packNext()
		if err != nil || !packed || l.isCrowded() {
			return err
		}
	}
}

// isCrowded reports whether deletions take so much memory that blocks are to be rewritten at once. What the last time
// has had to leave behind is not counted: a damaged block keeps it there.
func (l *Log) isCrowded() bool {
	return l.opts.Share.isCrowded(l.deletedBytes()-l.pack.deletedBefore.Load(), l.opts.MaxDeletedBytes)
}

// packNext packs one stretch that is due, if there is one: in its turn, unless the backlog is too large. The turn is
// taken before work; otherwise callers that pack at once would have to wait for it.
func (l *Log) packNext() (packed bool, err error) {
	if due, err := l.isDue(); err != nil || !due {
		return false, err
	}
	hasTurn, err := l.opts.Share.take(l.stop, l.isBehind)
	if err != nil {
		return false, ErrClosed
	}
	if hasTurn {
		defer l.opts.Share.give()
	}
	a := l.askAhead() // before work, for which others wait
	l.work.Lock()
	defer l.work.Unlock()
	l.pack.borrow(l.opts.Share, hasTurn)
	defer l.pack.giveBack(l.opts.Share, hasTurn)
	l.pack.pace.begin(l.stop, l.opts.duty(l.Stats().BacklogBytes))
	defer l.pack.pace.end()
	return l.packOne(false, a)
}

// isDue reports whether packOne would probably find something.
func (l *Log) isDue() (bool, error) {
	l.watchBacklog()
	l.work.Lock()
	defer l.work.Unlock()
	due, _, err := l.toPack(false)
	return due, err
}

// watchBacklog brings the gauges of the backlog up to date.
func (l *Log) watchBacklog() {
	l.work.Lock()
	defer l.work.Unlock()
	s := l.Stats()
	l.countBacklog(&s)
}

// isBehind reports whether so much waits to be packed that packing is no longer throttled.
func (l *Log) isBehind() bool { return l.Stats().BacklogBytes > l.opts.MaxBacklogBytes }

// duty is the share of a core that packing takes when so much waits: above three quarters of MaxBacklogBytes it grows
// from MaxDuty until packing is no longer throttled. So under a load that lasts it finds the pace at which events come
// in, and a burst waits until it is over.
func (o *Options) duty(backlog int64) float64 {
	beyond := min(max(4*float64(backlog)/float64(o.MaxBacklogBytes)-3, 0), 1)
	return o.MaxDuty + (1-o.MaxDuty)*beyond
}

// Pack packs everything that the engine has checkpointed, at once and at full speed.
func (l *Log) Pack() error { return l.PackTo(context.Background(), math.MaxUint64) }

// PackTo packs at least everything up to a position, as far as the engine has checkpointed it, at once and at full
// speed.
func (l *Log) PackTo(ctx context.Context, position uint64) error {
	l.work.Lock()
	defer l.work.Unlock()
	l.pack.borrow(l.opts.Share, false)
	defer l.pack.giveBack(l.opts.Share, false)
	for l.packed < position {
		if err := errors.Join(l.ready(), ctx.Err()); err != nil {
			return err
		}
		l.pack.pace.begin(l.stop, 1)
		packed, err := l.packOne(true, nil)
		l.pack.pace.end()
		if err != nil || !packed {
			return err
		}
	}
	return nil
}

// packOne packs one stretch that is due, if there is one; with all set, it need not be due. When another log packs for
// this one, a is what that log has packed.
func (l *Log) packOne(all bool, a *ahead) (packed bool, err error) {
	due, isOld, err := l.toPack(all)
	if err != nil || !due {
		return false, err
	}
	start := time.Now()
	from, to := l.packed+1, l.src.CheckpointedPosition()
	if !isOld && l.pack.eventBytes.load() == 0 {
		if _, err := l.gather(from, to, sampleBytes); err != nil {
			return false, err
		}
		l.pack.looked = to - l.packed
		if due, _, err := l.toPack(false); err != nil || !due {
			return false, err
		}
	}
	if a != nil {
		switch followed, err := l.follow(a, from, to); {
		case err != nil || followed:
			return followed, err
		case a.from == from && a.Last >= from && a.Last <= a.to:
			to, isOld = a.Last, true // so that from there on this log can have the other one's blocks
		case !l.hasHaste(from, to):
			return false, nil
		}
	}
	full, err := l.gather(from, to, math.MaxInt64)
	if err != nil {
		return false, err
	}
	// Even if the estimate was too high, the stretch is packed, unless it has too little.
	if !full && !isOld && l.pack.stretch.size() < l.opts.BlockBytes/2 {
		return false, nil
	}
	if err := l.commit(); err != nil {
		return false, err
	}
	packSeconds.Update(time.Since(start).Seconds())
	return true, nil
}

// toPack reports whether a stretch is due, as far as can be told without reading it, and whether that is so however
// little it has. packed changes only under work, which the caller holds.
func (l *Log) toPack(all bool) (due, isOld bool, err error) {
	p := &l.pack
	from, to := l.packed+1, l.src.CheckpointedPosition()
	if to < from {
		return false, false, nil
	}
	oldest, err := l.oldestStamp(from, to)
	if err != nil {
		return false, false, err
	}
	isOld = all || l.src.Time().Sub(time.UnixMicro(oldest)) >= l.opts.PackAfter
	b, n := p.eventBytes.load(), to-l.packed
	return isOld || b == 0 || n/farMore >= p.looked || float64(n)*b >= float64(l.opts.BlockBytes), isOld, nil
}

// farMore is the factor by which there must be more positions than the averages are of for the log to be looked at
// again: it may begin with a few control documents, or with nothing but attributes.
const farMore = 4

// oldestStamp returns when the first record from a position on was accepted; 0 when there is none up to to.
func (l *Log) oldestStamp(from, to uint64) (int64, error) {
	p := &l.pack
	if p.oldestAt == from {
		return p.oldest, nil
	}
	oldest := int64(0)
	err := enough(l.src.ReadLog(from, to, func(_ uint64, _ uint32, payload []byte) error {
		rec, err := op.ParseRecord(payload, nil)
		if err != nil {
			return err
		}
		oldest, p.oldestAt, p.oldest = rec.Stamp, from, rec.Stamp
		return errEnough
	}))
	if err != nil {
		return 0, fmt.Errorf("read the log from %d: %w", from, err)
	}
	return oldest, nil
}

// errEnough ends a read of the log by a reader that has enough.
var errEnough = errors.New("enough")

// enough returns nil for errEnough.
func enough(err error) error {
	if err == errEnough {
		return nil
	}
	return err
}

// sampleBytes is how much of the log is read to estimate which share of it is events, before anything was packed. In a
// group that is several entries of raft, or all that there is.
const sampleBytes = 1 << 20

// gather reads the next stretch into the packer: a block's worth of events, or what there is, but at most most bytes of
// the log.
func (l *Log) gather(from, to uint64, most int64) (full bool, err error) {
	s := &l.pack.stretch
	s.notes.of = l.src.Noted
	s.begin(from, to)
	s.deletions = new(deletions)
	cut := false
	err = enough(l.src.ReadLog(from, to, func(position uint64, _ uint32, payload []byte) error {
		if err := s.addRecord(position, payload); err != nil {
			return err
		}
		if s.size() >= l.opts.BlockBytes || s.bytes >= maxStretchFactor*l.opts.BlockBytes {
			full = true
			return errEnough
		}
		if cut = s.bytes >= most; cut {
			return errEnough
		}
		return l.pack.pace.rest()
	}))
	if err != nil {
		return false, fmt.Errorf("read the log from %d: %w", from, err)
	}
	if !full && !cut {
		s.last = to // no records follow up to there
	}
	l.pack.look(s.last-s.first+1, volume{s.bytes, s.size()})
	return full, nil
}

// volume is how much a part of the log has: the size of its records, and what its events count for, about.
type volume struct{ records, events int64 }

func (v *volume) add(o volume) { v.records, v.events = v.records+o.records, v.events+o.events }

// look takes the averages of so many positions.
func (p *packer) look(positions uint64, v volume) {
	p.looked = positions
	p.recordBytes.set(float64(v.records) / float64(positions))
	p.eventBytes.set(max(float64(v.events), 1) / float64(positions))
}

// maxStretchFactor times BlockBytes is where a stretch with few events ends.
const maxStretchFactor = 8

// commit makes a block of the gathered stretch, and lets the log go.
func (l *Log) commit() error {
	s := &l.pack.stretch
	dropped, err := l.src.Dropped(s.first, s.last)
	if err != nil {
		return err
	}
	return l.enter(s.last, s.deletions.all(), len(dropped) > 0 || s.notes.any, func() (*block, error) {
		s.finish(dropped, l.deleted.Load())
		if len(s.List) == 0 || l.hasExpired(s.newest, len(s.List), s.last) {
			return nil, nil
		}
		return l.writeBlock(&s.Rows, s.first, s.last)
	})
}

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
func (l *Log) enter(last uint64, found []*deletedRun, forget bool, write func() (*block, error)) error {
	l.learn(found, last)
	runs := l.deleted.Load().packed // changes only under work
	// Those for which blocks are being rewritten stay apart: merged with them, later ones would seem to be as old.
	n := 0
	for n < len(runs) && runs[n].last <= l.pack.rewriting {
		n++
	}
	later := runs[n:]
	for _, r := range found {
		later = addRun(later, r, maxRunBytes)
	}
	runs = slices.Concat(runs[:n], later)
	old, err := l.writeRuns(runs)
	if err != nil {
		return err
	}
	b, err := write()
	if err != nil {
		return err
	}
	known := l.blocks // changes only under work
	if b != nil {
		known = append(slices.Clip(known), b)
	}
	if err := l.writeState(known, runs, last); err != nil {
		if b == nil || errors.Is(err, ErrFailed) {
			return err // the next Open sees which of the two states is on disk
		}
		// The next stretch may have another end, and its block and this one must never both be there.
		if again := errors.Join(l.opts.FS.Remove(b.path), durable.SyncDir(l.opts.FS, l.opts.Dir)); again != nil {
			return l.fail(again)
		}
		return err
	}
	l.mu.Lock()
	if b != nil {
		countBlock(b.info, 1)
		packedEvents.Add(b.info.Rows)
	}
	l.blocks, l.packed = known, last
	l.learnPacked(runs, last)
	l.mu.Unlock()
	return errors.Join(l.letGo(last, forget), l.removeFiles(old))
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
	b := &block{path: l.blockPath(first, last), listed: listedOf(first, last, info), info: info}
	return b, l.replaceFile(b.path, data)
}

func (l *Log) runPath(first, last uint64) string {
	return l.opts.FS.PathJoin(l.opts.Dir, runName(first, last))
}

// writeRuns writes the runs that have no files yet, and returns the files of those that are to be replaced by these.
func (l *Log) writeRuns(runs []*deletedRun) (old []string, err error) {
	packed := l.deleted.Load().packed // changes only under work
	for _, r := range runs {
		if !slices.Contains(packed, r) {
			if err := l.replaceFile(l.runPath(r.first, r.last), r.encode()); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range packed {
		if !slices.Contains(runs, r) {
			old = append(old, l.runPath(r.first, r.last))
		}
	}
	return old, nil
}

// writeState makes STATE say that everything up to packed is packed, in these blocks, and that these deletions are not
// done.
func (l *Log) writeState(known []*block, runs []*deletedRun, packed uint64) error {
	s := state{packed: packed}
	for _, b := range known {
		s.blocks = append(s.blocks, b.listed)
	}
	for _, r := range runs {
		s.runs = append(s.runs, span{r.first, r.last})
	}
	return l.replaceFile(l.statePath(), s.encode())
}

// removeFiles removes files that STATE no longer lists.
func (l *Log) removeFiles(paths []string) error {
	for _, path := range paths {
		if err := l.opts.FS.Remove(path); err != nil {
			return fmt.Errorf("remove %q: %w", path, err)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return durable.SyncDir(l.opts.FS, l.opts.Dir)
}

func (l *Log) replaceFile(path string, data []byte) error {
	err := durable.ReplaceFileOn(l.opts.FS, path, data)
	if errors.Is(err, durable.ErrUncertain) {
		return l.fail(err)
	}
	return err
}

var (
	packedEvents     = metrics.NewCounter("millrace_eventlog_packed_events_total")
	packSeconds      = metrics.NewHistogram("millrace_eventlog_pack_seconds")
	workSeconds      = metrics.NewFloatCounter("millrace_eventlog_work_seconds_total")
	backlogPositions = metrics.NewGauge("millrace_eventlog_backlog_positions", nil)
	deletionsGauge   = metrics.NewGauge("millrace_eventlog_deletions", nil)
	deletionBytes    = metrics.NewGauge("millrace_eventlog_deletion_bytes", nil)
	backlogBytes     = metrics.NewGauge("millrace_eventlog_backlog_bytes", nil)
	expiredBlocks    = metrics.NewCounter("millrace_eventlog_expired_blocks_total")
	expiredEvents    = metrics.NewCounter("millrace_eventlog_expired_events_total")
	erasedEvents     = metrics.NewCounter("millrace_eventlog_erased_events_total")
	rewrittenBlocks  = metrics.NewCounter("millrace_eventlog_rewritten_blocks_total")
	retries          = metrics.NewCounter("millrace_eventlog_retries_total")
)
