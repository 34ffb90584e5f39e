package books

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Answers is an index of the kept answers (decisions.md D3) by time, by which they are forgotten. Which answers are
// forgotten must not depend on what is in memory, since all replicas must forget the same. What counts is the entry: an
// answer that was kept anew since then stays.
type Answers struct {
	pending[KeptAnswer]
	swept KeptAnswer // rows up to here are gone; stamps rise, so none is added there
	// unsaved says that the store may still have rows up to swept.
	unsaved bool
	// More says that the last sweep has left some for the next one.
	More bool
}

// KeptAnswer is a row of the index: an answer was kept at this number by a record with this stamp.
type KeptAnswer struct {
	Stamp  int64
	Number uint64
}

func compareKept(a, b KeptAnswer) int {
	return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), cmp.Compare(a.Number, b.Number))
}

// Add notes that an answer is kept.
func (x *Answers) Add(a KeptAnswer) { x.added = append(x.added, a) }

// MaxSwept is how many rows a sweep takes: readers wait meanwhile, and each entry may have to be read back.
const MaxSwept = 256

// Due returns the first answers with a stamp before oldest, in order, for a sweep, and sets More. The caller forgets
// those answers and then calls Sweep.
func (x *Answers) Due(s *store.Store, partition uint8, oldest int64) ([]KeptAnswer, error) {
	due, err := x.before(s, partition, oldest)
	if err != nil {
		return nil, err
	}
	x.More = len(due) > MaxSwept
	return due[:min(len(due), MaxSwept)], nil
}

// Sweep notes that the answers that were due are forgotten.
func (x *Answers) Sweep(due []KeptAnswer) {
	if len(due) > 0 {
		x.swept, x.unsaved = due[len(due)-1], true
	}
}

// before returns the first rows with a stamp before oldest, in order: more than MaxSwept if there are more.
func (x *Answers) before(s *store.Store, partition uint8, oldest int64) (due []KeptAnswer, err error) {
	if oldest <= x.swept.Stamp {
		return nil, nil
	}
	for _, a := range x.added {
		if a.Stamp < oldest && compareKept(a, x.swept) > 0 {
			due = append(due, a)
		}
	}
	pending := len(due)
	upper := store.AppendBookKey(nil, partition, store.BookAnswers, uint64(oldest))
	err = s.Scan(x.behindSwept(partition), upper, func(k, _ []byte) error {
		if len(k) == 26 {
			due = append(due, KeptAnswer{int64(binary.BigEndian.Uint64(k[10:])), binary.BigEndian.Uint64(k[18:])})
		}
		if len(due)-pending > MaxSwept {
			return store.ErrEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrEnough) {
		return nil, err
	}
	slices.SortFunc(due, compareKept)
	return slices.Compact(due), nil // rows that are being saved may be in both places
}

func (x *Answers) save(partition uint8, batch *pebble.Batch) error {
	err := x.saveEach(func(a KeptAnswer) error {
		return batch.Set(store.AppendBookKey(nil, partition, store.BookAnswers, uint64(a.Stamp), a.Number), nil, nil)
	})
	if err != nil || !x.unsaved {
		return err
	}
	x.unsaved = false
	return batch.DeleteRange(store.AppendBookKey(nil, partition, store.BookAnswers), x.behindSwept(partition), nil)
}

// behindSwept is the first key that a row can have which is not swept.
func (x *Answers) behindSwept(partition uint8) []byte {
	return append(store.AppendBookKey(nil, partition, store.BookAnswers, uint64(x.swept.Stamp), x.swept.Number), 0)
}
