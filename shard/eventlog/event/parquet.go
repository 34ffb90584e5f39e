package event

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/zeebo/xxh3"

	"millrace/shard/op"
)

const (
	parquetBatch    = 1 << 8
	parquetRowGroup = 1 << 19 // a dictionary serves one: large ones repeat little
	// parquetGroupBytes bounds the texts of a row group, each counted once: its dictionaries lie in memory until it is
	// written, and a few times then. Properties may have 50 KB.
	parquetGroupBytes = 10 << 20
	parquetSample     = 8 // of the texts, one in so many is looked at, by its hash
	parquetPage       = 2 << 20
)

// parquetOptions are the options of all files. Dictionaries have removed most repetition: the default level would make
// a tenth fewer bytes than the fastest one of the events of bench, and of properties that all differ a fifteenth, for
// up to a third more of the encoder's time. Pages are of version 1, which all readers know. Their bounds are in the
// column index alone.
var parquetOptions = []parquet.WriterOption{
	parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
	parquet.DataPageVersion(1),
	parquet.DataPageStatistics(false),
}

// noValues is a batch of a column without values. Most columns of a file never have any. They share this one, which
// stays in the processor's caches and is never written to.
var noValues [parquetBatch]parquet.Value

// parquetEncoder gathers values by columns, which is the form that the library takes fastest: a row that it has to take
// apart by reflection costs twice as much.
type parquetEncoder struct {
	w       *parquet.Writer
	svcID   SvcIDFunc
	columns [][]parquet.Value    // of the batch; a value that isn't set is null; noValues until a column gets one
	filled  []bool               // which optional columns have values in the batch
	own     map[string]ownColumn // columns of properties
	texts   []byte               // bytes that values of the batch point to
	rows    int                  // number of rows in the batch
	most    int                  // number of rows in a row group
	grouped int                  // number of rows in the row group, without the batch
	size    int                  // bytes of the texts of the row group that differ, by the sample
	known   [1 << 13]uint64      // a bit for the hash of each text of the sample
}

// newParquetEncoder makes an encoder of a ParquetRow, or a ParquetChange, for each event.
func newParquetEncoder(w io.Writer, kind op.Kind, svcID SvcIDFunc, properties []Column) *parquetEncoder {
	most := parquetRowGroup / (1 + len(properties)/4) // a column takes memory for each row
	x := &parquetEncoder{svcID: svcID, most: most}
	schema, columns := changeSchema, changeColumns
	if !IsNoted(kind) {
		schema, x.own = parquetSchemaOf(properties)
		columns = parquetColumns + len(properties)
	}
	x.w = parquet.NewWriter(w, append([]parquet.WriterOption{schema, parquet.PageBufferSize(parquetPage),
		parquet.SkipPageBounds("properties")}, parquetOptions...)...)
	x.columns, x.filled = make([][]parquet.Value, columns), make([]bool, columns)
	for c, column := range x.w.Schema().Fields() {
		if x.columns[c] = noValues[:]; !column.Optional() {
			x.columns[c] = make([]parquet.Value, parquetBatch)
		}
	}
	return x
}

func (x *parquetEncoder) Write(e *Event) error {
	start := len(x.texts)
	x.texts = e.AppendID(x.texts)
	x.always(columnID, parquet.ByteArrayValue(x.texts[start:]))
	x.always(columnWorkspace, parquet.Int32Value(int32(e.Workspace)))
	x.always(columnType, parquet.ByteArrayValue(kindTexts[e.Kind]))
	x.always(columnTime, parquet.Int64Value(e.Time.UnixMilli()))
	x.always(columnAcceptedAt, parquet.Int64Value(e.AcceptedAt.UnixMicro()))
	x.setIdentifier(e)
	if IsNoted(e.Kind) {
		x.setChange(e)
	} else {
		x.setEvent(e)
	}
	if x.rows++; x.rows < parquetBatch {
		return nil
	}
	return x.Flush()
}

