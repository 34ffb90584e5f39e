package quorum

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"millrace/wal"
)

// An entry of raft holds records that waited together.
//
//	 0  1  format version
//	 1  3  zero
//	 4  4  CRC-32C of all that follows
//	 8  8  who proposed it: a random number of each Log and process
//	16  8  its number there
//	24  4  how many records
//	28     records: length u32 | count u32 | payload
//
// The proposer of an entry recognizes it by the two numbers when it comes back, and hands back the original records.
type entryHeader struct {
	proposer, sequence uint64
	records            int
}

const (
	entryVersion      = 1 // when it rises, so must the version that nodes tell each other (package host)
	entryHeaderBytes  = 28
	recordHeaderBytes = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entrySize is how many bytes a record takes in an entry.
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

// laterFormat is the error for an entry that is sound, but of a later format. Nothing can be made of it, as of one that
// is damaged (wal.ErrCorrupt), but nobody should look for damage.
type laterFormat uint32

func (f laterFormat) Error() string {
	return fmt.Sprintf("the log has an entry of format %d, and this program reads format %d: start the program that "+
		"wrote it", uint32(f), entryVersion)
}

func (laterFormat) Is(target error) bool { return target == wal.ErrCorrupt }

// openEntry reads the header of an entry and checks the whole entry: its records are as they were proposed.
func openEntry(data []byte) (h entryHeader, err error) {
	if len(data) >= 8 && binary.LittleEndian.Uint32(data) > entryVersion &&
		crc32.Checksum(data[8:], castagnoli) == binary.LittleEndian.Uint32(data[4:]) {
		return h, laterFormat(binary.LittleEndian.Uint32(data))
	}
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
	return h, nil
}

// each calls f for the records of an entry that was opened. record is a part of data. The payload begins at
// wal.HeaderBytes of record; the bytes before it are arbitrary.
func (h entryHeader) each(data []byte, f func(i int, count uint32, record []byte) error) error {
	at := entryHeaderBytes
	for i := range h.records {
		rest := data[at:]
		if len(rest) < recordHeaderBytes ||
			uint64(binary.LittleEndian.Uint32(rest)) > uint64(len(rest)-recordHeaderBytes) {
			return fmt.Errorf("%w: an entry ends within record %d", wal.ErrCorrupt, i)
		}
		size, count := int(binary.LittleEndian.Uint32(rest)), binary.LittleEndian.Uint32(rest[4:])
		begin := at + recordHeaderBytes
		at = begin + size
		if err := f(i, count, data[begin-wal.HeaderBytes:at:at]); err != nil {
			return err
		}
	}
	if at < len(data) {
		return fmt.Errorf("%w: %d bytes behind an entry's records", wal.ErrCorrupt, len(data)-at)
	}
	return nil
}

// An entry has at least as many bytes before its first payload as a record has.
const _ = uint(entryHeaderBytes + recordHeaderBytes - wal.HeaderBytes)

// appendRecords appends the records of the entry at index. They are parts of data, which nobody may write to, since
// raft holds it too.
func (h entryHeader) appendRecords(dst []*wal.Record, index uint64, data []byte) ([]*wal.Record, error) {
	records := make([]wal.Record, h.records)
	err := h.each(data, func(i int, count uint32, record []byte) error {
		records[i] = wal.Record{Data: record, Count: count, Position: position(index, i)}
		dst = append(dst, &records[i])
		return nil
	})
	return dst, err
}
