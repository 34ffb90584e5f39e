package books

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// DroppedOp names an op of the log that the event log leaves out, by its ordinal in the record at this position: an
// event or purchase that had no effect, or a deletion that erases nothing, or other events than it says.
type DroppedOp struct {
	Position uint64
	Ordinal  uint32
}

// CompareDropped orders by place.
func CompareDropped(a, b DroppedOp) int {
	return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal))
}

// IsDropped says whether a list in order has the op at a place.
func IsDropped(list []DroppedOp, position uint64, ordinal uint32) bool {
	_, has := slices.BinarySearchFunc(list, DroppedOp{position, ordinal}, CompareDropped)
	return has
}

// Dropped has the ops that the event log leaves out.
type Dropped struct{ pending[DroppedOp] }

// Add notes such an op.
func (d *Dropped) Add(e DroppedOp) { d.added = append(d.added, e) }

// Append appends those of a partition with positions between from and to that the store has; without a store, those in
// memory, which lock guards.
func (d *Dropped) Append(
	dst []DroppedOp, s *store.Ranges, partition uint8, from, to uint64, lock sync.Locker,
) ([]DroppedOp, error) {
	if s == nil {
		lock.Lock()
		defer lock.Unlock()
		for _, e := range d.added {
			if e.Position >= from && e.Position <= to {
				dst = append(dst, e)
			}
		}
		return dst, nil
	}
	lower, upper := store.AppendBookKey(nil, partition, store.BookDropped, from),
		store.AppendBookKey(nil, partition, store.BookDropped, to, ^uint64(0))
	err := s.Scan(lower, upper, func(k, _ []byte) error {
		if len(k) == 26 {
			dst = append(dst, DroppedOp{binary.BigEndian.Uint64(k[10:]), uint32(binary.BigEndian.Uint64(k[18:]))})
		}
		return nil
	})
	return dst, err
}

func (d *Dropped) save(partition uint8, batch *pebble.Batch) error {
	return d.saveEach(func(e DroppedOp) error {
		key := store.AppendBookKey(nil, partition, store.BookDropped, e.Position, uint64(e.Ordinal))
		return batch.Set(key, nil, nil)
	})
}
