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
