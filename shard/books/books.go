// Package books holds what a partition keeps besides its entries: how far it has applied the log and whose messages it
// has taken, the records that wait, the trail of consent, the suppression lists, the index of kept answers, the
// numbers set apart, the events without effect; and the audit log of partition 0.
//
// All books work in the same way. What is new since the last checkpoint is in memory. Save writes it into the batch
// that has the partition's entries and its applied position. So after a crash the store has both or neither, and replay
// makes exactly what is missing. Saved removes it from memory once the batch is in the store; what is added in between
// is left for the next batch. A start loads what must be known without a look (Load). The rest is read when it is asked
// for: first what is pending, under the lock that guards the partition, then the store, without the lock. So a reader
// sees a row in one of the two places, or in both, and takes it once.
//
// Whatever guards the partition guards its books.
package books

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/identity"
	"millrace/shard/store"
)

// Books are those of one partition. Messages between partitions, and what merges hold, are saved by the partition's
// owner.
type Books struct {
	ID uint8 // of the partition
	Positions
	inbox    [identity.Partitions]uint64 // last sequence taken from each sender
	inboxNew bool

	Deferred   Deferred
	Dropped    Dropped
	Trail      Trail
	Suppressed Suppressed
	Answers    Answers
	Apart      Apart
}

// Positions are how far a partition has come.
type Positions struct {
	Applied      uint64 // in the log: everything up to here is applied
	LastMessage  uint64 // sequence of the last message to any partition; the first is 1
	LastDeferred uint64 // sequence of the last record that was deferred
}

// HasTaken says whether a message of a sender was taken: messages come in order, and may come more than once.
func (b *Books) HasTaken(sender uint8, seq uint64) bool { return seq <= b.inbox[sender] }

// Take notes that a message is taken.
func (b *Books) Take(sender uint8, seq uint64) { b.inbox[sender], b.inboxNew = seq, true }

// Taken is the last sequence taken from each sender.
func (b *Books) Taken() [identity.Partitions]uint64 { return b.inbox }

// Save writes what is new.
func (b *Books) Save(batch *pebble.Batch) error {
	if err := errors.Join(b.Deferred.save(b.ID, batch), b.Dropped.save(b.ID, batch), b.Trail.save(b.ID, batch),
		b.Suppressed.save(b.ID, batch), b.Answers.save(b.ID, batch), b.Apart.save(b.ID, batch)); err != nil {
		return err
	}
	if b.inboxNew {
		b.inboxNew = false
		if err := batch.Set(store.AppendBookKey(nil, b.ID, store.BookInbox), b.encodeInbox(), nil); err != nil {
			return err
		}
	}
	return batch.Set(store.AppendBookKey(nil, b.ID, store.BookApplied), b.Positions.Encode(), nil)
}

// Saved says that what Save has written is in the store. It returns how many bytes of memory are freed
// that the trail and the suppression lists have taken.
func (b *Books) Saved() (freed int64) {
	b.Apart.saved()
	b.Answers.saved()
	b.Dropped.saved()
	return b.Trail.saved() + b.Suppressed.saved()
}

// Load takes a row of the store: its kind, and the numbers behind it in its key. known: the row is one of these books'.
func (b *Books) Load(kind byte, ids, value []byte) (known bool, err error) {
	switch {
	case kind == store.BookDeferred && len(ids) == 8:
		return true, b.Deferred.load(binary.BigEndian.Uint64(ids), value)
	case kind == store.BookApart && len(ids) == 8:
		b.Apart.load(binary.BigEndian.Uint64(ids), value)
	case kind == store.BookApplied:
		b.Positions, err = ParsePositions(value)
	case kind == store.BookInbox:
		return true, b.decodeInbox(value)
	default:
		return false, nil
	}
	return true, err
}

// Encode is the row that Positions have in the store; ParsePositions is the reverse.
func (p Positions) Encode() []byte {
	v := binary.LittleEndian.AppendUint64(nil, p.Applied)
	v = binary.LittleEndian.AppendUint64(v, p.LastMessage)
	return binary.LittleEndian.AppendUint64(v, p.LastDeferred)
}

// ParsePositions reads a row of Positions. Error: store.ErrStore.
func ParsePositions(v []byte) (p Positions, err error) {
	if len(v) != 24 {
		return p, fmt.Errorf("%w: books of %d bytes", store.ErrStore, len(v))
	}
	p.Applied, p.LastMessage = binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:])
	p.LastDeferred = binary.LittleEndian.Uint64(v[16:])
	return p, nil
}

func (b *Books) encodeInbox() []byte {
	var v []byte
	for sender, seq := range b.inbox {
		if seq != 0 {
			v = binary.AppendUvarint(append(v, byte(sender)), seq)
		}
	}
	return v
}

func (b *Books) decodeInbox(v []byte) error {
	for len(v) > 0 {
		seq, n := binary.Uvarint(v[1:])
		if n <= 0 {
			return fmt.Errorf("%w: inbox is cut short", store.ErrStore)
		}
		b.inbox[v[0]] = seq
		v = v[1+n:]
	}
	return nil
}
