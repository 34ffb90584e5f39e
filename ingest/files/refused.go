package files

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Source returns the row as the text of a line in a refused file, from which it can be taken again once somebody has
// corrected it: a line of NDJSON as it is, and a row of CSV or Parquet as CSV, below its header.
func (r *Row) Source() []byte {
	switch {
	case r.header != nil:
		return append(append(bytes.Clone(r.header), '\n'), r.Text...)
	case r.table != nil:
		return r.table.appendSheet(nil, r.cells)
	}
	return r.Text
}

// appendSheet appends cells as CSV, with their header. Text is in quotes, so that it stays text.
func (t *table) appendSheet(dst []byte, cells []cell) []byte {
	for _, c := range t.columns {
		dst = appendCell(dst, []byte(c.title), true)
	}
	dst[len(dst)-1] = '\n'
	for _, c := range cells[:len(t.columns)] {
		dst = appendCell(dst, c.text, !c.json && len(c.text) > 0)
	}
	return dst[:len(dst)-1]
}

func appendCell(dst, text []byte, quoted bool) []byte {
	if !quoted {
		return append(append(dst, text...), ',')
	}
	dst = append(dst, '"')
	dst = append(dst, bytes.ReplaceAll(text, quote, []byte(`""`))...)
	return append(dst, '"', ',')
}

// takeText makes the row what the text of a line in a refused file says.
func (r *Row) takeText(otherwise Kind) error {
	kind, fault := r.kind(otherwise)
	if fault != "" {
		return errors.New(fault)
	}
	text, err := jsontext.AppendUnquote(nil, r.text)
	if err != nil {
		return err
	}
	var said Row
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte{'{'}) {
		said.line = bytes.TrimSpace(text)
		err = said.takeLine()
	} else {
		err = said.takeSheet(text, kind)
	}
	said.Position, said.Text, said.text, said.made, said.kindOfText = r.Position, r.Text, nil, r.made, kind
	*r = said
	return err
}

// takeSheet takes the only row below a header.
func (r *Row) takeSheet(text []byte, kind Kind) error {
	s, err := newSheet(bytes.NewReader(text), int64(len(text)), Position{},
		Options{Kind: kind, MaxRowBytes: len(text), MaxColumns: len(text) + 1})
	if err != nil {
		return err
	}
	switch err := s.Next(r); {
	case err == io.EOF:
		return errors.New("'text' is neither an object nor a row below its header")
	case err != nil:
		return err
	case r.takeCells() != "":
		return errors.New(r.Fault)
	}
	if s.Next(new(Row)) != io.EOF {
		return errors.New("'text' has more than one row")
	}
	return nil
}
