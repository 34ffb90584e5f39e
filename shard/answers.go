package shard

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Kept answers (decisions.md D3) are entries that go by themselves, a day after they were kept. Which ones do must not
// depend on what is in memory: all replicas come to the same. So each partition has an index of them by time, a book
// that is written by checkpoints and read by sweeps. The entry counts: one that was kept anew since stays.

// keptAnswer is a row of the index: an answer was kept at this number by a record with this stamp.
type keptAnswer struct {
	stamp  int64
	number uint64
}

func compareKept(a, b keptAnswer) int {
	return cmp.Or(cmp.Compare(a.stamp, b.stamp), cmp.Compare(a.number, b.number))
}

// answerIndex is what a partition has to write of the index.
type answerIndex struct {
	added  []keptAnswer
	saving int        // so many of added are in a batch on its way to the store
	swept  keptAnswer // rows up to here are gone; stamps rise, so none is added there
	// unsaved: the store may have rows up to swept.
	unsaved bool
	more    bool // the last sweep has left some for the next
}

// keepAnswer stores the answer of a request with an Idempotency-Key.
func (w *worker) keepAnswer(p *partition, o op.Op) error {
	rec := w.applying.rec
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, op.NoID, o.Key())
	if err != nil {
		return err
	}
	return w.putAnswer(p, s, number, o.Key(), o.Body())
}

// putAnswer keeps an answer in the slot that has an older one, or else at number.
func (w *worker) putAnswer(p *partition, s *arena.Slot, number uint64, key, answer []byte) error {
	rec := w.applying.rec
	w.fresh = profile.AppendHeader(w.fresh[:0], entries.KindAnswer, op.NoID, key, rec.Workspace, rec.Stamp)
	w.fresh = append(w.fresh, answer...)
	if s != nil {
		number = s.Number
	}
	p.answers.added = append(p.answers.added, keptAnswer{w.rec.Stamp, number})
	if s != nil {
		return w.update(s, w.fresh)
	}
	_, err := w.insert(p, number, w.fresh)
	return err
}

// maxSwept is how many rows of the index a sweep takes: readers wait meanwhile, and each may have to be read back.
const maxSwept = 256

// sweep forgets answers that are older than a day at the record's stamp, the oldest first.
func (w *worker) sweep(p *partition) error {
	oldest := w.applying.rec.Stamp - AnswerLife.Microseconds()
	x := &p.answers
	due, err := x.before(w.e.store, p.id, oldest)
	if err != nil {
		return err
	}
	if x.more = len(due) > maxSwept; x.more {
		due = due[:maxSwept]
	}
	for _, a := range due {
		s, err := w.lookup(p, a.number)
		if err != nil {
			return err
		}
		if s != nil && profile.Kind(w.entryOf(s)) == entries.KindAnswer && profile.Created(w.entryOf(s)) < oldest {
			if err := w.erase(p, s); err != nil {
				return err
			}
		}
	}
	if len(due) > 0 {
		x.swept, x.unsaved = due[len(due)-1], true
	}
	return nil
}

// before are the first rows with a stamp before oldest, in order: more than maxSwept if there are more.
func (x *answerIndex) before(s *store.Store, partition uint8, oldest int64) (due []keptAnswer, err error) {
	if oldest <= x.swept.stamp {
		return nil, nil
	}
	for _, a := range x.added {
		if a.stamp < oldest && compareKept(a, x.swept) > 0 {
			due = append(due, a)
		}
	}
	pending := len(due)
	upper := store.AppendBookKey(nil, partition, store.BookAnswers, uint64(oldest))
	err = s.Scan(x.behindSwept(partition), upper, func(k, _ []byte) error {
		if len(k) == 26 {
			due = append(due, keptAnswer{int64(binary.BigEndian.Uint64(k[10:])), binary.BigEndian.Uint64(k[18:])})
		}
		if len(due)-pending > maxSwept {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	slices.SortFunc(due, compareKept)
	return slices.Compact(due), nil // what is being saved may be in both
}

func (x *answerIndex) save(partition uint8, batch *pebble.Batch) error {
	for _, a := range x.added {
		if err := batch.Set(store.AppendBookKey(nil, partition, store.BookAnswers, uint64(a.stamp), a.number), nil,
			nil); err != nil {
			return err
		}
	}
	x.saving = len(x.added)
	if !x.unsaved {
		return nil
	}
	x.unsaved = false
	return batch.DeleteRange(store.AppendBookKey(nil, partition, store.BookAnswers), x.behindSwept(partition), nil)
}

// behindSwept is the first key that a row may have which is not swept.
func (x *answerIndex) behindSwept(partition uint8) []byte {
	return append(store.AppendBookKey(nil, partition, store.BookAnswers, uint64(x.swept.stamp), x.swept.number), 0)
}

func (x *answerIndex) saved() {
	if x.saving > 0 {
		x.added, x.saving = append([]keptAnswer(nil), x.added[x.saving:]...), 0
	}
}
