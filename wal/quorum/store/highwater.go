package store

import (
	"encoding/binary"
	"fmt"
	"sync"

	"millrace/wal/durable"
)

// HighWater is the high-water mark, the file WITNESS: up to which index the log must at least be there. It is written
// (not synced) after each write of the log and before the node tells anybody, so it is exact after a kill; it is synced
// now and then, so it is a little behind after a loss of power. It is never ahead of the log: before the log gets
// shorter, it is synced with the lower index.
//
// Without it, damage in the newest segment would look like the torn end of a crash, and the node would vote as if it
// had never had what it has promised.
type HighWater struct {
	slots *durable.Slots

	mu    sync.Mutex // guards index, and the order of writes
	index uint64
}

// HighWaterName is the file's name.
const HighWaterName = "WITNESS"

const (
	highWaterMagic = "millquo2"
	highWaterBytes = 8
)

func highWaterState(index uint64) []byte { return binary.LittleEndian.AppendUint64(nil, index) }

// CreateHighWater makes the mark of a log that ends at index.
func CreateHighWater(path string, index uint64) (*HighWater, error) {
	s, err := durable.CreateSlots(nil, path, highWaterMagic, highWaterState(index))
	if err != nil {
		return nil, fmt.Errorf("create the high-water mark: %w", err)
	}
	return &HighWater{slots: s, index: index}, nil
}

// OpenHighWater reads the mark that is there.
func OpenHighWater(path string) (*HighWater, error) {
	s, state, err := durable.OpenSlots(nil, path, highWaterMagic, highWaterBytes)
	if err != nil {
		return nil, fmt.Errorf("the high-water mark: %w", err)
	}
	return &HighWater{slots: s, index: binary.LittleEndian.Uint64(state)}, nil
}

// advance says that the log is there up to index.
func (w *HighWater) advance(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return nil
	}
	w.index = index
	return w.slots.Write(highWaterState(index))
}

// lower says, durably, that the log will end at index.
func (w *HighWater) lower(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index >= w.index {
		return nil
	}
	w.index = index
	if err := w.slots.Write(highWaterState(index)); err != nil {
		return err
	}
	return w.slots.Sync()
}

// Settle makes what is written durable.
func (w *HighWater) Settle() error { return w.slots.Sync() }

// Index is up to which index the log must be there.
func (w *HighWater) Index() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index
}

// Close closes the file.
func (w *HighWater) Close() error { return w.slots.Close() }
