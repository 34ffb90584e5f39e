// Package memlog is a group's log in memory, as one node has it, for tests. What the log holds was decided elsewhere,
// with gaps between positions; the log's owner hands the records to the replica. Trim drops what nobody holds.
package memlog

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"millrace/wal"
)

// After returns an empty log of a replica whose state up to a position came from elsewhere.
func After(position uint64) *Log { return &Log{durable: position, trimmed: position + 1} }

// Record is a record as the nodes of a group have it.
type Record struct {
	Position uint64
	Count    uint32
	Payload  []byte
}

// Log is a log in memory. The zero value is an empty one.
type Log struct {
	mu      sync.Mutex
	records []Record
	trimmed uint64 // the position that Trim was called with
	durable uint64
	holds   wal.Holds
}

// Add appends a record that was decided elsewhere.
func (l *Log) Add(position uint64, count uint32, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, Record{position, count, slices.Clone(payload)})
	l.durable = position
}

// From returns the records from a position on.
func (l *Log) From(position uint64) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.records, position, func(r Record, p uint64) int {
		if r.Position < p {
			return -1
		}
		return 1
	})
	return slices.Clone(l.records[i:])
}

// Clone returns a log with the same content.
func (l *Log) Clone() *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Log{records: slices.Clone(l.records), trimmed: l.trimmed, durable: l.durable}
}

// Append always refuses, since nobody leads here.
func (l *Log) Append(*wal.Record) error { return wal.ErrNotLeader }

// Replay calls f for all records from a position on, unless some of them are gone.
func (l *Log) Replay(from uint64, f func(uint64, uint32, []byte) error) error {
	l.mu.Lock()
	gone := from < l.trimmed
	l.mu.Unlock()
	if gone {
		return fmt.Errorf("%w: from %d on", wal.ErrMissing, from)
	}
	return l.Read(from, math.MaxUint64, f)
}

// Read calls f for the records between two positions, both included.
func (l *Log) Read(from, to uint64, f func(uint64, uint32, []byte) error) error {
	for _, r := range l.From(from) {
		if r.Position > to {
			return nil
		}
		if err := f(r.Position, r.Count, r.Payload); err != nil {
			return err
		}
	}
	return nil
}

// Hold keeps the records from a position on for a reader of that name.
func (l *Log) Hold(name string, from uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds.Set(name, from)
}

// Trim drops the records before a position that nobody holds.
func (l *Log) Trim(before uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.holds.Before(before)
	l.trimmed = max(l.trimmed, before)
	l.records = slices.DeleteFunc(l.records, func(r Record) bool { return r.Position < before })
	return nil
}

// FirstPosition is the position of the first record that is there.
func (l *Log) FirstPosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) == 0 {
		return l.durable + 1
	}
	return l.records[0].Position
}

// LastPosition is the position of the last record.
func (l *Log) LastPosition() uint64 { return l.DurablePosition() }

// DurablePosition is the position of the last record.
func (l *Log) DurablePosition() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Bytes is always 0.
func (l *Log) Bytes() int64 { return 0 }

// Stalled is always false.
func (l *Log) Stalled() bool { return false }

// DiskFull is always false.
func (l *Log) DiskFull() bool { return false }

// Close does nothing.
func (l *Log) Close() error { return nil }

// Image returns no files.
func (l *Log) Image(string, uint64, uint64) ([]wal.File, error) { return nil, nil }

// Handed returns the record in the form in which a log hands it to a replica.
func (r Record) Handed() *wal.Record {
	return &wal.Record{Position: r.Position, Count: r.Count, Data: append(make([]byte, wal.HeaderBytes), r.Payload...)}
}
