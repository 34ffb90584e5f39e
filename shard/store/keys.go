package store

import (
	"encoding/binary"

	"millrace/shard/identity"
)

// Kinds of a partition's books. Their keys begin like that of an entry whose number has 56 low bits of 0, which no
// entry has.
const (
	BookApplied  = 'a' // applied position, sequences of the last message and of the last deferred record
	BookInbox    = 'i' // last sequence taken from each sender
	BookOutbox   = 'o' // + sequence: a message not yet known to be applied
	BookDeferred = 'd' // + sequence: a record that waits
	BookMerges   = 'm' // which profiles are pinned, and which merges wait
	BookApart    = 'n' // + number: one that is set apart
	BookAuditEnd = 'h' // of partition 0: sequence and hash of the last entry of the audit log
	// From BookLazy on, books may be large: they are read when they are asked for.
	BookLazy       = 't'
	BookTrail      = 't' // + number, position, ordinal and index: a change of a state of that profile or row
	BookAudit      = 'u' // of partition 0, + sequence: an entry of the audit log
	BookSuppressed = 'v' // + workspace and list, time, number: an email that is on that suppression list
	BookAnswers    = 'w' // + stamp, number: an answer that was kept there
	BookDropped    = 'x' // + position, ordinal: an op that the event log leaves out
	// + position, ordinal and index: for the event log, what BookTrail got there about states; value: number,
	// BookTrail's
	BookNoted = 'y'
)

// AppendEntryKey appends the key of the entry at number.
func AppendEntryKey(dst []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 'e'), number)
}

// AppendBookKey appends the key of a row of a partition's book.
func AppendBookKey(dst []byte, partition uint8, kind byte, ids ...uint64) []byte {
	dst = append(AppendEntryKey(dst, uint64(partition)<<56), kind)
	for _, id := range ids {
		dst = binary.BigEndian.AppendUint64(dst, id)
	}
	return dst
}

// DocumentKey is the key of a control document.
func DocumentKey(key string) []byte { return append([]byte("c"), key...) }

// Bounds are the bounds of a partition's keys.
func Bounds(partition uint8) (lower, upper []byte) {
	lower = AppendEntryKey(nil, uint64(partition)<<56)
	if partition == identity.Partitions-1 {
		return lower, []byte("f")
	}
	return lower, AppendEntryKey(nil, uint64(partition+1)<<56)
}

// EntryKeyBytes is the length of an entry's key; the keys of books are longer.
const EntryKeyBytes = 9
