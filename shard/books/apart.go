package books

import (
	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Apart has the numbers that are set apart: an op for such a number has to look at the entry there, and this must be
// known without a look. A number is set apart because an external id has a row, because a profile was there, because
// another entry is in the way, or because the profile is very large or a dummy user's. Apart is loaded at the start. A
// number stays in it for ever.
type Apart struct {
	pending[apartNumber]
	numbers map[uint64]struct{}
	dummies []uint64 // found by load, until TakeDummies
}

type apartNumber struct {
	number uint64
	why    ApartReason
}

// ApartReason says why a number is set apart. Which large profiles and dummy users are known depends on what was in
// memory, and may differ between replicas; everything else follows from the log.
type ApartReason byte

const (
	ApartElsewhere ApartReason = 1 // the entry is not the profile with this home number, or no profile
	ApartLarge     ApartReason = 2
	ApartDummy     ApartReason = 3
)

// apartBytes is what a number takes in memory: measured 12 to 24, depending on how full the map is.
const apartBytes = 24

// Has says whether a number is set apart.
func (a *Apart) Has(number uint64) bool {
	_, ok := a.numbers[number]
	return ok
}

// Bytes is how many bytes the numbers take in memory.
func (a *Apart) Bytes() int64 { return apartBytes * int64(len(a.numbers)) }

// Add sets a number apart, and returns how many bytes that takes.
func (a *Apart) Add(number uint64, why ApartReason) (bytes int64) {
	before := a.Bytes()
	a.hold(number)
	a.added = append(a.added, apartNumber{number, why})
	return a.Bytes() - before
}

// TakeDummies returns the numbers of dummy users that the store has, once.
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
	return a.saveEach(func(x apartNumber) error {
		return batch.Set(store.AppendBookKey(nil, partition, store.BookApart, x.number), []byte{byte(x.why)}, nil)
	})
}
