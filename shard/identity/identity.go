// Package identity turns identifiers into numbers. A number is 64 bits: the keyed hash of the identifier, or, when that
// place is taken, the next free one; its highest byte is the partition ("Identity" in ARCHITECTURE.md). The seed is
// made once per store and kept in it: numbers and partitions are fixed for ever, and a client that does not know the
// seed can't aim at one partition.
//
// A profile's number is that of its first identifier, so an external id, the bulk of all traffic, finds its profile
// without a directory.
package identity

import (
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"

	"github.com/dchest/siphash"
	"github.com/zeebo/xxh3"

	"millrace/shard/op"
)

// Partitions is the number of virtual partitions, fixed for ever.
const Partitions = 256

// Hasher makes numbers. It is immutable and safe for concurrent use.
type Hasher struct {
	seed   uint64
	tagKey [2]uint64 // of SipHash
}

// NewHasher makes the Hasher of a store from its 32-byte secret.
func NewHasher(secret [32]byte) *Hasher {
	return &Hasher{seed: binary.LittleEndian.Uint64(secret[:]),
		tagKey: [2]uint64{binary.LittleEndian.Uint64(secret[8:]), binary.LittleEndian.Uint64(secret[16:])}}
}

// Number is the home number of an identifier in a workspace.
func (h *Hasher) Number(workspace uint32, kind op.IDKind, key []byte) uint64 {
	n := xxh3.HashSeed(key, h.seed^(uint64(workspace)<<8|uint64(kind))*0x9E3779B97F4A7C15)
	if n&numberMask == 0 { // 0 means "no profile" everywhere
		n |= 1
	}
	return n
}

const numberMask = 1<<56 - 1

// Next is the number to try when n is taken by another entry; it stays in n's partition.
func Next(n uint64) uint64 {
	m := n&^numberMask | (n+1)&numberMask
	if m&numberMask == 0 {
		m |= 1
	}
	return m
}

// Profile is the home number of a profile whose first identifier has a directory row (alias, email, phone). It is in
// the partition of the row's number.
func (h *Hasher) Profile(row uint64) uint64 {
	m := (row ^ h.seed ^ 0xD1B54A32D192ED03) * 0x9E3779B97F4A7C15
	return Next(row&^numberMask | m>>8)
}

// Beside is the number of a profile that shares its first identifier, which has a directory row, with others: by salt,
// in the partition of the row's number.
func (h *Hasher) Beside(workspace uint32, kind op.IDKind, key []byte, salt int64) uint64 {
	row := h.Number(workspace, kind, key)
	return h.Profile(row&^numberMask | (row^uint64(salt))&numberMask)
}

// Fingerprint tells the stores apart whose numbers are made with different secrets. It reveals nothing of the secret.
func (h *Hasher) Fingerprint() uint64 {
	return siphash.Hash(h.tagKey[0], h.tagKey[1], binary.LittleEndian.AppendUint64(nil, h.seed))
}

// Partition is the partition of a number.
func Partition(n uint64) uint8 { return uint8(n >> 56) }

// svcIDBytes is the length of a svc_id: hexadecimal digits.
const svcIDBytes = 24

// AppendSvcID appends the public form of a profile's number: 16 digits of number and 8 of a tag that proves that this
// store has made it for this workspace.
func (h *Hasher) AppendSvcID(dst []byte, workspace uint32, number uint64) []byte {
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], number)
	binary.BigEndian.PutUint32(raw[8:], h.tag(workspace, number))
	return hex.AppendEncode(dst, raw[:])
}

// ParseSvcID is the reverse of AppendSvcID; ok is false for any string that this store has not made for this workspace.
func (h *Hasher) ParseSvcID(workspace uint32, s []byte) (number uint64, ok bool) {
	var raw [12]byte
	if len(s) != svcIDBytes {
		return 0, false
	}
	if _, err := hex.Decode(raw[:], s); err != nil {
		return 0, false
	}
	number = binary.BigEndian.Uint64(raw[:])
	tag := binary.BigEndian.Uint32(raw[8:])
	return number, number != 0 && subtle.ConstantTimeEq(int32(h.tag(workspace, number)), int32(tag)) == 1
}

// tag is a SipHash, which is made for short messages: a stream asks for one with each event.
func (h *Hasher) tag(workspace uint32, number uint64) uint32 {
	var message [12]byte
	binary.LittleEndian.PutUint32(message[:], workspace)
	binary.LittleEndian.PutUint64(message[4:], number)
	return uint32(siphash.Hash(h.tagKey[0], h.tagKey[1], message[:]))
}
