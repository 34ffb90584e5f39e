package profile

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/op"
)

// ExternalID is the profile's external id, nil when it has none.
func ExternalID(blob []byte) []byte {
	if s := find(blob, tagExternalID); !s.none() {
		return blob[s.start:s.end:s.end]
	}
	if id, key := HomeID(blob); id == op.ExternalID {
		return key
	}
	return nil
}

// Identified says whether the profile has an external id, without reading which.
func Identified(blob []byte) bool {
	id, _ := HomeID(blob)
	return id == op.ExternalID || !find(blob, tagExternalID).none()
}

// DeprecatedIDs calls f for each external id that the profile had in the past and that still leads to it.
func DeprecatedIDs(blob []byte, f func(id []byte)) {
	if id, key := HomeID(blob); id == op.ExternalID && !find(blob, tagExternalID).none() {
		f(key)
	}
	each(blob, tagDeprecated, f)
}

// HasExternalID says whether id is the profile's external id or a deprecated one.
func HasExternalID(blob, id []byte) bool {
	if kind, key := HomeID(blob); kind == op.ExternalID && bytes.Equal(key, id) {
		return true
	}
	if s := find(blob, tagExternalID); !s.none() && bytes.Equal(blob[s.start:s.end], id) {
		return true
	}
	return !findDeprecated(blob, id).none()
}

func findDeprecated(b, id []byte) span {
	return findWhere(b, tagDeprecated, func(payload []byte) bool { return bytes.Equal(payload, id) })
}

func findWhere(b []byte, tag byte, is func(payload []byte) bool) span {
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag && is(b[start:end]) {
			return span{i, start, end}
		}
		i = end
	}
	return span{}
}

// SetExternalID makes id the profile's external id. The one that it had before becomes a deprecated id.
func (e *Editor) SetExternalID(blob, id []byte) []byte {
	before := append([]byte(nil), ExternalID(blob)...)
	if len(id) == 0 || bytes.Equal(before, id) {
		return blob
	}
	home, key := HomeID(blob)
	wasHome, isHome := home == op.ExternalID && bytes.Equal(key, before), home == op.ExternalID && bytes.Equal(key, id)
	blob = e.remove(blob, findDeprecated(blob, id))
	if isHome {
		blob = e.remove(blob, find(blob, tagExternalID))
	} else {
		blob = e.set(blob, find(blob, tagExternalID), tagExternalID, id)
	}
	if len(before) > 0 && !wasHome {
		blob = e.set(blob, span{}, tagDeprecated, before)
	}
	return blob
}

// RemoveDeprecatedID removes a deprecated id; ok is false when the profile doesn't have it. wasHome: it was the home
// identifier, and the profile has no home identifier now. The caller updates the directory.
func (e *Editor) RemoveDeprecatedID(blob, id []byte) (out []byte, wasHome, ok bool) {
	if s := findDeprecated(blob, id); !s.none() {
		return e.remove(blob, s), false, true
	}
	if kind, key := HomeID(blob); kind != op.ExternalID || !bytes.Equal(key, id) || find(blob, tagExternalID).none() {
		return blob, false, false
	}
	return e.rehome(blob, op.NoID, nil), true, true
}

// rehome replaces the home identifier; everything else stays.
func (e *Editor) rehome(blob []byte, id op.IDKind, key []byte) []byte {
	end := fieldsStart(blob)
	blob = e.splice(blob, end, HeaderBytes+len(key)-end)
	blob[1] = byte(id)
	binary.LittleEndian.PutUint16(blob[2:], uint16(len(key)))
	copy(blob[HeaderBytes:], key)
	return blob
}

// Reimport gives an imported profile the identity of the one that it replaces: home, external ids, and where the log
// has its events.
func (e *Editor) Reimport(imported, replaced []byte) []byte {
	for _, tag := range [...]byte{tagExternalID, tagDeprecated, tagBorn, tagFormer} {
		imported = e.removeAll(imported, tag)
	}
	imported = e.rehome(imported, op.IDKind(replaced[1]), replaced[HeaderBytes:fieldsStart(replaced)])
	for i := fieldsStart(replaced); i < len(replaced); {
		tag, start, end := fieldAt(replaced, i)
		switch tag {
		case tagExternalID, tagDeprecated, tagBorn, tagFormer:
			imported = e.set(imported, span{}, tag, replaced[start:end])
		}
		i = end
	}
	return imported
}

// Aliases calls f for each alias. A merge may leave several names under one label (decisions.md D4: no alias is lost).
func Aliases(blob []byte, f func(label, name []byte)) {
	each(blob, tagAlias, func(key []byte) {
		if label, name, ok := op.SplitAliasKey(key); ok {
			f(label, name)
		}
	})
}

func findAlias(b, label []byte) span { return findNamed(b, tagAlias, label) } // the key begins like a named field

// HasAlias says whether the profile has this alias.
func HasAlias(blob, label, name []byte) bool { return !findExactAlias(blob, label, name).none() }

// findExactAlias compares sizes first: a user may have very many aliases, and each grant of one looks at all of them.
func findExactAlias(b, label, name []byte) span {
	size := 2 + len(label) + len(name)
	for i := fieldsStart(b); i < len(b); {
		tag, start, end := fieldAt(b, i)
		if tag == tagAlias && end-start == size && string(b[end-len(name):end]) == string(name) &&
			isNamed(b, start, label) {
			return span{i, start, end}
		}
		if rankOf(tag) > rankOther {
			break
		}
		i = end
	}
	return span{}
}

// AddAlias adds an alias. When the label has a name already, nothing changes and ok says whether that is the same name.
func (e *Editor) AddAlias(blob, label, name []byte) (out []byte, ok bool) {
	if !findAlias(blob, label).none() {
		return blob, HasAlias(blob, label, name)
	}
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	return e.set(blob, span{}, tagAlias, e.tmp), true
}

// RemoveAlias removes an alias, if the profile has it.
func (e *Editor) RemoveAlias(blob, label, name []byte) []byte {
	return e.remove(blob, findExactAlias(blob, label, name))
}

// RenameAlias replaces the name of an alias (/users/alias/update); ok is false when the profile doesn't have the alias.
func (e *Editor) RenameAlias(blob, label, old, name []byte) (out []byte, ok bool) {
	s := findExactAlias(blob, label, old)
	if s.none() {
		return blob, false
	}
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	return e.set(blob, s, tagAlias, e.tmp), true
}
