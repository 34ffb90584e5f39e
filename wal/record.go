package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/zeebo/xxh3"
)

// Record is one entry of the log. The caller owns it, and may use it again once OnDurable has handed it back.
type Record struct {
	// Data holds HeaderBytes bytes for the log, then the payload. It is lent to the log from Append until OnDurable
	// hands the record back; the caller must neither read nor write it in between. After a failure of the log the
	// record is never handed back.
	Data []byte
	// Count is the number of ops in the payload, at least 1.
	Count uint32
	// Position is set by Append: 1, 2, 3, … without gaps, over restarts too.
	Position uint64
	// Context is the caller's; the log does not look at it.
	Context any
	// Urgent records are taken even while the disk is full: they complete accepted work, or make room.
	Urgent bool
	// Waits says that the caller of Append does nothing else until the record is handed back. Append may then make the
	// record durable itself.
	Waits bool
}

// HeaderBytes is the length of the header that Append writes to the start of Record.Data:
//
//	 0  8  position, little endian: the sequence number of a Pebble batch header, which Pebble's reader needs to see rising
//	 8  4  count: the count of a Pebble batch header; the reader skips a record with a count of 0
//	12  1  format version
//	13  3  zero
//	16  4  lag: position minus the durable position when the record was written
//	20  4  CRC-32C of the payload, then of the bytes 0 to 20
//	24  8  seal: xxh3 of the bytes 0 to 24, with the log's salt as its seed
//
// The lag lets a record testify for earlier ones: everything up to position-lag had been synced, and may have been
// acknowledged, before this record was written. A damaged record followed by one that testifies for it is therefore
// damage. Otherwise, and without a high-water mark, it is the torn tail of a crash, in which a disk may well have kept
// later blocks and lost earlier ones.
//
// The seal proves that a testimony is the log's own. A search for records after a torn one comes across payloads. They
// are what clients sent, and may look like a record, checksums included. Payloads have no valid seal, since nobody
// outside the log knows its salt.
const HeaderBytes = 32

const formatVersion = 2

// salt is a log's secret: random, made together with its high-water mark and kept in it.
type salt uint64

func (s salt) seal(data []byte) uint64 { return xxh3.HashSeed(data[:24], uint64(s)) }

// id tells one log from another, and not what the salt is.
func (s salt) id() uint64 { return xxh3.HashSeed([]byte("id"), uint64(s)) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	position uint64
	count    uint32
	lag      uint32
}

// durable is the position up to which the log was on disk when the record was written.
func (h header) durable() uint64 { return h.position - uint64(h.lag) }

// sealPayload puts the checksum of the payload into the header. Append calls it outside its lock; sealHeader completes
// the header.
func sealPayload(data []byte) {
	binary.LittleEndian.PutUint32(data[20:], crc32.Checksum(data[HeaderBytes:], castagnoli))
}

func sealHeader(data []byte, position uint64, count uint32, durable uint64, s salt) {
	sum := binary.LittleEndian.Uint32(data[20:])
	binary.LittleEndian.PutUint64(data[0:], position)
	binary.LittleEndian.PutUint32(data[8:], count)
	binary.LittleEndian.PutUint32(data[12:], formatVersion)
	binary.LittleEndian.PutUint32(data[16:], uint32(min(position-durable, math.MaxUint32)))
	binary.LittleEndian.PutUint32(data[20:], crc32.Update(sum, castagnoli, data[:20]))
	binary.LittleEndian.PutUint64(data[24:], s.seal(data))
}

// parseHeader reads a header without checking the payload. ok is false when the header isn't one of this log's.
func parseHeader(data []byte, s salt) (h header, ok bool) {
	if len(data) < HeaderBytes || binary.LittleEndian.Uint32(data[12:]) != formatVersion ||
		binary.LittleEndian.Uint64(data[24:]) != s.seal(data) {
		return header{}, false
	}
	h.position = binary.LittleEndian.Uint64(data[0:])
	h.count = binary.LittleEndian.Uint32(data[8:])
	h.lag = binary.LittleEndian.Uint32(data[16:])
	return h, h.position > 0 && h.count > 0 && h.lag > 0 && uint64(h.lag) <= h.position
}

// openRecord checks a whole record and returns its parts. Pebble's chunks have checksums of their own, so a record that
// fails here was wrong before it was written, or was written by something else.
func openRecord(data []byte, s salt) (header, []byte, error) {
	h, ok := parseHeader(data, s)
	if !ok {
		return h, nil, fmt.Errorf("%w: %d bytes that aren't a record of format %d of this log", ErrCorrupt, len(data),
			formatVersion)
	}
	sum := crc32.Checksum(data[HeaderBytes:], castagnoli)
	if crc32.Update(sum, castagnoli, data[:20]) != binary.LittleEndian.Uint32(data[20:]) {
		return h, nil, fmt.Errorf("%w: record %d fails its checksum", ErrCorrupt, h.position)
	}
	return h, data[HeaderBytes:], nil
}
