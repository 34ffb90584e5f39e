package shard

import (
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// findHome walks from an identifier's home number to the entry that carries the identifier: a profile or a directory
// row. Without one, s is nil and free the number where it would go.
func (w *worker) findHome(
	p *partition, home uint64, workspace uint32, id op.IDKind, key []byte,
) (s *arena.Slot, free uint64, err error) {
	for n := home; ; n = identity.Next(n) {
		if s, n, err = w.passTombstones(p, n); s == nil || err != nil {
			return nil, n, err
		}
		if entries.IsOf(w.entryOf(s), workspace, id, key) {
			return s, n, nil
		}
	}
}

// passTombstones goes from n on to the first number that has no tombstone, and to the entry there, if there is one.
func (w *worker) passTombstones(p *partition, n uint64) (s *arena.Slot, at uint64, err error) {
	for at = n; ; {
		if s, err = w.lookup(p, at); err != nil {
			return nil, at, err
		}
		if s == nil || profile.Kind(w.entryOf(s)) != entries.KindTombstone {
			break
		}
		at = entries.Behind(w.entryOf(s), at)
	}
	if at == n {
		return s, at, nil
	}
	return s, at, w.shorten(p, n, at)
}

// shorten makes the tombstone at n remember that only tombstones are there before to. Slots stay where they are.
func (w *worker) shorten(p *partition, n, to uint64) error {
	s := p.Find(n)
	tombstone := w.entryOf(s)
	if entries.Behind(tombstone, n) == to {
		return nil
	}
	var longer [profile.HeaderBytes + 16]byte
	copy(longer[:profile.HeaderBytes+8], tombstone)
	binary.LittleEndian.PutUint64(longer[profile.HeaderBytes+8:], to)
	return w.update(s, longer[:])
}
