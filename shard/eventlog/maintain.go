package eventlog

import (
	"errors"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/wal/pause"
)

// run is the background worker.
func (l *Log) run() {
	defer close(l.gone)
	var maintained time.Time
	for wait := l.opts.Interval; ; {
		if pause.For(l.stop, wait) != nil {
			return
		}
		wait = l.opts.Interval
		if l.ready() != nil {
			l.watchBacklog() // it grows now
			continue
		}
		err := l.packDue()
		// When packing fails, what expires may make room for it. After a failure that is final nothing is done.
		if l.ready() == nil &&
			(l.isCrowded() || time.Since(maintained) >= min(maintainInterval, l.opts.DeleteWithin/4)) {
			maintained = time.Now()
			err = errors.Join(err, l.maintain(false))
		}
		if err != nil && !errors.Is(err, errClosed) {
			l.opts.Logger.Error("event log: background work", "error", err)
			retries.Inc()
			wait = max(wait, retryPause)
		}
	}
}

const (
	maintainInterval = time.Minute
	retryPause       = 10 * time.Second
)

// maintain removes blocks that have expired, and rewrites those that hold events of deleted users: what is due or, with
// now set, everything.
func (l *Log) maintain(now bool) error {
	due, err := l.expireFirst(now)
	if err != nil || !due {
		return err
	}
	if !now {
		hasTurn, err := l.opts.Share.take(l.stop, l.packsFirst)
		if err != nil {
			return errClosed
		} else if !hasTurn { // packing can't wait for the other logs
			return nil
		}
		defer l.opts.Share.give()
	}
	l.work.Lock()
	defer l.work.Unlock()
	if err := l.ready(); err != nil {
		return err
	}
	l.pack.borrow(l.opts.Share, !now)
	defer l.pack.giveBack(l.opts.Share, !now)
	duty := l.opts.MaxDuty
	if now {
		duty = 1
	}
	l.pack.pace.begin(l.stop, duty)
	defer l.pack.pace.end()
	l.pack.rewritten = l.src.Time()
	l.pack.deletedBefore.Store(l.deletedBytes())
	l.pack.rewriting = l.packed
	defer func() { // what is packed meanwhile isn't left behind
		runs := l.deleted.Load().Packed
		l.pack.deletedBefore.Store(erased.Bytes(runs) - erased.Bytes(erased.After(runs, l.pack.rewriting)))
		l.pack.rewriting = 0
	}()
	return l.rewrite()
}

// expireFirst removes blocks that have expired, and reports whether others are to be rewritten.
func (l *Log) expireFirst(now bool) (due bool, err error) {
	l.work.Lock()
	defer l.work.Unlock()
	if err := l.ready(); err != nil {
		return false, err
	}
	if err := l.expire(); err != nil {
		return false, err
	}
	if l.isCrowded() {
		return true, nil
	}
	if now {
		return l.waited(0), nil
	}
	// A damaged block leaves deletions behind.
	return l.waited(l.opts.DeleteWithin/2) && l.src.Time().Sub(l.pack.rewritten) >= l.opts.DeleteWithin/4, nil
}

// waited reports whether a deletion has waited that long for blocks to be rewritten; any deletion, if it is 0.
func (l *Log) waited(long time.Duration) bool {
	return slices.ContainsFunc(l.deleted.Load().Packed, func(r *erased.Run) bool {
		return long == 0 || l.src.Time().Sub(time.UnixMicro(r.Oldest)) >= long
	})
}

// expire removes the blocks whose newest event was accepted longer ago than the retention time.
func (l *Log) expire() error {
	limit := l.src.Time().Add(-l.opts.Retention)
	l.mu.Lock()
	var old []*block
	for _, b := range l.blocks {
		if time.UnixMicro(b.Newest).Before(limit) {
			old = append(old, b)
		}
	}
	l.mu.Unlock()
	for _, b := range old {
		if b.info != nil {
			expiredEvents.Add(b.info.Rows)
		}
		expiredBlocks.Inc()
		l.noteExpired(b.Last)
	}
	return l.remove(old)
}

// remove takes blocks off STATE, off the list, and off the disk, in this order: whoever misses a block that STATE had
// looks at the list (Image), and Open removes what STATE doesn't list.
func (l *Log) remove(old []*block) error {
	if len(old) == 0 {
		return nil
	}
	kept := slices.DeleteFunc(slices.Clone(l.blocks), func(b *block) bool { return slices.Contains(old, b) })
	if err := l.writeState(kept, l.deleted.Load().Packed, l.packed); err != nil {
		return err
	}
	l.mu.Lock()
	l.blocks = kept
	l.mu.Unlock()
	var paths []string
	for _, b := range old {
		countBlock(b.info, -1)
		paths = append(paths, b.path)
	}
	return l.dir.Remove(paths)
}

