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

// IsNamed says whether a profile that the directory names for an identifier has that identifier: the row of an alias or
// external id, also a deprecated one, is a promise until the profile has taken the name. For an email or phone, which
// names all who have it, the row's word is enough.
func IsNamed(blob []byte, id op.IDKind, key []byte) bool {
	tag, named := nameTag(blob, id, key)
	return named || !findWhole(blob, tag, key).none()
}

// IsNamed is the function IsNamed, by the index of the profile in hand.
func (e *Editor) IsNamed(blob []byte, id op.IDKind, key []byte) bool {
	tag, named := nameTag(blob, id, key)
	return named || !e.findWhole(blob, tag, key).none()
}

// nameTag is the tag of the field that has the identifier, if the profile is not known to be named so without a search.
func nameTag(blob []byte, id op.IDKind, key []byte) (tag byte, named bool) {
	switch id {
	case op.Alias:
		return tagAlias, false
	case op.ExternalID:
		kind, home := HomeID(blob)
		now := ExternalID(blob)
		return tagDeprecated, now != nil && (bytes.Equal(now, key) || kind == op.ExternalID && bytes.Equal(home, key))
	}
	return 0, true
}

// findWhole finds the field with tag and payload.
func findWhole(b []byte, tag byte, payload []byte) span {
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag && string(b[start:end]) == string(payload) {
			return span{i, start, end}
		}
		i = end
	}
	return span{}
}

// findWhole and findLabel of an Editor use the index when the profile in hand has one.

func (e *Editor) findWhole(b []byte, tag byte, payload []byte) span {
	if !e.index.on {
		return findWhole(b, tag, payload)
	}
	return e.index.find(b, tag, payload)
}

// findLabel finds the first alias with a label, or any of them.
func (e *Editor) findLabel(b, label []byte) span {
	if !e.index.on {
		return findNamed(b, tagAlias, label) // an alias begins like a named field
	}
	return e.index.findLabel(b, label)
}

// SetExternalID makes id the profile's external id. The one that it had before becomes a deprecated id.
func (e *Editor) SetExternalID(blob, id []byte) []byte {
	before := append([]byte(nil), ExternalID(blob)...)
	if len(id) == 0 || bytes.Equal(before, id) {
		return blob
	}
	home, key := HomeID(blob)
	wasHome, isHome := home == op.ExternalID && bytes.Equal(key, before), home == op.ExternalID && bytes.Equal(key, id)
	blob = e.remove(blob, e.findWhole(blob, tagDeprecated, id))
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
	if s := e.findWhole(blob, tagDeprecated, id); !s.none() {
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

// HasName says whether an external id or an alias names the profile. An address doesn't: others may have it, too.
func HasName(blob []byte) bool {
	has := Identified(blob)
	Aliases(blob, func(_, _ []byte) { has = true })
	return has
}

// AddAlias adds an alias. When the label has a name already, nothing changes and ok says whether that is the same name.
func (e *Editor) AddAlias(blob, label, name []byte) (out []byte, ok bool) {
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	if !e.findLabel(blob, label).none() {
		return blob, e.IsNamed(blob, op.Alias, e.tmp)
	}
	return e.set(blob, span{}, tagAlias, e.tmp), true
}

// RemoveAlias removes an alias, if the profile has it.
func (e *Editor) RemoveAlias(blob, label, name []byte) []byte {
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	return e.remove(blob, e.findWhole(blob, tagAlias, e.tmp))
}

// RenameAlias replaces the name of an alias (/users/alias/update); ok is false when the profile doesn't have the alias.
func (e *Editor) RenameAlias(blob, label, old, name []byte) (out []byte, ok bool) {
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, old)
	s := e.findWhole(blob, tagAlias, e.tmp)
	if s.none() {
		return blob, false
	}
	e.tmp = op.AppendAliasKey(e.tmp[:0], label, name)
	if !e.index.on {
		return e.set(blob, s, tagAlias, e.tmp), true
	}
	e.index.drop(blob, s.at)
	out = e.set(blob, s, tagAlias, e.tmp)
	if e.index.on {
		e.index.made = s.at
	}
	return out, true
}
