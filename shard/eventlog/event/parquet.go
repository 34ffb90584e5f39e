package event

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"millrace/shard/eventlog/columns"
	"millrace/shard/op"
)

const (
	parquetBatch    = 1 << 8
	parquetRowGroup = 1 << 19 // a dictionary serves one: large ones repeat little
	// parquetGroupBytes bounds the texts of a row group, each counted once: its dictionaries lie in memory until it is
	// written, and a few times then. Properties may have 50 KB.
	parquetGroupBytes = 10 << 20
)

type parquetEncoder struct {
	w     *columns.Writer
	svcID SvcIDFunc
	own   map[string]ownColumn // columns of properties
	rows  int                  // number of rows since the last Flush
	most  int                  // number of rows in a row group
	text  []byte               // memory for a text that has to be made
}

// newParquetEncoder makes an encoder of a ParquetRow, or a ParquetChange, for each event.
func newParquetEncoder(w io.Writer, kind op.Kind, svcID SvcIDFunc, properties []Column) *parquetEncoder {
	most := parquetRowGroup / (1 + len(properties)/4) // a column takes memory for each row
	x := &parquetEncoder{svcID: svcID, most: most}
	schema := changeSchema
	if !IsNoted(kind) {
		schema, x.own = parquetSchemaOf(properties)
	}
	x.w = columns.NewWriter(w, schema, "properties")
	return x
}

func (x *parquetEncoder) Write(e *Event) error {
	x.text = e.AppendID(x.text[:0])
	x.w.Text(columnID, x.text)
	x.w.Uint32(columnWorkspace, e.Workspace)
	x.w.Text(columnType, kindTexts[e.Kind])
	x.w.Int64(columnTime, e.Time.UnixMilli())
	x.w.Int64(columnAcceptedAt, e.AcceptedAt.UnixMicro())
	x.setIdentifier(e)
	if IsNoted(e.Kind) {
		x.setChange(e)
	} else {
		x.setEvent(e)
	}
	x.w.EndRow()
	if x.rows++; x.rows < parquetBatch {
		return nil
	}
	return x.Flush()
}

// setEvent sets what a row of another kind has besides what all rows have.
func (x *parquetEncoder) setEvent(e *Event) {
	switch e.Kind {
	case op.Purchase:
		x.w.Text(columnProductID, e.Name)
		x.w.Text(columnCurrency, e.Currency[:])
		x.w.Double(columnPrice, e.Price)
		x.w.Uint32(columnQuantity, e.Quantity)
		x.w.Int64(columnTotalMinor, e.Total)
	case op.Event:
		x.w.Text(columnName, e.Name)
	}
	if len(e.App) > 0 {
		x.w.Text(columnAppID, e.App)
	}
	if e.Properties != nil {
		x.w.Text(columnProperties, e.Properties)
		if len(x.own) > 0 {
			x.setOwn(e)
		}
	}
}

// setChange sets what a row of a kind that is noted has besides what all rows have.
func (x *parquetEncoder) setChange(e *Event) {
	if x.svcID != nil && e.Kind == Merged {
		x.setSvcID(columnIntoSvcID, e, e.Number)
	}
	if isState(e.Kind) {
		x.w.Text(columnOf, []byte(ofWhat(e)))
		x.setSome(columnStatus, e.Status)
		x.setSome(columnSource, []byte(e.Source.String()))
	}
	if e.Kind == GroupState {
		x.setSome(columnGroupID, e.Name)
		x.setSome(columnChannel, []byte(ChannelName(e.Channel)))
	}
}

func (x *parquetEncoder) setIdentifier(e *Event) {
	switch e.ID {
	case op.ExternalID:
		x.w.Text(columnExternalID, e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			x.w.Text(columnAliasLabel, label)
			x.w.Text(columnAliasName, name)
		}
	case op.Email:
		x.w.Text(columnEmail, e.Key)
	case op.Phone:
		x.w.Text(columnPhone, e.Key)
	}
	if x.svcID != nil && e.Resolved {
		x.setSvcID(columnSvcID, e, e.of())
	}
}

// setSvcID sets the svc_id of a user of the event's workspace in an optional column.
func (x *parquetEncoder) setSvcID(column int, e *Event, number uint64) {
	x.text = x.svcID(x.text[:0], e.Workspace, number)
	x.w.Text(column, x.text)
}

// setSome sets text that isn't empty.
func (x *parquetEncoder) setSome(column int, text []byte) {
	if len(text) > 0 {
		x.w.Text(column, text)
	}
}

func (x *parquetEncoder) Flush() error {
	x.rows = 0
	err := x.w.EndPages()
	if err == nil && (x.w.Rows() >= x.most || x.w.Texts() >= parquetGroupBytes) {
		err = x.w.EndGroup()
	}
	if err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

func (x *parquetEncoder) Close() error {
	if err := errors.Join(x.Flush(), x.w.Close()); err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

// parquetSchemaOf returns the schema of a ParquetRow followed by columns of properties, and those columns by name.
func parquetSchemaOf(properties []Column) (*parquet.Schema, map[string]ownColumn) {
	if len(properties) == 0 {
		return parquetSchema, nil
	}
	fields, own := slices.Clone(parquetSchema.Fields()), make(map[string]ownColumn, len(properties))
	for _, c := range properties {
		own[c.Name] = ownColumn{len(fields), c.Type}
		fields = append(fields, parquetField{parquet.Optional(c.Type.node()), columnPrefix + c.Name})
	}
	return parquet.NewSchema(parquetSchema.Name(), parquetRoot{parquetSchema, fields}), own
}

// setOwn sets the properties that have columns of their own.
func (x *parquetEncoder) setOwn(e *Event) {
	e.fields.Each(func(name []byte, v op.Value) {
		c, ok := x.own[string(name)]
		if !ok || x.w.Has(c.index) { // of a name that is there again, which none should be
			return
		}
		switch tag := v.Tag(); {
		case c.of == ColumnString && tag == op.String:
			x.w.Text(c.index, v.Bytes())
		case c.of == ColumnNumber && tag == op.Int:
			x.w.Double(c.index, float64(v.Int()))
		case c.of == ColumnNumber && tag == op.Float:
			x.w.Double(c.index, v.Float())
		case c.of == ColumnBoolean && (tag == op.True || tag == op.False):
			x.w.Boolean(c.index, tag == op.True)
		case c.of == ColumnTime && tag == op.String:
			var at time.Time
			if at.UnmarshalText(v.Bytes()) == nil {
				x.w.Int64(c.index, at.UnixMilli())
			}
		case c.of == ColumnTime && tag == op.Time: // of attributes; in the JSON it is a string
			x.w.Int64(c.index, v.Millis())
		case c.of == ColumnString && tag == op.Time:
			text := appendTime(nil, time.UnixMilli(v.Millis()))
			x.w.Text(c.index, text[1:len(text)-1])
		}
	})
}
