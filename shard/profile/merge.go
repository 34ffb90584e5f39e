package profile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"millrace/shard/op"
)

// MergeMode says what the kept profile gets from the merged one.
type MergeMode uint8

const (
	// MergeUsers is /users/merge: service.md 4.2.
	MergeUsers MergeMode = iota
	// MergeIdentify is /users/identify with merge_behavior merge: MergeUsers and the email (service.md 4.10 rule 4).
	MergeIdentify
	// MergeNone is /users/identify with merge_behavior none: aliases and push tokens only (service.md 4.10 rule 3).
	MergeNone
)

// Brings says whether a profile that has no address of a kind gets that of the merged profile.
func (m MergeMode) Brings(id op.IDKind) bool {
	return m == MergeIdentify || m == MergeUsers && id == op.Phone
}

// Merge merges profile gone into keep, whose home, external id and time of creation stay. out is scratch, whatever room
// keep has; keep and gone are only read, and may be the out of an earlier call. But a keep that the Editor has in hand
// may be changed in place: see isFew. The caller updates the directory: gone's aliases are keep's now, and so is the
// phone, and with MergeIdentify the email, where keep had none.
//
//   - Attributes: gone's where keep has none. Those that belong to an email (the tracking switches) come only together
//     with the email itself.
//   - Subscription states, push_subscribe and the spam mark: gone's are not taken (decisions.md D5; service.md 4.2 and
//     4.10 don't list them); the states of an address hold for whoever gets the address.
//   - Push tokens: both, keep's where app and token are the same. They are device information that keep lacks.
//   - Events and products: counts are added, first is the earlier, last the later, recent occurrences are joined and
//     cut to the limits. Revenue is added per currency.
//   - Sessions: the total is always added (decisions.md D4); an app's sessions and dates are merged when both have the
//     app, and are lost with gone when keep doesn't have it. First and last session date: the earlier and the later.
//   - Aliases: both. No name is lost when both have one under the same label (decisions.md D4).
//   - Where the log has its events (Former): both. gone's external ids, current and deprecated, don't become keep's.
//   - Blocked when one of them is, or when together they cross a limit.
//   - The last update is the merge, at stamp, or whatever is later.
func (e *Editor) Merge(keep, gone []byte, mode MergeMode, stamp int64, lim *Limits) (out []byte) {
	if lim == nil {
		lim = &defaultLimits
	}
	e.indexFields(gone)
	email := mode.Brings(op.Email) && find(keep, tagEmail).none() && !find(gone, tagEmail).none()
	if e.isFew(keep) {
		out = e.mergeFew(keep, gone, mode, email)
	} else {
		out = e.mergeAll(keep, gone, mode, email)
	}
	touch(out, max(stamp, Updated(gone)))
	if !Blocked(out) && (e.isOver(out, tagEvent, lim) || e.isOver(out, tagProduct, lim) ||
		e.isOver(out, tagCustom, lim) || Sessions(out) > maxSessions) {
		out = e.block(out)
	}
	clear(e.fields)
	return out
}

// mergeAll writes the merged profile anew.
func (e *Editor) mergeAll(keep, gone []byte, mode MergeMode, email bool) (out []byte) {
	head := fieldsStart(keep)
	out = append(slices.Grow(e.spare[:0], len(keep)+len(gone)+64), keep[:head]...)
	if Blocked(keep) || Blocked(gone) && mode != MergeNone {
		out = appendFieldHeader(out, tagBlocked, 0)
	}
	i, j := head, fieldsStart(gone)
	for rank := range rankMany + 1 {
		for i < len(keep) {
			tag, start, end := fieldAt(keep, i)
			if rankOf(tag) > rank {
				break
			}
			if tag != tagBlocked {
				out = e.mergeField(out, tag, keep[i:start], keep[start:end], mode)
			}
			i = end
		}
		for j < len(gone) {
			tag, start, end := fieldAt(gone, j)
			if rankOf(tag) > rank {
				break
			}
			if r := e.goneField(tag, gone[start:end]); r != nil && !r.used && movesAlone(tag, mode, email) {
				out = append(out, gone[j:end]...)
			}
			j = end
		}
	}
	e.spare, e.buf = e.buf, out
	e.index.leave()
	return out
}

// isFew says whether the profile in hand has an index, and the one that is merged into it so few fields that finding
// the place of each, and moving what is behind it, costs less than writing all anew. The bytes that come out are the
// same.
func (e *Editor) isFew(keep []byte) bool {
	return e.index.on && len(e.fields)*len(keep) <= 2*indexedWork
}

// mergeFew merges the fields of gone into keep one by one.
func (e *Editor) mergeFew(keep, gone []byte, mode MergeMode, email bool) (out []byte) {
	out = keep
	if Blocked(gone) && mode != MergeNone {
		out = e.block(out)
	}
	for j := fieldsStart(gone); j < len(gone); {
		tag, start, end := fieldAt(gone, j)
		payload := gone[start:end]
		j = end
		switch s := e.findKey(out, tag, fieldKey(tag, payload)); {
		case tag == tagBlocked:
		case !s.none():
			e.spare = e.mergeField(e.spare[:0], tag, out[s.at:s.start], out[s.start:s.end], mode)
			_, start, end := fieldAt(e.spare, 0)
			out = e.set(out, s, tag, e.spare[start:end])
		case movesAlone(tag, mode, email):
			out = e.set(out, s, tag, payload)
		}
	}
	return out
}