// setEvent sets what a row of another kind has besides what all rows have.
func (x *parquetEncoder) setEvent(e *Event) {
	switch e.Kind {
	case op.Purchase:
		x.setText(columnProductID, e.Name)
		x.setText(columnCurrency, e.Currency[:])
		x.set(columnPrice, parquet.DoubleValue(e.Price))
		x.set(columnQuantity, parquet.Int32Value(int32(e.Quantity)))
		x.set(columnTotalMinor, parquet.Int64Value(e.Total))
	case op.Event:
		x.setText(columnName, e.Name)
	}
	if len(e.App) > 0 {
		x.setText(columnAppID, e.App)
	}
	if e.Properties != nil {
		x.setText(columnProperties, e.Properties)
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
		x.setText(columnOf, []byte(ofWhat(e)))
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
		x.setText(columnExternalID, e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			x.setText(columnAliasLabel, label)
			x.setText(columnAliasName, name)
		}
	case op.Email:
		x.setText(columnEmail, e.Key)
	case op.Phone:
		x.setText(columnPhone, e.Key)
	}
	if x.svcID != nil && e.Resolved {
		x.setSvcID(columnSvcID, e, e.of())
	}
}

// setSvcID sets the svc_id of a user of the event's workspace in an optional column.
func (x *parquetEncoder) setSvcID(column int, e *Event, number uint64) {
	start := len(x.texts)
	x.texts = x.svcID(x.texts, e.Workspace, number)
	x.set(column, x.text(start))
}

// text is the value of what was appended to the texts, from start on.
func (x *parquetEncoder) text(start int) parquet.Value {
	text := x.texts[start:]
	h := xxh3.Hash(text)
	if h%parquetSample == 0 {
		h /= parquetSample
		if word, bit := &x.known[h>>6%uint64(len(x.known))], uint64(1)<<(h&63); *word&bit == 0 {
			*word |= bit
			x.size += parquetSample * len(text)
		}
	}
	return parquet.ByteArrayValue(text)
}

// always sets a value of the current row in a column that each row has: such a value has no level, and is never null
// again.
func (x *parquetEncoder) always(column int, v parquet.Value) { x.columns[column][x.rows] = v }

// set sets a value of the current row in an optional column.
func (x *parquetEncoder) set(column int, v parquet.Value) {
	if !x.filled[column] {
		x.filled[column] = true
		if &x.columns[column][0] == &noValues[0] {
			x.columns[column] = make([]parquet.Value, parquetBatch)
		}
	}
	at := &x.columns[column][x.rows]
	*at = v
	at.SetDefinitionLevel(1)
}

// setText copies text, which is lent, and sets it in an optional column.
func (x *parquetEncoder) setText(column int, text []byte) {
	start := len(x.texts)
	x.texts = append(x.texts, text...)
	x.set(column, x.text(start))
}

// setSome is setText for text that isn't empty.
func (x *parquetEncoder) setSome(column int, text []byte) {
	if len(text) > 0 {
		x.setText(column, text)
	}
}

func (x *parquetEncoder) Flush() error {
	for column, w := range x.w.ColumnWriters() {
		if _, err := w.WriteRowValues(x.columns[column][:x.rows]); err != nil {
			return fmt.Errorf("write parquet: %w", err)
		}
		if x.filled[column] {
			clear(x.columns[column][:x.rows])
			x.filled[column] = false
		}
	}
	x.grouped += x.rows
	x.rows, x.texts = 0, x.texts[:0]
	if x.grouped < x.most && x.size < parquetGroupBytes {
		return nil
	}
	x.grouped, x.size = 0, 0
	clear(x.known[:])
	if err := x.w.Flush(); err != nil {
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
		if !ok {
			return
		}
		switch tag := v.Tag(); {
		case c.of == ColumnString && tag == op.String:
			x.setText(c.index, v.Bytes())
		case c.of == ColumnNumber && tag == op.Int:
			x.set(c.index, parquet.DoubleValue(float64(v.Int())))
		case c.of == ColumnNumber && tag == op.Float:
			x.set(c.index, parquet.DoubleValue(v.Float()))
		case c.of == ColumnBoolean && (tag == op.True || tag == op.False):
			x.set(c.index, parquet.BooleanValue(tag == op.True))
		case c.of == ColumnTime && tag == op.String:
			var at time.Time
			if at.UnmarshalText(v.Bytes()) == nil {
				x.set(c.index, parquet.Int64Value(at.UnixMilli()))
			}
		case c.of == ColumnTime && tag == op.Time: // of attributes; in the JSON it is a string
			x.set(c.index, parquet.Int64Value(v.Millis()))
		case c.of == ColumnString && tag == op.Time:
			text := appendTime(nil, time.UnixMilli(v.Millis()))
			x.setText(c.index, text[1:len(text)-1])
		}
	})
}
