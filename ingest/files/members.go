package files

import (
	"errors"

	"millrace/ingest/grammar"
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
	if !w.moveTo(grammar.SkipString(w.text, from)) {
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

// takeValue reads the value after a name. At least the end of the object comes behind it.
func (w *walk) takeValue() bool {
	from := w.at
	switch {
	case !w.moveTo(grammar.Skip(w.text, from)):
	case w.at == len(w.text):
		w.err = errOpen
	case w.at == from:
		w.err = errNotObject
	}
	w.value = w.text[from:w.at]
	return w.err == nil
}

// moveTo moves to the end of what was skipped, if it has one.
func (w *walk) moveTo(end int) bool {
	if end < 0 {
		w.err = errOpen
		return false
	}
	w.at = end
	return true
}

func (w *walk) blanks() { w.at = grammar.Blanks(w.text, w.at) }

func isString(value []byte) bool { return len(value) >= 2 && value[0] == '"' }

// isNothing reports whether a column is not filled in.
func isNothing(value []byte) bool {
	return len(value) == 0 || string(value) == `""` || string(value) == "null"
}
