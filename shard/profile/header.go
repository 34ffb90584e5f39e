package profile

import (
	"encoding/binary"

	"millrace/shard/op"
)

// HeaderBytes is the size of the header of every entry; the home key follows it.
const HeaderBytes = 24

// KindUser is the entry kind of a profile.
const KindUser = 1

// AppendHeader appends the header of an entry and its key. stamp (Unix µs) becomes both created and updated.
func AppendHeader(dst []byte, kind byte, id op.IDKind, key []byte, workspace uint32, stamp int64) []byte {
	dst = append(dst, kind, byte(id))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(key)))
	dst = binary.LittleEndian.AppendUint32(dst, workspace)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stamp))
	return append(dst, key...)
}

// Kind is the kind of an entry.
func Kind(b []byte) byte { return b[0] }

func fieldsStart(b []byte) int { return HeaderBytes + int(binary.LittleEndian.Uint16(b[2:])) }

// HomeID is the identifier that the entry was made with, in the canonical form of op.IDKind.
func HomeID(b []byte) (op.IDKind, []byte) { return op.IDKind(b[1]), b[HeaderBytes:fieldsStart(b)] }

// Workspace is the number of the workspace that the entry belongs to.
func Workspace(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:]) }

// Created is when the entry was made, Updated when it was last updated, in Unix µs.
func Created(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b[8:])) }
func Updated(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b[16:])) }

// SetUpdated sets the time of the last update, in place.
func SetUpdated(b []byte, stamp int64) { binary.LittleEndian.PutUint64(b[16:], uint64(stamp)) }

// touch moves the time of the last update forward. Stamps rise per node, but after a change of leader a stamp may be
// older than the last one.
func touch(b []byte, stamp int64) {
	if stamp > Updated(b) {
		SetUpdated(b, stamp)
	}
}
