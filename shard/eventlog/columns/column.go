package columns

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// codec compresses all pages. Dictionaries have removed most repetition: the default level would make a tenth fewer
// bytes than the fastest one of the events of bench, and of properties that all differ a fifteenth, for up to a third
// more of the encoder's time.
var codec = &zstd.Codec{Level: zstd.SpeedFastest}

// levelEncoding is how a page says which of its values are null.
var levelEncoding = &rle.Encoding{BitWidth: 1}

// column is a column of a row group. values and indexes are those of the page that has begun; only one of them is used.
type column struct {
	kind       parquet.Kind
	logical    parquet.Type
	optional   bool
	bounded    bool
	dictionary *dictionary // nil: values are plain

	start   int     // the first row of the page
	count   int     // of values that are not null
	levels  []byte  // 1 for each value, 0 for each null; nulls behind the last value are missing
	values  []byte  // as they are in the page
	indexes []int32 // in the dictionary
	scratch []byte

	pages   []byte // that have ended, with their heads
	offsets []format.PageLocation
	index   parquet.ColumnIndexer
	nulls   []int64 // a page's nulls and values, for each page
	meta    format.ColumnMetaData
}

func newColumn(f parquet.Field, bounded bool) column {
	c := column{kind: f.Type().Kind(), logical: f.Type(), optional: f.Optional(), bounded: bounded}
	if e := f.Encoding(); e != nil && e.Encoding() == format.RLEDictionary {
		c.dictionary = newDictionary()
	}
	c.index = c.logical.NewColumnIndexer(parquet.DefaultColumnIndexSizeLimit)
	c.meta = format.ColumnMetaData{Type: format.Type(c.kind), Encoding: c.encodings(),
		PathInSchema: thrift.Slice[string]{f.Name()}, Codec: codec.CompressionCodec()}
	return c
}

func (c *column) encoding() format.Encoding {
	if c.dictionary != nil {
		return format.RLEDictionary
	}
	return format.Plain
}

// encodings are those of all that the pages of a column have.
func (c *column) encodings() thrift.Slice[format.Encoding] {
	list := thrift.Slice[format.Encoding]{format.Plain} // values, or those of the dictionary
	if c.optional {
		list = append(list, format.RLE)
	}
	if c.dictionary != nil {
		list = append(list, format.RLEDictionary)
	}
	return list
}

// pad appends the levels that are missing of rows before row, which are nulls.
func (c *column) pad(row int) {
	if missing := row - c.start - len(c.levels); missing > 0 {
		at := len(c.levels)
		c.levels = slices.Grow(c.levels, missing)[:at+missing]
		clear(c.levels[at:])
	}
}

// size is that of the page, with rows up to row, before it is encoded. The library takes five bytes for a level.
func (c *column) size(row int) int {
	n := len(c.values) + 4*len(c.indexes)
	if c.optional {
		n += 5 * (row - c.start)
	}
	return n
}

// encode appends the page, with rows up to row, as it is before it is compressed.
func (c *column) encode(dst []byte, row int) (_ []byte, err error) {
	if c.optional {
		c.pad(row)
		if c.scratch, err = levelEncoding.EncodeLevels(c.scratch, c.levels); err != nil {
			return dst, err
		}
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(c.scratch))), c.scratch...)
	}
	if c.dictionary == nil {
		return append(dst, c.values...), nil
	}
	c.scratch, err = parquet.RLEDictionary.EncodeInt32(c.scratch, c.indexes)
	return append(dst, c.scratch...), err
}

