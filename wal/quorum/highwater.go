package quorum

import (
	"encoding/binary"
	"fmt"
	"sync"

	"millrace/wal/durable"
)

// highWater is the high-water mark, the file WITNESS: up to which index the log must at least be there. It is written
// (not synced) after each write of the log and before the node tells anybody, so it is exact after a kill; it is synced
// now and then, so it is a little behind after a loss of power. It is never ahead of the log: before the log gets
// shorter, it is synced with the lower index.
//
// Without it, damage in the newest segment would look like the torn end of a crash, and the node would vote as if it
// had never had what it has promised.
type highWater struct {
	slots *durable.Slots

	mu    sync.Mutex // guards index, and the order of writes
	index uint64
}

const (
	highWaterName  = "WITNESS"
	highWaterMagic = "millquo2"
	highWaterBytes = 8
)

func highWaterState(index uint64) []byte { return binary.LittleEndian.AppendUint64(nil, index) }

func createHighWater(path string, index uint64) (*highWater, error) {
	s, err := durable.CreateSlots(nil, path, highWaterMagic, highWaterState(index))
	if err != nil {
		return nil, fmt.Errorf("create the high-water mark: %w", err)
	}
	return &highWater{slots: s, index: index}, nil
}

func openHighWater(path string) (*highWater, error) {
	s, state, err := durable.OpenSlots(nil, path, highWaterMagic, highWaterBytes)
	if err != nil {
		return nil, fmt.Errorf("the high-water mark: %w", err)
	}
	return &highWater{slots: s, index: binary.LittleEndian.Uint64(state)}, nil
}

// advance says that the log is there up to index.
func (w *highWater) advance(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return nil
	}
	w.index = index
	return w.slots.Write(highWaterState(index))
}

// lower says, durably, that the log will end at index.
func (w *highWater) lower(index uint64) error {
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

// settle makes what is written durable.
func (w *highWater) settle() error { return w.slots.Sync() }
