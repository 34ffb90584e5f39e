package shard

import (
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A tombstone is where a profile was that is deleted, or merged into another one. It stays for ever, so that the
// profile's number is never given again, and whoever walks (findHome) goes on behind it:
//
//	header | number that it leads to u64, 0: none | first number behind it that isn't a tombstone's u64
//
// The last, or both, may be missing. An identifier whose users are deleted again and again leaves tombstones in a row.
// The first of a row remembers where it ends, as it was at the last walk: since tombstones stay, nothing that is passed
// over can ever be what somebody looks for, and a walk takes three steps however long the row is.

// forward is where a profile has gone that was merged into another one.
func forward(entry []byte) (number uint64, ok bool) {
	if profile.Kind(entry) != kindTombstone || len(entry) < profile.HeaderBytes+8 {
		return 0, false
	}
	number = binary.LittleEndian.Uint64(entry[profile.HeaderBytes:])
	return number, number != 0
}

// behind is the number that a walk goes to from the tombstone at n.
func behind(tombstone []byte, n uint64) uint64 {
	if len(tombstone) < profile.HeaderBytes+16 {
		return identity.Next(n)
	}
	return binary.LittleEndian.Uint64(tombstone[profile.HeaderBytes+8:])
}

// appendMark appends a tombstone of a profile that is deleted.
func appendTombstone(dst []byte, workspace uint32, stamp int64) []byte {
	return profile.AppendHeader(dst, kindTombstone, op.NoID, nil, workspace, stamp)
}

// appendForward appends a tombstone that leads to another profile.
func appendForward(dst []byte, workspace uint32, stamp int64, to uint64) []byte {
	return binary.LittleEndian.AppendUint64(appendTombstone(dst, workspace, stamp), to)
}

// passMarks goes from n on to the first number that has no tombstone, and to the entry there, if there is one.
func (w *worker) passTombstones(p *partition, n uint64) (s *arena.Slot, at uint64, err error) {
	for at = n; ; {
		if s, err = w.lookup(p, at); err != nil {
			return nil, at, err
		}
		if s == nil || profile.Kind(w.entryOf(s)) != kindTombstone {
			break
		}
		at = behind(w.entryOf(s), at)
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
	if behind(tombstone, n) == to {
		return nil
	}
	var longer [profile.HeaderBytes + 16]byte
	copy(longer[:profile.HeaderBytes+8], tombstone)
	binary.LittleEndian.PutUint64(longer[profile.HeaderBytes+8:], to)
	return w.update(s, longer[:])
}
