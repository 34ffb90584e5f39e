// Package value reads the JSON of requests strictly and without building a tree (decisions.md D1). A struct decoder
// would fold the case of member names and replace invalid UTF-8, both of which can turn two users' ids into one;
// decoding into `any` takes fifty times the body's memory. Instead, Check proves the grammar once; after that a Value
// is a piece of the text that is walked without errors.
package value

import (
	"bytes"
	"errors"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/shard/jsonvalue"
)

// maxNesting is how deep an object may be nested (D1); grammarNesting is how deep the scanner goes before it refuses
// the request.
const (
	maxNesting     = 32
	grammarNesting = 512
)

// Check proves that text is one JSON object by RFC 8259, in valid UTF-8.
func Check(text []byte) (Value, error) {
	c := checker{text: text, depth: grammarNesting}
	start := c.space(0)
	end := c.value(start, 1)
	if end < 0 {
		return nil, c.err
	}
	if i := c.space(end); i != len(text) {
		return nil, &badJSON{i, "unexpected data after the object"}
	}
	if text[start] != '{' {
		return nil, errNoObject
	}
	return Value(text[start:end]), nil
}

// errNoObject is the error for JSON that is not an object; its grammar is good.
var errNoObject = errors.New("the body must be an object")

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
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), true
	}
	b, err := jsontext.AppendUnquote(make([]byte, 0, len(v)), v)
	return string(b), err == nil
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
	var c checker
	for quoted, m := range v.pairs() {
		name, ok := c.unquoted(quoted)
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
		for i := skipSpace(v, 1); v[i] != '}'; {
			nameEnd := skip(v, i)
			name := v[i:nameEnd]
			i = skipSpace(v, skipSpace(v, nameEnd)+1)
			end := skip(v, i)
			if !yield(name, v[i:end]) {
				return
			}
			if i = skipSpace(v, end); v[i] == ',' {
				i = skipSpace(v, i+1)
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
		for i := skipSpace(v, 1); v[i] != ']'; n++ {
			end := skip(v, i)
			if !yield(n, v[i:end]) {
				return
			}
			if i = skipSpace(v, end); v[i] == ',' {
				i = skipSpace(v, i+1)
			}
		}
	}
}

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

// Unsafe returns what is grammatical but not to be trusted in v (D1): a duplicate member name, a lone surrogate,
// nesting deeper than 32. It is empty when there is nothing.
func (v Value) Unsafe() string { return v.inspect(checker{}) }

// UnsafeRequest is Unsafe for a whole body, apart from objects in its arrays, which are judged one by one by whoever
// reads the array.
func (v Value) UnsafeRequest() string { return v.inspect(checker{outline: true}) }

func (v Value) inspect(c checker) string {
	c.text, c.depth, c.strict = v, maxNesting+1, true
	if c.value(0, 1) < 0 {
		return c.err.what
	}
	return ""
}

// AppendQuoted appends text as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendQuoted[T []byte | string](dst []byte, text T) []byte {
	return jsonvalue.AppendString(dst, text)
}

// WithComma appends a comma if something precedes in the array or object that dst ends in.
func WithComma(dst []byte) []byte { return jsonvalue.AppendComma(dst) }
