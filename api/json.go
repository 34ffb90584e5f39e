package api

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/shard/profile"
)

// Bodies of the companion API, read strictly and without building a tree (decisions.md D1). A struct decoder would fold
// the case of member names and replace invalid UTF-8, both of which can join two users' ids into one; decoding into
// `any` takes fifty times the body's memory. So: checkJSON proves the grammar once, after which a value is a piece of
// the text that is walked without errors.

// maxNesting is how deep an object may nest (D1); grammarNesting, how deep the scanner goes before it refuses the
// request.
const (
	maxNesting     = 32
	grammarNesting = 512
)

// A badJSON says where the grammar is broken, or what is unsafe.
type badJSON struct {
	offset int
	what   string
}

func (e *badJSON) Error() string {
	return fmt.Sprintf("Invalid JSON at byte %d: %s", e.offset, e.what)
}

// checkJSON proves that text is one JSON object by RFC 8259, in valid UTF-8.
func checkJSON(text []byte) (value, error) {
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
	return value(text[start:end]), nil
}

// errNoObject is what is wrong with JSON that is no object; its grammar is good.
var errNoObject = errors.New("the body must be an object")

// checker walks a text and finds the first fault: of grammar, and when it is strict, what is grammatical but not to be
// trusted (D1), too: a member name twice, a lone surrogate. It goes over each byte once.
type checker struct {
	text  []byte
	depth int // how deep values may nest
	err   *badJSON

	strict  bool
	outline bool     // objects in the arrays of the outermost object are passed over; their grammar must be good
	names   [][]byte // of the objects that the walk is in, the innermost last; see isNew
	scratch []byte
}

func (c *checker) fail(i int, what string) int {
	c.err = &badJSON{i, what}
	return -1
}

func (c *checker) at(i int) byte {
	if i < len(c.text) {
		return c.text[i]
	}
	return 0
}

func (c *checker) space(i int) int {
	for i < len(c.text) && (c.text[i] == ' ' || c.text[i] == '\n' || c.text[i] == '\r' || c.text[i] == '\t') {
		i++
	}
	return i
}

// value returns the index behind the value at i, or -1.
func (c *checker) value(i, depth int) int {
	if depth > c.depth {
		return c.fail(i, "nested too deeply")
	}
	switch b := c.at(i); {
	case b == '{':
		return c.object(i+1, depth)
	case b == '[':
		return c.array(i+1, depth)
	case b == '"':
		end := c.str(i + 1)
		if end > 0 && c.strict {
			if _, ok := c.unquoted(c.text[i:end]); !ok {
				return c.fail(i, "a lone surrogate in a string")
			}
		}
		return end
	case b == '-' || b >= '0' && b <= '9':
		return c.number(i)
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(c.text[min(i, len(c.text)):], []byte(word)) {
			return i + len(word)
		}
	}
	return c.fail(i, "a value is expected")
}

func (c *checker) object(i, depth int) int {
	i = c.space(i)
	if c.at(i) == '}' {
		return i + 1
	}
	first := len(c.names)
	var many map[string]struct{}
	for {
		if i = c.space(i); c.at(i) != '"' {
			return c.fail(i, "a member name is expected")
		}
		end := c.str(i + 1)
		if end < 0 || c.strict && !c.name(i, end, first, &many) {
			return -1
		}
		if i = c.space(end); c.at(i) != ':' {
			return c.fail(i, "a colon is expected")
		}
		if i = c.value(c.space(i+1), depth+1); i < 0 {
			return -1
		}
		i = c.space(i)
		switch c.at(i) {
		case ',':
			i++
		case '}':
			c.names = c.names[:first]
			return i + 1
		default:
			return c.fail(i, "a comma or } is expected")
		}
	}
}

