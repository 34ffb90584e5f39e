package eventlog

import (
	"errors"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/errors/oserror"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/files"
	"millrace/wal/durable"
)

// The logs of a group's replicas have the same positions, so a block that one of them has packed is as good for the
// others: only what deletions have taken out since may differ, and these the others have in logs of their own. So one
// log packs, and the others take its blocks, which is far less work. Each still needs its own checkpoint up to the
// end of a block before it takes the block, and finds the deletions of the stretch in its own log.
//
// Nothing depends on who packs, or on how far: a log that hears nothing of the one that packs for it packs by itself
// when far more is due than a block. From then on its blocks may end elsewhere, until a stretch is packed up to where a
// block of the other log ends.

// ahead is what the log that packs for this one has packed.
type ahead struct {
	from, to uint64 // what was asked for
	Ahead
}

// AheadFrom returns what is packed from a position on; the block only if it goes no further than to.
func (l *Log) AheadFrom(from, to uint64) (a Ahead, err error) {
	b := l.blockFrom(from)
	switch {
	case b == nil:
		if packed := l.Stats().Packed; packed >= from {
			a.Last = packed
		}
	case b.First > from:
		a.Last = b.First - 1
	case b.First < from:
		a.Last = b.Last
	default:
		if a.Last = b.Last; b.Last <= to {
			a.Block, err = durable.ReadFileOn(l.opts.FS, b.path)
		}
		if oserror.IsNotExist(err) { // it has just gone
			err = nil
		}
	}
	return a, err
}

// askAhead asks the log that packs for this one; nil when this log is to pack.
func (l *Log) askAhead() *ahead {
	if l.opts.Ahead == nil {
		return nil
	}
	a := &ahead{from: l.Stats().Packed + 1, to: l.src.CheckpointedPosition()}
	var err error
	if a.Ahead, err = l.opts.Ahead(a.from, a.to); errors.Is(err, ErrPacks) {
		return nil
	} else if err != nil {
		l.opts.Logger.Debug("event log: no word of the log that packs", "error", err)
		a.Ahead = Ahead{}
	}
	return a
}

// hasHaste reports whether what is due can't wait any longer for the log that packs.
func (l *Log) hasHaste(from, to uint64) bool {
	p := &l.pack
	age := l.src.Time().Sub(time.UnixMicro(p.oldest)) // of the record at from: toPack has looked
	return float64(to-from+1)*p.eventBytes.load() >= patienceBlocks*float64(l.opts.BlockBytes) ||
		age >= l.opts.PackAfter+patience || l.isBehind()
}

// While another log is to pack for it, a log lets so many blocks come together, and waits so much longer with what is
// old.
const (
	patienceBlocks = 4
	patience       = time.Minute
)

// follow takes the block that the other log has packed of what is next here, if it has one, and this log's engine has
// checkpointed as much.
func (l *Log) follow(a *ahead, from, to uint64) (followed bool, err error) {
	if a.from != from || a.Block == nil || a.Last > to {
		return false, nil
	}
	info, err := blocks.Check(a.Block, files.BlockName(from, a.Last), l.src.Hasher(), from, a.Last)
	if err != nil { // of another version, perhaps
		l.opts.Logger.Warn("event log: a block of another node can't be used", "error", err)
		return false, nil
	}
	var found []*erased.Run
	var seen volume
	for at := from; at <= a.Last; {
		some, last, read, err := l.readDeletions(at, a.Last)
		if err != nil {
			return false, err
		}
		for _, r := range some {
			found = erased.Add(found, r, erased.MaxBytes)
		}
		seen.add(read)
		at = last + 1
		if err := l.pack.pace.rest(); err != nil {
			return false, err
		}
	}
	forget, err := l.hasNotes(from, a.Last)
	if err != nil {
		return false, err
	}
	l.pack.look(a.Last-from+1, seen)
	return true, l.enter(a.Last, found, forget, func() (*block, error) {
		if l.hasExpired(info.MaxAccepted, info.Rows, a.Last) {
			return nil, nil
		}
		takenBlocks.Inc()
		return l.putBlock(a.Block, info, from, a.Last)
	})
}

// hasNotes reports whether the engine has noted something of a stretch, which it can forget when that is packed.
func (l *Log) hasNotes(from, to uint64) (bool, error) {
	dropped, err := l.src.Dropped(from, to)
	if err != nil || len(dropped) > 0 {
		return true, err
	}
	for from <= to {
		changes, through, err := l.src.Noted(from, to)
		if err != nil || len(changes) > 0 {
			return true, err
		}
		from = through + 1
	}
	return false, nil
}

var takenBlocks = metrics.NewCounter("millrace_eventlog_taken_blocks_total")
