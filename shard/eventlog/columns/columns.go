// Package columns writes files of Parquet of flat rows, value by value. A file is byte for byte what the library writes
// that reads it, for less CPU time: a value is written once, in the form that it has in its page, and a null costs
// nothing until the page ends. Knows no events.
package columns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/zeebo/xxh3"
)

const (
	pageBytes = 2 << 20
	sample    = 8 // of the texts, one in so many is looked at, by its hash
)

// Options are those with which the library writes the same files. Pages are of version 1, which all readers know. Their
// bounds are in the column index alone.
func Options(schema *parquet.Schema) []parquet.WriterOption {
	return []parquet.WriterOption{schema, parquet.Compression(codec), parquet.DataPageVersion(1),
		parquet.DataPageStatistics(false)}
}

// Writer writes a file: values of a row, EndRow, and so on. An optional column that gets no value in a row has a null;
// the others need one in each row, and none may get two. It belongs to one goroutine.
type Writer struct {
	w       io.Writer
	offset  int64
	columns []column
	page    int // the size of a page before its levels are encoded
	rows    int // of the row group, without the one that has begun
	meta    format.FileMetaData
	indexes []format.ColumnIndex // of all row groups, and so are offsets
	offsets []format.OffsetIndex
	head    bytes.Buffer
	thrift  *thrift.Encoder // into head
	body    []byte          // of a page
	packed  []byte

	texts int             // bytes of the texts of the row group that differ, by the sample
	known [1 << 13]uint64 // a bit for the hash of each text of the sample
}

// NewWriter begins a file. unbounded is the column that gets no bounds, since nobody looks for its texts.
func NewWriter(w io.Writer, schema *parquet.Schema, unbounded string) *Writer {
	x := &Writer{w: w, page: fullPage(pageBytes), meta: emptyFile(schema)}
	x.thrift = thrift.NewEncoder(new(thrift.CompactProtocol).NewWriter(&x.head))
	for _, f := range schema.Fields() {
		x.columns = append(x.columns, newColumn(f, f.Name() != unbounded))
	}
	return x
}

// fullPage is the size at which the library ends a page, if pages are to have size bytes.
func fullPage(size int) int { return int(float64(size) * 0.98) }

// emptyFile is what the library says about a file without rows.
func emptyFile(schema *parquet.Schema) format.FileMetaData {
	empty := parquet.NewWriter(io.Discard, Options(schema)...)
	if err := empty.Close(); err != nil {
		panic("BUG: a file without rows: " + err.Error())
	}
	return *empty.File().Metadata()
}

// Text sets a text of the current row. An optional column's counts for Texts.
func (x *Writer) Text(at int, text []byte) {
	c := &x.columns[at]
	if c.dictionary != nil {
		index, isNew := c.dictionary.index(text)
		if c.indexes = append(c.indexes, index); isNew {
			x.count(c, text)
		}
	} else {
		c.values = append(binary.LittleEndian.AppendUint32(c.values, uint32(len(text))), text...)
		x.count(c, text)
	}
	x.set(c)
}

// count counts a text that may be new. One that is in the dictionary of its column has been counted.
func (x *Writer) count(c *column, text []byte) {
	if !c.optional {
		return
	}
	h := xxh3.Hash(text)
	if h%sample != 0 {
		return
	}
	h /= sample
	if word, bit := &x.known[h>>6%uint64(len(x.known))], uint64(1)<<(h&63); *word&bit == 0 {
		*word |= bit
		x.texts += sample * len(text)
	}
}

// Uint32 sets a value of the current row.
func (x *Writer) Uint32(at int, v uint32) {
	c := &x.columns[at]
	c.values = binary.LittleEndian.AppendUint32(c.values, v)
	x.set(c)
}

// Int64 sets a value of the current row.
func (x *Writer) Int64(at int, v int64) {
	c := &x.columns[at]
	c.values = binary.LittleEndian.AppendUint64(c.values, uint64(v))
	x.set(c)
}

// Double sets a value of the current row.
func (x *Writer) Double(at int, v float64) { x.Int64(at, int64(math.Float64bits(v))) }

// Boolean sets a value of the current row.
func (x *Writer) Boolean(at int, v bool) {
	c := &x.columns[at]
	if c.count%8 == 0 {
		c.values = append(c.values, 0)
	}
	if v {
		c.values[len(c.values)-1] |= 1 << (c.count % 8)
	}
	x.set(c)
}

func (x *Writer) set(c *column) {
	if c.count++; c.optional {
		c.pad(x.rows)
		c.levels = append(c.levels, 1)
	}
}

// Has reports whether the current row has a value in an optional column.
func (x *Writer) Has(at int) bool { return x.columns[at].start+len(x.columns[at].levels) > x.rows }

// EndRow ends the current row.
func (x *Writer) EndRow() { x.rows++ }

// Rows returns the number of rows in the row group.
func (x *Writer) Rows() int { return x.rows }

// Texts returns about how many bytes the texts of optional columns in the row group have, each text counted once: they
// lie in memory until it is written, and a few times then.
func (x *Writer) Texts() int { return x.texts }

