package quorum

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"millrace/wal"
)

// An entry of raft holds records that waited together, or none: then it is a barrier.
//
//	 0  1  format version
//	 1  3  zero
//	 4  4  CRC-32C of all that follows
//	 8  8  who proposed it: a random number of each Log and process
//	16  8  its number there
//	24  4  how many records
//	28     records: length u32 | count u32 | payload
//
// Whoever proposed an entry knows it by the two numbers when it comes back, and hands back the records themselves.
type entryHeader struct {
	proposer, sequence uint64
	records            int
}

const (
	entryVersion      = 1
	entryHeaderBytes  = 28
	recordHeaderBytes = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entrySize is what a record takes in an entry.
func entrySize(r *wal.Record) int { return recordHeaderBytes + len(r.Data) - wal.HeaderBytes }

func encodeEntry(proposer, sequence uint64, records []*wal.Record) []byte {
	size := entryHeaderBytes
	for _, r := range records {
		size += entrySize(r)
	}
	b := make([]byte, 8, size)
	b[0] = entryVersion
	b = binary.LittleEndian.AppendUint64(b, proposer)
	b = binary.LittleEndian.AppendUint64(b, sequence)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(records)))
	for _, r := range records {
		b = appendRecord(b, r.Count, r.Data[wal.HeaderBytes:])
	}
	return sealEntry(b)
}

func appendRecord(b []byte, count uint32, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, count)
	return append(b, payload...)
}

func sealEntry(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// openEntry checks an entry and calls f, unless it is nil, for its records. payload is a part of data.
func openEntry(data []byte, f func(i int, count uint32, payload []byte) error) (h entryHeader, err error) {
	if len(data) < entryHeaderBytes || binary.LittleEndian.Uint32(data) != entryVersion {
		return h, fmt.Errorf("%w: %d bytes that aren't an entry of format %d", wal.ErrCorrupt, len(data), entryVersion)
	}
	if crc32.Checksum(data[8:], castagnoli) != binary.LittleEndian.Uint32(data[4:]) {
		return h, fmt.Errorf("%w: an entry fails its checksum", wal.ErrCorrupt)
	}
	h.proposer, h.sequence = binary.LittleEndian.Uint64(data[8:]), binary.LittleEndian.Uint64(data[16:])
	records := binary.LittleEndian.Uint32(data[24:])
	if records > maxEntryRecords {
		return h, fmt.Errorf("%w: an entry of %d records", wal.ErrCorrupt, records)
	}
	if records == 0 && len(data) > entryHeaderBytes {
		return h, fmt.Errorf("%w: %d bytes behind an entry without records", wal.ErrCorrupt, len(data)-entryHeaderBytes)
	}
	h.records = int(records)
	if f == nil {
		return h, nil
	}
	rest := data[entryHeaderBytes:]
	for i := range h.records {
		if len(rest) < recordHeaderBytes ||
			uint64(binary.LittleEndian.Uint32(rest)) > uint64(len(rest)-recordHeaderBytes) {
			return h, fmt.Errorf("%w: an entry ends within record %d", wal.ErrCorrupt, i)
		}
		size, count := int(binary.LittleEndian.Uint32(rest)), binary.LittleEndian.Uint32(rest[4:])
		end := recordHeaderBytes + size
		if err := f(i, count, rest[recordHeaderBytes:end:end]); err != nil {
			return h, err
		}
		rest = rest[end:]
	}
	if len(rest) > 0 {
		return h, fmt.Errorf("%w: %d bytes behind an entry's records", wal.ErrCorrupt, len(rest))
	}
	return h, nil
}

// copyRecords appends the records of an entry at index, as copies with room for a header in front.
func copyRecords(dst []*wal.Record, index uint64, data []byte) ([]*wal.Record, error) {
	h, err := openEntry(data, nil)
	if err != nil || h.records == 0 {
		return dst, err
	}
	// One allocation for all: of each record's header here, 8 bytes are there already.
	room := make([]byte, 0, len(data)-entryHeaderBytes+h.records*(wal.HeaderBytes-recordHeaderBytes))
	records := make([]wal.Record, h.records)
	_, err = openEntry(data, func(i int, count uint32, payload []byte) error {
		start := len(room)
		if start+wal.HeaderBytes+len(payload) > cap(room) {
			return fmt.Errorf("%w: the records of an entry are larger than the entry", wal.ErrCorrupt)
		}
		room = room[:start+wal.HeaderBytes]
		room = append(room, payload...)
		records[i] = wal.Record{Data: room[start:len(room):len(room)], Count: count, Position: position(index, i)}
		dst = append(dst, &records[i])
		return nil
	})
	return dst, err
}
