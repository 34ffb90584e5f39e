// Package value is JSON as requests bring it, read strictly and without building a tree (decisions.md D1). A struct
// decoder would fold the case of member names and replace invalid UTF-8, both of which can join two users' ids into
// one; decoding into `any` takes fifty times the body's memory. So: Check proves the grammar once, after which a Value
// is a piece of the text that is walked without errors.
package value

import (
	"bytes"
	"errors"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/shard/profile"
)

// maxNesting is how deep an object may nest (D1); grammarNesting, how deep the scanner goes before it refuses the
// request.
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

// errNoObject is what is wrong with JSON that is no object; its grammar is good.
var errNoObject = errors.New("the body must be an object")

// Value is the text of one JSON value, checked by Check; it is a view of the body. The nil value is an absent member.
type Value []byte

// Absent, IsObject, IsArray and IsString say what a value is; null counts as absent.
func (v Value) Absent() bool   { return len(v) == 0 || v[0] == 'n' }
func (v Value) IsObject() bool { return len(v) > 0 && v[0] == '{' }
func (v Value) IsArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v Value) IsString() bool { return len(v) > 0 && v[0] == '"' }

// Str is the text of a string; ok is false for any other value and for one with a lone surrogate.
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

// ID is the text of an identifier: a string, or an integer as its digits (D3). The integer -0 is 0, as in /users/track.
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

// Bool is a JSON boolean.
func (v Value) Bool() (b, ok bool) {
	return string(v) == "true", string(v) == "true" || string(v) == "false"
}

// Members walks an object; any other value has none. Names are resolved; one with a lone surrogate comes as it is
// written, quotes included.
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

// Pick finds the members of an object that have these names; the nil value stands for one that isn't there.
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

// Member is the member of an object with this name, the nil value when there is none.
func (v Value) Member(name string) Value { return v.Pick(name)[0] }

// Some says whether v is there and, when it is an array, has elements.
func (v Value) Some() bool { return !v.Absent() && (!v.IsArray() || v.Count(0) > 0) }

// pairs walks an object with its names as they are written.
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

// Elements walks an array; any other value has none.
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

// Count is the number of elements, counted no further than limit+1.
func (v Value) Count(limit int) int {
	n := 0
	for range v.Elements() {
		if n++; n > limit {
			break
		}
	}
	return n
}

// Unsafe says what is grammatical but not to be trusted in v (D1): a member name twice, a lone surrogate, nesting
// deeper than 32. Empty: nothing.
func (v Value) Unsafe() string { return v.inspect(checker{}) }

// UnsafeRequest is Unsafe for a whole body, apart from objects in its arrays: those are judged one by one, by whoever
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
	return profile.AppendJSONString(dst, text)
}

// WithComma appends a comma when something stands before in the array or object that dst ends in.
func WithComma(dst []byte) []byte {
	if last := dst[len(dst)-1]; last != '[' && last != '{' {
		dst = append(dst, ',')
	}
	return dst
}
