package files

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"millrace/ingest/field"
)

// columns reads Parquet, whose columns are strings, numbers, booleans, times and dates, each at most once in a row;
// columns without a meaning beside a payload are of any type, and aren't read: one row of a list may have millions of
// values.
type columns struct {
	o      Options
	row    int64
	last   int64 // row
	leaves []leaf
	table  *table
	values []*parquet.Value // of a row, by leaf, where they were read
	cells  []cell
	text   []byte
}

// leaf is a column that is read: it has a value, which may be null, in each row.
type leaf struct {
	column int // of values; a column of the file that is a list, a map or a group has any number of them
	cell   int // of the row
	form   func(dst []byte, v parquet.Value) []byte
	isRaw  bool // values are JSON, not text

	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader // of page; nil: the next page is to be read
	buffer []parquet.Value
	rest   []parquet.Value // of buffer; they lie in page
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
	c := &columns{o: o, row: max(at.Row, 1)}
	if err := c.describe(file.Schema()); err != nil {
		return nil, err
	}
	if err := c.checkPages(f, file.Metadata()); err != nil {
		return nil, err
	}
	all := parquet.MultiRowGroup(file.RowGroups()...)
	c.last = all.NumRows()
	if len(file.RowGroups()) == 0 || c.row > 1 && c.row > c.last {
		return c, nil
	}
	for n := range c.leaves {
		l := &c.leaves[n]
		l.pages, l.buffer = all.ColumnChunks()[l.column].Pages(), make([]parquet.Value, 64)
		if c.row == 1 {
			continue // to seek would pass over a row group that should have no rows, whatever it has
		}
		if err := l.pages.SeekToRow(c.row - 1); err != nil {
			return nil, c.broken(err)
		}
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
					"snappy, gzip, brotli or none", field.ShortName(strings.Join(c.MetaData.PathInSchema, ".")), codec)}
			}
		}
	}
	return nil
}

// checkPages refuses files with pages beyond MaxPageBytes, and with headers of pages that don't end: the library
// allocates what they say of themselves, and a page of some KB may be one of a GB. Only headers are read.
func (c *columns) checkPages(f Source, m *format.FileMetaData) error {
	for i := range m.RowGroups {
		for _, l := range c.leaves {
			chunk := &m.RowGroups[i].Columns[l.column].MetaData
			if err := c.checkPagesOf(f, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *columns) checkPagesOf(f Source, chunk *format.ColumnMetaData) error {
	column := field.ShortName(strings.Join(chunk.PathInSchema, "."))
	first, length := cmp.Or(chunk.DictionaryPageOffset, chunk.DataPageOffset), chunk.TotalCompressedSize
	if first < 0 || length < 0 {
		return &Fault{Text: fmt.Sprintf("the pages of the column %q can't be read: the footer is damaged", column)}
	}
	pages := io.NewSectionReader(f, first, length)
	b := bufio.NewReader(pages)
	headers := thrift.NewDecoder(new(thrift.CompactProtocol).NewReader(b))
	for {
		if _, err := b.Peek(1); err != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
		var h pageHeader
		if headers.Decode(&h) != nil || h.Compressed < 0 {
			return &Fault{Text: fmt.Sprintf("a page of the column %q can't be read: its header is damaged", column)}
		}
		size, count := int(max(h.Compressed, h.Uncompressed)), int(max(h.V1.Values, h.Dictionary.Values, h.V2.Values))
		if size > c.o.MaxPageBytes || count > c.o.MaxPageBytes/4 {
			return &Fault{Text: fmt.Sprintf("a page of the column %q has %d bytes and %d values: at most %d and %d "+
				"are read", column, size, count, c.o.MaxPageBytes, c.o.MaxPageBytes/4)}
		}
		next := int64(h.Compressed) - int64(b.Buffered())
		if next <= 0 {
			_, _ = b.Discard(int(h.Compressed)) // which is there
			continue
		}
		if _, err := pages.Seek(next, io.SeekCurrent); err != nil {
			return err
		}
		b.Reset(pages)
	}
}

// pageHeader is what checkPages wants of format.PageHeader. Decoding passes over the rest, of whatever length, without
// memory for it.
type pageHeader struct {
	Uncompressed int32    `thrift:"2,required"`
	Compressed   int32    `thrift:"3,required"`
	V1           pageSays `thrift:"5,optional"`
	Dictionary   pageSays `thrift:"7,optional"`
	V2           pageSays `thrift:"8,optional"`
}

type pageSays struct {
	Values int32 `thrift:"1,required"`
}

func (c *columns) describe(schema *parquet.Schema) error {
	fields := schema.Fields()
	if len(fields) > c.o.MaxColumns {
		return &Fault{Text: fmt.Sprintf("the file has more than %d columns", c.o.MaxColumns)}
	}
	titles := make([]string, len(fields))
	for i, f := range fields {
		titles[i] = f.Name()
	}
	var err error
	if c.table, err = newTable(titles, c.o); err != nil {
		return err
	}
	c.cells = make([]cell, len(fields))
	column := 0
	for i, f := range fields {
		if c.table.skips(i) {
			column += leavesOf(f)
			continue
		}
		l, ok := leafOf(f)
		if !ok {
			return &Fault{Text: fmt.Sprintf("the column %q is of a type that isn't known: %s",
				field.ShortName(f.Name()), typeOf(f))}
		}
		l.column, l.cell = column, i
		column++
		c.leaves = append(c.leaves, l)
	}
	c.values = make([]*parquet.Value, len(c.leaves))
	return nil
}

// leavesOf returns how many columns of values a column has.
func leavesOf(n parquet.Node) (count int) {
	if n.Leaf() {
		return 1
	}
	for _, f := range n.Fields() {
		count += leavesOf(f)
	}
	return count
}

func typeOf(f parquet.Field) string {
	if !f.Leaf() || f.Repeated() {
		return "a list, a map or a group"
	}
	return f.Type().String()
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
				return leaf{form: appendUnsigned, isRaw: true}, true
			}
		case *format.UUIDType:
			return leaf{form: appendUUID}, true
		case *format.StringType, *format.EnumType, *format.JsonType, nil:
		default:
			return l, false
		}
	}
	switch f.Type().Kind() {
	case parquet.Boolean:
		return leaf{form: func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendBool(dst, v.Boolean())
		}, isRaw: true}, true
	case parquet.Int32:
		return leaf{form: func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendInt(dst, int64(v.Int32()), 10)
		}, isRaw: true}, true
	case parquet.Int64:
		return leaf{form: func(dst []byte, v parquet.Value) []byte {
			return strconv.AppendInt(dst, v.Int64(), 10)
		}, isRaw: true}, true
	case parquet.Float:
		return leaf{form: func(dst []byte, v parquet.Value) []byte {
			return appendFloat(dst, float64(v.Float()), 32, 1<<24)
		}, isRaw: true}, true
	case parquet.Double:
		return leaf{form: func(dst []byte, v parquet.Value) []byte {
			return appendFloat(dst, v.Double(), 64, 1<<53)
		}, isRaw: true}, true
	case parquet.Int96:
		return leaf{form: appendInt96}, true
	case parquet.ByteArray:
		return leaf{form: func(dst []byte, v parquet.Value) []byte { return append(dst, v.ByteArray()...) }}, true
	}
	return l, false
}

