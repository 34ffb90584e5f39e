// Package grammar finds out where the parts of JSON text end and whether they are JSON, by RFC 8259, without reading
// what they say. All functions take the index at which something begins and return the index behind it.
package grammar

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"millrace/ingest/stops"
)

// Checker checks that a text is one JSON value. It accepts any depth. UTF-8 is checked elsewhere, unless the text is
// marked: then few strings need a look at it. The zero value is ready.
type Checker struct {
	open  []byte // the brackets that close what is open
	stops []byte // a bit for each byte of a marked text: whether a string stops there
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
			switch {
			case i == len(text):
				return -1
			case text[i] == ',':
				if i, more = Blanks(text, i+1), true; c.open[len(c.open)-1] == '}' {
					if i = c.name(text, i); i < 0 {
						return -1
					}
				}
			case text[i] == c.open[len(c.open)-1]:
				c.open = c.open[:len(c.open)-1]
				i++
			default:
				return -1
			}
		}
	}
}

// value checks the value at i or, if it contains others, moves to the first of them; more is true then. A negative
// result means that there is no value.
func (c *Checker) value(text []byte, i int) (next int, more bool) {
	if i == len(text) {
		return -1, false
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
		return word(text, i, "true"), false
	case 'f':
		return word(text, i, "false"), false
	case 'n':
		return word(text, i, "null"), false
	}
	return Number(text, i), false
}

// name checks the name at i and its colon.
func (c *Checker) name(text []byte, i int) int {
	if i = c.String(text, i); i < 0 {
		return -1
	}
	if i = Blanks(text, i); i == len(text) || text[i] != ':' {
		return -1
	}
	return i + 1
}

// String checks the string at i, and its UTF-8 if the text is marked. The result is negative when it is no JSON.
func (c *Checker) String(text []byte, i int) int {
	if first := i + 1; first>>3+8 <= len(c.stops) && first < len(text) && text[i] == '"' {
		// At least the first 57 of the bits are there. With none of them set, the index is only a guess.
		stop := first + bits.TrailingZeros64(binary.LittleEndian.Uint64(c.stops[first>>3:])>>(first&7)|1<<57)
		if stop < len(text) && text[stop] == '"' {
			return stop + 1
		}
		if stop = stringAt(text, i); stop > 0 && !utf8.Valid(text[i:stop]) {
			return -1
		}
		return stop
	}
	return stringAt(text, i)
}
