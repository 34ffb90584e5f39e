// Package erased keeps which events are gone because their users were deleted, as sorted and encoded runs in memory and
// in files. It knows neither the log that has the deletions nor the blocks that have the events.
package erased

import (
	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Collector collects what a part of the log has erased, while it is being read.
type Collector struct {
	runs   []*Run
	list   []erasure // later than runs
	oldest int64     // when the first deletion of list was accepted, Unix µs
}

// Add adds what a Delete op erases; found is false for an op that found nobody when it was made. Their ends are set:
// where the op sets none, at the deletion itself. A nil d only finds.
func (d *Collector) Add(position uint64, ordinal uint32, rec *op.Record, o op.Op) (found bool, err error) {
	at := profile.Place{Position: position, Ordinal: ordinal}
	if d != nil && len(d.list) >= maxListed && d.list[len(d.list)-1].at.Position < position {
		d.encode()
	}
	err = bodies.EachErased(o.Body(), func(x bodies.Erased) {
		if x.Until == (profile.Place{}) {
			x.Until = at
		}
		if d != nil {
			d.list = append(d.list, erasure{x, rec.Workspace, at, !found})
		}
		found = true
	})
	if found && d != nil && (d.oldest == 0 || rec.Stamp < d.oldest) {
		d.oldest = rec.Stamp
	}
	return found, err
}

// maxListed is how many erasures wait to be encoded, until the next record.
const maxListed = 1 << 13

func (d *Collector) encode() {
	if len(d.list) > 0 {
		d.runs = Add(d.runs, newRun(d.list, d.oldest), MaxBytes)
		d.list, d.oldest = d.list[:0], 0
	}
}

// All returns what was added.
func (d *Collector) All() []*Run {
	d.encode()
	return d.runs
}

// Set says which events are gone. It is never changed.
type Set struct {
	Packed []*Run // of deletions that are packed: each has a file
	Tail   []*Run // of later ones, as far as somebody has asked; perhaps some that are packed, too
}

func (s *Set) any(workspace uint32, number uint64, f func(*erasure) bool) bool {
	for _, r := range s.Packed {
		if r.any(workspace, number, f) {
			return true
		}
	}
	for _, r := range s.Tail {
		if r.any(workspace, number, f) {
			return true
		}
	}
	return false
}

// Count returns how many deletions there are, and how much memory they take.
func (s *Set) Count() (n int, bytes int64) {
	for _, list := range [...][]*Run{s.Packed, s.Tail} {
		for _, r := range list {
			n += r.deletions
		}
	}
	return n, Bytes(s.Packed) + Bytes(s.Tail)
}

// Covers reports whether an event is gone.
func (s *Set) Covers(r *blocks.Row) bool {
	if r.Kind == op.Delete {
		return false
	}
	return s.any(r.Workspace, r.Number, func(x *erasure) bool { return Names(&x.Erased, r) })
}

// Names reports whether x, which has the row's number, says that the row is the user's.
func Names(x *bodies.Erased, r *blocks.Row) bool {
	at, by := profile.Place{Position: r.Position, Ordinal: r.Ordinal}, bodies.ByIdentifier
	if r.Resolved {
		by = bodies.ByProfile
	}
	return x.By == by && !at.Before(x.Since) && at.Before(x.Until)
}

// MayTouch reports whether an event of this user at or after a position could be gone.
func (s *Set) MayTouch(workspace uint32, number, first uint64) bool {
	return s.any(workspace, number, func(x *erasure) bool { return x.Until.Position >= first })
}
