package profile

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/op"
)

// ExternalID is the profile's external id, nil when it has none.
func ExternalID(blob []byte) []byte {
	if id, key := HomeID(blob); id == op.ExternalID {
		return key
	}
	s := find(blob, tagExternalID)
	if s.none() {
		return nil
	}
	return blob[s.start:s.end:s.end]
}

// SetExternalID gives an external id to a profile whose home is another identifier; an empty id takes it away. In a profile that was made
// with an external id that one is the home key and stays: rename such a profile with Rehome.
func (e *Editor) SetExternalID(blob, id []byte) []byte {
	if home, _ := HomeID(blob); home == op.ExternalID {
		return blob
	}
	s := find(blob, tagExternalID)
	if len(id) == 0 {
		return e.remove(blob, s)
	}
	return e.set(blob, s, tagExternalID, id)
}

// Rehome replaces the home identifier, all else stays: /users/external_ids/rename and /remove. The caller answers for the
// directory. key may be a view of blob.
func (e *Editor) Rehome(blob []byte, id op.IDKind, key []byte) []byte {
	e.tmp = append(e.tmp[:0], key...) // often a view of this very blob
	key = e.tmp
	end := fieldsStart(blob)
	blob = e.splice(blob, end, HeaderBytes+len(key)-end)
	blob[1] = byte(id)
	binary.LittleEndian.PutUint16(blob[2:], uint16(len(key)))
	copy(blob[HeaderBytes:], key)
	if id == op.ExternalID {
		blob = e.remove(blob, find(blob, tagExternalID))
	}
	return blob
}

// Aliases calls f for each alias. A merge may leave several names under one label (decisions.md D4: no alias is lost).
func Aliases(blob []byte, f func(label, name []byte)) {
	each(blob, tagAlias, func(key []byte) {
		if label, name, ok := op.SplitAliasKey(key); ok {
			f(label, name)
		}
	})
}

// Alias is the first name under label.
func Alias(blob, label []byte) (name []byte, ok bool) {
	s := findAlias(blob, label)
	if s.none() {
		return nil, false
	}
	return blob[s.start+2+len(label) : s.end : s.end], true
}

func findAlias(b, label []byte) span { return findNamed(b, tagAlias, label) } // the key begins as a named field does

// HasAlias says whether the profile holds this alias.
func HasAlias(blob, label, name []byte) bool { return !findExactAlias(blob, label, name).none() }

func findExactAlias(b, label, name []byte) span {
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tagAlias {
			if l, n, ok := op.SplitAliasKey(b[start:end]); ok && bytes.Equal(l, label) && bytes.Equal(n, name) {
				return span{i, start, end}
			}
		}
		i = end
	}
	return span{}
}

// AddAlias adds an alias. When the label has a name already, nothing changes and ok says whether it is the same name.
func (e *Editor) AddAlias(blob, label, name []byte) (out []byte, ok bool) {
	if !findAlias(blob, label).none() {
		return blob, HasAlias(blob, label, name)
	}
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	return e.set(blob, span{}, tagAlias, e.tmp), true
}

// RemoveAlias removes an alias, if the profile holds it.
func (e *Editor) RemoveAlias(blob, label, name []byte) []byte {
	return e.remove(blob, findExactAlias(blob, label, name))
}

// RenameAlias replaces the name of an alias (/users/alias/update); ok is false when the profile does not hold it.
func (e *Editor) RenameAlias(blob, label, old, name []byte) (out []byte, ok bool) {
	s := findExactAlias(blob, label, old)
	if s.none() {
		return blob, false
	}
	return e.setNamed(blob, s, tagAlias, label, name), true
}

// GroupState is the state in a subscription group: when it was set (Unix µs) and by whom (op.Record.Actor). ok is false when it was never
// set, which reads as Unknown.
func GroupState(blob []byte, id [16]byte) (subscribed bool, changed int64, actor uint32, ok bool) {
	s := findPrefix(blob, tagGroup, id[:])
	if s.none() {
		return false, 0, 0, false
	}
	_, subscribed, changed, actor = splitGroup(blob[s.start:s.end])
	return subscribed, changed, actor, true
}

// Groups calls f for each subscription group with a state.
func Groups(blob []byte, f func(id [16]byte, subscribed bool, changed int64, actor uint32)) {
	each(blob, tagGroup, func(p []byte) { f(splitGroup(p)) })
}

