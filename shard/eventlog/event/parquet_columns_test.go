package event

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// A property is in a column of its own where its value has the declared type, across the bounds of batches and row
// groups. In the JSON it is there whatever its type.
func TestParquetColumns(t *testing.T) {
	type own map[ColumnType]any
	const text = "2026-01-31T10:30:00.123+01:00"
	values := []struct {
		v    []byte
		json string
		own  own
	}{
		{op.AppendString(nil, []byte("ü\"1")), `"ü\"1"`, own{ColumnString: "ü\"1"}},
		{op.AppendString(nil, nil), `""`, own{ColumnString: ""}},
		{op.AppendInt(nil, -3), `-3`, own{ColumnNumber: -3.0}},
		{op.AppendFloat(nil, 1.25), `1.25`, own{ColumnNumber: 1.25}},
		{op.AppendBool(nil, true), `true`, own{ColumnBoolean: true}},
		{op.AppendBool(nil, false), `false`, own{ColumnBoolean: false}},
		{op.AppendString(nil, []byte(text)), `"` + text + `"`, own{ColumnString: text,
			ColumnTime: time.Date(2026, 1, 31, 9, 30, 0, 123e6, time.UTC).UnixMilli()}},
		{op.AppendTime(nil, time.Date(2026, 1, 31, 9, 30, 0, 123e6, time.UTC).UnixMilli()), `"2026-01-31T09:30:00.123Z"`, own{ // of attributes
			ColumnString: "2026-01-31T09:30:00.123Z", ColumnTime: time.Date(2026, 1, 31, 9, 30, 0, 123e6, time.UTC).UnixMilli()}},
		{op.AppendBlock(nil, op.JSON, []byte(`{"a":1}`)), `{"a":1}`, nil},
	}
	types := []ColumnType{ColumnString, ColumnNumber, ColumnBoolean, ColumnTime}
	var columns []Column
	for _, of := range types { // each value is a property p of one row, and has a column of each type by another name
		columns = append(columns, Column{Name: "date:" + string(of), Type: of})
	}
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, nil, columns)
	names := [][]byte{[]byte("other")}
	for _, c := range columns {
		names = append(names, []byte(c.Name))
	}
	const group = 1 << 16
	const rows = group + parquetBatch + 1
	e.(*parquetEncoder).most = group
	for i := range rows {
		event := Event{Position: uint64(i), Kind: op.Event, Name: []byte("n")}
		if i%10 < len(values) {
			fields := append([]byte{0}, op.AppendInt(nil, 7)...)
			for c := range columns {
				fields = append(append(fields, byte(1+c)), values[i%10].v...)
			}
			event.SetProperties(nil, Fields{Encoded: fields, Names: names})
		}
		require.NoError(t, e.Write(&event))
	}
	require.NoError(t, e.Close())

	file, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	var found []string
	for _, f := range file.Schema().Fields() {
		found = append(found, f.Name())
	}
	require.Equal(t, []string{"property_date:string", "property_date:number", "property_date:boolean",
		"property_date:time"},
		found[parquetColumns:], "behind those of rows")
	of := [4]string{"STRING", "DOUBLE", "BOOLEAN", "TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)"}
	for c, f := range file.Schema().Fields()[parquetColumns:] {
		require.True(t, f.Optional())
		require.Equal(t, of[c], f.Type().String())
	}
	i := 0
	for _, g := range file.RowGroups() {
		r := g.Rows()
		for batch := make([]parquet.Row, 100); ; {
			got, err := r.ReadRows(batch)
			for _, row := range batch[:got] {
				var want own
				if i%10 < len(values) {
					want = values[i%10].own
				}
				for c, of := range types {
					if got := ownValue(of, row[parquetColumns+c]); got != want[of] {
						require.Equal(t, want[of], got, "row %d, column of %s", i, of)
					}
				}
				if i%10 < len(values) && i < 100 {
					require.Contains(t, row[columnProperties].String(), fmt.Sprintf(`"date:time":%s}`, values[i%10].json))
				}
				i++
			}
			if err != nil {
				break
			}
		}
		require.NoError(t, r.Close())
	}
	require.Equal(t, rows, i)
}

// A property that is there twice has one value in its column, so that rows stay rows.
func TestParquetColumnOfTwo(t *testing.T) {
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, nil, []Column{{Name: "a", Type: ColumnNumber}})
	for i := range 3 {
		fields := append([]byte{0}, op.AppendInt(nil, int64(i))...)
		event := Event{Kind: op.Event, Name: []byte("n")}
		event.SetProperties(nil, Fields{Encoded: append(append(fields, 0), op.AppendInt(nil, 7)...), Names: [][]byte{[]byte("a")}})
		require.NoError(t, e.Write(&event))
	}
	require.NoError(t, e.Close())
	type row struct {
		A *float64 `parquet:"property_a,optional"`
	}
	got, err := parquet.Read[row](bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Len(t, got, 3)
	for i, r := range got {
		require.EqualValues(t, i, *r.A)
	}
}

func ownValue(of ColumnType, v parquet.Value) any {
	switch {
	case v.IsNull():
		return nil
	case of == ColumnNumber:
		return v.Double()
	case of == ColumnBoolean:
		return v.Boolean()
	case of == ColumnTime:
		return v.Int64()
	}
	return v.String()
}
