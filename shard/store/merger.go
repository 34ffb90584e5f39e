package store

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/entries"
	"millrace/shard/profile"
)

// mergerName changes when the form of deltas changes.
const mergerName = "millrace.delta.1"

// NewMerger makes the merger with which Pebble folds operands. note gets the numbers of users who had better be read
// from now on.
func NewMerger(limits *profile.Limits, note func(number uint64)) *pebble.Merger {
	return &pebble.Merger{Name: mergerName, Merge: func(key, value []byte) (pebble.ValueMerger, error) {
		if len(key) != EntryKeyBytes {
			return nil, fmt.Errorf("%w: operand of a book", ErrStore)
		}
		m := operandsPool.Get().(*operands)
		m.limits, m.note, m.number = limits, note, binary.BigEndian.Uint64(key[1:])
		m.values, m.ends, m.newestFirst = m.values[:0], m.ends[:0], false
		return m, m.MergeNewer(value)
	}}
}

var operandsPool = sync.Pool{New: func() any { return new(operands) }}

// operands are Pebble's operands of one key.
type operands struct {
	limits      *profile.Limits
	note        func(number uint64)
	number      uint64
	values      []byte // one behind the other, in the order in which they came
	ends        []int
	newestFirst bool
	folder      entries.Folder
	joined      []byte
}

// MergeNewer takes a value that is newer than all others.
func (m *operands) MergeNewer(value []byte) error {
	m.values = append(m.values, value...)
	m.ends = append(m.ends, len(m.values))
	return nil
}

// MergeOlder takes a value that is older than all others.
func (m *operands) MergeOlder(value []byte) error {
	m.newestFirst = true
	return m.MergeNewer(value)
}

// at is value i, counted from the oldest.
func (m *operands) at(i int) []byte {
	if m.newestFirst {
		i = len(m.ends) - 1 - i
	}
	start := 0
	if i > 0 {
		start = m.ends[i-1]
	}
	return m.values[start:m.ends[i]]
}

// Finish folds the operands into the oldest value; without a base, operands stay operands.
func (m *operands) Finish(includesBase bool) ([]byte, io.Closer, error) {
	oldest := m.at(0)
	if len(oldest) == 0 {
		return nil, nil, fmt.Errorf("%w: empty value", ErrStore)
	}
	hasBase := oldest[0] != entries.KindDelta
	if !hasBase && !includesBase {
		err := m.join()
		return m.joined, m, err
	}
	base, first := []byte(nil), 0
	if hasBase {
		base, first = oldest, 1
	}
	err := m.folder.Begin(base, m.limits)
	for i := first; i < len(m.ends) && err == nil; i++ {
		err = m.folder.Add(m.at(i))
	}
	if len(m.folder.Entry) > entries.LargeBytes {
		m.note(m.number)
	}
	return m.folder.Value(), m, err
}

// join makes one delta of adjacent deltas of the same user.
func (m *operands) join() (err error) {
	m.joined = m.joined[:0]
	for i := range m.ends {
		if m.joined, err = entries.AppendJoined(m.joined, m.at(i)); err != nil {
			return err
		}
	}
	if len(m.joined) > 2*entries.MaxDeltaBytes {
		m.note(m.number)
	}
	return nil
}

// Close returns the memory of what Finish has returned.
func (m *operands) Close() error {
	if cap(m.values)+cap(m.joined)+cap(m.folder.Entry) <= maxKeptOperands {
		operandsPool.Put(m)
	}
	return nil
}

const maxKeptOperands = 1 << 20
