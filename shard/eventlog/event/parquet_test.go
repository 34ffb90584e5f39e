package event

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// Rows are read as they were written, across the bounds of batches and row groups, whatever the rows before them had.
func TestParquetRows(t *testing.T) {
	const rows = parquetRowGroup + parquetBatch + 1
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, func(dst []byte, _ uint32, number uint64) []byte { return fmt.Append(dst, "svc", number) }, nil)
	kinds := []op.Kind{op.Event, op.Purchase, op.Delete}
	for i := range rows {
		require.NoError(t, e.Write(&Event{Position: uint64(i), Workspace: 3, Kind: kinds[i%3], ID: op.ExternalID, Key: fmt.Append(nil, "u", i%1000), Number: uint64(i), Resolved: i%7 == 0,
			Name: []byte("n"), Currency: [3]byte([]byte("EUR")), Price: 1.5, Quantity: 2, Total: int64(i), Time: time.UnixMilli(int64(i)), AcceptedAt: time.UnixMicro(int64(i)),
			Properties: [][]byte{nil, []byte(`{"a":1}`)}[i/2%2]}))
	}
	require.NoError(t, e.Close())
	file, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Len(t, file.RowGroups(), 2)
	require.EqualValues(t, parquetRowGroup, file.RowGroups()[0].NumRows())
	got, err := parquet.Read[ParquetRow](bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Len(t, got, rows)
	text := func(s string) *string { return &s }
	for i, r := range got {
		want := ParquetRow{ID: fmt.Sprintf("%016x0000", i), Workspace: 3, Type: KindName(kinds[i%3]), ExternalID: text(fmt.Sprint("u", i%1000)), Time: int64(i), AcceptedAt: int64(i)}
		if i%7 == 0 {
			want.SvcID = text(fmt.Sprint("svc", i))
		}
		switch kinds[i%3] {
		case op.Event:
			want.Name = text("n")
		case op.Purchase:
			price, quantity, total := 1.5, uint32(2), int64(i)
			want.ProductID, want.Currency, want.Price, want.Quantity, want.TotalMinor = text("n"), text("EUR"), &price, &quantity, &total
		}
		if i/2%2 == 1 {
			want.Properties = text(`{"a":1}`)
		}
		if !equalRows(&want, &r) {
			require.Equal(t, want, r, "row %d", i)
		}
	}
	require.Equal(t, parquetColumns, len(parquetSchema.Columns()))
}

// A row group is written when its texts are large, however few rows it has.
func TestParquetGroupsOfLargeRows(t *testing.T) {
	const size, rows = 50_000, 2 * parquetGroupBytes / 50_000
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, func(dst []byte, _ uint32, _ uint64) []byte { return dst }, nil)
	properties := []byte(`{"a":"` + strings.Repeat("x", size) + `"}`)
	for i := range rows {
		copy(properties[6:], fmt.Sprint(i))
		require.NoError(t, e.Write(&Event{Position: uint64(i), Workspace: 3, Kind: op.Event, ID: op.ExternalID, Key: []byte("u"), Name: []byte("n"), Properties: properties}))
	}
	require.NoError(t, e.Close())
	file, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.EqualValues(t, rows, file.NumRows())
	for _, group := range file.RowGroups() {
		require.LessOrEqual(t, group.NumRows()*size, int64(parquetGroupBytes+parquetBatch*size))
	}
}

// equalRows compares rows. It is quicker than a comparison that explains the difference.
func equalRows(a, b *ParquetRow) bool {
	return parquetSchema.Deconstruct(nil, a).Equal(parquetSchema.Deconstruct(nil, b))
}

// Files of all kinds have encodings and pages that every reader knows.
func TestParquetForEveryReader(t *testing.T) {
	for _, kind := range []op.Kind{op.Event, op.Purchase, op.Delete, op.Merge} {
		var out bytes.Buffer
		columns := []Column{{Name: "a", Type: ColumnString}, {Name: "b", Type: ColumnNumber}, {Name: "c", Type: ColumnBoolean}, {Name: "d", Type: ColumnTime}}
		e := NewEncoder(&out, Parquet, kind, false, func(dst []byte, _ uint32, number uint64) []byte { return fmt.Append(dst, "svc", number) }, columns)
		for i := range 100 {
			require.NoError(t, e.Write(&Event{Position: uint64(i), Kind: kind, ID: op.ExternalID, Key: fmt.Append(nil, "u", i), Number: uint64(i), Resolved: true,
				Name: []byte("n"), Currency: [3]byte([]byte("EUR")), Time: time.UnixMilli(int64(i)), AcceptedAt: time.UnixMicro(int64(i)), Properties: []byte(`{"a":1}`)}))
		}
		require.NoError(t, e.Close())
		file, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
		require.NoError(t, err)
		known := []format.Encoding{format.Plain, format.RLE, format.RLEDictionary}
		for _, column := range file.Metadata().RowGroups[0].Columns {
			m := column.MetaData
			require.Subset(t, known, m.Encoding, "%v: %v", kind, m.PathInSchema)
			for _, pages := range m.EncodingStats {
				require.NotEqual(t, format.DataPageV2, pages.PageType, "%v: %v", kind, m.PathInSchema)
			}
			require.NotEmpty(t, m.EncodingStats)
		}
	}
}