// note notes what the footer says about a page.
func (c *column) note(rows int) {
	nulls := int64(rows - c.count)
	c.meta.NumValues += int64(rows)
	c.meta.Statistics.NullCount += nulls
	if c.optional {
		c.nulls = append(c.nulls, nulls, int64(c.count))
	}
	if c.kind == parquet.ByteArray && c.dictionary == nil {
		c.meta.SizeStatistics.UnencodedByteArrayDataBytes += int64(len(c.values) - 4*c.count)
	}
	var least, most parquet.Value
	if c.bounded && c.count > 0 {
		least, most = c.bounds()
		s := &c.meta.Statistics
		if s.MinValue == nil || c.logical.Compare(least, c.kind.Value(s.MinValue)) < 0 {
			s.MinValue = least.AppendBytes([]byte{})
		}
		if s.MaxValue == nil || c.logical.Compare(most, c.kind.Value(s.MaxValue)) > 0 {
			s.MaxValue = most.AppendBytes([]byte{})
		}
	}
	c.index.IndexPage(int64(rows), nulls, least, most)
	if c.dictionary != nil {
		c.dictionary.page++
	}
}

// bounds returns the least and the greatest value of the page.
func (c *column) bounds() (least, most parquet.Value) {
	switch {
	case c.dictionary != nil:
		return texts(c.dictionary.bounds())
	case c.kind == parquet.ByteArray:
		return texts(boundsOfTexts(c.values))
	case c.kind == parquet.Int32: // of which all are unsigned
		a, b := boundsOf(c.values, 4, binary.LittleEndian.Uint32)
		return parquet.Int32Value(int32(a)), parquet.Int32Value(int32(b))
	case c.kind == parquet.Int64:
		a, b := boundsOf(c.values, 8, func(v []byte) int64 { return int64(word(v)) })
		return parquet.Int64Value(a), parquet.Int64Value(b)
	case c.kind == parquet.Double:
		a, b := boundsOf(c.values, 8, func(v []byte) float64 { return math.Float64frombits(word(v)) })
		return parquet.DoubleValue(a), parquet.DoubleValue(b)
	case c.kind == parquet.Boolean:
		ones := 0
		for i := range c.count {
			ones += int(c.values[i/8] >> (i % 8) & 1)
		}
		return parquet.BooleanValue(ones == c.count), parquet.BooleanValue(ones > 0)
	}
	panic("BUG: a column of " + c.kind.String())
}

func word(v []byte) uint64 { return binary.LittleEndian.Uint64(v) }

func texts(least, most []byte) (a, b parquet.Value) {
	return parquet.ByteArrayValue(least), parquet.ByteArrayValue(most)
}

// boundsOf returns the bounds of values of a size: the first of those that are equal, as zeros of either sign are.
func boundsOf[T cmp.Ordered](values []byte, size int, read func([]byte) T) (least, most T) {
	least = read(values)
	for most = least; len(values) > 0; values = values[size:] {
		if v := read(values); v < least {
			least = v
		} else if v > most {
			most = v
		}
	}
	return least, most
}

// boundsOfTexts returns the bounds of texts that each have their length before them.
func boundsOfTexts(values []byte) (least, most []byte) {
	for first := true; len(values) > 0; first = false {
		end := 4 + binary.LittleEndian.Uint32(values)
		text := values[4:end]
		values = values[end:]
		if first || bytes.Compare(text, least) < 0 {
			least = text
		}
		if first || bytes.Compare(text, most) > 0 {
			most = text
		}
	}
	return least, most
}

// columnIndex returns what the footer says about the pages of the row group.
func (c *column) columnIndex() format.ColumnIndex {
	index := c.index.ColumnIndex()
	if c.optional {
		index.DefinitionLevelHistogram = c.nulls
		nulls := c.meta.Statistics.NullCount
		c.meta.SizeStatistics.DefinitionLevelHistogram = []int64{nulls, c.meta.NumValues - nulls}
	}
	return index
}

// reset begins a row group.
func (c *column) reset() {
	m := &c.meta
	c.meta = format.ColumnMetaData{Type: m.Type, Encoding: m.Encoding, PathInSchema: m.PathInSchema, Codec: m.Codec}
	c.start, c.pages, c.offsets, c.nulls = 0, c.pages[:0], nil, nil
	c.index.Reset()
	if c.dictionary != nil {
		c.dictionary.reset()
	}
}
