// Package value reads the JSON of requests strictly and without building a tree (decisions.md D1). A struct decoder
// would fold the case of member names and replace invalid UTF-8, both of which can turn two users' ids into one;
// decoding into `any` takes fifty times the body's memory. Instead, Check proves the grammar once; after that a Value
// is a piece of the text that is walked without errors.
package value

import (
	"bytes"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/ingest/grammar"
	"millrace/shard/jsonvalue"
)

// Value is the text of one JSON value, checked by Check; it is a view of the body. The nil value is an absent member.
type Value []byte

// Absent, IsObject, IsArray and IsString say what a value is; null counts as absent.
func (v Value) Absent() bool   { return len(v) == 0 || v[0] == 'n' }
func (v Value) IsObject() bool { return len(v) > 0 && v[0] == '{' }
func (v Value) IsArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v Value) IsString() bool { return len(v) > 0 && v[0] == '"' }

// Str returns the text of a string; ok is false for any other value and for a string with a lone surrogate.
func (v Value) Str() (text string, ok bool) {
	if !v.IsString() {
		return "", false
	}
	var scratch []byte
	b, ok := v.unquoted(&scratch)
	return string(b), ok
}

// unquoted is Str of a string, as a part of v, or in scratch if it is written with an escape.
func (v Value) unquoted(scratch *[]byte) (text []byte, ok bool) {
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], true
	}
	var err error
	*scratch, err = jsontext.AppendUnquote((*scratch)[:0], v)
	return *scratch, err == nil
}

// ID returns the text of an identifier: a string, or an integer as its digits (D3).
func (v Value) ID() (text string, ok bool) {
	if v.IsString() {
		return v.Str()
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return "", false
	}
	return strconv.FormatInt(n, 10), true
}

// Bool returns a JSON boolean.
func (v Value) Bool() (b, ok bool) {
	return string(v) == "true", string(v) == "true" || string(v) == "false"
}

// Members walks an object; any other value has no members. Names are unescaped; a name with a lone surrogate comes as
// it is written, quotes included.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for quoted, m := range v.pairs() {
			name, ok := quoted.Str()
			if !ok {
				name = string(quoted)
			}
			if !yield(name, m) {
				return
			}
		}
	}
}

// Pick finds the members of an object with these names; a missing member is the nil value.
func (v Value) Pick(names ...string) []Value {
	found := make([]Value, len(names))
	var scratch []byte
	for quoted, m := range v.pairs() {
		name, ok := quoted.unquoted(&scratch)
		for i := range names {
			if ok && string(name) == names[i] {
				found[i] = m
			}
		}
	}
	return found
}

// Member returns the member of an object with this name, the nil value when there is none.
func (v Value) Member(name string) Value { return v.Pick(name)[0] }

// Some reports whether v is there and, if it is an array, has elements.
func (v Value) Some() bool { return !v.Absent() && (!v.IsArray() || v.Count(0) > 0) }

// pairs walks an object, with its names as they are written.
func (v Value) pairs() iter.Seq2[Value, Value] {
	return func(yield func(Value, Value) bool) {
		if !v.IsObject() {
			return
		}
		for i := v.first(0); v[i] != '}'; i = v.next(i) {
			nameEnd := grammar.SkipString(v, i)
			name, from := v[i:nameEnd], v.afterColon(nameEnd)
			if i = grammar.Skip(v, from); !yield(name, v[from:i]) {
				return
			}
		}
	}
}

// Elements walks an array; any other value has no elements.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if !v.IsArray() {
			return
		}
		n := 0
		for i := v.first(0); v[i] != ']'; i = v.next(i) {
			from := i
			if i = grammar.Skip(v, from); !yield(n, v[from:i]) {
				return
			}
			n++
		}
	}
}

// first returns the index of the first member or element of what opens at i, or of the bracket that closes it.
func (v Value) first(i int) int { return grammar.Blanks(v, i+1) }

// next does the same for the next one; i is behind the last.
func (v Value) next(i int) int {
	if i = grammar.Blanks(v, i); v[i] == ',' {
		i = grammar.Blanks(v, i+1)
	}
	return i
}

// afterColon returns the index of a member's value; i is behind the name.
func (v Value) afterColon(i int) int { return grammar.Blanks(v, grammar.Blanks(v, i)+1) }

// Count returns the number of elements, counted only up to limit+1.
func (v Value) Count(limit int) int {
	n := 0
	for range v.Elements() {
		if n++; n > limit {
			break
		}
	}
	return n
}

// AppendQuoted appends text as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendQuoted[T []byte | string](dst []byte, text T) []byte {
	return jsonvalue.AppendString(dst, text)
}

// WithComma appends a comma if something precedes in the array or object that dst ends in.
func WithComma(dst []byte) []byte { return jsonvalue.AppendComma(dst) }
