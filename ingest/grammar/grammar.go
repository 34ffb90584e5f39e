// Package grammar finds out where the parts of JSON text end and whether they are JSON, by RFC 8259, without reading
// what they say. All functions take the index at which something begins and return the index behind it.
package grammar

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"millrace/ingest/stops"
)

// Checker checks that a text is one JSON value. UTF-8 is checked elsewhere, unless the text is marked: then few strings
// need a look at it. The zero value is ready.
type Checker struct {
	// Depth is how deep values may be nested; zero: any depth.
	Depth int
	// Fault is why the last result was negative.
	Fault Fault

	open  []byte // the brackets that close what is open
	stops []byte // a bit for each byte of a marked text: whether a string stops there
}

// Fault is where a text is no JSON, and what is wrong there.
type Fault struct {
	At   int
	What string
}

func (c *Checker) fail(at int, what string) int {
	c.Fault = Fault{at, what}
	return -1
}

// Mark determines where the strings of a text stop, before it is checked. It writes to the text what is there. The
// checker is then for this text and its beginnings only.
func (c *Checker) Mark(text []byte) {
	whole, rest := len(text)/stops.BlockBytes, [stops.BlockBytes]byte{}
	if need := (whole + 2) * stops.BlockBytes / 8; cap(c.stops) < need { // a word may be read behind the last one
		c.stops = make([]byte, need, need+need/4)
	} else {
		c.stops = c.stops[:need]
	}
	if whole > 0 {
		stops.Mark(&text[0], &text[0], &c.stops[0], whole)
	}
	copy(rest[:], text[whole*stops.BlockBytes:])
	stops.Mark(&rest[0], &rest[0], &c.stops[whole*stops.BlockBytes/8], 1)
}

// IsValid reports whether text is one value, possibly between blanks.
func (c *Checker) IsValid(text []byte) bool {
	i := c.Value(text, Blanks(text, 0))
	return i >= 0 && Blanks(text, i) == len(text)
}

// Value checks the value at i, with everything in it. The result is negative when it is no JSON.
func (c *Checker) Value(text []byte, i int) int {
	c.open = c.open[:0]
	for {
		more := false
		if i, more = c.value(text, Blanks(text, i)); i < 0 {
			return -1
		}
		for !more {
			if len(c.open) == 0 {
				return i
			}
			i = Blanks(text, i)
			switch bracket := c.open[len(c.open)-1]; {
			case i < len(text) && text[i] == ',':
				if i, more = Blanks(text, i+1), true; bracket == '}' {
					if i = c.name(text, i); i < 0 {
						return -1
					}
				}
			case i < len(text) && text[i] == bracket:
				c.open = c.open[:len(c.open)-1]
				i++
			default:
				return c.fail(i, "a comma or "+string(bracket)+" is expected")
			}
		}
	}
}

// value checks the value at i or, if it contains others, moves to the first of them; more is true then. A negative
// result means that there is no value.
func (c *Checker) value(text []byte, i int) (next int, more bool) {
	switch {
	case c.Depth > 0 && len(c.open) >= c.Depth:
		return c.fail(i, "nested too deeply"), false
	case i == len(text):
		return c.fail(i, "a value is expected"), false
	}
	switch text[i] {
	case '"':
		return c.String(text, i), false
	case '{':
		if i = Blanks(text, i+1); i < len(text) && text[i] == '}' {
			return i + 1, false
		}
		c.open = append(c.open, '}')
		return c.name(text, i), true
	case '[':
		if i = Blanks(text, i+1); i < len(text) && text[i] == ']' {
			return i + 1, false
		}
		c.open = append(c.open, ']')
		return i, true
	case 't':
		return c.word(text, i, "true"), false
	case 'f':
		return c.word(text, i, "false"), false
	case 'n':
		return c.word(text, i, "null"), false
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		if next = Number(text, i); next < 0 {
			c.fail(^next, "an invalid number")
		}
		return next, false
	}
	return c.fail(i, "a value is expected"), false
}

func (c *Checker) word(text []byte, i int, word string) int {
	if end := i + len(word); end <= len(text) && string(text[i:end]) == word {
		return end
	}
	return c.fail(i, "a value is expected")
}

// name checks the name at i and its colon.
func (c *Checker) name(text []byte, i int) int {
	if i == len(text) || text[i] != '"' {
		return c.fail(i, "a member name is expected")
	}
	if i = c.String(text, i); i < 0 {
		return -1
	}
	if i = Blanks(text, i); i == len(text) || text[i] != ':' {
		return c.fail(i, "a colon is expected")
	}
	return i + 1
}

// String checks the string at i, and its UTF-8 if the text is marked. The result is negative when there is none.
func (c *Checker) String(text []byte, i int) int {
	marked := false
	if first := i + 1; first>>3+8 <= len(c.stops) && first < len(text) && text[i] == '"' {
		// At least the first 57 of the bits are there. With none of them set, the index is only a guess.
		stop := first + bits.TrailingZeros64(binary.LittleEndian.Uint64(c.stops[first>>3:])>>(first&7)|1<<57)
		if stop < len(text) && text[stop] == '"' {
			return stop + 1
		}
		marked = true
	}
	end := stringAt(text, i)
	if end < 0 {
		return c.failInString(text, ^end)
	}
	if marked && !utf8.Valid(text[i:end]) {
		return c.fail(i+InvalidUTF8(text[i:end]), "invalid UTF-8")
	}
	return end
}

func (c *Checker) failInString(text []byte, at int) int {
	switch {
	case at == len(text):
		return c.fail(at, "a string does not end")
	case text[at] == '\\':
		return c.fail(at, "an invalid escape")
	case text[at] < ' ':
		return c.fail(at, "a control character in a string")
	}
	return c.fail(at, "a string is expected")
}
