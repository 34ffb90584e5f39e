package eventlog

import (
	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// deletions are what a part of the log has erased, while it is being read.
type deletions struct {
	runs   []*deletedRun
	list   []erasure // later than runs
	oldest int64     // when the first deletion of list was accepted, Unix µs
}

// add adds what a Delete op erases; found is false for an op that found nobody when it was made. Their ends are set:
// where the op sets none, at the deletion itself. A nil d only finds.
func (d *deletions) add(position uint64, ordinal uint32, rec *op.Record, o op.Op) (found bool, err error) {
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

func (d *deletions) encode() {
	if len(d.list) > 0 {
		d.runs = addRun(d.runs, newRun(d.list, d.oldest), maxRunBytes)
		d.list, d.oldest = d.list[:0], 0
	}
}

// all returns what was added.
func (d *deletions) all() []*deletedRun {
	d.encode()
	return d.runs
}

// deletedSet says which events are gone. It is never changed.
type deletedSet struct {
	packed []*deletedRun // of deletions that are packed: each has a file that STATE lists
	tail   []*deletedRun // of later ones, as far as somebody has asked; perhaps some that are packed, too
}

func (s *deletedSet) any(workspace uint32, number uint64, f func(*erasure) bool) bool {
	for _, r := range s.packed {
		if r.any(workspace, number, f) {
			return true
		}
	}
	for _, r := range s.tail {
		if r.any(workspace, number, f) {
			return true
		}
	}
	return false
}

// count returns how many deletions there are, and how much memory they take.
func (s *deletedSet) count() (n int, bytes int64) {
	for _, list := range [...][]*deletedRun{s.packed, s.tail} {
		for _, r := range list {
			n += r.deletions
		}
	}
	return n, bytesOf(s.packed) + bytesOf(s.tail)
}

// covers reports whether an event is gone.
func (s *deletedSet) covers(r *blocks.Row) bool {
	if r.Kind == op.Delete {
		return false
	}
	return s.any(r.Workspace, r.Number, func(x *erasure) bool { return names(&x.Erased, r) })
}

// names reports whether x, which has the row's number, says that the row is the user's.
func names(x *bodies.Erased, r *blocks.Row) bool {
	at, by := profile.Place{Position: r.Position, Ordinal: r.Ordinal}, bodies.ByIdentifier
	if r.Resolved {
		by = bodies.ByProfile
	}
	return x.By == by && !at.Before(x.Since) && at.Before(x.Until)
}

// mayTouch reports whether an event of this user at or after a position could be gone.
func (s *deletedSet) mayTouch(workspace uint32, number, first uint64) bool {
	return s.any(workspace, number, func(x *erasure) bool { return x.Until.Position >= first })
}
