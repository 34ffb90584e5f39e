package files

import (
	"bytes"
	"fmt"
	"io"
)

// sheet reads CSV (RFC 4180) with a header. encoding/csv doesn't distinguish a quoted cell from an unquoted one, which
// decides what is text, and it has no bound for a row.
type sheet struct {
	window
	o     Options
	row   int64
	cells []cell
	table *table
	head  []byte // the header as it is in the file
	text  []byte // cells from which doubled quotes were removed
}

// cell is a cell of a row. Its text lies where it was read, or in sheet.text.
type cell struct {
	text   []byte
	quoted bool // it is text, whatever it looks like
	json   bool // text is already JSON; nil: null
}

func newSheet(f Source, size int64, at Position, o Options) (Reader, error) {
	s := &sheet{o: o, row: 1}
	if err := s.open(f, size, Position{}, o.MaxRowBytes); err != nil {
		return nil, err
	}
	if err := s.readHeader(); err != nil {
		return nil, err
	}
	if at.Offset > 0 {
		s.row = at.Row
		return s, s.open(f, size, at, o.MaxRowBytes)
	}
	return s, nil
}

func (s *sheet) readHeader() error {
	size, lines, err := s.record()
	switch {
	case err == io.EOF:
		return &Fault{Line: 1, Text: "the file has no header"}
	case err != nil:
		return err
	}
	names := make([]string, len(s.cells))
	for i, c := range s.cells {
		names[i] = string(bytes.TrimSpace(c.text))
	}
	if s.table, err = newTable(names, s.o); err != nil {
		return err
	}
	s.head = bytes.Clone(cutLineEnd(s.rest()[:size]))
	s.pass(size)
	s.line += lines
	return nil
}

// Position returns the position of the next row.
func (s *sheet) Position() Position { return Position{Row: s.row, Line: s.line, Offset: s.at} }

// Next reads a record. It skips blank lines.
func (s *sheet) Next(r *Row) error {
	for {
		at := s.Position()
		size, lines, err := s.record()
		if err != nil {
			return err
		}
		text := cutLineEnd(s.rest()[:size])
		s.pass(size)
		s.line += lines
		if len(s.cells) == 1 && len(s.cells[0].text) == 0 && !s.cells[0].quoted {
			continue
		}
		s.row++
		r.reset(at, text)
		r.header = s.head
		if got, want := len(s.cells), len(s.table.columns); got != want {
			r.Fault = fmt.Sprintf("the row has %d cells, the header has %d", got, want)
			if s.o.Strict {
				return &Fault{Line: at.Line, Text: r.Fault}
			}
			return nil
		}
		r.untaken, r.cells = s.table, s.cells
		return nil
	}
}

// record reads the cells of the row at the start of the rest. It returns its size, and the number of lines that end in
// it.
func (s *sheet) record() (size int, lines int64, err error) {
	s.cells, s.text = s.cells[:0], s.text[:0]
	end, lines, err := s.findEnd()
	if err != nil {
		return 0, 0, err
	}
	if end == 0 {
		return 0, 0, io.EOF
	}
	record := s.rest()[:end]
	if len(record) > s.max+1 {
		return 0, 0, s.tooLong()
	}
	if err := checkText(record, s.line); err != nil {
		return 0, 0, err
	}
	return end, lines, s.split(cutLineEnd(record))
}

// findEnd returns where the record ends, after its line feed: the first one that is not in quotes.
func (s *sheet) findEnd() (end int, lines int64, err error) {
	quoted := false
	for from := 0; ; {
		at, err := s.findByte('\n', from)
		if err != nil {
			return 0, 0, err
		}
		end, ended := at+1, at < 0
		if ended {
			end = len(s.rest())
		} else {
			lines++
		}
		if bytes.Count(s.rest()[from:end], quote)%2 == 1 {
			quoted = !quoted
		}
		if !quoted {
			return end, lines, nil
		}
		if ended {
			return 0, 0, s.fault(s.rest(), bytes.LastIndexByte(s.rest(), '"'), "a quote is not closed")
		}
		from = end
	}
}

var quote = []byte{'"'}

func cutLineEnd(record []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(record, []byte("\n")), []byte("\r"))
}

// fault returns a fault at index i of a record.
func (s *sheet) fault(record []byte, i int, text string) error {
	before := record[:i]
	lines := int64(bytes.Count(before, []byte("\n")))
	return &Fault{Line: s.line + lines, Column: int64(i - bytes.LastIndexByte(before, '\n')), Text: text}
}

// split cuts a record into cells.
func (s *sheet) split(record []byte) error {
	for i := 0; ; i++ {
		if len(s.cells) == s.o.MaxColumns {
			return s.fault(record, i, fmt.Sprintf("the row has more than %d cells", s.o.MaxColumns))
		}
		end, err := s.cell(record, i)
		if err != nil {
			return err
		}
		if i = end; i == len(record) {
			return nil
		}
	}
}

// cell reads the cell at i and returns where it ends, at a comma or at the end of the record.
func (s *sheet) cell(record []byte, i int) (end int, err error) {
	if i < len(record) && record[i] == '"' {
		return s.quotedCell(record, i)
	}
	end = len(record)
	if k := bytes.IndexByte(record[i:], ','); k >= 0 {
		end = i + k
	}
	text := record[i:end]
	if k := bytes.IndexByte(text, '"'); k >= 0 {
		return 0, s.fault(record, i+k, "a quote inside of a cell that doesn't begin with one")
	}
	if k := bytes.IndexByte(text, '\r'); k >= 0 {
		return 0, s.fault(record, i+k, "a carriage return without a line feed")
	}
	s.cells = append(s.cells, cell{text: text})
	return end, nil
}

func (s *sheet) quotedCell(record []byte, i int) (end int, err error) {
	begin, from := i, len(s.text)
	for i++; ; {
		k := bytes.IndexByte(record[i:], '"')
		if k < 0 {
			return 0, s.fault(record, begin, "a quote is not closed")
		}
		end = i + k
		if end+1 == len(record) || record[end+1] != '"' {
			break
		}
		s.text = append(s.text, record[i:end+1]...)
		i = end + 2
	}
	if end+1 < len(record) && record[end+1] != ',' {
		return 0, s.fault(record, end+1, "text behind a closing quote")
	}
	text := record[i:end]
	if len(s.text) > from { // earlier cells keep their bytes even if s.text grows
		s.text = append(s.text, text...)
		text = s.text[from:len(s.text):len(s.text)]
	}
	s.cells = append(s.cells, cell{text: text, quoted: true})
	return end + 1, nil
}
