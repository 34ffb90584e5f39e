package value

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A badJSON says where the grammar is broken, or what is unsafe.
type badJSON struct {
	offset int
	what   string
}

func (e *badJSON) Error() string {
	return fmt.Sprintf("Invalid JSON at byte %d: %s", e.offset, e.what)
}

// checker walks a text and finds the first fault: of grammar, and in strict mode also what is grammatical but not to be
// trusted (D1), a duplicate member name or a lone surrogate. It goes over each byte once.
type checker struct {
	text  []byte
	depth int // how deep values may be nested
	err   *badJSON

	strict  bool
	outline bool     // objects in the arrays of the outermost object are skipped; their grammar must be good
	names   [][]byte // of the objects that contain the current place, the innermost last; see isNew
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

// value returns the index after the value at i, or -1.
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
	if i == 0 && bytes.HasPrefix(c.text, []byte("\ufeff")) {
		return c.fail(i, "a byte order mark")
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

// str checks a string, starting after its first quote.
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

// escape returns the length of the escape at i, -1 for none.
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

// unquoted returns the text of a string, valid until the next call; ok is false when it has a lone surrogate.
func (c *checker) unquoted(quoted []byte) (text []byte, ok bool) {
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
		c.fail(i, "member '"+ShortName(string(name))+"' is there more than once")
		ok = false
	}
	return ok
}

// fewNames is the number of an object's names up to which they are compared one by one, as views of the text: most
// objects are small.
const fewNames = 16

// isNew notes a member's name, and reports whether it is new in its object, whose names begin at first.
func (c *checker) isNew(name []byte, first int, many *map[string]struct{}) bool {
	if *many == nil {
		for _, other := range c.names[first:] {
			if bytes.Equal(other, name) {
				return false
			}
		}
		if len(c.names)-first < fewNames {
			if len(c.scratch) > 0 && len(name) > 0 && &name[0] == &c.scratch[0] {
				name = bytes.Clone(name) // the name was written with an escape
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

// skipSpace returns the index of the first byte from i on that is not a space.
func skipSpace(v []byte, i int) int {
	for v[i] == ' ' || v[i] == '\n' || v[i] == '\r' || v[i] == '\t' {
		i++
	}
	return i
}

// skip returns the index after the value at i.
func skip(v []byte, i int) int {
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

// ShortName returns as much of a member's name as a text shows.
func ShortName(name string) string {
	if len(name) <= maxNameInText {
		return name
	}
	return strings.ToValidUTF8(name[:maxNameInText], "") + "…"
}

// maxNameInText is how many bytes of a name a text shows.
const maxNameInText = 64
