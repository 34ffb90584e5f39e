package event

import (
	"reflect"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"millrace/shard/op"
)

// Column is a property that has a column of its own in Parquet, property_NAME, besides being in the JSON of all
// properties. A value of another type is null there.
type Column struct {
	Name string
	Type ColumnType
}

// ColumnType is the type of a Column.
type ColumnType string

// Types of a Column. A number is a double, whatever was sent. A time is a string with a time in the form of RFC 3339.
const (
	ColumnString  ColumnType = "string"
	ColumnNumber  ColumnType = "number"
	ColumnBoolean ColumnType = "boolean"
	ColumnTime    ColumnType = "time"
)

// columnPrefix keeps columns of properties apart from those of rows, and from event_type and date in paths.
const columnPrefix = "property_"

// ownColumn is the column that gets the values of a property.
type ownColumn struct {
	index int
	of    ColumnType
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

func (t ColumnType) node() parquet.Node {
	switch t {
	case ColumnString:
		return parquet.Encoded(parquet.String(), &parquet.RLEDictionary)
	case ColumnNumber:
		return parquet.Leaf(parquet.DoubleType)
	case ColumnBoolean:
		return parquet.Leaf(parquet.BooleanType)
	case ColumnTime:
		return parquet.Timestamp(parquet.Millisecond)
	}
	panic("BUG: column of type " + string(t))
}

// parquetRoot is a root that keeps the order of its fields; a parquet.Group sorts them by name.
type parquetRoot struct {
	parquet.Node
	fields []parquet.Field
}

// Fields returns the columns.
func (r parquetRoot) Fields() []parquet.Field { return r.fields }

// parquetField is a column without a field in a struct.
type parquetField struct {
	parquet.Node
	name string
}

// Name is the name of the column.
func (f parquetField) Name() string { return f.name }

// Value is never called by an encoder that writes columns.
func (f parquetField) Value(reflect.Value) reflect.Value { panic("BUG: a row by reflection") }

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
