package books

import (
	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Apart has the numbers set apart: those of which it must be known without a look that an op for them has to look,
// where an external id has a row, where a profile was, where another entry is in the way, where a profile is very large
// or a dummy user's. It is loaded at the start; a number stays in it for ever.
type Apart struct {
	numbers map[uint64]struct{}
	added   []apartNumber // since the last checkpoint
	saving  int           // so many of them are in a batch on its way to the store
	dummies []uint64      // that load has found, for who looks after them
}

type apartNumber struct {
	number uint64
	why    ApartReason
}

// ApartReason says why a number is set apart. Which of the large ones and dummies are known depends on what was in
// memory, and may differ between replicas; all others follow from the log.
type ApartReason byte

const (
	ApartElsewhere ApartReason = 1 // the entry is no profile, or not that of who has this home number
	ApartLarge     ApartReason = 2
	ApartDummy     ApartReason = 3
)

// apartBytes is what a number takes in memory; measured: 12 to 24, by how full the map is.
const apartBytes = 24

// Has says whether a number is set apart.
func (a *Apart) Has(number uint64) bool {
	_, ok := a.numbers[number]
	return ok
}

// Bytes is what it takes in memory.
func (a *Apart) Bytes() int64 { return apartBytes * int64(len(a.numbers)) }

// Add sets a number apart, and says how many bytes that takes.
func (a *Apart) Add(number uint64, why ApartReason) (bytes int64) {
	before := a.Bytes()
	a.hold(number)
	a.added = append(a.added, apartNumber{number, why})
	return a.Bytes() - before
}

// TakeDummies are the numbers of dummy users that the store has, once.
func (a *Apart) TakeDummies() (numbers []uint64) {
	numbers, a.dummies = a.dummies, nil
	return numbers
}

func (a *Apart) hold(number uint64) {
	if a.numbers == nil {
		a.numbers = make(map[uint64]struct{})
	}
	a.numbers[number] = struct{}{}
}

func (a *Apart) load(number uint64, value []byte) {
	a.hold(number)
	if len(value) == 1 && ApartReason(value[0]) == ApartDummy {
		a.dummies = append(a.dummies, number)
	}
}

func (a *Apart) save(partition uint8, batch *pebble.Batch) error {
	for _, x := range a.added {
		key := store.AppendBookKey(nil, partition, store.BookApart, x.number)
		if err := batch.Set(key, []byte{byte(x.why)}, nil); err != nil {
			return err
		}
	}
	a.saving = len(a.added)
	return nil
}

func (a *Apart) saved() {
	if a.saving > 0 {
		a.added, a.saving = append([]apartNumber(nil), a.added[a.saving:]...), 0
	}
}
