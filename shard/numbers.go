package shard

import (
	"encoding/binary"
	"slices"

	"millrace/shard/identity"
	"millrace/shard/store"
)

// Numbers are those of a partition's entries behind after, in order, at most so many of them: users, rows, tombstones,
// whatever is there. One that comes or goes meanwhile may be among them.
func (e *Replica) Numbers(partition uint8, after uint64, most int) (numbers []uint64, err error) {
	p, w := e.partitions[partition], e.owner[partition]
	w.mu.Lock()
	numbers = make([]uint64, 0, p.Count)
	for i := range p.Slots {
		if number := p.Slots[i].Number; number > after { // 0: an empty slot
			numbers = append(numbers, number)
		}
	}
	complete := p.complete
	w.mu.Unlock()
	if !complete {
		if numbers, err = e.storedNumbers(numbers, partition, after, most); err != nil {
			return nil, err
		}
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	return numbers[:min(len(numbers), most)], nil
}

// storedNumbers appends those of the store: the lowest, as many as wanted.
func (e *Replica) storedNumbers(numbers []uint64, partition uint8, after uint64, most int) ([]uint64, error) {
	first := max(after, uint64(partition)<<56) + 1 // before it are books
	if identity.Partition(first) != partition {
		return numbers, nil
	}
	_, upper := store.Bounds(partition)
	stored := 0
	err := e.store.Scan(store.AppendEntryKey(nil, first), upper, func(k, _ []byte) error {
		if len(k) != store.EntryKeyBytes {
			return nil
		}
		numbers = append(numbers, binary.BigEndian.Uint64(k[1:]))
		if stored++; stored == most {
			return store.ErrEnough
		}
		return nil
	})
	if err != nil && stored < most {
		return nil, err
	}
	return numbers, nil
}
