package store

import (
	"encoding/binary"

	"millrace/shard/identity"
)

// Kinds of a partition's books. Low numbers of a number's 56 bits are never an entry's (identity: never 0).
const (
	BookApplied  = 'a' // applied position, next outbox sequence, next deferred sequence
	BookInbox    = 'i' // last sequence taken from each sender
	BookOutbox   = 'o' // + sequence: a message not yet known to be applied
	BookDeferred = 'd' // + sequence: a record that waits
	BookMerges   = 'm' // who is pinned, and which merges wait
	BookApart    = 'n' // + number: one set apart
	BookAuditEnd = 'h' // of partition 0: sequence and hash of the last entry of the audit log
	// From BookLazy on, books may be large: they are read when somebody asks.
	BookLazy    = 't'
	BookTrail   = 't' // + number, position, ordinal and index: a change of a state of that profile or row
	BookAudit   = 'u' // of partition 0, + sequence: an entry of the audit log
	BookBlocked = 'v' // + workspace, number: an email that is on the block list
	BookAnswers = 'w' // + stamp, number: an answer that was kept there
	BookDropped = 'x' // + position, ordinal: an event of the log that had no effect
	// + position, ordinal and index: what BookTrail got there of states, for the event log; number, its value
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

// Bounds is the range of keys of a partition.
func Bounds(partition uint8) (lower, upper []byte) {
	lower = AppendEntryKey(nil, uint64(partition)<<56)
	if partition == identity.Partitions-1 {
		return lower, []byte("f")
	}
	return lower, AppendEntryKey(nil, uint64(partition+1)<<56)
}

// EntryKeyBytes is how long an entry's key is; those of books are longer.
const EntryKeyBytes = 9
