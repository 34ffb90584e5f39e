package durable

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Slots is a small file that holds a state of a few bytes, which changes often. After a kill, the last written state is
// there. After a loss of power, the state of the last sync is there, or a newer one.
//
// The file has three slots in pages of their own. One holds the last synced state and is left alone, one takes the
// writes, and the third lets writes go on while a sync runs. A torn write therefore never touches the only good copy.
//
//	magic, 8 bytes, the last of which is the format | generation u64 | the state | CRC-32C of all before it
type Slots struct {
	file  vfs.File
	magic string

	syncMu sync.Mutex // held throughout a sync; locked before mu

	mu         sync.Mutex // guards all below
	generation uint64
	dirty      bool
	active     int // the slot that takes the writes
	synced     int // the slot of the last sync
	buf        []byte
}

const (
	// SlotCount and SlotSpacing say where the slots are.
	SlotCount   = 3
	SlotSpacing = 4096

	slotHead = 8 + 8
	slotSum  = 4
)

// ErrNoSlot and ErrFormat are wrapped by errors of OpenSlots: no slot is readable, or what is there has another format
// and may be sound.
var (
	ErrNoSlot = errors.New("no slot is readable")
	ErrFormat = errors.New("another format")
)

// SlotsText is the content of a file that has the given state in every slot.
func SlotsText(magic string, state []byte) []byte {
	text := make([]byte, SlotCount*SlotSpacing)
	for i := range SlotCount {
		appendSlot(text[i*SlotSpacing:][:0], magic, uint64(i), state)
	}
	return text
}

func appendSlot(b []byte, magic string, generation uint64, state []byte) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint64(b, generation)
	b = append(b, state...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ReadSlot returns the state in the slot that b begins with.
func ReadSlot(b []byte, magic string, size int) (state []byte, generation uint64, ok bool) {
	end := slotHead + size
	if len(b) < end+slotSum || string(b[:8]) != magic ||
		crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, 0, false
	}
	return b[slotHead:end:end], binary.LittleEndian.Uint64(b[8:]), true
}

// CreateSlots creates the file, whole or not at all. A nil file system is the operating system's, here as elsewhere.
func CreateSlots(on vfs.FS, path, magic string, state []byte) (*Slots, error) {
	if err := ReplaceFileOn(on, path, SlotsText(magic, state)); err != nil {
		return nil, err
	}
	s, _, err := OpenSlots(on, path, magic, len(state))
	return s, err
}

// OpenSlots opens the file and returns its state, which must have the given size.
func OpenSlots(on vfs.FS, path, magic string, size int) (s *Slots, state []byte, err error) {
	f, err := cmp.Or(on, vfs.Default).OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, nil, fmt.Errorf("open %q: %w", path, err)
	}
	s = &Slots{file: f, magic: magic, synced: -1, buf: make([]byte, slotHead+size+slotSum)}
	if state, err = s.load(size); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("read %q: %w", path, err)
	}
	return s, state, nil
}

func (s *Slots) load(size int) (state []byte, err error) {
	for i := range SlotCount {
		if _, err := s.file.ReadAt(s.buf, int64(i)*SlotSpacing); err == io.EOF || err == io.ErrUnexpectedEOF {
			continue
		} else if err != nil {
			return nil, err
		}
		if b, generation, ok := ReadSlot(s.buf, s.magic, size); ok && (s.synced < 0 || generation > s.generation) {
			state, s.generation, s.synced = append(state[:0], b...), generation, i
		}
	}
	if s.synced < 0 {
		return nil, s.unreadable()
	}
	s.active = (s.synced + 1) % SlotCount
	// The state that was read may be in the page cache alone, with an older slot as the only one on disk. After this
	// sync both are on disk, before either is overwritten.
	return state, s.file.SyncData()
}

// unreadable says why no slot is readable: the slots have another format, or are damaged.
func (s *Slots) unreadable() error {
	magic := make([]byte, len(s.magic))
	version := len(magic) - 1
	if _, err := s.file.ReadAt(magic, 0); err == nil && string(magic[:version]) == s.magic[:version] &&
		magic[version] != s.magic[version] {
		return fmt.Errorf("%w: it is of log format %c, this program has format %c", ErrFormat, magic[version],
			s.magic[version])
	}
	return ErrNoSlot
}

// Write writes the state. It isn't synced.
func (s *Slots) Write(state []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	s.buf = appendSlot(s.buf[:0], s.magic, s.generation, state)
	if _, err := s.file.WriteAt(s.buf, int64(s.active)*SlotSpacing); err != nil {
		return fmt.Errorf("write slot %d: %w", s.active, err)
	}
	s.dirty = true
	return nil
}

// Sync makes the written state durable. It may run beside writes, which go to another slot meanwhile.
func (s *Slots) Sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	if !s.dirty {
		s.mu.Unlock()
		return nil
	}
	syncing := s.active
	s.active = SlotCount - s.synced - syncing // the third one
	s.dirty = false
	s.mu.Unlock()
	if err := s.file.SyncData(); err != nil {
		return fmt.Errorf("sync a slot: %w", err)
	}
	s.mu.Lock()
	s.synced = syncing
	s.mu.Unlock()
	return nil
}

// Settle writes the same state to all slots and syncs it, so that later damage to one slot loses nothing.
func (s *Slots) Settle(state []byte) error {
	for range SlotCount {
		if err := errors.Join(s.Write(state), s.Sync()); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the file. Writing back an unsynced state is left to the operating system.
func (s *Slots) Close() error { return s.file.Close() }
