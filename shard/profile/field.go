package profile

import (
	"encoding/binary"

	"millrace/shard/op"
)

// A field is tag u8, size u16, payload. A tag with the bit wide set has a size of 32 bits: only values longer than 64
// KiB need that. Tags from tagReserved on are reserved attributes: tagReserved + code, the payload is a value. The
// payload of the named ones (custom attributes, summaries) begins with name length u16 and name, so that one loop finds
// them all. A value may be followed by unused room, which is zeros: see valueRoom. Fields are in the order of their
// ranks (rankOf), those of one rank in the order in which they came.
const (
	tagBlocked = 1 // empty: a dummy user (reference.md 1.4)
	// the id; only in a profile whose home is another identifier, or a deprecated external id
	tagExternalID = 2
	tagAlias      = 3  // op.AppendAliasKey
	tagCustom     = 4  // named; value, room
	tagEvent      = 5  // named; summary
	tagProduct    = 6  // named; summary
	tagApp        = 7  // named by the app's id; summary whose count is sessions
	tagRevenue    = 8  // currency [3]byte, minor units i64
	tagGroup      = 9  // id [16]byte, subscribed u8 and the group's channel times 2, change
	tagEmailState = 10 // change of email_subscribe
	tagPushState  = 11 // change of push_subscribe
	tagHardBounce = 12 // on u8, change; of an address, and of a profile that is joined with its addresses (Editor.Join)
	tagSessions   = 13 // sessions over all apps, including apps that a merge has not taken over: u64
	tagSpamState  = 14 // on u8, change; of an address
	tagDeprecated = 15 // an external id that the profile had in the past and that still leads to it
	tagBorn       = 16 // place in the log where the profile was made: Place
	tagFormer     = 17 // where the log has more of its events: Former
	tagJoined     = 18 // when the profile got its email or phone: op.IDKind u8, Unix µs i64
	tagLeave      = 19 // an address that the profile has left, whose states are on their way: see stay.go

	tagSpamSet = 20 // change of marked_email_as_spam_at by a client's tracking

	tagLast     = tagSpamSet
	tagReserved = 0x40
	wide        = 0x80
)

const (
	fieldHeader     = 3
	fieldHeaderWide = 5
	maxNarrow       = 1<<16 - 1

	revenueBytes = 3 + 8
	changeBytes  = 8 + 4 + 1 // when Unix µs i64, actor u32, source u8
	groupBytes   = 16 + 1 + changeBytes
	markBytes    = 1 + changeBytes
	placeBytes   = 8 + 4
	formerBytes  = 8 + 8 + 2*placeBytes + 8
	takenAt      = formerBytes - 8 // offset of Taken in the payload of a Former
	joinedBytes  = 1 + 8
	leaveBytes   = 1 + 8 + 8 + 1 // followed by groups
)

const (
	tagEmail = tagReserved | op.AttrEmail
	tagPhone = tagReserved | op.AttrPhone
)

// Ranks of fields. The fields that are asked for most are in front, so that the first few fields say whether a profile
// has them. Numerous fields are at the end, so that a new one moves nothing behind it.
const (
	rankBlocked = iota
	rankEmail
	rankPhone
	rankRevenue
	rankOther // external id, states, reserved attributes, apps
	rankMany  // aliases, deprecated external ids, formers; custom attributes, events, products
)

func rankOf(tag byte) int {
	switch tag {
	case tagBlocked:
		return rankBlocked
	case tagEmail:
		return rankEmail
	case tagPhone:
		return rankPhone
	case tagRevenue:
		return rankRevenue
	case tagAlias, tagDeprecated, tagFormer, tagCustom, tagEvent, tagProduct:
		return rankMany
	}
	return rankOther
}

// placeOf is where a new field with tag goes.
func placeOf(b []byte, tag byte) int {
	rank := rankOf(tag)
	if rank == rankMany {
		return len(b)
	}
	i := fieldsStart(b)
	for i < len(b) {
		t, _, end := fieldAt(b, i)
		if rankOf(t) > rank {
			break
		}
		i = end
	}
	return i
}

func reservedTag(code uint32) byte { return tagReserved | byte(code) }

// fieldAt reads the header of the field at i: its payload is b[start:end], and the next field begins at end.
func fieldAt(b []byte, i int) (tag byte, start, end int) {
	if tag = b[i]; tag&wide == 0 {
		start = i + fieldHeader
		return tag, start, start + int(binary.LittleEndian.Uint16(b[i+1:]))
	}
	start = i + fieldHeaderWide
	return tag &^ wide, start, start + int(binary.LittleEndian.Uint32(b[i+1:]))
}

// span is where a field is; the zero value means that there is none.
type span struct{ at, start, end int }

func (s span) none() bool { return s.at == 0 }

// find finds the first field with tag.
func find(b []byte, tag byte) span {
	rank := rankOf(tag)
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag {
			return span{i, start, end}
		}
		if rankOf(t) > rank {
			break
		}
		i = end
	}
	return span{}
}

