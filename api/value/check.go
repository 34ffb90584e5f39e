package value

import (
	"bytes"
	"errors"
	"fmt"

	"millrace/ingest/field"
	"millrace/ingest/grammar"
)

// A badJSON says where the grammar is broken, or what is unsafe.
type badJSON struct {
	offset int
	what   string
}

func (e *badJSON) Error() string {
	return fmt.Sprintf("Invalid JSON at byte %d: %s", e.offset, e.what)
}

// maxNesting is how deep an object may be nested (D1); grammarNesting is how deep the scanner goes before it refuses
// the request.
const (
	maxNesting     = 32
	grammarNesting = 512
)

// Check proves that text is one JSON object by RFC 8259, in valid UTF-8.
func Check(text []byte) (Value, error) {
	c := grammar.Checker{Depth: grammarNesting}
	start := grammar.Blanks(text, 0)
	end := c.Value(text, start)
	read := end
	if end < 0 {
		read = c.Fault.At
	}
	// Outside strings only ASCII is grammatical, so this is in a string, and comes first.
	if at := grammar.InvalidUTF8(text[:read]); at >= 0 {
		return nil, &badJSON{at, "invalid UTF-8"}
	}
	switch {
	case end >= 0:
	case bytes.HasPrefix(text, []byte("\ufeff")):
		return nil, &badJSON{0, "a byte order mark"}
	default:
		return nil, &badJSON{c.Fault.At, c.Fault.What}
	}
	if i := grammar.Blanks(text, end); i != len(text) {
		return nil, &badJSON{i, "unexpected data after the object"}
	}
	if text[start] != '{' {
		return nil, errNoObject
	}
	return Value(text[start:end]), nil
}

// errNoObject is the error for JSON that is not an object; its grammar is good.
var errNoObject = errors.New("the body must be an object")

// Unsafe returns what is grammatical but not to be trusted in v (D1): a duplicate member name, a lone surrogate,
// nesting deeper than 32. It is empty when there is nothing.
func (v Value) Unsafe() string { return v.inspect(inspector{}) }

// UnsafeRequest is Unsafe for a whole body, apart from objects in its arrays, which are judged one by one by whoever
// reads the array.
func (v Value) UnsafeRequest() string { return v.inspect(inspector{outline: true}) }

func (v Value) inspect(s inspector) string {
	s.text = v
	s.value(0, 1)
	return s.found
}

// inspector walks a value and finds the first thing in it that is not to be trusted. It goes over each byte once.
type inspector struct {
	text    Value
	found   string
	outline bool     // objects in the arrays of the outermost object are skipped
	names   [][]byte // of the objects that contain the current place, the innermost last; see isNew
	scratch []byte
}

func (s *inspector) find(what string) int {
	s.found = what
	return -1
}

// value returns the index after the value at i, or -1 when something was found.
func (s *inspector) value(i, depth int) int {
	if depth > maxNesting+1 {
		return s.find("nested too deeply")
	}
	switch s.text[i] {
	case '{':
		return s.object(i, depth)
	case '[':
		return s.array(i, depth)
	}
	end := grammar.Skip(s.text, i)
	if v := s.text[i:end]; v.IsString() {
		if _, ok := v.unquoted(&s.scratch); !ok {
			return s.find("a lone surrogate in a string")
		}
	}
	return end
}

func (s *inspector) object(i, depth int) int {
	first := len(s.names)
	var many map[string]struct{}
	for i = s.text.first(i); s.text[i] != '}'; i = s.text.next(i) {
		end := grammar.SkipString(s.text, i)
		if !s.name(s.text[i:end], first, &many) {
			return -1
		}
		if i = s.value(s.text.afterColon(end), depth+1); i < 0 {
			return -1
		}
	}
	s.names = s.names[:first]
	return i + 1
}

func (s *inspector) array(i, depth int) int {
	for i = s.text.first(i); s.text[i] != ']'; i = s.text.next(i) {
		if s.outline && depth == 2 && s.text[i] == '{' {
			i = grammar.Skip(s.text, i)
		} else if i = s.value(i, depth+1); i < 0 {
			return -1
		}
	}
	return i + 1
}

// name notes a member's name, of the object whose names begin at first.
func (s *inspector) name(quoted Value, first int, many *map[string]struct{}) bool {
	name, ok := quoted.unquoted(&s.scratch)
	switch {
	case !ok:
		s.find("a lone surrogate in a member name")
	case !s.isNew(name, first, many):
		s.find("member '" + field.ShortName(string(name)) + "' is there more than once")
		ok = false
	}
	return ok
}

// fewNames is the number of an object's names up to which they are compared one by one, as views of the text: most
// objects are small.
const fewNames = 16

// isNew notes a member's name, and reports whether it is new in its object, whose names begin at first.
func (s *inspector) isNew(name []byte, first int, many *map[string]struct{}) bool {
	if *many == nil {
		for _, other := range s.names[first:] {
			if bytes.Equal(other, name) {
				return false
			}
		}
		if len(s.names)-first < fewNames {
			if len(s.scratch) > 0 && len(name) > 0 && &name[0] == &s.scratch[0] {
				name = bytes.Clone(name) // the name was written with an escape
			}
			if s.names == nil {
				s.names = make([][]byte, 0, 4)
			}
			s.names = append(s.names, name)
			return true
		}
		*many = map[string]struct{}{}
		for _, other := range s.names[first:] {
			(*many)[string(other)] = struct{}{}
		}
	}
	n := len(*many)
	(*many)[string(name)] = struct{}{}
	return len(*many) > n
}
