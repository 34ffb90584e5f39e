package entries

import (
	"bytes"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Keys are copies of the directory keys of a profile. They can be reused after Reset.
type Keys struct {
	List []Key // in the order in which they were added
	buf  []byte
}

// Key is where a directory row lies.
type Key struct {
	ID  op.IDKind // of the identifier
	Key []byte    // see op.IDKind
}

// Reset forgets the keys and reuses their memory.
func (r *Keys) Reset() { r.List, r.buf = r.List[:0], r.buf[:0] }

// Read adds all directory keys of a profile.
func (r *Keys) Read(b []byte) {
	r.AddAddresses(profile.Addresses(b))
	add := func(id op.IDKind, key []byte) { r.List = append(r.List, Key{id, key}) }
	profile.Aliases(b, func(label, name []byte) { add(op.Alias, op.AppendAliasKey(nil, label, name)) })
	home, key := profile.HomeID(b)
	addID := func(id []byte) {
		if len(id) > 0 && (home != op.ExternalID || !bytes.Equal(id, key)) { // the home needs no row
			add(op.ExternalID, append([]byte{}, id...))
		}
	}
	addID(profile.ExternalID(b))
	profile.DeprecatedIDs(b, addID)
}

// AddAddresses adds the keys of an email and a phone, nil for none.
func (r *Keys) AddAddresses(email, phone op.Value) {
	if email != nil {
		r.add(op.Email, email.Bytes())
	}
	if phone != nil {
		r.add(op.Phone, phone.Bytes())
	}
}

func (r *Keys) add(id op.IDKind, key []byte) {
	at := len(r.buf)
	r.buf = AppendKey(r.buf, id, key) // when buf moves, earlier keys keep their old memory
	r.List = append(r.List, Key{id, r.buf[at:len(r.buf):len(r.buf)]})
}

// Addresses are the kinds of identifiers that have states.
var Addresses = [...]op.IDKind{op.Email, op.Phone}

// SameAddresses says whether an attributes body leaves a profile with the email and phone that it has
// (profile.Addresses).
func SameAddresses(email, phone op.Value, body []byte) bool {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			return false
		}
		body = rest
		now := email
		switch code {
		case op.AttrEmail:
		case op.AttrPhone:
			now = phone
		default:
			continue
		}
		if now != nil && !bytes.Equal(now, v) || now == nil && v.Tag() != op.Null {
			return false
		}
	}
	return true
}

// AppendKey appends the key of an identifier in its canonical form.
func AppendKey(dst []byte, id op.IDKind, key []byte) []byte {
	if id == op.Email {
		return op.AppendEmailKey(dst, key)
	}
	return append(dst, key...)
}

// Has says whether a key is among the keys, which it walks: where there may be very many, ask a Set.
func (r *Keys) Has(k Key) bool {
	for _, x := range r.List {
		if x.ID == k.ID && string(x.Key) == string(k.Key) {
			return true
		}
	}
	return false
}

// KeySet has keys of a profile that may have very many.
type KeySet map[setKey]struct{}

type setKey struct {
	id  op.IDKind
	key string
}

// Set is the set of the keys.
func (r *Keys) Set() KeySet {
	set := make(KeySet, len(r.List))
	for _, k := range r.List {
		set[setKey{k.ID, string(k.Key)}] = struct{}{}
	}
	return set
}

// Has says whether a key is in the set.
func (s KeySet) Has(k Key) bool {
	_, ok := s[setKey{k.ID, string(k.Key)}]
	return ok
}

func (r *Keys) Of(id op.IDKind) []byte {
	for _, k := range r.List {
		if k.ID == id {
			return k.Key
		}
	}
	return nil
}
