package grammar

import (
	"encoding/binary"
	"math/bits"
)

// Skip skips the value at i by its quotes and brackets alone. So it needs no more than that these are closed; the
// result is -1 when they aren't. A number or a word ends before the next blank, comma or closing bracket, and at the
// latest with the text.
func Skip(text []byte, i int) int {
	depth := 0
	for i < len(text) {
		switch marks[text[i]] {
		case markQuote:
			if i = SkipString(text, i); i < 0 || depth == 0 {
				return i
			}
			continue
		case markOpen:
			depth++
		case markClose:
			if depth == 0 { // the end of what the value is in
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case markBetween:
			if depth == 0 {
				return i
			}
		}
		i++
	}
	if depth > 0 {
		return -1
	}
	return i
}

// SkipString is Skip for the string at i.
func SkipString(text []byte, i int) int {
	i++
	for i+8 <= len(text) {
		ends := specials(binary.LittleEndian.Uint64(text[i:]))
		if ends == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(ends) / 8
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
		i++
	}
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// mark is the meaning of a byte outside strings to Skip.
type mark uint8

const (
	markQuote mark = iota + 1
	markOpen
	markClose
	markBetween
)

var marks = [256]mark{'"': markQuote, '{': markOpen, '[': markOpen, '}': markClose, ']': markClose, ',': markBetween,
	' ': markBetween, '\t': markBetween, '\n': markBetween, '\r': markBetween}
