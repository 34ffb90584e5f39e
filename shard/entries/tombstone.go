package entries

import (
	"encoding/binary"

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

// Forward is where a profile has gone that was merged into another one.
func Forward(entry []byte) (number uint64, ok bool) {
	if profile.Kind(entry) != KindTombstone || len(entry) < profile.HeaderBytes+8 {
		return 0, false
	}
	number = binary.LittleEndian.Uint64(entry[profile.HeaderBytes:])
	return number, number != 0
}

// Behind is the number that a walk goes to from the tombstone at n.
func Behind(tombstone []byte, n uint64) uint64 {
	if len(tombstone) < profile.HeaderBytes+16 {
		return identity.Next(n)
	}
	return binary.LittleEndian.Uint64(tombstone[profile.HeaderBytes+8:])
}

// AppendTombstone appends a tombstone of a profile that is deleted.
func AppendTombstone(dst []byte, workspace uint32, stamp int64) []byte {
	return profile.AppendHeader(dst, KindTombstone, op.NoID, nil, workspace, stamp)
}

// AppendForward appends a tombstone that leads to another profile.
func AppendForward(dst []byte, workspace uint32, stamp int64, to uint64) []byte {
	return binary.LittleEndian.AppendUint64(AppendTombstone(dst, workspace, stamp), to)
}
