package refused

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"millrace/shard/cursor"
)

// A file begins with a magic, which has the version, and goes on with frames:
//
//	size u32 | CRC-32C u32, of the payload | payload
//
// A payload is an entry: seq u64, at i64, workspace u32, key u32, flags u8, array u8, index, size of the object,
// request id, count of faults and of each rule and text, count of identifiers and of each its hash u64, the object.
// Numbers without a type are uvarints, texts have their length in front; all is little endian.
const magic = "millrace refused 1\n"

const frameBytes = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Flags of an entry.
const (
	flagRefused = 1 << iota
	flagObject  // the object is kept
)

var arrays = []string{"", "attributes", "events", "purchases"}

// errDamaged says that a frame is torn or damaged.
var errDamaged = errors.New("damaged")

// appendFrame appends an entry, and the identifiers that its object names.
func appendFrame(dst []byte, e *Entry, ids []uint64) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, frameBytes)...)
	dst = binary.LittleEndian.AppendUint64(dst, e.Seq)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.At))
	dst = binary.LittleEndian.AppendUint32(dst, e.Workspace)
	dst = binary.LittleEndian.AppendUint32(dst, e.Key)
	var flags byte
	if e.IsRefused {
		flags |= flagRefused
	}
	if e.Object != nil {
		flags |= flagObject
	}
	dst = append(dst, flags, byte(max(slices.Index(arrays, e.Array), 0)))
	dst = binary.AppendUvarint(dst, uint64(e.Index))
	dst = binary.AppendUvarint(dst, uint64(e.Size))
	dst = appendText(dst, e.Request)
	dst = binary.AppendUvarint(dst, uint64(len(e.Faults)))
	for _, f := range e.Faults {
		dst = appendText(appendText(dst, f.Rule), f.Text)
	}
	dst = binary.AppendUvarint(dst, uint64(len(ids)))
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint64(dst, id)
	}
	dst = append(dst, e.Object...)
	payload := dst[start+frameBytes:]
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(dst[start+4:], crc32.Checksum(payload, castagnoli))
	return dst
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// stored is an entry as it is read.
type stored struct {
	Entry
	ids   []uint64
	frame []byte // of the file
}

// eachFrame calls f for each entry in a file's text, until f returns false, and returns where the last good frame ends.
// What f gets is valid until it returns.
func eachFrame(text []byte, f func(*stored) bool) (end int, err error) {
	if len(text) < len(magic) || string(text[:len(magic)]) != magic {
		return 0, fmt.Errorf("%w: it doesn't begin with %q", errDamaged, magic)
	}
	var e stored
	for end = len(magic); end < len(text); {
		rest := text[end:]
		if len(rest) < frameBytes {
			return end, errDamaged
		}
		size := binary.LittleEndian.Uint32(rest)
		if uint64(size) > uint64(len(rest)-frameBytes) {
			return end, errDamaged
		}
		payload := rest[frameBytes : frameBytes+int(size)]
		if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(rest[4:]) || !e.read(payload) {
			return end, errDamaged
		}
		e.frame = rest[:frameBytes+int(size)]
		end += len(e.frame)
		if !f(&e) {
			return end, nil
		}
	}
	return end, nil
}

// read reads a payload; it returns false if it isn't one.
func (e *stored) read(b []byte) bool {
	r := cursor.Cursor{Rest: b}
	e.Seq, e.At = r.U64(), int64(r.U64())
	e.Workspace, e.Key = r.U32(), r.U32()
	flags, array := r.Byte(), r.Byte()
	if int(array) >= len(arrays) {
		return false
	}
	e.IsRefused, e.Array = flags&flagRefused != 0, arrays[array]
	e.Index, e.Size, e.Request = int(r.Uvarint()), int(r.Uvarint()), string(r.Sized())
	e.Faults, e.ids = e.Faults[:0], e.ids[:0]
	for n := r.Uvarint(); n > 0 && !r.Bad; n-- {
		e.Faults = append(e.Faults, Fault{string(r.Sized()), string(r.Sized())})
	}
	for n := r.Uvarint(); n > 0 && !r.Bad; n-- {
		e.ids = append(e.ids, r.U64())
	}
	if e.Object = nil; flags&flagObject != 0 {
		e.Object = r.Rest
	}
	return !r.Bad
}

// copy returns an entry that may be kept.
func (e *stored) copy() Entry {
	own := e.Entry
	own.Faults, own.Object = slices.Clone(e.Faults), slices.Clone(e.Object)
	return own
}