// appendFloat appends a whole number as its digits, as long as it has all of them: programs make doubles of a column of
// integers that has nulls, and it may be one of identifiers. From exact on, several integers become the same double.
func appendFloat(dst []byte, f float64, bits int, exact float64) []byte {
	if f == math.Trunc(f) && math.Abs(f) < exact {
		return strconv.AppendInt(dst, int64(f), 10)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
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

// appendInt96 appends a time in the form in which Spark, Hive and Impala write it unless they are told otherwise: the
// nanoseconds of a day, and the number of that Julian day.
func appendInt96(dst []byte, v parquet.Value) []byte {
	const epoch = 2440588 // the Julian day of 1970-01-01
	n := v.Int96()
	day := int64(int32(n[2])) - epoch
	return time.Unix(day*86400, int64(n[1])<<32|int64(n[0])).UTC().AppendFormat(dst, time.RFC3339Nano)
}

func appendUUID(dst []byte, v parquet.Value) []byte {
	id, _ := uuid.FromBytes(v.ByteArray()) // the type has 16 bytes
	return append(dst, id.String()...)
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
	for n := range c.leaves {
		v, err := c.leaves[n].next()
		switch {
		case err == io.EOF && c.row > c.last:
			continue
		case err == io.EOF:
			return c.broken(fmt.Sprintf("the file should have %d rows", c.last))
		case err != nil:
			return c.broken(err)
		case c.row > c.last:
			return c.broken(fmt.Sprintf("the file should have only %d rows", c.last))
		}
		c.values[n] = v
	}
	if c.row > c.last {
		return io.EOF
	}
	at := c.Position()
	c.row++
	r.reset(at, nil)
	if err := c.read(); err != nil {
		return err
	}
	r.table, r.untaken, r.cells = c.table, c.table, c.cells
	return nil
}

func (c *columns) broken(why any) error {
	return &Fault{Line: c.row, Text: fmt.Sprintf("the row can't be read: %v", why)}
}

// next returns the value of the next row. It is valid until the next call.
func (l *leaf) next() (*parquet.Value, error) {
	for len(l.rest) == 0 {
		if l.values == nil {
			if l.pages == nil { // nothing is left
				return nil, io.EOF
			}
			page, err := l.pages.ReadPage()
			if err != nil {
				return nil, err
			}
			parquet.Release(l.page)
			l.page, l.values = page, page.Values()
		}
		n, err := l.values.ReadValues(l.buffer)
		switch l.rest = l.buffer[:n]; {
		case err == io.EOF:
			l.values = nil
		case err != nil:
			return nil, err
		case n == 0:
			return nil, io.ErrNoProgress
		}
	}
	v := &l.rest[0]
	l.rest = l.rest[1:]
	return v, nil
}

// read makes cells of the values of a row. It looks at values where they are: copying a copy of one at once waits until
// the first copy has left the processor.
func (c *columns) read() error {
	size := 0
	for _, v := range c.values {
		if v.Kind() == parquet.ByteArray {
			size += len(v.ByteArray())
		}
	}
	if size > c.o.MaxRowBytes {
		return &Fault{Line: c.row - 1, Text: fmt.Sprintf("the row is longer than %d bytes", c.o.MaxRowBytes)}
	}
	c.text = c.text[:0]
	clear(c.cells)
	for n, v := range c.values {
		l := &c.leaves[n]
		if v.IsNull() {
			continue
		}
		from := len(c.text)
		c.text = l.form(c.text, *v)
		c.cells[l.cell] = cell{text: c.text[from:len(c.text):len(c.text)], quoted: !l.isRaw, json: l.isRaw}
		if !l.isRaw {
			if err := checkText(c.cells[l.cell].text, c.row-1); err != nil {
				return err
			}
		}
	}
	return nil
}
