// Package profile reads and edits profiles: all that Millrace knows about one user, as one pointer-free []byte. The
// same bytes lie in the arena and in the store, so that a profile is loaded, kept and written without being decoded,
// and the garbage collector sees nothing of it.
//
//	header 24 bytes   kind u8 | home kind u8 | home key length u16 | workspace u32 | created i64 µs | updated i64 µs
//	home key          the first identifier that the profile was made with (op.IDKind tells which)
//	fields            one after another: tag u8 | size u16 | payload      (field.go)
//
// In memory, a large profile is followed by an index of its fields (index.go).
//
// All entries of a partition have the same header; those of other kinds than KindUser are in package entries.
//
// Everything here is a pure function of its arguments: no clock, no randomness, no order of a map. Replay gives the
// same bytes.
//
// Readers (Attr, Aliases, Blocked, …) and the Editor trust the blob: it was made here, or Check has accepted it. They
// panic or return nonsense on other bytes. Slices that they return are views, valid until the blob is edited or its
// memory is reused. The owner of the blob (one worker per partition) serialises readers and edits.
package profile

import (
	"cmp"
	"encoding/binary"

	"millrace/shard/op"
)

// New appends a profile made with identifier id. An alias becomes the profile's alias, an email or phone its attribute.
func New(dst []byte, workspace uint32, id op.IDKind, key []byte, stamp int64) []byte {
	dst = AppendHeader(dst, KindUser, id, key, workspace, stamp)
	switch id {
	case op.Alias:
		dst = appendField(dst, tagAlias, key)
	case op.Email:
		dst = appendString(dst, tagEmail, key)
	case op.Phone:
		dst = appendString(dst, tagPhone, key)
	}
	return dst
}

func appendString(dst []byte, tag byte, s []byte) []byte {
	var size [1 + binary.MaxVarintLen64]byte
	size[0] = byte(op.String)
	n := 1 + binary.PutUvarint(size[1:], uint64(len(s)))
	dst = appendFieldHeader(dst, tag, n+len(s))
	dst = append(dst, size[:n]...)
	return append(dst, s...)
}

// Limits bound a profile. They must be the same on all nodes, since apply depends on them. The zero value of a field
// means its default.
type Limits struct {
	MaxArray int // elements of a custom array; the newest stay. Default 25 (reference.md 3)
	// bytes of a nested object or array; one that merging would make larger stays as it was. Default 102,400
	// (reference.md 3)
	MaxValueBytes   int
	MaxAttributes   int // custom attributes; more make a dummy user. Default 20,000
	MaxEventNames   int // distinct event names; more make a dummy user. Default 20,000 (reference.md 1.4)
	MaxProductNames int // distinct products; more make a dummy user. Default 20,000
}

// Limits that are always the same.
const (
	maxPushTokens = 100       // the newest stay
	maxSessions   = 5_000_000 // in all; more make a dummy user
)

// EnsureDefaults replaces zeros with defaults.
func (l *Limits) EnsureDefaults() {
	l.MaxArray = cmp.Or(max(l.MaxArray, 0), 25)
	l.MaxValueBytes = cmp.Or(max(l.MaxValueBytes, 0), 100<<10)
	l.MaxAttributes = cmp.Or(max(l.MaxAttributes, 0), 20_000)
	l.MaxEventNames = cmp.Or(max(l.MaxEventNames, 0), 20_000)
	l.MaxProductNames = cmp.Or(max(l.MaxProductNames, 0), 20_000)
}

// LeastOver is the least number of bytes of a profile that crosses a limit which makes a dummy user.
func (l *Limits) LeastOver() int {
	return min(l.MaxEventNames*(namedMinimum+leastSummary), l.MaxProductNames*(namedMinimum+leastSummary),
		l.MaxAttributes*(namedMinimum+1))
}

// DefaultLimits returns the limits with all defaults.
func DefaultLimits() *Limits {
	l := new(Limits)
	l.EnsureDefaults()
	return l
}
