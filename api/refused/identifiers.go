package refused

import (
	"bytes"
	"encoding/binary"
	"encoding/json"

	"github.com/zeebo/xxh3"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// An entry is removed when a user is deleted whom its object names, in whatever way. So each entry has the hashes of
// everything that its object names; in case of doubt too much is hashed.

// Identifier returns the hash of an identifier in a workspace. key is as in ops, except that for a svc_id it is the
// text in either case, and for a phone it is the digits.
func Identifier(workspace uint32, kind op.IDKind, key []byte) uint64 {
	switch kind {
	case op.Phone:
		key = digitsOf(key)
	case op.SvcID:
		key = bytes.ToLower(key)
	}
	var h xxh3.Hasher
	_, _ = h.Write(binary.LittleEndian.AppendUint32([]byte{byte(kind)}, workspace))
	_, _ = h.Write(key)
	return h.Sum64()
}

// digitsOf returns the digits of a phone number: what separates them differs from client to client.
func digitsOf(number []byte) (digits []byte) {
	for _, c := range number {
		if c >= '0' && c <= '9' {
			digits = append(digits, c)
		}
	}
	return digits
}

// phones reads numbers as ingest does: a number's national form has other digits than the E.164 form in a profile.
var phones = field.NewPhones(1)

// identifiersOf returns the hashes of all identifiers that an object names, even where it may not: such an object was
// refused. all is false when there are more than anybody sends by mistake, which would cost more than everything that
// comes with them, and when the object can't be read to its end.
func identifiersOf(workspace uint32, object []byte) (ids []uint64, all bool) {
	named, numbers := 0, 0
	all = true
	add := func(kind op.IDKind, key []byte) {
		if len(key) > 0 {
			ids = append(ids, Identifier(workspace, kind, key))
		}
	}
	read := eachMember(object, func(name string, value json.RawMessage) {
		switch name {
		case "external_id", "user_alias", "svc_id", "braze_id", "email", "phone":
			named++
		}
		if name == "phone" {
			numbers++
		}
		if all = all && named <= maxNamed && numbers <= maxNumbers; !all {
			return
		}
		text, ok := textOf(value)
		switch {
		case name == "user_alias":
			labels, names := aliasOf(value)
			all = len(labels) <= maxTwice && len(names) <= maxTwice
			for _, label := range labels {
				for _, name := range names {
					add(op.Alias, op.AppendAliasKey(nil, []byte(label), []byte(name)))
				}
			}
		case !ok:
		case name == "external_id":
			add(op.ExternalID, []byte(text))
		case name == "svc_id" || name == "braze_id":
			add(op.SvcID, []byte(text))
		case name == "email":
			add(op.Email, op.AppendEmailKey(nil, []byte(text)))
		case name == "phone":
			add(op.Phone, []byte(text))
			if e164, ok := phones.Parse(nil, []byte(text)); ok {
				add(op.Phone, e164)
			}
		}
	})
	return ids, all && read
}

// Bounds of an object that is kept: how often it may name a user, in whatever way, and how often by phone, since
// reading a phone takes as long as reading a hundred others.
const (
	maxNamed   = 64
	maxNumbers = 2
)

// aliasOf returns the labels and names of an alias object, at most one more than maxTwice: a member may occur twice in
// it, for which it was refused.
func aliasOf(value json.RawMessage) (labels, names []string) {
	eachMember(value, func(name string, value json.RawMessage) {
		text, ok := textOf(value)
		switch {
		case ok && name == "alias_label" && len(labels) <= maxTwice:
			labels = append(labels, text)
		case ok && name == "alias_name" && len(names) <= maxTwice:
			names = append(names, text)
		}
	})
	return labels, names
}

// maxTwice is how often a member that may occur once occurs in an object that is kept.
const maxTwice = 8

// textOf returns the text of a string, or of an integer, which is just as valid as an external id.
func textOf(value json.RawMessage) (text string, ok bool) {
	if len(value) > 0 && (value[0] == '-' || value[0] >= '0' && value[0] <= '9') {
		if text = string(value); text == "-0" {
			text = "0"
		}
		return text, true
	}
	return text, json.Unmarshal(value, &text) == nil && len(value) > 0 && value[0] == '"'
}

// eachMember calls f for each member of a JSON object, in order, those with the same name included. What is no object
// has none. It returns false when a member can't be read: encoding/json has a bound for the depth of values.
func eachMember(object []byte, f func(name string, value json.RawMessage)) (read bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return true
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return false
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return false
		}
		f(name.(string), value)
	}
	return true
}
