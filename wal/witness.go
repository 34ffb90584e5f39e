package wal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

// witness is the file WITNESS: what the log must at least contain. It is written (not synced) after each group commit and before its
// acknowledgement, so it is exact after a kill; it is synced now and then, so it is a little behind after a power loss; it is never ahead
// of the durable log.
//
// It has three slots in pages of their own. One holds the last synced state and is left alone, one takes the writes, and the third lets
// writes go on while a sync runs. A torn write therefore never touches the only good copy.
type witness struct {
	file vfs.File

	syncMu sync.Mutex // held over a whole sync; before mu

	mu      sync.Mutex // guards all below
	state   witnessState
	dirty   bool
	active  int // slot that takes the writes
	durable int // slot of the last sync
	buf     [slotBytes]byte
}

type witnessState struct {
	generation uint64
	acked      uint64 // every position up to it may have been acknowledged
	segment    uint64 // number of the first segment that belongs to the log
	first      uint64 // position of the first record of that segment, written or not
	salt       salt   // the same for ever
}

const (
	witnessName  = "WITNESS"
	witnessSlots = 3
	slotSpacing  = 4096
	slotBytes    = 52
	witnessMagic = "millwal2" // the last byte is the format of the whole log
)

// openWitness reads the witness. It returns nil when there is none.
func openWitness(fs vfs.FS, dir string) (*witness, error) {
	path := fs.PathJoin(dir, witnessName)
	if _, err := fs.Stat(path); oserror.IsNotExist(err) {
		return nil, nil
	}
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open witness %q: %w", path, err)
	}
	w := &witness{file: f, active: -1}
	for i := range witnessSlots {
		if _, err := f.ReadAt(w.buf[:], int64(i)*slotSpacing); err == io.EOF || err == io.ErrUnexpectedEOF {
			continue
		} else if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("read witness %q: %w", path, err)
		}
		if s, ok := decodeSlot(w.buf[:]); ok && (w.active < 0 || s.generation > w.state.generation) {
			w.state, w.active, w.durable = s, i, i
		}
	}
	if w.active < 0 {
		err := unreadable(f, path)
		_ = f.Close()
		return nil, err
	}
	w.active = (w.durable + 1) % witnessSlots
	// What was read may be in the page cache alone, and an older slot the one on disk. Both are, before one is written over.
	if err := f.SyncData(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("sync witness %q: %w", path, err)
	}
	return w, nil
}

// unreadable says why no slot of a witness could be read: it is of another format, or damaged.
func unreadable(f vfs.File, path string) error {
	var magic [len(witnessMagic)]byte
	const version = len(magic) - 1
	if _, err := f.ReadAt(magic[:], 0); err == nil && string(magic[:version]) == witnessMagic[:version] &&
		magic[version] != witnessMagic[version] {
		return fmt.Errorf("wal: %q is of log format %c, this program has format %c", path, magic[version], witnessMagic[version])
	}
	return fmt.Errorf("%w: no slot of witness %q is readable", ErrCorrupt, path)
}

// createWitness makes the witness of an empty log. It is there completely or not at all, and before any segment.
func createWitness(fs vfs.FS, dir string) (*witness, error) {
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	fresh := witnessState{segment: 1, first: 1, salt: salt(binary.LittleEndian.Uint64(secret[:]))}
	path := fs.PathJoin(dir, witnessName)
	if err := durable.ReplaceFileOn(fs, path, newWitness(fresh)); err != nil {
		return nil, fmt.Errorf("create witness: %w", err)
	}
	return openWitness(fs, dir)
}

// newWitness is the content of a witness with that state in all slots.
func newWitness(s witnessState) []byte {
	content := make([]byte, witnessSlots*slotSpacing)
	for i := range witnessSlots {
		s.generation = uint64(i)
		encodeSlot(content[i*slotSpacing:], s)
	}
	return content
}

// advance notes, without a sync, that everything up to acked is durable.
func (w *witness) advance(acked uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.acked = max(w.state.acked, acked)
	return w.writeLocked()
}

// trim notes, synced, that the log begins with that segment and position.
func (w *witness) trim(segment, first uint64) error {
	w.mu.Lock()
	w.state.segment, w.state.first = segment, first
	err := w.writeLocked()
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.sync()
}

func (w *witness) writeLocked() error {
	w.state.generation++
	encodeSlot(w.buf[:], w.state)
	if _, err := w.file.WriteAt(w.buf[:], int64(w.active)*slotSpacing); err != nil {
		return fmt.Errorf("write witness: %w", err)
	}
	w.dirty = true
	return nil
}

// sync makes the state of the call durable. It is safe beside writes, which go to another slot meanwhile.
func (w *witness) sync() error {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	w.mu.Lock()
	if !w.dirty {
		w.mu.Unlock()
		return nil
	}
	syncing := w.active
	w.active = witnessSlots - w.durable - syncing // the third one
	w.dirty = false
	w.mu.Unlock()
	if err := w.file.SyncData(); err != nil {
		return fmt.Errorf("sync witness: %w", err)
	}
	w.mu.Lock()
	w.durable = syncing
	w.mu.Unlock()
	return nil
}

// settle writes the same exact state to all slots and syncs it, so that a later damage to one of them loses nothing.
func (w *witness) settle() error {
	for range witnessSlots {
		w.mu.Lock()
		err := w.writeLocked()
		w.mu.Unlock()
		if err == nil {
			err = w.sync()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func encodeSlot(b []byte, s witnessState) {
	copy(b, witnessMagic)
	binary.LittleEndian.PutUint64(b[8:], s.generation)
	binary.LittleEndian.PutUint64(b[16:], s.acked)
	binary.LittleEndian.PutUint64(b[24:], s.segment)
	binary.LittleEndian.PutUint64(b[32:], s.first)
	binary.LittleEndian.PutUint64(b[40:], uint64(s.salt))
	binary.LittleEndian.PutUint32(b[48:], crc32.Checksum(b[:48], castagnoli))
}

func decodeSlot(b []byte) (s witnessState, ok bool) {
	if string(b[:8]) != witnessMagic || crc32.Checksum(b[:48], castagnoli) != binary.LittleEndian.Uint32(b[48:]) {
		return s, false
	}
	s.generation = binary.LittleEndian.Uint64(b[8:])
	s.acked = binary.LittleEndian.Uint64(b[16:])
	s.segment = binary.LittleEndian.Uint64(b[24:])
	s.first = binary.LittleEndian.Uint64(b[32:])
	s.salt = salt(binary.LittleEndian.Uint64(b[40:]))
	return s, true
}
