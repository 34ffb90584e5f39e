package files

import (
	"bytes"
	"errors"
)

var (
	errNotObject = errors.New("it is no JSON object")
	errBehind    = errors.New("text behind the JSON object")
	errOpen      = errors.New("a bracket or a quote is not closed")
)

// walk goes over the members of one JSON object. It checks no more than quotes and brackets, so that the object's text
// is one value wherever it is put.
type walk struct {
	text        []byte
	at          int
	name, value []byte // name without its quotes, as it is written
	err         error
}

// begin opens the object that text is, between blanks.
func (w *walk) begin(text []byte) {
	*w = walk{text: text}
	if w.blanks(); w.at == len(text) || text[w.at] != '{' {
		w.err = errNotObject
		return
	}
	w.at++
}

// next reads a member, until there is none, or err is set.
func (w *walk) next() bool {
	if w.err != nil {
		return false
	}
	w.blanks()
	if w.at < len(w.text) && w.text[w.at] == ',' {
		w.at++
		w.blanks()
	}
	if w.at == len(w.text) {
		w.err = errOpen
		return false
	}
	if w.text[w.at] == '}' {
		w.at++
		if w.blanks(); w.at < len(w.text) {
			w.err = errBehind
		}
		return false
	}
	return w.member()
}

func (w *walk) member() bool {
	from := w.at
	if w.text[w.at] != '"' {
		w.err = errNotObject
		return false
	}
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
	from = w.at
	if !w.skipValue() {
		return false
	}
	w.value = w.text[from:w.at]
	if len(w.value) == 0 {
		w.err = errNotObject
	}
	return w.err == nil
}

func (w *walk) blanks() {
	for w.at < len(w.text) {
		switch w.text[w.at] {
		case ' ', '\t', '\n', '\r':
			w.at++
		default:
			return
		}
	}
}

// skipString passes over a string, whose quote is at at.
func (w *walk) skipString() bool {
	for i := w.at + 1; ; {
		k := bytes.IndexByte(w.text[i:], '"')
		if k < 0 {
			w.err = errOpen
			return false
		}
		k += i
		slashes := 0
		for w.text[k-1-slashes] == '\\' {
			slashes++
		}
		if i = k + 1; slashes%2 == 0 {
			w.at = i
			return true
		}
	}
}

// skipValue passes over a value.
func (w *walk) skipValue() bool {
	for depth := 0; w.at < len(w.text); {
		switch c := w.text[w.at]; c {
		case '"':
			if !w.skipString() {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // the end of the object around it
				return true
			}
			if depth--; depth == 0 {
				w.at++
				return true
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return true
			}
		}
		w.at++
	}
	w.err = errOpen
	return false
}

func isString(value []byte) bool { return len(value) >= 2 && value[0] == '"' }

// isNothing reports whether a column is not filled in.
func isNothing(value []byte) bool {
	return len(value) == 0 || string(value) == `""` || string(value) == "null"
}
