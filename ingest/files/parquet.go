package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// columns reads Parquet, whose columns are strings, numbers, booleans, times and dates, each at most once in a row.
type columns struct {
	o      Options
	row    int64
	rows   parquet.Rows
	leaves []leaf
	table  *table
	buffer []parquet.Row
	at, n  int // of buffer
	cells  []cell
	text   []byte
}

type leaf struct {
	form  func(dst []byte, v parquet.Value) []byte
	isRaw bool // values are JSON, not text
}

func newColumns(f Source, size int64, at Position, o Options) (_ Reader, err error) {
	defer func() { // the library trusts what files say of themselves
		if p := recover(); p != nil {
			err = &Fault{Text: fmt.Sprintf("the file is no Parquet that can be read: %v", p)}
		}
	}()
	if err := checkFooter(f, size); err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, size, parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, &Fault{Text: fmt.Sprintf("the file is no Parquet that can be read: %v", err)}
	}
	if err := checkCompression(file.Metadata()); err != nil {
		return nil, err
	}
	c := &columns{o: o, row: max(at.Row, 1), buffer: make([]parquet.Row, 64)}
	if err := c.describe(file.Schema()); err != nil {
		return nil, err
	}
	c.rows = parquet.MultiRowGroup(file.RowGroups()...).Rows()
	if err := c.rows.SeekToRow(c.row - 1); err != nil {
		return nil, c.broken(err)
	}
	return c, nil
}

// checkFooter refuses files that claim a footer longer than the file: the library would allocate memory for it.
func checkFooter(f Source, size int64) error {
	const magic, tail = "PAR1", 8 // the footer's length and the magic
	var b [tail]byte
	if size >= int64(len(magic)+tail) {
		if _, err := f.ReadAt(b[:], size-tail); err != nil {
			return err
		}
		footer := int64(binary.LittleEndian.Uint32(b[:]))
		if string(b[4:]) == magic && footer <= size-int64(len(magic)+tail) {
			return nil
		}
	}
	return &Fault{Text: "the file is no Parquet that can be read: it has no footer"}
}

// checkCompression refuses LZ4_RAW: of a page that isn't more than three times as large as it is compressed the library
// reads zeros, and for one that can't be decompressed it asks for ever more memory.
func checkCompression(m *format.FileMetaData) error {
	for i := range m.RowGroups {
		for _, c := range m.RowGroups[i].Columns {
			if codec := c.MetaData.Codec; codec == format.Lz4Raw {
				return &Fault{Text: fmt.Sprintf("the column %q is compressed with %s, which can't be read: want zstd, "+
					"snappy, gzip, brotli or none", shortened(strings.Join(c.MetaData.PathInSchema, ".")), codec)}
			}
		}
	}
	return nil
}

func (c *columns) describe(schema *parquet.Schema) error {
	fields := schema.Fields()
	if len(fields) > c.o.MaxColumns {
		return &Fault{Text: fmt.Sprintf("the file has more than %d columns", c.o.MaxColumns)}
	}
	titles := make([]string, len(fields))
	for i, f := range fields {
		titles[i] = f.Name()
		l, ok := leafOf(f)
		if !ok {
			return &Fault{Text: fmt.Sprintf("the column %q is of a type that isn't known: %s", shortened(f.Name()), f)}
		}
		c.leaves = append(c.leaves, l)
	}
	c.cells = make([]cell, len(fields))
	var err error
	c.table, err = newTable(titles, c.o)
	return err
}

// leafOf decides how the values of a column become text, or JSON.
func leafOf(f parquet.Field) (l leaf, ok bool) {
	if !f.Leaf() || f.Repeated() {
		return l, false
	}
	if t := f.Type().LogicalType(); t != nil {
		switch t := t.Value.(type) {
		case *format.TimestampType:
			unit := t.Unit.Value.Duration()
			return leaf{form: func(dst []byte, v parquet.Value) []byte {
				return appendTime(dst, v.Int64(), unit)
			}}, true
		case *format.DateType:
			return leaf{form: appendDate}, true
		case *format.IntType:
			if !t.IsSigned {
				return leaf{appendUnsigned, true}, true
			}
		case *format.StringType, *format.EnumType, *format.JsonType, nil:
		default:
			return l, false
		}
	}
	switch f.Type().Kind() {
	case parquet.Boolean:
		return leaf{func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendBool(dst, v.Boolean())
		}, true}, true
	case parquet.Int32:
		return leaf{func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendInt(dst, int64(v.Int32()), 10)
		}, true}, true
	case parquet.Int64:
		return leaf{func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendInt(dst, v.Int64(), 10)
		}, true}, true
	case parquet.Float:
		return leaf{func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendFloat(dst, float64(v.Float()), 'g', -1, 32)
		}, true}, true
	case parquet.Double:
		return leaf{func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendFloat(dst, v.Double(), 'g', -1, 64)
		}, true}, true
	case parquet.ByteArray:
		return leaf{form: func(dst []byte, v parquet.Value) []byte { return append(dst, v.ByteArray()...) }}, true
	}
	return l, false
}

func appendUnsigned(dst []byte, v parquet.Value) []byte {
	if v.Kind() == parquet.Int32 {
		return strconv.AppendUint(dst, uint64(v.Uint32()), 10)
	}
	return strconv.AppendUint(dst, v.Uint64(), 10)
}

func appendTime(dst []byte, n int64, unit time.Duration) []byte {
	per := int64(time.Second / unit)
	return time.Unix(n/per, n%per*int64(unit)).UTC().AppendFormat(dst, time.RFC3339Nano)
}

func appendDate(dst []byte, v parquet.Value) []byte {
	return time.Unix(int64(v.Int32())*86400, 0).UTC().AppendFormat(dst, time.DateOnly)
}

// Position returns the position of the next row.
func (c *columns) Position() Position { return Position{Row: c.row, Line: c.row} }

// Next reads a row.
func (c *columns) Next(r *Row) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.broken(p)
		}
	}()
	if c.at == c.n {
		c.at = 0
		if c.n, err = c.rows.ReadRows(c.buffer); c.n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				return io.EOF
			}
			return c.broken(err)
		}
	}
	at := c.Position()
	values := c.buffer[c.at]
	c.at++
	c.row++
	r.reset(at, nil)
	if err := c.read(values); err != nil {
		return err
	}
	c.table.fill(r, c.cells)
	return nil
}

func (c *columns) broken(why any) error {
	return &Fault{Line: c.row, Text: fmt.Sprintf("the row can't be read: %v", why)}
}

// read makes cells of the values of a row.
func (c *columns) read(values parquet.Row) error {
	size := 0
	for _, v := range values {
		if k := v.Kind(); k == parquet.ByteArray {
			size += len(v.ByteArray())
		}
	}
	if size > c.o.MaxRowBytes {
		return &Fault{Line: c.row - 1, Text: fmt.Sprintf("the row is longer than %d bytes", c.o.MaxRowBytes)}
	}
	c.text = c.text[:0]
	clear(c.cells)
	for _, v := range values {
		i := v.Column()
		if i < 0 || i >= len(c.cells) || v.IsNull() {
			continue
		}
		from := len(c.text)
		c.text = c.leaves[i].form(c.text, v)
		raw := c.leaves[i].isRaw
		c.cells[i] = cell{text: c.text[from:len(c.text):len(c.text)], quoted: !raw, json: raw}
		if !raw {
			if err := checkText(c.cells[i].text, c.row-1); err != nil {
				return err
			}
		}
	}
	return nil
}
