// Package identity turns identifiers into numbers. A number is 64 bits: the keyed hash of the identifier, or, when that
// place is taken, the next free one; its highest byte is the partition ("Identity" in ARCHITECTURE.md). The seed is
// made once per store and kept in it: numbers and partitions are fixed for ever, and a client that does not know the
// seed can't aim at one partition.
//
// A profile's number is that of its first identifier, so an external id, the bulk of all traffic, finds its profile
// without a directory.
package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"sync"

	"github.com/zeebo/xxh3"

	"millrace/shard/op"
)

// Partitions is the number of virtual partitions, fixed for ever.
const Partitions = 256

// Hasher makes numbers. It is immutable and safe for concurrent use.
type Hasher struct {
	seed   uint64
	secret [32]byte
	macs   sync.Pool // of *mac: making one costs as much as using it
}

// mac is an HMAC with memory for what goes in and comes out.
type mac struct {
	hash.Hash
	message [12]byte
	sum     [sha256.Size]byte
}

// NewHasher makes the Hasher of a store from its 32-byte secret.
func NewHasher(secret [32]byte) *Hasher {
	h := &Hasher{seed: binary.LittleEndian.Uint64(secret[:]), secret: secret}
	h.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, h.secret[:])} }
	return h
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

// Partition is the partition of a number.
func Partition(n uint64) uint8 { return uint8(n >> 56) }

// SvcIDBytes is the length of a svc_id: hexadecimal digits.
const SvcIDBytes = 24

// AppendSvcID appends the public form of a profile's number: 16 digits of number and 8 of a tag that proves that this
// store has made it for this workspace.
func (h *Hasher) AppendSvcID(dst []byte, workspace uint32, number uint64) []byte {
	var raw [12]byte
	binary.BigEndian.PutUint64(raw[:], number)
	tag := h.tag(workspace, number)
	copy(raw[8:], tag[:])
	return hex.AppendEncode(dst, raw[:])
}

// ParseSvcID is the reverse of AppendSvcID; ok is false for any string that this store has not made for this workspace.
func (h *Hasher) ParseSvcID(workspace uint32, s []byte) (number uint64, ok bool) {
	var raw [12]byte
	if len(s) != SvcIDBytes {
		return 0, false
	}
	if _, err := hex.Decode(raw[:], s); err != nil {
		return 0, false
	}
	number = binary.BigEndian.Uint64(raw[:])
	tag := h.tag(workspace, number)
	return number, number != 0 && hmac.Equal(tag[:], raw[8:])
}

func (h *Hasher) tag(workspace uint32, number uint64) (tag [4]byte) {
	m := h.macs.Get().(*mac)
	defer h.macs.Put(m)
	binary.LittleEndian.PutUint32(m.message[:], workspace)
	binary.LittleEndian.PutUint64(m.message[4:], number)
	m.Reset()
	m.Write(m.message[:])
	copy(tag[:], m.Sum(m.sum[:0]))
	return tag
}
