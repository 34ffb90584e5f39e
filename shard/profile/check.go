package profile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"millrace/shard/op"
)

// ErrInvalid is wrapped by Check: the bytes are no profile of this version.
var ErrInvalid = errors.New("invalid profile")

// Check reads a profile from end to end and says whether every function of this package may be used on it. It never
// panics. It does not check whether a name occurs twice. It is for the tests of this package and of the engine: what
// the server reads has the checksums of log and store.
func Check(blob []byte) error {
	if len(blob) < HeaderBytes {
		return fmt.Errorf("%w: %d bytes", ErrInvalid, len(blob))
	}
	if Kind(blob) != KindUser {
		return fmt.Errorf("%w: entry of kind %d", ErrInvalid, Kind(blob))
	}
	if fieldsStart(blob) > len(blob) {
		return fmt.Errorf("%w: home key is cut short", ErrInvalid)
	}
	id, key := HomeID(blob)
	if id > op.Phone {
		return fmt.Errorf("%w: home of kind %d", ErrInvalid, id)
	}
	if _, _, ok := op.SplitAliasKey(key); id == op.Alias && !ok {
		return fmt.Errorf("%w: home is no alias", ErrInvalid)
	}
	var seen [2]uint64
	rank := 0 // rank of the field before
	for i := fieldsStart(blob); i < len(blob); {
		tag, start, end, ok := checkHeader(blob, i)
		if !ok {
			return fmt.Errorf("%w: field at %d is cut short", ErrInvalid, i)
		}
		if rankOf(tag) < rank {
			return fmt.Errorf("%w: field at %d: tag %d stands behind its rank", ErrInvalid, i, tag)
		}
		rank = rankOf(tag)
		if !repeats(tag) {
			if seen[tag>>6]&(1<<(tag&63)) != 0 {
				return fmt.Errorf("%w: field at %d: tag %d appears twice", ErrInvalid, i, tag)
			}
			seen[tag>>6] |= 1 << (tag & 63)
		}
		if what := checkPayload(tag, blob[start:end]); what != "" {
			return fmt.Errorf("%w: field at %d, tag %d: %s", ErrInvalid, i, tag, what)
		}
		i = end
	}
	return nil
}

func checkHeader(b []byte, i int) (tag byte, start, end int, ok bool) {
	if len(b)-i < fieldHeader || b[i]&wide != 0 && len(b)-i < fieldHeaderWide {
		return 0, 0, 0, false
	}
	tag, start, end = fieldAt(b, i)
	if b[i]&wide != 0 && end-start <= maxNarrow {
		return 0, 0, 0, false
	}
	return tag, start, end, end <= len(b)
}

func repeats(tag byte) bool {
	switch tag {
	case tagAlias, tagCustom, tagEvent, tagProduct, tagApp, tagRevenue, tagGroup, tagDeprecated, tagFormer, tagJoined,
		tagLeave:
		return true
	}
	return false
}

// checkPayload says what is wrong with a payload, "" when nothing is.
func checkPayload(tag byte, p []byte) string {
	size := -1
	switch tag {
	case tagBlocked:
		size = 0
	case tagExternalID, tagDeprecated:
		if len(p) == 0 {
			return "empty external id"
		}
		return ""
	case tagAlias:
		if _, _, ok := op.SplitAliasKey(p); !ok {
			return "no alias"
		}
		return ""
	case tagCustom, tagEvent, tagProduct, tagApp:
		if len(p) < 2 || len(p)-2 < int(binary.LittleEndian.Uint16(p)) {
			return "name is cut short"
		}
		_, rest := splitName(p)
		if tag == tagCustom {
			return checkStored(rest)
		}
		return checkSummary(tag, rest)
	case tagRevenue:
		size = revenueBytes
	case tagGroup:
		size = groupBytes
	case tagEmailState, tagPushState, tagSpamSet:
		size = changeBytes
	case tagBorn:
		size = placeBytes
	case tagFormer:
		size = formerBytes
	case tagJoined:
		size = joinedBytes
	case tagLeave:
		if len(p) < leaveBytes || (len(p)-leaveBytes)%groupBytes != 0 {
			return "wrong size"
		}
		return ""
	case tagHardBounce, tagSpamState:
		size = markBytes
	case tagSessions:
		size = 8
	default:
		if tag <= tagReserved || int(tag-tagReserved) >= op.ReservedCodes {
			return "unknown tag"
		}
		return checkStored(p)
	}
	if len(p) != size {
		return "wrong size"
	}
	return ""
}

func checkSummary(tag byte, p []byte) string {
	if len(p) < summaryFixed+1 {
		return "summary is cut short"
	}
	s := readSummary(p)
	switch {
	case s.First > s.Last:
		return "first is after last"
	case tag == tagApp && !isEmpty(s.recent):
		return "occurrences of an app"
	case tag == tagApp:
		return ""
	case s.Count < uint64(s.recent[0]):
		return "more occurrences than are counted"
	}
	return checkHours(s.recent, hourOf(s.Last))
}

func checkHours(h hours, newest int64) string {
	if len(h)%2 == 0 {
		return "hours are cut short"
	}
	n, total, before := h.len(), 0, int64(-1)
	for i := range n {
		age := h.age(i, newest)
		switch {
		case h.at(i)&hourCount == 0:
			return "hour without occurrences"
		case age <= before || age > recentHours || i == 0 && age > 0:
			return "hours are out of order"
		}
		before, total = age, total+int(h.at(i)&hourCount)
	}
	if n == 0 || total != int(h[0]) || total > recentMax {
		return "wrong number of occurrences"
	}
	return ""
}

// isEmpty says whether unused room is all zeros, as it must be.
func isEmpty(room []byte) bool {
	return !slices.ContainsFunc(room, func(c byte) bool { return c != 0 })
}

// checkStored checks a value and the room behind it.
func checkStored(p []byte) string {
	v, room, ok := op.NextValue(p)
	switch {
	case !ok || v.Tag() == op.Null:
		return "no value"
	case len(room) > maxSpare || !isEmpty(room):
		return "more than a value"
	}
	return checkValue(v, 0)
}

func checkValue(v op.Value, depth int) string {
	if depth > maxDepth {
		return "value is nested too deep"
	}
	switch v.Tag() {
	case op.Increment, op.Update, op.ArrayEdit:
		return "operator"
	case op.Array:
		for rest := v.Bytes(); len(rest) > 0; {
			element, tail, ok := op.NextValue(rest)
			if !ok {
				return "array is cut short"
			}
			if what := checkValue(element, depth+1); what != "" {
				return what
			}
			rest = tail
		}
	case op.Object:
		for rest := v.Bytes(); len(rest) > 0; {
			_, member, tail, ok := op.NextMember(rest)
			if !ok {
				return "object is cut short"
			}
			if what := checkValue(member, depth+1); what != "" {
				return what
			}
			rest = tail
		}
	}
	return ""
}