// findNamed finds the named field with tag and name. Apply spends its time here, so findNamed loads tag, size and the
// low byte of the name's length at once, and looks closer only when tag and length agree.
func findNamed(b []byte, tag byte, name []byte) span {
	want := uint32(tag) | uint32(byte(len(name)))<<24
	for i := fieldsStart(b); i+fieldHeader < len(b); {
		head := binary.LittleEndian.Uint32(b[i:])
		if head&wide != 0 { // rare: a value above 64 KiB
			t, start, end := fieldAt(b, i)
			if t == tag && isNamed(b, start, name) {
				return span{i, start, end}
			}
			i = end
			continue
		}
		end := i + fieldHeader + int(uint16(head>>8))
		if head&0xff0000ff == want && isNamed(b, i+fieldHeader, name) {
			return span{i, i + fieldHeader, end}
		}
		i = end
	}
	return span{}
}

// isNamedTag says whether fields with tag have names.
func isNamedTag(tag byte) bool { return tag >= tagCustom && tag <= tagApp }

// isNamed says whether the payload of a named field at start has this name.
func isNamed(b []byte, start int, name []byte) bool {
	return int(binary.LittleEndian.Uint16(b[start:])) == len(name) &&
		string(b[start+2:start+2+len(name)]) == string(name)
}

// findPrefix finds the field with tag whose payload begins with prefix.
func findPrefix(b []byte, tag byte, prefix []byte) span {
	rank := rankOf(tag)
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag && end-start >= len(prefix) && string(b[start:start+len(prefix)]) == string(prefix) {
			return span{i, start, end}
		}
		if rankOf(t) > rank {
			break
		}
		i = end
	}
	return span{}
}

// more says whether b has more than limit fields with tag, each of at least size bytes.
func more(b []byte, tag byte, limit, size int) bool {
	if len(b) <= limit*size { // true for nearly all profiles
		return false
	}
	n := 0
	for i := fieldsStart(b); i < len(b); {
		t, _, end := fieldAt(b, i)
		if t == tag {
			n++
		}
		i = end
	}
	return n > limit
}

// splitName splits the payload of a named field.
func splitName(payload []byte) (name, rest []byte) {
	n := int(binary.LittleEndian.Uint16(payload))
	return payload[2 : 2+n : 2+n], payload[2+n:]
}

func appendFieldHeader(dst []byte, tag byte, size int) []byte {
	if size > maxNarrow {
		return binary.LittleEndian.AppendUint32(append(dst, tag|wide), uint32(size))
	}
	return binary.LittleEndian.AppendUint16(append(dst, tag), uint16(size))
}

func appendField(dst []byte, tag byte, payload []byte) []byte {
	return append(appendFieldHeader(dst, tag, len(payload)), payload...)
}

func putFieldHeader(b []byte, tag byte, size int) {
	if size > maxNarrow {
		b[0] = tag | wide
		binary.LittleEndian.PutUint32(b[1:], uint32(size))
		return
	}
	b[0] = tag
	binary.LittleEndian.PutUint16(b[1:], uint16(size))
}

func headerFor(size int) int {
	if size > maxNarrow {
		return fieldHeaderWide
	}
	return fieldHeader
}

// manyWork is how many bytes a verb may walk, for one field after the other, before one pass over the profile costs
// less: fields times size.
const manyWork = 1 << 20

// valueIn is the value at the beginning of p, without the room behind it.
func valueIn(p []byte) op.Value {
	v, _, _ := op.NextValue(p)
	return v
}

// Blocked says whether the profile is a dummy user's (reference.md 1.4), whose objects the door refuses.
func Blocked(blob []byte) bool {
	at := fieldsStart(blob)
	return at < len(blob) && blob[at] == tagBlocked
}

// Attr is the reserved attribute with code (op.AttrFirstName, …). Subscription groups are not kept as an attribute: see
// Groups.
func Attr(blob []byte, code uint32) (op.Value, bool) {
	s := find(blob, reservedTag(code))
	return valueIn(blob[s.start:s.end]), !s.none()
}

// Addresses are the email and the phone of a profile, nil where it has none: Attr of both, with one look at the front
// of the profile.
func Addresses(blob []byte) (email, phone op.Value) {
	for i := fieldsStart(blob); i < len(blob); {
		tag, start, end := fieldAt(blob, i)
		switch tag {
		case tagBlocked:
		case tagEmail:
			email = valueIn(blob[start:end])
		case tagPhone:
			return email, valueIn(blob[start:end])
		default:
			return email, nil
		}
		i = end
	}
	return email, nil
}

// Customs calls f for each custom attribute.
func Customs(blob []byte, f func(name []byte, v op.Value)) {
	each(blob, tagCustom, func(payload []byte) {
		name, rest := splitName(payload)
		f(name, valueIn(rest))
	})
}

func each(b []byte, tag byte, f func(payload []byte)) {
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag {
			f(b[start:end:end])
		}
		i = end
	}
}
