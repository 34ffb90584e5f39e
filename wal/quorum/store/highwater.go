package store

import (
	"encoding/binary"
	"fmt"
	"sync"

	"millrace/wal/durable"
)

// HighWater is the high-water mark, the file WITNESS: the index up to which the log must at least be there. It is
// written, but not synced, after each write of the log and before the node tells anybody, so it is exact after a kill.
// It is synced now and then, so it lags a little after a loss of power. It is never ahead of the log: before the log
// gets shorter, the mark is synced with the lower index.
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

// CreateHighWater creates the mark of a log that ends at index.
func CreateHighWater(path string, index uint64) (*HighWater, error) {
	s, err := durable.CreateSlots(nil, path, highWaterMagic, highWaterState(index))
	if err != nil {
		return nil, fmt.Errorf("create the high-water mark: %w", err)
	}
	return &HighWater{slots: s, index: index}, nil
}

// OpenHighWater reads an existing mark.
func OpenHighWater(path string) (*HighWater, error) {
	s, state, err := durable.OpenSlots(nil, path, highWaterMagic, highWaterBytes)
	if err != nil {
		return nil, fmt.Errorf("the high-water mark: %w", err)
	}
	return &HighWater{slots: s, index: binary.LittleEndian.Uint64(state)}, nil
}

// advance records that the log is there up to index.
func (w *HighWater) advance(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return nil
	}
	w.index = index
	return w.slots.Write(highWaterState(index))
}

// lower records, durably, that the log will end at index.
func (w *HighWater) lower(index uint64) error {
	w.mu.Lock()
	isLower := index < w.index
	w.index = min(w.index, index)
	w.mu.Unlock()
	if !isLower {
		return nil
	}
	return w.Renew()
}

// Renew writes the mark, also when it is as before, and makes it durable.
func (w *HighWater) Renew() error {
	w.mu.Lock()
	err := w.slots.Write(highWaterState(w.index))
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.slots.Sync()
}

// Settle makes the written mark durable.
func (w *HighWater) Settle() error { return w.slots.Sync() }

// Index is the index up to which the log must be there.
func (w *HighWater) Index() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index
}

// Close closes the file.
func (w *HighWater) Close() error { return w.slots.Close() }
