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
	const group = 1 << 16
	const rows = group + parquetBatch + 1
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, func(dst []byte, _ uint32, number uint64) []byte { return fmt.Append(dst, "svc", number) }, nil)
	e.(*parquetEncoder).most = group
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
	require.EqualValues(t, group, file.RowGroups()[0].NumRows())
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

// Changes of states, merges and identifies are read as they were written, whatever the rows before them had.
func TestParquetChanges(t *testing.T) {
	const rows = 2*parquetBatch + 1
	var out bytes.Buffer
	kinds := []op.Kind{EmailState, GroupState, Merged, Identified}
	e := NewEncoder(&out, Parquet, kinds[0], false, func(dst []byte, workspace uint32, number uint64) []byte {
		return fmt.Append(dst, "svc", workspace, "-", number)
	}, nil)
	text := func(s string) *string { return &s }
	var want []ParquetChange
	for i := range rows {
		event := Event{Position: uint64(i), Workspace: 3, Kind: kinds[i%4], Number: uint64(i), Resolved: true, Time: time.UnixMilli(int64(i)), AcceptedAt: time.UnixMicro(int64(i)), Name: []byte("g"), Source: op.SourceAdmin, Channel: op.ChannelSMS}
		row := ParquetChange{ID: fmt.Sprintf("%016x0000", i), Workspace: 3, Type: KindName(event.Kind), SvcID: text(fmt.Sprint("svc3-", i)), Time: int64(i), AcceptedAt: int64(i)}
		switch i / 4 % 4 {
		case 0:
			event.ID, event.Key, row.ExternalID = op.ExternalID, []byte("u"), text("u")
		case 1:
			event.ID, event.Key, row.AliasLabel, row.AliasName = op.Alias, op.AppendAliasKey(nil, []byte("l"), []byte("n")), text("l"), text("n")
		case 2:
			event.ID, event.Key, row.Email = op.Email, []byte("e"), text("e")
		case 3:
			event.ID, event.Key, row.Phone = op.Phone, []byte("p"), text("p")
		}
		switch event.Kind {
		case EmailState:
			if event.Resolved = i%8 == 0; !event.Resolved {
				row.SvcID = nil
			}
			row.Of, row.Source = text(map[bool]string{true: "user", false: "address"}[event.Resolved]), text(event.Source.String())
		case GroupState:
			event.Status = []byte("subscribed")
			row.Of, row.Status, row.Source, row.GroupID, row.Channel = text("user"), text("subscribed"), text(event.Source.String()), text("g"), text("sms")
		case Merged:
			event.Gone = uint64(i + 1)
			row.SvcID, row.IntoSvcID = text(fmt.Sprint("svc3-", i+1)), text(fmt.Sprint("svc3-", i))
		}
		want = append(want, row)
		require.NoError(t, e.Write(&event))
	}
	require.NoError(t, e.Close())
	got, err := parquet.Read[ParquetChange](bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, changeColumns, len(changeSchema.Columns()))
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

// Texts that repeat take hardly any memory, and end no row group.
func TestParquetGroupsOfEqualTexts(t *testing.T) {
	var out bytes.Buffer
	e := NewEncoder(&out, Parquet, op.Event, false, nil, nil)
	properties := []byte(`{"a":"` + strings.Repeat("x", 1000) + `"}`)
	const rows = 3 * parquetGroupBytes / 1000
	for i := range rows {
		require.NoError(t, e.Write(&Event{Position: uint64(i), Workspace: 3, Kind: op.Event, ID: op.ExternalID, Key: []byte("u"), Name: []byte("n"), Properties: properties}))
	}
	require.NoError(t, e.Close())
	file, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Len(t, file.RowGroups(), 1)
	require.EqualValues(t, rows, file.NumRows())
}

// equalRows compares rows. It is quicker than a comparison that explains the difference.
func equalRows(a, b *ParquetRow) bool {
	return parquetSchema.Deconstruct(nil, a).Equal(parquetSchema.Deconstruct(nil, b))
}

// Files of all kinds have encodings and pages that every reader knows.
func TestParquetForEveryReader(t *testing.T) {
	for _, kind := range []op.Kind{op.Event, op.Purchase, op.Delete, GroupState} {
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