func splitGroup(p []byte) (id [16]byte, subscribed bool, changed int64, actor uint32) {
	return [16]byte(p), p[16] != 0, int64(binary.LittleEndian.Uint64(p[17:])), binary.LittleEndian.Uint32(p[25:])
}

// SetGroupState sets the state in a subscription group. Updated is the caller's to set.
func (e *Editor) SetGroupState(blob []byte, id [16]byte, subscribed bool, stamp int64, actor uint32) []byte {
	b, p := e.resize(blob, findPrefix(blob, tagGroup, id[:]), tagGroup, groupBytes)
	copy(b[p:], id[:])
	b[p+16] = 0
	if subscribed {
		b[p+16] = 1
	}
	binary.LittleEndian.PutUint64(b[p+17:], uint64(stamp))
	binary.LittleEndian.PutUint32(b[p+25:], actor)
	return b
}

// RemoveGroup forgets the state in a subscription group.
func (e *Editor) RemoveGroup(blob []byte, id [16]byte) []byte {
	return e.remove(blob, findPrefix(blob, tagGroup, id[:]))
}

// ContactState is the state of op.AttrEmailSubscribe or op.AttrPushSubscribe (opted_in, subscribed, unsubscribed; empty after a removal),
// when it was set (Unix µs) and by whom. ok is false when it was never set.
func ContactState(blob []byte, code uint32) (state []byte, changed int64, actor uint32, ok bool) {
	if v, has := Attr(blob, code); has && v.Tag() == op.String {
		state = v.Bytes()
	}
	s := find(blob, changeTag(code))
	if !s.none() {
		changed, actor = int64(binary.LittleEndian.Uint64(blob[s.start:])), binary.LittleEndian.Uint32(blob[s.start+8:])
	}
	return state, changed, actor, state != nil || !s.none()
}

func changeTag(code uint32) byte {
	if code == op.AttrEmailSubscribe {
		return tagEmailState
	}
	return tagPushState
}

// SetContactState sets the state of op.AttrEmailSubscribe or op.AttrPushSubscribe with time and actor; an empty state removes it, which
// is a change too. Updated is the caller's to set.
func (e *Editor) SetContactState(blob []byte, code uint32, state []byte, changed int64, actor uint32) []byte {
	blob = e.markChange(blob, code, changed, actor)
	if len(state) == 0 {
		return e.RemoveAttr(blob, code)
	}
	e.tmp = op.AppendString(e.tmp[:0], state)
	return e.SetAttr(blob, code, e.tmp)
}

// ForgetContactState removes the state and the memory of its change: it reads as never set.
func (e *Editor) ForgetContactState(blob []byte, code uint32) []byte {
	blob = e.RemoveAttr(blob, code)
	return e.remove(blob, find(blob, changeTag(code)))
}

func (e *Editor) markChange(b []byte, code uint32, changed int64, actor uint32) []byte {
	tag := changeTag(code)
	b, p := e.resize(b, find(b, tag), tag, changeBytes)
	binary.LittleEndian.PutUint64(b[p:], uint64(changed))
	binary.LittleEndian.PutUint32(b[p+8:], actor)
	return b
}

// HardBounce is when the profile's address was marked as a hard bounce (Unix µs).
func HardBounce(blob []byte) (at int64, ok bool) {
	s := find(blob, tagHardBounce)
	if s.none() {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(blob[s.start:])), true
}

// SetHardBounce sets the mark, 0 clears it.
func (e *Editor) SetHardBounce(blob []byte, at int64) []byte {
	s := find(blob, tagHardBounce)
	if at == 0 {
		return e.remove(blob, s)
	}
	b, p := e.resize(blob, s, tagHardBounce, 8)
	binary.LittleEndian.PutUint64(b[p:], uint64(at))
	return b
}

// SpamMark is marked_email_as_spam_at (Unix ms).
func SpamMark(blob []byte) (atMillis int64, ok bool) {
	v, ok := Attr(blob, op.AttrMarkedEmailAsSpamAt)
	if !ok || v.Tag() != op.Time {
		return 0, false
	}
	return v.Millis(), true
}

// SetSpamMark sets marked_email_as_spam_at, 0 clears it.
func (e *Editor) SetSpamMark(blob []byte, atMillis int64) []byte {
	if atMillis == 0 {
		return e.RemoveAttr(blob, op.AttrMarkedEmailAsSpamAt)
	}
	e.tmp = op.AppendTime(e.tmp[:0], atMillis)
	return e.SetAttr(blob, op.AttrMarkedEmailAsSpamAt, e.tmp)
}
