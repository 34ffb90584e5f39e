package files

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/ingest/grammar"
)

// lines reads NDJSON.
type lines struct {
	window
	o       Options
	row     int64
	checker grammar.Checker
}

func newLines(f Source, size int64, at Position, o Options) (Reader, error) {
	l := &lines{o: o, row: max(at.Row, 1)}
	return l, l.open(f, size, at, o.MaxRowBytes)
}

// Position returns the position of the next row.
func (l *lines) Position() Position { return Position{Row: l.row, Line: l.line, Offset: l.at} }

// Next reads a line that isn't blank.
func (l *lines) Next(r *Row) error {
	for {
		at := l.Position()
		end, err := l.findByte('\n', 0)
		if err != nil {
			return err
		}
		size := end + 1
		if end < 0 {
			end, size = len(l.rest()), len(l.rest())
		}
		if size == 0 {
			return io.EOF
		}
		text := l.rest()[:end]
		if err := l.checkLine(text); err != nil {
			return err
		}
		l.pass(size)
		l.line++
		if line := bytes.TrimSpace(text); len(line) > 0 {
			l.row++
			r.reset(at, line)
			return l.read(r, text)
		}
	}
}

func (l *lines) checkLine(text []byte) error {
	if len(text) > l.max {
		return l.tooLong()
	}
	return checkText(text, l.line)
}

// read leaves taking a line apart to AppendObject, since a mere check of a file doesn't need that.
func (l *lines) read(r *Row, text []byte) error {
	r.line = r.Text
	if !l.o.Strict {
		return nil
	}
	if r.Text[0] != '{' || !l.checker.IsValid(r.Text) {
		return lineFault(r, bytes.Index(text, r.Text[:1]))
	}
	return nil
}

// lineFault says where a line stops being JSON.
func lineFault(r *Row, blanks int) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(r.Text, new(json.RawMessage))); ok {
		return &Fault{Line: r.Line, Column: int64(blanks) + syntax.Offset, Text: syntax.Error()}
	}
	return &Fault{Line: r.Line, Text: errNotObject.Error()}
}

// takeApart finds the columns of a line, or of the text in it if the line is that of a refused file.
func (r *Row) takeApart(otherwise Kind) error {
	if err := r.takeLine(); err != nil || r.text == nil {
		return err
	}
	return r.takeText(otherwise)
}

// takeLine finds the columns of a line. A line without a payload is itself an object.
func (r *Row) takeLine() error {
	text := r.line
	r.facts = facts{}
	twice, err := r.takeColumns(text)
	if err != nil || r.text != nil {
		return err
	}
	payload := r.columns[columnPayload]
	if kind, fault := r.kind(""); payload == nil && fault == "" && kind != "" {
		return cmp.Or(r.checkDeletion(kind), twice)
	}
	if payload == nil {
		r.columns = [columnCount][]byte{}
		r.object, r.known = text, true
		return nil
	}
	if twice != nil {
		return twice
	}
	if payload[0] != '"' {
		r.payload = payload
		return nil
	}
	r.scratch, err = jsontext.AppendUnquote(r.scratch[:0], payload)
	r.payload = r.scratch
	return err
}

// checkDeletion refuses a row that has a kind and no payload, unless it is a deletion, whose columns are all it has.
func (r *Row) checkDeletion(kind Kind) error {
	switch {
	case kind != Deletions:
		return errors.New(withoutPayload(kind))
	case r.other != nil:
		return fmt.Errorf("'kind' is %q, but there is %s", kind, r.notAlone())
	}
	return nil
}

// takeColumns takes the members of an object for columns. twice says which of them is filled in more than once.
func (r *Row) takeColumns(object []byte) (twice, err error) {
	var w walk
	refused := 0
	for w.begin(object); w.nextName(); {
		c := columnOf(w.name)
		if c == columnPayload && w.at < len(object) && object[w.at] == '{' {
			r.takePayload(&w)
		} else {
			w.takeValue()
		}
		if w.err != nil {
			break
		}
		if !r.known {
			r.facts.note(w.name, w.value, w.at-len(w.value))
		}
		switch {
		case c != columnNone:
		case slices.Contains(refusedMembers, string(w.name)):
			refused++
		case string(w.name) == "text" && isString(w.value):
			r.text = w.value
		case r.other == nil:
			r.other = w.name
		}
		if c == columnNone || isNothing(w.value) {
			r.empty = r.empty || c == columnPayload
			continue
		}
		if r.columns[c] != nil && twice == nil {
			twice = fmt.Errorf("'%s' is there more than once, or under another name", w.name)
		}
		r.columns[c] = w.value
	}
	if r.text != nil && (refused < len(refusedMembers) || r.other != nil || r.hasColumns()) {
		if r.text = nil; r.other == nil {
			r.other = []byte("text")
		}
	}
	return twice, w.err
}

// hasColumns reports whether a line has filled in a column besides `kind`.
func (r *Row) hasColumns() bool {
	for c, value := range r.columns {
		if value != nil && column(c) != columnKind {
			return true
		}
	}
	return false
}

// refusedMembers are the members of each line of a refused file besides columns or a text, so that such a line can be
// taken as it is.
var refusedMembers = []string{"line", "row", "reason"}

// takePayload reads a payload that is an object, and its facts at the same time. What is wrong in it is reported when
// it is used as an object; here it may be any value.
func (r *Row) takePayload(w *walk) {
	r.facts = facts{}
	inner := walk{text: w.text, at: w.at + 1, inner: true}
	for inner.next() {
		r.facts.note(inner.name, inner.value, inner.at-len(inner.value)-w.at)
	}
	if r.known = inner.err == nil; !r.known {
		w.takeValue()
		return
	}
	w.value = w.text[w.at:inner.at]
	w.at = inner.at
}