// rewrite takes the events of deleted users out of all blocks, and then forgets the deletions. That may take hours, so
// when too much of the log waits meanwhile, that is packed first. Blocks that are packed meanwhile are clean: a
// deletion concerns what comes before it, and events before it in its own stretch are left out when the stretch is
// packed.
func (l *Log) rewrite() error {
	l.mu.Lock()
	blocks, until, deleted := slices.Clone(l.blocks), l.packed, l.deleted.Load()
	l.mu.Unlock()
	var damaged []error
	for _, b := range blocks {
		if err := l.packBehind(); err != nil {
			return err
		}
		err := l.clean(b, deleted)
		if errors.Is(err, ErrCorrupt) { // nobody can read its events; it must not come back clean
			damaged = append(damaged, err)
			until = min(until, b.First-1)
			continue
		}
		if err != nil {
			return err
		}
	}
	runs := erased.After(l.deleted.Load().Packed, until)
	done, err := l.writeRuns(runs)
	if err == nil {
		err = l.writeState(l.blocks, runs, l.packed)
	}
	if err != nil {
		return l.undo(err, runs, nil)
	}
	l.mu.Lock()
	l.learnPacked(runs, l.packed)
	l.mu.Unlock()
	return errors.Join(append(damaged, l.dir.Remove(done))...)
}

// packsFirst reports whether so much waits to be packed that rewriting has to wait: while deletions take neither too
// much memory nor too much of their time. Otherwise a load that packing doesn't keep up with would hold them up for
// ever.
func (l *Log) packsFirst() bool {
	return l.isBehind() && !l.isCrowded() && !l.waited(l.opts.DeleteWithin*3/4)
}

// packBehind packs at full speed what waits beyond the bound of the backlog. The pace of rewriting doesn't count that
// work: a long rest for it would let as much come together again.
func (l *Log) packBehind() error {
	p := &l.pack.pace
	for packed := true; packed; {
		s := l.Stats()
		l.countBacklog(&s)
		if !l.packsFirst() {
			return nil
		}
		duty := p.duty
		p.end()
		p.begin(l.stop, 1)
		var err error
		packed, err = l.packOne(false, l.askAhead())
		p.end()
		p.begin(l.stop, duty)
		if err != nil {
			return err
		}
	}
	return nil
}

// clean rewrites a block without the events that are gone, if it has any.
func (l *Log) clean(b *block, deleted *erased.Set) error {
	if b.err != nil {
		return b.err
	}
	r, err := blocks.Open(l.opts.FS, b.path, l.src.Hasher())
	if err != nil {
		return err
	}
	defer r.Close()
	gone := func(workspace uint32, number uint64) bool { return deleted.MayTouch(workspace, number, r.Info.First) }
	g := new(blocks.Group)
	for i := range r.Info.Groups {
		if err := l.pack.pace.rest(); err != nil {
			return err
		}
		if touched, err := r.Touches(i, g, gone); err != nil {
			return err
		} else if touched {
			return l.cleanTouched(b, r, g, deleted)
		}
	}
	return nil
}

func (l *Log) cleanTouched(b *block, r *blocks.Reader, g *blocks.Group, deleted *erased.Set) error {
	var kept blocks.Rows
	for i := range r.Info.Groups {
		if err := r.Load(i, g); err != nil {
			return err
		}
		err := l.eachRows(g, func(rs *blocks.Rows) error {
			for k := range rs.List {
				if w := &rs.List[k]; !deleted.Covers(w) {
					kept.Adopt(rs, w)
				}
			}
			return l.pack.pace.rest()
		})
		if err != nil {
			return err
		}
	}
	removed := r.Info.Rows - len(kept.List)
	if removed == 0 {
		return nil
	}
	erasedEvents.Add(removed)
	rewrittenBlocks.Inc()
	if len(kept.List) == 0 {
		return l.remove([]*block{b})
	}
	fresh, err := l.writeBlock(&kept, b.First, b.Last)
	if err != nil {
		return err
	}
	countBlock(r.Info, -1)
	countBlock(fresh.info, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.blocks, b); i >= 0 {
		l.blocks = slices.Clone(l.blocks)
		l.blocks[i] = fresh
	}
	return nil
}

var (
	expiredBlocks   = metrics.NewCounter("millrace_eventlog_expired_blocks_total")
	erasedEvents    = metrics.NewCounter("millrace_eventlog_erased_events_total")
	rewrittenBlocks = metrics.NewCounter("millrace_eventlog_rewritten_blocks_total")
	retries         = metrics.NewCounter("millrace_eventlog_retries_total")
)
