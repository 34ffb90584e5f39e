package machine

import (
	"slices"

	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// An op for existing users only needs to know that the profile is there. So a worker remembers that of users who leave
// the memory, and of those who are made by an unread change: by a mark of 64 bits at the number of the external id, in
// bounded memory that forgets. A user who isn't known to be there is looked for.
//
// An external id ceases to lead to a user when the user is deleted or merged, or loses it: that sets the number apart,
// for ever. So what is known of a number that isn't set apart stays true.

// knownShare: once isKnown was called, a worker keeps one part in so many of its memory for marks of users who are
// there.
const knownShare = 4

// mark tells users apart whose external ids have the same home number: it is another hash than the number's own.
func (w *Worker) mark(workspace uint32, key []byte) uint64 {
	return w.m.hasher.Number(workspace, op.NoID, key)
}

// isKnown says whether the user whom an op names by external id is known to be there. The caller holds the lock, and
// has found that the number isn't set apart.
func (w *Worker) isKnown(workspace uint32, o op.Op) bool {
	w.isAsked = true
	return w.known.Has(o.Number(), w.mark(workspace, o.Key()))
}

// know notes that there is a user whose external id has this home number.
func (w *Worker) know(number uint64, workspace uint32, key []byte) {
	if w.known.Bytes() > 0 {
		w.known.Add(number, w.mark(workspace, key))
	}
}

// AnyApart says whether one of the numbers is set apart. The number 0 is not.
func (m *Machine) AnyApart(numbers []uint64) bool {
	return slices.ContainsFunc(m.workers, func(w *Worker) bool { return w.anyApart(numbers) })
}

func (w *Worker) anyApart(numbers []uint64) bool {
	w.Lock()
	defer w.Unlock()
	return slices.ContainsFunc(numbers, func(number uint64) bool {
		at := identity.Partition(number)
		return number != 0 && w.m.owner[at] == w && w.m.partitions[at].Apart.Has(number)
	})
}

// setApart sets a number of the partition apart. The caller holds the lock.
func (w *Worker) setApart(p *Partition, number uint64, why books.ApartReason) {
	if why != books.ApartLarge || !p.Apart.Has(number) {
		w.apart += p.Apart.Add(number, why)
	}
}

// markDummy notes that the profile is a dummy user's.
func (w *Worker) markDummy(p *Partition, number uint64) {
	w.m.block(number)
	w.setApart(p, number, books.ApartDummy)
}

// noteDummy notes whether the profile, which takes the place of another one or of none, is a dummy user's.
func (w *Worker) noteDummy(p *Partition, number uint64, isDummy bool) {
	if isDummy {
		w.markDummy(p, number)
	} else if w.m.IsBlocked(number) {
		w.m.unblock(number)
		w.setApart(p, number, books.ApartElsewhere) // in place of the note in the book, which a restart would believe
	}
}