func (c *checker) array(i, depth int) int {
	i = c.space(i)
	if c.at(i) == ']' {
		return i + 1
	}
	for {
		if i = c.space(i); c.outline && depth == 2 && c.at(i) == '{' {
			i = skip(c.text, i)
		} else if i = c.value(i, depth+1); i < 0 {
			return -1
		}
		i = c.space(i)
		switch c.at(i) {
		case ',':
			i++
		case ']':
			return i + 1
		default:
			return c.fail(i, "a comma or ] is expected")
		}
	}
}

// str checks a string from behind its first quote.
func (c *checker) str(i int) int {
	for i < len(c.text) {
		switch b := c.text[i]; {
		case b == '"':
			return i + 1
		case b < ' ':
			return c.fail(i, "a control character in a string")
		case b == '\\':
			n := c.escape(i)
			if n < 0 {
				return c.fail(i, "an invalid escape")
			}
			i += n
		case b < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(c.text[i:])
			if r == utf8.RuneError && n == 1 {
				return c.fail(i, "invalid UTF-8")
			}
			i += n
		}
	}
	return c.fail(i, "a string does not end")
}

// escape is the length of the escape at i, -1 for none.
func (c *checker) escape(i int) int {
	switch c.at(i + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		var unit [2]byte
		if n, err := hex.Decode(unit[:], c.text[min(i+2, len(c.text)):min(i+6, len(c.text))]); err == nil && n == 2 {
			return 6
		}
	}
	return -1
}

func (c *checker) number(i int) int {
	if c.at(i) == '-' {
		i++
	}
	start := i
	if i = c.digits(i); i == start || c.text[start] == '0' && i > start+1 {
		return c.fail(start, "an invalid number")
	}
	if c.at(i) == '.' {
		if start, i = i+1, c.digits(i+1); i == start {
			return c.fail(i, "an invalid number")
		}
	}
	if c.at(i)|0x20 == 'e' {
		i++
		if c.at(i) == '+' || c.at(i) == '-' {
			i++
		}
		if start, i = i, c.digits(i); i == start {
			return c.fail(i, "an invalid number")
		}
	}
	return i
}

func (c *checker) digits(i int) int {
	for c.at(i) >= '0' && c.at(i) <= '9' {
		i++
	}
	return i
}

// value is the text of one JSON value, checked by checkJSON; it is a view of the body. The nil value is an absent
// member.
type value []byte

func (v value) absent() bool   { return len(v) == 0 || v[0] == 'n' } // null counts as absent
func (v value) isObject() bool { return len(v) > 0 && v[0] == '{' }
func (v value) isArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v value) isString() bool { return len(v) > 0 && v[0] == '"' }

// str is the text of a string; ok is false for any other value and for one with a lone surrogate.
func (v value) str() (text string, ok bool) {
	if !v.isString() {
		return "", false
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1]), true
	}
	b, err := jsontext.AppendUnquote(make([]byte, 0, len(v)), v)
	return string(b), err == nil
}

// id is the text of an identifier: a string, or an integer as its digits (D3).
func (v value) id() (text string, ok bool) {
	if v.isString() {
		return v.str()
	}
	if _, err := strconv.ParseInt(string(v), 10, 64); err != nil {
		return "", false
	}
	return string(v), true
}

// bool is a JSON boolean.
func (v value) bool() (b, ok bool) {
	return string(v) == "true", string(v) == "true" || string(v) == "false"
}

// members walks an object; any other value has none. Names are resolved; one with a lone surrogate comes as it is
// written, quotes included.
func (v value) members() iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
		for quoted, m := range v.pairs() {
			name, ok := quoted.str()
			if !ok {
				name = string(quoted)
			}
			if !yield(name, m) {
				return
			}
		}
	}
}

