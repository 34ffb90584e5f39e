package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
)

// highWater is the high-water mark, the file WITNESS: up to which index the log must at least be there. It is written (not synced) after each write of the log and before the node
// tells anybody, so it is exact after a kill; it is synced now and then, so it is a little behind after a loss of power. It is never ahead of the log: before the
// log gets shorter, it is synced with the lower index.
//
// Without it, damage in the newest segment would look like the torn end of a crash, and the node would vote as if it had never had what it has promised.
//
// There are two slots in pages of their own. One holds the last synced state and is left alone, the other takes the writes.
type highWater struct {
	file *os.File

	mu         sync.Mutex // guards all below
	generation uint64
	index      uint64
	active     int64 // the slot that takes the writes
	dirty      bool
}

const (
	highWaterName     = "WITNESS"
	highWaterMagic    = "millquo1"
	highWaterSlot     = 28 // magic, generation, index, CRC-32C
	highWaterSpacing  = 4096
	highWaterSlots    = 2
	highWaterFileSize = highWaterSlots * highWaterSpacing
)

// createHighWater makes the file, synced; the folder is the caller's to sync.
func createHighWater(path string, index uint64) (*highWater, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	w := &highWater{file: f, index: index}
	if err := f.Truncate(highWaterFileSize); err == nil {
		err = errors.Join(w.write(), w.sync(true))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return w, nil
}

func openHighWater(path string) (*highWater, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	w := &highWater{file: f}
	found := false
	for i := range int64(highWaterSlots) {
		var b [highWaterSlot]byte
		if _, err := f.ReadAt(b[:], i*highWaterSpacing); err != nil && err != io.EOF {
			_ = f.Close()
			return nil, err
		}
		generation := binary.LittleEndian.Uint64(b[8:])
		if string(b[:8]) != highWaterMagic || crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) || found && generation <= w.generation {
			continue
		}
		found, w.generation, w.index, w.active = true, generation, binary.LittleEndian.Uint64(b[16:]), 1-i
	}
	if !found {
		_ = f.Close()
		return nil, fmt.Errorf("%s has no slot that is whole", path)
	}
	return w, nil
}

// advance says that the log is there up to index.
func (w *highWater) advance(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index <= w.index {
		return nil
	}
	w.index, w.dirty = index, true
	return w.write()
}

// lower says, durably, that the log will end at index.
func (w *highWater) lower(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if index >= w.index {
		return nil
	}
	w.index = index
	if err := w.write(); err != nil {
		return err
	}
	return w.sync(true)
}

// settle makes what is written durable.
func (w *highWater) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sync(false)
}

func (w *highWater) write() error {
	var b [highWaterSlot]byte
	w.generation++
	copy(b[:], highWaterMagic)
	binary.LittleEndian.PutUint64(b[8:], w.generation)
	binary.LittleEndian.PutUint64(b[16:], w.index)
	binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
	_, err := w.file.WriteAt(b[:], w.active*highWaterSpacing)
	return err
}

// sync makes the active slot the one that is left alone.
func (w *highWater) sync(always bool) error {
	if !w.dirty && !always {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.dirty, w.active = false, 1-w.active
	return nil
}
