package shard

import (
	"millrace/shard/arena"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// An op for existing users alone needs of the profile that it is there. So a worker remembers of users who leave the
// memory, and of those whom a change makes that nobody reads the profile for, that they are there: by a mark of 64 bits
// at the number of the external id, in memory that is bounded, and forgets. Who isn't known to be there is looked for.
//
// An external id ceases to lead to a user when he is deleted or merged, or loses it: that sets the number apart, for ever.
// So what is known of a number that isn't set apart stays true.

// knownShare: a worker whom somebody has asked keeps such a part of its memory for who is there.
const knownShare = 8

// mark tells whom a number is of, of those who may have the same: a hash apart from the number's own.
func (w *worker) mark(workspace uint32, key []byte) uint64 {
	return w.e.hasher.Number(workspace, op.NoID, key)
}

// isKnown says whether the user whom an op names by external id is known to be there. The caller holds w.mu, and has
// found that the number isn't set apart.
func (w *worker) isKnown(workspace uint32, o op.Op) bool {
	w.isAsked = true
	return w.known.Has(o.Number(), w.mark(workspace, o.Key()))
}

// know takes note that a user is there, whose external id has this home number.
func (w *worker) know(number uint64, workspace uint32, key []byte) {
	if w.known.Bytes() > 0 {
		w.known.Add(number, w.mark(workspace, key))
	}
}

// knowEvicted takes note of a user who is about to leave the memory.
func (w *worker) knowEvicted(s *arena.Slot) {
	if w.known.Bytes() == 0 {
		return
	}
	b := w.entryOf(s)
	if id, key := profile.HomeID(b); id == op.ExternalID && profile.Kind(b) == profile.KindUser {
		w.know(s.Number, profile.Workspace(b), key)
	}
}

// makeKnown gives what is known its room; none when too many numbers are set apart. The caller holds w.mu.
func (w *worker) makeKnown() error {
	if !w.isAsked {
		return nil
	}
	room := w.share() / knownShare
	if w.apart+room > w.share()/2 {
		room = 0
	}
	return w.known.Resize(room)
}