// EndPages ends pages that are large enough. It is to be called every few hundred rows.
func (x *Writer) EndPages() error {
	for i := range x.columns {
		if c := &x.columns[i]; c.size(x.rows) >= x.page {
			if err := x.endPage(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// endPage encodes the page of a column, if it has rows, and keeps it until the row group is written.
func (x *Writer) endPage(c *column) (err error) {
	rows := x.rows - c.start
	if rows == 0 {
		return nil
	}
	if x.body, err = c.encode(x.body[:0], x.rows); err != nil {
		return err
	}
	at := int64(len(c.pages))
	if c.pages, err = x.appendPage(c, c.pages, x.body, format.PageHeader{Type: format.DataPage,
		DataPageHeader: thrift.New(format.DataPageHeader{NumValues: int32(rows), Encoding: c.encoding(),
			DefinitionLevelEncoding: format.RLE, RepetitionLevelEncoding: format.RLE})}); err != nil {
		return err
	}
	c.offsets = append(c.offsets, format.PageLocation{Offset: at, CompressedPageSize: int32(int64(len(c.pages)) - at),
		FirstRowIndex: int64(c.start)})
	c.note(rows)
	c.start, c.count = x.rows, 0
	c.levels, c.values, c.indexes = c.levels[:0], c.values[:0], c.indexes[:0]
	return nil
}

// appendPage appends a page with this body.
func (x *Writer) appendPage(c *column, dst, body []byte, head format.PageHeader) (_ []byte, err error) {
	if x.packed, err = codec.Encode(x.packed[:0], body); err != nil {
		return dst, fmt.Errorf("compress a page: %w", err)
	}
	head.UncompressedPageSize, head.CompressedPageSize = int32(len(body)), int32(len(x.packed))
	head.CRC = int32(crc32.ChecksumIEEE(x.packed))
	x.head.Reset()
	if err := x.thrift.Encode(&head); err != nil {
		return dst, fmt.Errorf("encode the head of a page: %w", err)
	}
	c.meta.TotalUncompressedSize += int64(x.head.Len() + len(body))
	c.meta.TotalCompressedSize += int64(x.head.Len() + len(x.packed))
	return append(append(dst, x.head.Bytes()...), x.packed...), nil
}

// EndGroup writes the row group, if it has rows, and begins another one.
func (x *Writer) EndGroup() error {
	if x.rows == 0 {
		return nil
	}
	if len(x.meta.RowGroups) == parquet.MaxRowGroups {
		return parquet.ErrTooManyRowGroups
	}
	if err := x.begin(); err != nil {
		return err
	}
	group := format.RowGroup{NumRows: int64(x.rows), SortingColumns: thrift.Slice[format.SortingColumn]{},
		FileOffset: x.offset, Ordinal: int16(len(x.meta.RowGroups))}
	for i := range x.columns {
		c := &x.columns[i]
		if err := x.endPage(c); err != nil {
			return err
		}
		if err := x.writeColumn(c); err != nil {
			return err
		}
		group.Columns = append(group.Columns, format.ColumnChunk{MetaData: c.meta})
		group.TotalByteSize += c.meta.TotalUncompressedSize
		group.TotalCompressedSize += c.meta.TotalCompressedSize
		c.reset()
	}
	x.meta.RowGroups = append(x.meta.RowGroups, group)
	x.meta.NumRows += int64(x.rows)
	x.rows, x.texts = 0, 0
	clear(x.known[:])
	return nil
}

// writeColumn writes the pages of a column in a row group, and says where they are.
func (x *Writer) writeColumn(c *column) (err error) {
	c.meta.EncodingStats = append(c.meta.EncodingStats,
		format.PageEncodingStats{PageType: format.DataPage, Encoding: c.encoding(), Count: int32(len(c.offsets))})
	if d := c.dictionary; d != nil {
		var page []byte
		if page, err = x.appendPage(c, nil, d.values, format.PageHeader{Type: format.DictionaryPage,
			DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: int32(len(d.starts)),
				Encoding: format.Plain})}); err != nil {
			return err
		}
		c.meta.DictionaryPageOffset = x.offset
		c.meta.EncodingStats = append(c.meta.EncodingStats,
			format.PageEncodingStats{PageType: format.DictionaryPage, Encoding: format.Plain, Count: 1})
		if err := x.write(page); err != nil {
			return err
		}
	}
	c.meta.DataPageOffset = x.offset
	for i := range c.offsets {
		c.offsets[i].Offset += x.offset
	}
	x.indexes = append(x.indexes, c.columnIndex())
	x.offsets = append(x.offsets, format.OffsetIndex{PageLocations: c.offsets})
	return x.write(c.pages)
}

// begin writes the file's first bytes if nothing has been written.
func (x *Writer) begin() error {
	if x.offset > 0 {
		return nil
	}
	return x.write([]byte("PAR1"))
}

func (x *Writer) write(b []byte) error {
	n, err := x.w.Write(b)
	x.offset += int64(n)
	return err
}

// writeThrift writes a value of the footer, and returns its length.
func (x *Writer) writeThrift(v any) (int32, error) {
	x.head.Reset()
	if err := x.thrift.Encode(v); err != nil {
		return 0, fmt.Errorf("encode the footer: %w", err)
	}
	return int32(x.head.Len()), x.write(x.head.Bytes())
}

// Close ends the file; the underlying writer stays open.
func (x *Writer) Close() (err error) {
	if err := x.begin(); err != nil {
		return err
	}
	if err := x.EndGroup(); err != nil {
		return err
	}
	chunk := func(i int) *format.ColumnChunk { return &x.meta.RowGroups[i/len(x.columns)].Columns[i%len(x.columns)] }
	for i := range x.indexes {
		c := chunk(i)
		c.ColumnIndexOffset = x.offset
		if c.ColumnIndexLength, err = x.writeThrift(&x.indexes[i]); err != nil {
			return err
		}
	}
	for i := range x.offsets {
		c := chunk(i)
		c.OffsetIndexOffset = x.offset
		if c.OffsetIndexLength, err = x.writeThrift(&x.offsets[i]); err != nil {
			return err
		}
	}
	size, err := x.writeThrift(&x.meta)
	if err != nil {
		return err
	}
	return x.write(append(binary.LittleEndian.AppendUint32(nil, uint32(size)), "PAR1"...))
}