// isOver says whether a merged profile has more fields with tag than are allowed, some of which may have come by the
// merge.
func (e *Editor) isOver(out []byte, tag byte, lim *Limits) bool {
	came := slices.ContainsFunc(e.fields, func(r ref) bool { return r.tag == tag })
	return came && overLimit(out, tag, lim)
}

// movesAlone says whether a field of gone that has no counterpart in keep becomes keep's.
func movesAlone(tag byte, mode MergeMode, email bool) bool {
	switch tag {
	case tagAlias, tagFormer, reservedTag(op.AttrPushTokens):
		return true
	case tagBlocked, tagExternalID, tagDeprecated, tagBorn, tagApp, tagGroup, tagEmailState,
		reservedTag(op.AttrEmailSubscribe), tagPushState, reservedTag(op.AttrPushSubscribe), tagJoined, tagLeave,
		tagSpamSet, reservedTag(op.AttrMarkedEmailAsSpamAt):
		return false
	case tagEmail, reservedTag(op.AttrEmailOpenTrackingOff), reservedTag(op.AttrEmailClickTrackingOff):
		return email
	}
	return mode != MergeNone
}

// mergeField appends keep's field (header and payload) as changed by its counterpart in gone, and marks that one as
// used.
func (e *Editor) mergeField(out []byte, tag byte, header, payload []byte, mode MergeMode) []byte {
	r := e.goneField(tag, payload)
	if r != nil {
		r.used = true
	}
	if r == nil || mode == MergeNone && tag != reservedTag(op.AttrPushTokens) {
		return append(append(out, header...), payload...)
	}
	switch tag {
	case tagEvent, tagProduct, tagApp:
		name, mine := splitName(payload)
		_, theirs := splitName(r.value)
		return appendMerged(out, tag, name, mine, theirs)
	case tagRevenue:
		sum := saturatingAdd(int64(binary.LittleEndian.Uint64(payload[3:])),
			int64(binary.LittleEndian.Uint64(r.value[3:])))
		out = append(append(out, header...), payload[:3]...)
		return binary.LittleEndian.AppendUint64(out, uint64(sum))
	case tagSessions:
		mine, theirs := binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(r.value)
		return binary.LittleEndian.AppendUint64(append(out, header...), saturatingSum(mine, theirs))
	case reservedTag(op.AttrPushTokens):
		tokens := e.mergeTokens(content(valueIn(r.value), op.Array), content(valueIn(payload), op.Array))
		return appendField(out, tag, tokens)
	case reservedTag(op.AttrDateOfFirstSession), reservedTag(op.AttrDateOfLastSession):
		mine, theirs := op.Value(payload), op.Value(r.value)
		earlier := tag == reservedTag(op.AttrDateOfFirstSession)
		if theirs.Tag() == op.Time && (mine.Tag() != op.Time || theirs.Millis() < mine.Millis() == earlier) {
			return appendField(out, tag, theirs)
		}
	}
	return append(append(out, header...), payload...)
}

func appendMerged(out []byte, tag byte, name, mine, theirs []byte) []byte {
	a, b := readSummary(mine), readSummary(theirs)
	if a.Last < b.Last {
		a, b = b, a
	}
	var room [hoursBytes]byte
	h := hours(room[:])
	copy(h, a.recent)
	h.join(hourOf(a.Last), b.recent, hourOf(b.Last))
	return appendSummary(out, tag, name, Summary{saturatingSum(a.Count, b.Count), min(a.First, b.First), a.Last, h})
}

// appendSummary appends a field with s, without room for more hours.
func appendSummary(dst []byte, tag byte, name []byte, s Summary) []byte {
	h := s.recent[:1+2*s.recent.len()]
	dst = appendFieldHeader(dst, tag, 2+len(name)+summaryFixed+len(h))
	dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(name))), name...)
	at := len(dst)
	dst = slices.Grow(dst, summaryFixed)[:at+summaryFixed]
	putSummary(dst[at:], s.Count, s.First, s.Last)
	return append(dst, h...)
}

func saturatingSum(a, b uint64) uint64 { return min(a+b, maxCount) }

// indexFields fills e.fields with the fields of a profile, sorted by tag and key, so that merging two dummy users
// doesn't take quadratic time.
func (e *Editor) indexFields(b []byte) {
	e.fields = e.fields[:0]
	for i := fieldsStart(b); i < len(b); {
		tag, start, end := fieldAt(b, i)
		e.fields = append(e.fields, ref{tag: tag, key: fieldKey(tag, b[start:end]), value: b[start:end]})
		i = end
	}
	slices.SortStableFunc(e.fields, compareFields)
}

// goneField finds the field that has the same meaning as one with tag and payload.
func (e *Editor) goneField(tag byte, payload []byte) *ref {
	i, ok := slices.BinarySearchFunc(e.fields, ref{tag: tag, key: fieldKey(tag, payload)}, compareFields)
	if !ok {
		return nil
	}
	return &e.fields[i]
}

func compareFields(a, b ref) int {
	return cmp.Or(cmp.Compare(a.tag, b.tag), bytes.Compare(a.key, b.key))
}

// findKey finds the field with tag and key.
func (e *Editor) findKey(b []byte, tag byte, key []byte) span {
	switch {
	case isNamedTag(tag):
		return e.findNamed(b, tag, key)
	case tag == tagAlias, tag == tagDeprecated:
		return e.findWhole(b, tag, key)
	}
	return e.findPrefix(b, tag, key)
}
