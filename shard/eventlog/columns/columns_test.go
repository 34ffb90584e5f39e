package columns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// row has a column of each kind, with values in each row and without.
type row struct {
	ID    string   `parquet:"id,plain"`
	Type  string   `parquet:"type,dict"`
	Key   *string  `parquet:"key,optional,plain"`
	Name  *string  `parquet:"name,optional,dict"`
	Long  *string  `parquet:"long,optional,dict"`
	Small uint32   `parquet:"small"`
	Count *uint32  `parquet:"count,optional"`
	Time  int64    `parquet:"time,timestamp(millisecond)"`
	Total *int64   `parquet:"total,optional"`
	Price *float64 `parquet:"price,optional"`
	Bool  *bool    `parquet:"bool,optional"`
	Never *string  `parquet:"never,optional,dict"`
	Null  *int64   `parquet:"null,optional"`
}

const batch = 256

// A file is what the library writes: over many pages and row groups, with columns that have values always, sometimes or
// never, in runs or scattered, and with texts that repeat or all differ.
func TestAsTheLibraryWrites(t *testing.T) {
	rnd := testseed.Rand(t)
	schema := parquet.SchemaOf(row{})
	for _, rows := range []int{0, 1, batch, 3*batch + 1, 60_000, 120_000} {
		page := pageBytes // which an id of each row exceeds in the last of these files
		if rows < 100_000 {
			page = 1000 + rnd.IntN(200_000)
		}
		var want, got bytes.Buffer
		library := parquet.NewWriter(&want, append(Options(schema), parquet.PageBufferSize(page), parquet.SkipPageBounds("long"))...)
		own := NewWriter(&got, schema, "long")
		own.page = fullPage(page)
		values := make([][]parquet.Value, len(schema.Columns()))
		endBatch := func() {
			for i, w := range library.ColumnWriters() {
				_, err := w.WriteRowValues(values[i])
				require.NoError(t, err)
				values[i] = values[i][:0]
			}
			require.NoError(t, own.EndPages())
		}
		group := max(1, (rows+1)/(1+rnd.IntN(2)))
		var r row
		for i := range rows {
			change(rnd, &r, i)
			for c, v := range schema.Deconstruct(nil, &r) {
				if v = v.Clone(); !v.IsNull() {
					set(own, c, v)
				}
				values[c] = append(values[c], v)
			}
			own.EndRow()
			if (i+1)%batch == 0 {
				endBatch()
			}
			if (i+1)%group == 0 {
				endBatch()
				require.NoError(t, library.Flush())
				require.NoError(t, own.EndGroup())
			}
		}
		endBatch()
		require.NoError(t, library.Close())
		require.NoError(t, own.Close())
		if !bytes.Equal(want.Bytes(), got.Bytes()) {
			a, err := parquet.OpenFile(bytes.NewReader(want.Bytes()), int64(want.Len()))
			require.NoError(t, err)
			b, err := parquet.OpenFile(bytes.NewReader(got.Bytes()), int64(got.Len()))
			require.NoError(t, err)
			require.Equal(t, a.Metadata(), b.Metadata())
			require.Equal(t, a.ColumnIndexes(), b.ColumnIndexes())
			require.Equal(t, a.OffsetIndexes(), b.OffsetIndexes())
			require.Fail(t, "pages differ")
		}
	}
}

func some[T any](rnd *rand.Rand, v T) *T {
	if rnd.IntN(8) == 0 {
		return nil
	}
	return &v
}

// change changes some of a row's values.
func change(rnd *rand.Rand, r *row, i int) {
	r.ID, r.Type, r.Small, r.Time = fmt.Sprintf("%016x", i), []string{"a", "b"}[i/9_000%2], 3, int64(i)-1000
	if rnd.IntN(3) > 0 && i/20_000%2 == 0 { // else a stretch in which all is as before
		r.Key = some(rnd, fmt.Sprint("key ", rnd.IntN(1000)))
		r.Name = some(rnd, strings.Repeat("n", rnd.IntN(40)))
		r.Long = some(rnd, fmt.Sprint("a text that is long enough ", rnd.Uint64()))
		r.Count, r.Total = some(rnd, rnd.Uint32()), some(rnd, rnd.Int64()-rnd.Int64())
		r.Price, r.Bool = some(rnd, rnd.NormFloat64()), some(rnd, rnd.IntN(2) == 0)
		if i < 5_000 && r.Price != nil { // zeros of both signs, of which none is less
			*r.Price = math.Copysign(0, *r.Price)
		}
	}
}

func set(w *Writer, column int, v parquet.Value) {
	switch v.Kind() {
	case parquet.ByteArray:
		w.Text(column, v.ByteArray())
	case parquet.Int32:
		w.Uint32(column, v.Uint32())
	case parquet.Int64:
		w.Int64(column, v.Int64())
	case parquet.Double:
		w.Double(column, v.Double())
	case parquet.Boolean:
		w.Boolean(column, v.Boolean())
	}
}

// A file has as many row groups as their numbers go, and no more.
func TestTooManyGroups(t *testing.T) {
	x := NewWriter(io.Discard, parquet.SchemaOf(struct{ ID int64 }{}), "")
	end := func() error {
		x.Int64(0, 1)
		x.EndRow()
		return x.EndGroup()
	}
	x.meta.RowGroups = make([]format.RowGroup, parquet.MaxRowGroups-1)
	require.NoError(t, end())
	require.Equal(t, parquet.ErrTooManyRowGroups, end())
}

// A dictionary, which may have megabytes, isn't copied to be compressed.
func TestDictionaryIsNotCopied(t *testing.T) {
	x := NewWriter(io.Discard, parquet.SchemaOf(struct {
		Name string `parquet:"name,dict"`
	}{}), "")
	x.Text(0, make([]byte, 1<<20))
	x.EndRow()
	require.NoError(t, x.EndGroup())
	require.Less(t, cap(x.body), 1<<20)
}

var errFull = errors.New("full")

type fullAfter int

func (n *fullAfter) Write(b []byte) (int, error) {
	if *n -= fullAfter(len(b)); *n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// An error of the underlying writer is returned, wherever it comes.
func TestErrors(t *testing.T) {
	write := func(w *fullAfter) error {
		x := NewWriter(w, parquet.SchemaOf(row{}), "")
		for _, c := range []int{0, 1} {
			x.Text(c, []byte("text"))
		}
		x.Uint32(5, 1)
		x.Int64(7, 1)
		x.EndRow()
		return x.Close()
	}
	room := fullAfter(1 << 20)
	require.NoError(t, write(&room))
	for n := range 1<<20 - room {
		require.ErrorIs(t, write(new(n)), errFull)
	}
}
