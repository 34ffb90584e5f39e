package shard

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// Numbers set apart are those of which it must be known without a look that an op for them has to look: where an
// external id has a row, where a profile was, where another entry is in the way, where a profile is very large or a
// dummy user's. A book of each partition, loaded at the start and written by checkpoints; a number stays in it for
// ever. In memory each takes apartBytes, which count to the budget.
type apart struct {
	numbers map[uint64]struct{}
	added   []apartNumber // since the last checkpoint
	saving  int           // so many of them are in a batch on its way to the store
	dummies []uint64      // that load has found, for who looks after them
}

type apartNumber struct {
	number uint64
	why    apartReason
}

// apartReason says why. Which of the large ones and dummies are known depends on what was in memory, and may differ
// between replicas; all others follow from the log.
type apartReason byte

const (
	apartElsewhere apartReason = 1 // the entry is no profile, or not that of who has this home number
	apartLarge     apartReason = 2
	apartDummy     apartReason = 3
)

const apartBytes = 24 // measured: 12 to 24, by how full the map is

func (a *apart) has(number uint64) bool {
	_, ok := a.numbers[number]
	return ok
}

// setApart sets a number of the partition apart. The caller holds w.mu.
func (w *worker) setApart(p *partition, number uint64, why apartReason) {
	if p.apart.has(number) && why == apartLarge {
		return
	}
	w.apart += p.apart.add(number)
	p.apart.added = append(p.apart.added, apartNumber{number, why})
}

// add says how many bytes that takes.
func (a *apart) add(number uint64) (bytes int64) {
	if a.numbers == nil {
		a.numbers = make(map[uint64]struct{})
	}
	before := len(a.numbers)
	a.numbers[number] = struct{}{}
	return apartBytes * int64(len(a.numbers)-before)
}

// load takes one from the book.
func (a *apart) load(number uint64, value []byte) {
	a.add(number)
	if len(value) == 1 && apartReason(value[0]) == apartDummy {
		a.dummies = append(a.dummies, number)
	}
}

func (a *apart) save(partition uint8, batch *pebble.Batch) error {
	for _, x := range a.added {
		if err := batch.Set(store.AppendBookKey(nil, partition, store.BookApart, x.number), []byte{byte(x.why)},
			nil); err != nil {
			return err
		}
	}
	a.saving = len(a.added)
	return nil
}

func (a *apart) saved() {
	if a.saving > 0 {
		a.added, a.saving = append([]apartNumber(nil), a.added[a.saving:]...), 0
	}
}

// noted are numbers that somebody has come across who has no partition in hand: the store, in the middle of a read or a
// compaction.
type noted struct {
	any     atomic.Bool
	mu      sync.Mutex
	numbers []uint64
}

func (n *noted) add(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.numbers, number) {
		n.numbers = append(n.numbers, number)
		n.any.Store(true)
	}
}

func (n *noted) take() (numbers []uint64) {
	if !n.any.Load() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	numbers, n.numbers = n.numbers, nil
	n.any.Store(false)
	return numbers
}
