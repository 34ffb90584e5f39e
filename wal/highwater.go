package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

// highWater is the high-water mark, the file WITNESS: what the log must at least contain. It is written, but not
// synced, after each group commit and before that group is acknowledged, so it is exact after a kill. It is synced now
// and then, so it lags a little after a power loss. It is never ahead of the durable log.
type highWater struct {
	slots *durable.Slots

	mu    sync.Mutex // guards all fields below, and the order of writes
	state highWaterState
	buf   [highWaterBytes]byte
}

type highWaterState struct {
	acked   uint64 // every position up to it may have been acknowledged
	segment uint64 // number of the first segment that belongs to the log
	first   uint64 // position of the first record of that segment, written or not
	salt    salt   // never changes
}

const (
	highWaterName  = "WITNESS"
	highWaterMagic = "millwal2" // the last byte is the format of the whole log
	highWaterBytes = 32
)

// openHighWater reads the mark. It returns nil when there is none.
func openHighWater(fs vfs.FS, dir string) (*highWater, error) {
	path := fs.PathJoin(dir, highWaterName)
	if _, err := fs.Stat(path); oserror.IsNotExist(err) {
		return nil, nil
	}
	slots, b, err := durable.OpenSlots(fs, path, highWaterMagic, highWaterBytes)
	switch {
	case errors.Is(err, durable.ErrNoSlot):
		return nil, fmt.Errorf("%w: the high-water mark: %w", ErrCorrupt, err)
	case err != nil:
		return nil, fmt.Errorf("wal: the high-water mark: %w", err)
	}
	return &highWater{slots: slots, state: decodeHighWater(b)}, nil
}

// createHighWater creates the mark of an empty log, whole or not at all, before there is any segment.
func createHighWater(fs vfs.FS, dir string) (*highWater, error) {
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	fresh := highWaterState{segment: 1, first: 1, salt: salt(binary.LittleEndian.Uint64(secret[:]))}
	slots, err := durable.CreateSlots(fs, fs.PathJoin(dir, highWaterName), highWaterMagic, fresh.append(nil))
	if err != nil {
		return nil, fmt.Errorf("create the high-water mark: %w", err)
	}
	return &highWater{slots: slots, state: fresh}, nil
}

// advance records, without a sync, that everything up to acked is durable.
func (w *highWater) advance(acked uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.acked = max(w.state.acked, acked)
	return w.slots.Write(w.state.append(w.buf[:0]))
}

// trim records, synced, that the log begins with the given segment and position.
func (w *highWater) trim(segment, first uint64) error {
	w.mu.Lock()
	w.state.segment, w.state.first = segment, first
	w.mu.Unlock()
	return w.renew()
}

func (w *highWater) sync() error { return w.slots.Sync() }

// renew writes the state and syncs it, also when it is as before.
func (w *highWater) renew() error {
	w.mu.Lock()
	err := w.slots.Write(w.state.append(w.buf[:0]))
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.slots.Sync()
}

// settle writes the exact state to all slots and syncs it.
func (w *highWater) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots.Settle(w.state.append(w.buf[:0]))
}

func (s highWaterState) append(b []byte) []byte {
	for _, v := range []uint64{s.acked, s.segment, s.first, uint64(s.salt)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeHighWater(b []byte) highWaterState {
	u64 := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return highWaterState{acked: u64(0), segment: u64(1), first: u64(2), salt: salt(u64(3))}
}
