package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/eventlog/erased"
	"millrace/shard/op"
)

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
		return false, errClosed
	}
	if hasTurn {
		defer l.opts.Share.give()
	}
	a := l.askAhead() // before work, for which others wait
	l.work.Lock()
	defer l.work.Unlock()
	l.pack.borrow(l.opts.Share, hasTurn)
	defer l.pack.giveBack(l.opts.Share, hasTurn)
	l.pack.pace.begin(l.stop, l.opts.duty(l.backlogBytes()))
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
// speed. Until ctx ends, it waits for other work, such as rewriting, which may take hours.
func (l *Log) PackTo(ctx context.Context, position uint64) error {
	if err := l.beginWork(ctx); err != nil {
		return err
	}
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

// beginWork takes work in its turn, unless ctx ends before.
func (l *Log) beginWork(ctx context.Context) error {
	taken := make(chan struct{})
	go func() {
		l.work.Lock()
		select {
		case taken <- struct{}{}:
		case <-ctx.Done():
			l.work.Unlock()
		}
	}()
	select {
	case <-taken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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
	if !full && !isOld && l.pack.stretch.Size() < l.opts.BlockBytes/2 {
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
	err := enough(l.readLog(from, to, func(_ uint64, _ uint32, payload []byte) error {
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

// sampleBytes is how much of the log is read to estimate which share of it is events, before anything was packed. In a
// group that is several entries of raft, or all that there is.
const sampleBytes = 1 << 20

// gather reads the next stretch into the packer: a block's worth of events, or what there is, but at most most bytes of
// the log.
func (l *Log) gather(from, to uint64, most int64) (full bool, err error) {
	s := &l.pack.stretch
	s.Noted = l.src.Noted
	s.Begin(from, to)
	s.Deletions = new(erased.Collector)
	cut := false
	err = enough(l.readLog(from, to, func(position uint64, _ uint32, payload []byte) error {
		if err := s.AddRecord(position, payload); err != nil {
			return err
		}
		if s.Size() >= l.opts.BlockBytes || s.Bytes >= maxStretchFactor*l.opts.BlockBytes {
			full = true
			return errEnough
		}
		if cut = s.Bytes >= most; cut {
			return errEnough
		}
		return l.pack.pace.rest()
	}))
	if err != nil {
		return false, fmt.Errorf("read the log from %d: %w", from, err)
	}
	if !full && !cut {
		s.Last = to // no records follow up to there
	}
	l.pack.look(s.Last-s.First+1, volume{s.Bytes, s.Size()})
	return full, nil
}

// commit makes a block of the gathered stretch, and lets the log go.
func (l *Log) commit() error {
	s := &l.pack.stretch
	dropped, err := l.src.Dropped(s.First, s.Last)
	if err != nil {
		return err
	}
	found, forget := erased.Without(s.Deletions.All(), dropped), len(dropped) > 0 || s.HasNoted()
	return l.enter(s.Last, found, forget, func() (*block, error) {
		s.Finish(dropped, l.deleted.Load())
		if len(s.List) == 0 || l.hasExpired(s.Newest, len(s.List), s.Last) {
			return nil, nil
		}
		return l.writeBlock(&s.Rows, s.First, s.Last)
	})
}

var packSeconds = metrics.NewPrometheusHistogramExt("millrace_eventlog_pack_seconds",
	metrics.ExponentialBuckets(0.01, 2, 16))