// pick finds the members of an object that have these names; the nil value stands for one that isn't there.
func (v value) pick(names ...string) []value {
	found := make([]value, len(names))
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

// member is the member of an object with this name, the nil value when there is none.
func (v value) member(name string) value { return v.pick(name)[0] }

// some says whether v is there and, when it is an array, has elements.
func (v value) some() bool { return !v.absent() && (!v.isArray() || v.count(0) > 0) }

// pairs walks an object with its names as they are written.
func (v value) pairs() iter.Seq2[value, value] {
	return func(yield func(value, value) bool) {
		if !v.isObject() {
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

// elements walks an array; any other value has none.
func (v value) elements() iter.Seq2[int, value] {
	return func(yield func(int, value) bool) {
		if !v.isArray() {
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

// count is the number of elements, counted no further than limit+1.
func (v value) count(limit int) int {
	n := 0
	for range v.elements() {
		if n++; n > limit {
			break
		}
	}
	return n
}

func skipSpace(v value, i int) int {
	for v[i] == ' ' || v[i] == '\n' || v[i] == '\r' || v[i] == '\t' {
		i++
	}
	return i
}

// skip is the index behind the value at i.
func skip(v value, i int) int {
	depth := 0
	for {
		switch v[i] {
		case '"':
			for i++; v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
			i++
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
			continue
		default: // a number or a word
			for i < len(v) && v[i] != ',' && v[i] != '}' && v[i] != ']' && v[i] > ' ' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// unsafe says what is grammatical but not to be trusted in v (D1): a member name twice, a lone surrogate, nesting
// deeper than 32. Empty: nothing.
func (v value) unsafe() string { return v.inspect(checker{}) }

// unsafeRequest is unsafe for a whole body, apart from objects in its arrays: those are judged one by one, by whoever
// reads the array.
func (v value) unsafeRequest() string { return v.inspect(checker{outline: true}) }

func (v value) inspect(c checker) string {
	c.text, c.depth, c.strict = v, maxNesting+1, true
	if c.value(0, 1) < 0 {
		return c.err.what
	}
	return ""
}

// unquoted is the text of a string, until the next call; ok is false when it has a lone surrogate.
func (c *checker) unquoted(quoted value) (text []byte, ok bool) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], true
	}
	var err error
	c.scratch, err = jsontext.AppendUnquote(c.scratch[:0], quoted)
	return c.scratch, err == nil
}

// name notes the member name from i to end, of the object whose names begin at first.
func (c *checker) name(i, end, first int, many *map[string]struct{}) bool {
	name, ok := c.unquoted(c.text[i:end])
	switch {
	case !ok:
		c.fail(i, "a lone surrogate in a member name")
	case !c.isNew(name, first, many):
		c.fail(i, "a member name stands twice")
		ok = false
	}
	return ok
}

// fewNames is up to how many names of an object are compared one by one, as views of the text: most objects are small.
const fewNames = 16

// isNew notes a member's name, and says whether its object, whose names begin at first, has none like it so far.
func (c *checker) isNew(name []byte, first int, many *map[string]struct{}) bool {
	if *many == nil {
		for _, other := range c.names[first:] {
			if bytes.Equal(other, name) {
				return false
			}
		}
		if len(c.names)-first < fewNames {
			if len(c.scratch) > 0 && len(name) > 0 && &name[0] == &c.scratch[0] {
				name = bytes.Clone(name) // it was written with an escape
			}
			if c.names == nil {
				c.names = make([][]byte, 0, 4)
			}
			c.names = append(c.names, name)
			return true
		}
		*many = map[string]struct{}{}
		for _, other := range c.names[first:] {
			(*many)[string(other)] = struct{}{}
		}
	}
	n := len(*many)
	(*many)[string(name)] = struct{}{}
	return len(*many) > n
}

// appendQuoted appends text as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendQuoted[T []byte | string](dst []byte, text T) []byte {
	return profile.AppendJSONString(dst, text)
}

// withComma appends a comma when something stands before in the array or object that dst ends in.
func withComma(dst []byte) []byte {
	if last := dst[len(dst)-1]; last != '[' && last != '{' {
		dst = append(dst, ',')
	}
	return dst
}
