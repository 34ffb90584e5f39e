package books

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/store"
)

// AuditEntry is one entry of the audit log. Hash is SHA-256 over the Hash before it (zeros before the first), Seq,
// Time, Actor (little endian, 8+8+4 bytes) and Body, so that a change of any entry shows.
type AuditEntry struct {
	Seq   uint64 // 1, 2, 3, …
	Time  int64  // Unix µs
	Actor uint32
	Body  []byte
	Hash  [32]byte
}

// Chain is the Hash that the entry must have behind one with hash before.
func (a *AuditEntry) Chain(before [32]byte) [32]byte {
	b := append(make([]byte, 0, len(before)+20+len(a.Body)), before[:]...)
	b = binary.LittleEndian.AppendUint64(b, a.Seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Time))
	b = binary.LittleEndian.AppendUint32(b, a.Actor)
	return sha256.Sum256(append(b, a.Body...))
}

// Audit is the audit log, a book of partition 0 that is only appended to, and never loaded as a whole. An entry is
// written in the record of the change that it tells of, so neither exists without the other.
type Audit struct {
	pending[AuditEntry]
	seq  uint64 // of the last entry
	hash [32]byte
}

// Add appends an entry. body is copied.
func (l *Audit) Add(stamp int64, actor uint32, body []byte) {
	l.seq++
	a := AuditEntry{Seq: l.seq, Time: stamp, Actor: actor, Body: bytes.Clone(body)}
	a.Hash = a.Chain(l.hash)
	l.hash = a.Hash
	l.added = append(l.added, a)
}

// End is the sequence number and the hash of the last entry; 0 and zeros when there is none.
func (l *Audit) End() (seq uint64, hash [32]byte) { return l.seq, l.hash }

// Pending are the entries that are not yet known to be in the store.
func (l *Audit) Pending() []AuditEntry { return append([]AuditEntry(nil), l.added...) }

// AuditPageEntries and AuditPageBytes bound how much of the audit log is in memory at once.
const (
	AuditPageEntries = 256
	AuditPageBytes   = 1 << 20
)

// AuditPage reads some entries from seq on, first those in the store, then those that were Pending.
func AuditPage(s *store.Store, seq uint64, pending []AuditEntry) (page []AuditEntry, err error) {
	size := 0
	lower, upper := store.AppendBookKey(nil, 0, store.BookAudit, seq), store.AppendBookKey(nil, 0, store.BookAudit+1)
	err = s.Scan(lower, upper, func(k, v []byte) error {
		a := AuditEntry{Seq: binary.BigEndian.Uint64(k[10:])}
		if len(v) < 12+len(a.Hash) {
			return fmt.Errorf("%w: audit entry %d of %d bytes", store.ErrStore, a.Seq, len(v))
		}
		a.Time, a.Actor = int64(binary.LittleEndian.Uint64(v)), binary.LittleEndian.Uint32(v[8:])
		a.Hash, a.Body = [32]byte(v[12:]), bytes.Clone(v[12+len(a.Hash):])
		page = append(page, a)
		if size += len(v); len(page) == AuditPageEntries || size >= AuditPageBytes {
			return store.ErrEnough
		}
		return nil
	})
	if errors.Is(err, store.ErrEnough) {
		return page, nil
	}
	if err != nil {
		return nil, err
	}
	if len(page) > 0 {
		seq = page[len(page)-1].Seq + 1
	}
	for _, a := range pending {
		if a.Seq >= seq {
			page = append(page, a)
		}
	}
	return page, nil
}

// Save writes what is pending, and the end of the log: without that, missing entries at the end would not be noticed. A
// row is time i64, actor u32, hash, body.
func (l *Audit) Save(batch *pebble.Batch) error {
	err := l.saveEach(func(a AuditEntry) error {
		v := binary.LittleEndian.AppendUint64(nil, uint64(a.Time))
		v = binary.LittleEndian.AppendUint32(v, a.Actor)
		v = append(append(v, a.Hash[:]...), a.Body...)
		return batch.Set(store.AppendBookKey(nil, 0, store.BookAudit, a.Seq), v, nil)
	})
	if err != nil || l.saving == 0 {
		return err
	}
	return batch.Set(store.AppendBookKey(nil, 0, store.BookAuditEnd),
		append(binary.LittleEndian.AppendUint64(nil, l.seq), l.hash[:]...), nil)
}

// Saved says that what Save has written is in the store.
func (l *Audit) Saved() { l.saved() }

// Load reads the end of the log.
func (l *Audit) Load(s *store.Store) error {
	v, err := s.Get(store.AppendBookKey(nil, 0, store.BookAuditEnd))
	if err != nil || v == nil {
		return err
	}
	if len(v) != 8+len(l.hash) {
		return fmt.Errorf("%w: end of the audit log of %d bytes", store.ErrStore, len(v))
	}
	l.seq, l.hash = binary.LittleEndian.Uint64(v), [32]byte(v[8:])
	return nil
}
