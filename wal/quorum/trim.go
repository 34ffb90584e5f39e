package quorum

import (
	"fmt"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// Replay calls f for the records from position from on that are known to be decided and that OnDurable will not get:
// those up to the marker. It may be called between Open and Start. With from 0 it begins at the first record that is
// there. Errors: wal.ErrMissing when wanted records are gone, wal.ErrCorrupt, or what f returns. payload is lent for
// the call.
func (l *Log) Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error {
	if from == 0 {
		from = l.FirstPosition()
	}
	return l.walk(from, endOf(l.markers.Current().Index), f)
}

// Read calls f for the records from position from to to that OnDurable has had. Its errors are those of Replay. payload
// is lent for the call.
func (l *Log) Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	return l.walk(from, min(to, l.DurablePosition()), f)
}

// walk calls f for the records from from to to.
func (l *Log) walk(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	from = max(from, position(l.identity.Base+1, 0))
	var e raft.Log
	for index := indexOf(from); from <= to && index <= indexOf(to); index++ {
		first, err := l.store.FirstIndex()
		if err != nil {
			return err
		}
		if first == 0 || index < first {
			return fmt.Errorf("%w: entry %d is gone, the log begins at %d", wal.ErrMissing, index, first)
		}
		switch err := l.store.GetLog(index, &e); {
		case err == raft.ErrLogNotFound:
			return fmt.Errorf("%w: entry %d", wal.ErrMissing, index)
		case err != nil:
			return err
		case e.Type != raft.LogCommand:
			continue
		}
		h, err := openEntry(e.Data)
		if err != nil {
			return err
		}
		err = h.each(e.Data, func(i int, count uint32, record []byte) error {
			if p := position(index, i); p >= from && p <= to {
				return f(p, count, record[wal.HeaderBytes:])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Hold keeps the records from position from on for a reader of that name, until the reader calls it again;
// math.MaxUint64 ends the hold.
func (l *Log) Hold(name string, from uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds.Set(name, from)
}

// Trim says that records before this position are no longer needed. They are deleted some time later, except for what
// is kept for other nodes.
func (l *Log) Trim(before uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trimmed = max(l.trimmed, before)
	return l.failure
}

// letGo says that no entry up to index is needed, because a restored state has them all.
func (l *Log) letGo(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trimmed = max(l.trimmed, position(index+1, 0))
}

// needed returns the first entry that the owner or one of its readers needs.
func (l *Log) needed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return indexOf(l.holds.Before(l.trimmed))
}

// compact deletes log that nobody needs, when there is enough of it. If need be, it moves the marker forward first.
func (l *Log) compact() {
	needed := l.needed()
	before := l.store.SizeBefore(needed)
	if before < 2*l.opts.KeepBytes {
		return
	}
	keep := l.store.IndexAt(before - l.opts.KeepBytes)
	keep = l.keptForOthers(min(keep, needed))
	if first, err := l.store.FirstIndex(); err != nil || keep <= first {
		return
	}
	if l.markers.Current().Index < keep {
		if err := l.mark(); err != nil {
			l.opts.Logger.Debug("no marker now", "group", l.opts.Group, "error", err)
			return
		}
	}
	_ = l.store.Release(keep - 1) // the store reports a failure itself
}

// mark makes a marker of what has been handed back.
func (l *Log) mark() error {
	return l.markers.Mark(func() error { return l.node.Load().raft.Snapshot().Error() })
}

// followerBytes bounds the log that the leader keeps for a follower that is there but behind. Beyond it, the follower
// gets the state instead.
const followerBytes = 512 << 20

// keptForOthers returns how far the log may be deleted without hurting a node that is being sent the state, or a
// follower that is there and not too far behind.
func (l *Log) keptForOthers(keep uint64) uint64 {
	if index, ok := l.markers.InTransit(); ok {
		keep = min(keep, index+1)
	}
	for _, m := range l.members() {
		if index, ok := l.Progress(m.Node); ok && index+1 < keep &&
			l.store.Size()-l.store.SizeBefore(index+1) < followerBytes {
			keep = index + 1
		}
	}
	return keep
}

// FirstPosition is the position of the first record that is still there, or of the next one when there is none.
func (l *Log) FirstPosition() uint64 {
	if first, err := l.store.FirstIndex(); err == nil && first > 0 {
		return position(first, 0)
	}
	return position(l.markers.Current().Index+1, 0)
}

// LastPosition is the position up to which this node has the log, decided or not; it need not be a record's.
func (l *Log) LastPosition() uint64 {
	last, _ := l.store.LastIndex()
	if last <= l.passed.index.Load() {
		return l.DurablePosition()
	}
	return endOf(last)
}

// DurablePosition is the position of the last record that was handed back or that Replay gives, else the end of the
// state that precedes the log, else 0.
func (l *Log) DurablePosition() uint64 { return l.passed.position.Load() }

// Bytes is the approximate size of the log.
func (l *Log) Bytes() int64 { return l.store.Size() }
