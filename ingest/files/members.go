package files

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

var (
	errNotObject = errors.New("it is not a JSON object")
	errBehind    = errors.New("text behind the JSON object")
	errOpen      = errors.New("a bracket or a quote is not closed")
)

// walk goes over the members of one JSON object. It checks only quotes and brackets, so that the object's text is one
// value wherever it is put.
type walk struct {
	text        []byte
	at          int
	inner       bool   // text goes on after the object
	name, value []byte // name without its quotes, as it is written
	err         error
}

// begin opens the object that text consists of, possibly between blanks.
func (w *walk) begin(text []byte) {
	*w = walk{text: text}
	if w.blanks(); w.at == len(text) || text[w.at] != '{' {
		w.err = errNotObject
		return
	}
	w.at++
}

// next reads a member, until there is none left, or err is set.
func (w *walk) next() bool { return w.nextName() && w.takeValue() }

// nextName reads a member's name; the value, which takeValue reads, begins at w.at.
func (w *walk) nextName() bool {
	if w.err != nil {
		return false
	}
	w.blanks()
	if w.at < len(w.text) && w.text[w.at] == ',' {
		w.at++
		w.blanks()
	}
	switch {
	case w.at == len(w.text):
		w.err = errOpen
		return false
	case w.text[w.at] == '}':
		w.at++
		if w.inner {
			return false
		}
		if w.blanks(); w.at < len(w.text) {
			w.err = errBehind
		}
		return false
	case w.text[w.at] != '"':
		w.err = errNotObject
		return false
	}
	from := w.at
	if !w.skipString() {
		return false
	}
	w.name = w.text[from+1 : w.at-1]
	if w.blanks(); w.at == len(w.text) || w.text[w.at] != ':' {
		w.err = errNotObject
		return false
	}
	w.at++
	w.blanks()
	return true
}

// takeValue reads the value after a name.
func (w *walk) takeValue() bool {
	from := w.at
	if !w.skipValue() {
		return false
	}
	if w.value = w.text[from:w.at]; len(w.value) == 0 {
		w.err = errNotObject
	}
	return w.err == nil
}

func (w *walk) blanks() { w.at = passBlanks(w.text, w.at) }

// skipString skips a string, whose quote is at w.at.
func (w *walk) skipString() bool {
	text, i := w.text, w.at+1
	for i+8 <= len(text) {
		ends := quotesOrSlashes(binary.LittleEndian.Uint64(text[i:]))
		if ends == 0 {
			i += 8
			continue
		}
		if i += bits.TrailingZeros64(ends) / 8; text[i] == '"' {
			w.at = i + 1
			return true
		}
		i += 2
	}
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			w.at = i + 1
			return true
		case '\\':
			i++
		}
	}
	w.err = errOpen
	return false
}

// quotesOrSlashes returns a word with a bit set in the first of eight bytes that is a quote or a backslash, or no bit
// when there is none.
func quotesOrSlashes(v uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	quotes, slashes := v^ones*'"', v^ones*'\\'
	return ((quotes-ones)&^quotes | (slashes-ones)&^slashes) & high
}

// skipValue skips a value.
func (w *walk) skipValue() bool {
	text, i := w.text, w.at
	for depth := 0; i < len(text); {
		switch marks[text[i]] {
		case markQuote:
			if w.at = i; !w.skipString() {
				return false
			}
			if depth == 0 {
				return true
			}
			i = w.at
			continue
		case markOpen:
			depth++
		case markClose:
			if depth == 0 { // the end of the enclosing object
				w.at = i
				return true
			}
			if depth--; depth == 0 {
				w.at = i + 1
				return true
			}
		case markBetween:
			if depth == 0 {
				w.at = i
				return true
			}
		}
		i++
	}
	w.err = errOpen
	return false
}

// mark is the meaning of a byte outside strings to skipValue.
type mark uint8

const (
	markQuote mark = iota + 1
	markOpen
	markClose
	markBetween
)

var marks = [256]mark{'"': markQuote, '{': markOpen, '[': markOpen, '}': markClose, ']': markClose, ',': markBetween,
	' ': markBetween, '\t': markBetween, '\n': markBetween, '\r': markBetween}

func isString(value []byte) bool { return len(value) >= 2 && value[0] == '"' }

// isNothing reports whether a column is not filled in.
func isNothing(value []byte) bool {
	return len(value) == 0 || string(value) == `""` || string(value) == "null"
}
