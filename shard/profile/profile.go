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
	recentMax     = 50        // occurrences kept per event name and product (service.md 4.2)
	recentDays    = 30        // days before the newest occurrence for which they are kept
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
	return min(l.MaxEventNames*(namedMinimum+summaryFixed), l.MaxProductNames*(namedMinimum+summaryFixed),
		l.MaxAttributes*(namedMinimum+1))
}

// DefaultLimits returns the limits with all defaults.
func DefaultLimits() *Limits {
	l := new(Limits)
	l.EnsureDefaults()
	return l
}

// Editor changes profiles. It holds only scratch memory: one per worker, the zero value is ready, not safe for
// concurrent use.
//
// All methods that take a blob and return one have append semantics: len(blob) bytes are the profile, cap(blob) is how
// far it may grow in place. A result that fits is made in blob's memory, which out then shares; otherwise out is in the
// Editor's scratch until the Editor's next call, and the caller copies it. Either way blob's old content is gone. out
// may be passed to the next call as it is. Names, keys and values that are passed in must not be views of blob.
type Editor struct {
	// Unmet are the operators that the last Apply could not apply.
	Unmet []Unmet

	index   index
	at      int    // where the field is that was last made or resized
	buf     []byte // scratch for profiles that have outgrown their memory
	spare   []byte // the other half of Merge
	tmp     []byte // values under construction
	tmp2    []byte // values within them, alternating with tmp3
	tmp3    []byte
	recent  []uint32 // occurrences under construction
	refs    []ref    // views of members, elements and edits
	fields  []ref    // views of fields
	kept    []int    // which of refs are kept
	changes []change // custom attributes of an op that is applied in one pass
	unmet   []unmet  // operators that could not be applied
}

// change is a custom attribute of an op: where it stands in the op's body, by the hash of its name.
type change struct {
	hash  uint32
	at    uint32
	place uint32 // among the composite values of the op
	done  bool
}

// ref is a view of a member, an element, an edit or a field, with what it is found by.
type ref struct {
	key, extra []byte
	value      []byte
	tag        byte
	used       bool
}
