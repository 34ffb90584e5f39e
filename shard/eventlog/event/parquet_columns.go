package event

import (
	"reflect"

	"github.com/parquet-go/parquet-go"
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
