package op

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math"
)

// Tag is the first byte of a value. The same encoding serves ops and profiles.
//
//	Null, False, True      nothing
//	Int                    zigzag varint
//	Float                  8 bytes
//	String, JSON           uvarint length, bytes. JSON: the text of a nested object or array that is kept as text
//	Time                   8 bytes, Unix ms
//	Array                  uvarint length in bytes of what follows: values one after another
//	Object                 uvarint length in bytes of what follows: (uvarint name length, name, value)…
//	Increment              zigzag varint                    {"inc": n}
//	Update                 uvarint length, then two Arrays: what to add, what to remove   {"add": […], "remove": […]}
//	ArrayEdit              uvarint length, then edits of an array of objects, in the order $remove, $update, $add:
//	                       0 Array (of objects to add) | 1 key String, match value, Object | 2 key String, match value
type Tag uint8

const (
	Null Tag = iota
	False
	True
	Int
	Float
	String
	Time
	Array
	Object
	JSON
	Increment
	Update
	ArrayEdit
)

// Edits within an ArrayEdit.
const (
	EditAdd    = 0
	EditUpdate = 1
	EditRemove = 2
)

// AppendInt, AppendFloat and the others append one value.
func AppendInt(dst []byte, v int64) []byte { return binary.AppendVarint(append(dst, byte(Int)), v) }

func AppendFloat(dst []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, byte(Float)), math.Float64bits(v))
}

func AppendString(dst, s []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(String)), uint64(len(s)))
	return append(dst, s...)
}

func AppendTime(dst []byte, unixMillis int64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, byte(Time)), uint64(unixMillis))
}

func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, byte(True))
	}
	return append(dst, byte(False))
}

// AppendBlock appends a value of one of the kinds that carry a length and bytes: String, JSON, Array, Object, Update,
// ArrayEdit.
func AppendBlock(dst []byte, tag Tag, content []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(tag)), uint64(len(content)))
	return append(dst, content...)
}

// Value is one value with its tag; the slice ends where the value does.
type Value []byte

// NextValue splits the first value off b. ok is false when b does not begin with a whole value.
func NextValue(b []byte) (v Value, rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, nil, false
	}
	n := 1
	switch Tag(b[0]) {
	case Null, False, True:
	case Int, Increment:
		_, k := binary.Varint(b[1:])
		if k <= 0 {
			return nil, nil, false
		}
		n += k
	case Float, Time:
		n += 8
	case String, JSON, Array, Object, Update, ArrayEdit:
		size, k := binary.Uvarint(b[1:])
		if k <= 0 || size > uint64(len(b)) {
			return nil, nil, false
		}
		n += k + int(size)
	default:
		return nil, nil, false
	}
	if n > len(b) {
		return nil, nil, false
	}
	return Value(b[:n:n]), b[n:], true
}

// Tag is the value's tag.
func (v Value) Tag() Tag { return Tag(v[0]) }

// Int is the number of an Int or Increment.
func (v Value) Int() int64 { n, _ := binary.Varint(v[1:]); return n }

// Float is the number of a Float.
func (v Value) Float() float64 { return math.Float64frombits(binary.LittleEndian.Uint64(v[1:])) }

// Millis is the time of a Time.
func (v Value) Millis() int64 { return int64(binary.LittleEndian.Uint64(v[1:])) }

// Bytes is what follows the length of a String, JSON, Array, Object, Update or ArrayEdit.
func (v Value) Bytes() []byte {
	_, k := binary.Uvarint(v[1:])
	return v[1+k:]
}

// NextMember splits the first name and value off the content of an Object.
func NextMember(b []byte) (name []byte, v Value, rest []byte, ok bool) {
	size, k := binary.Uvarint(b)
	if k <= 0 || size > uint64(len(b)-k) {
		return nil, nil, nil, false
	}
	name, b = b[k:k+int(size)], b[k+int(size):]
	v, rest, ok = NextValue(b)
	return name, v, rest, ok
}

// NextField splits the first field (code or index, value) off a list of attributes or properties.
func NextField(b []byte) (code uint32, v Value, rest []byte, ok bool) {
	c, k := binary.Uvarint(b)
	if k <= 0 || c > math.MaxUint32 {
		return 0, nil, nil, false
	}
	v, rest, ok = NextValue(b[k:])
	return uint32(c), v, rest, ok
}

// HasOperators says whether the body of an attributes op has AttrOperators.
func HasOperators(body []byte) bool {
	for code := range Fields(body) {
		if code == AttrOperators {
			return true
		}
	}
	return false
}

// Fields are the fields (code or index, value) of a list of attributes or properties, as far as they can be read.
func Fields(list []byte) iter.Seq2[uint32, Value] {
	return func(yield func(uint32, Value) bool) {
		for len(list) > 0 {
			code, v, rest, ok := NextField(list)
			if !ok || !yield(code, v) {
				return
			}
			list = rest
		}
	}
}

// Elements are the values in the content of an Array, as far as they can be read.
func Elements(list []byte) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		for len(list) > 0 {
			v, rest, ok := NextValue(list)
			if !ok || !yield(v) {
				return
			}
			list = rest
		}
	}
}

// Members are the names and values in the content of an Object, as far as they can be read.
func Members(list []byte) iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		for len(list) > 0 {
			name, v, rest, ok := NextMember(list)
			if !ok || !yield(name, v) {
				return
			}
			list = rest
		}
	}
}

// Member is the value of the member called name in the content of an Object, nil when there is none.
func Member(list, name []byte) Value {
	for n, v := range Members(list) {
		if bytes.Equal(n, name) {
			return v
		}
	}
	return nil
}

// Groups are the pairs in the content of an AttrSubscriptionGroups, as far as they can be read: the id of a group in 16
// bytes, perhaps with its channel behind, and whether the group is subscribed to.
func Groups(list []byte) iter.Seq2[[]byte, bool] {
	return func(yield func([]byte, bool) bool) {
		for len(list) > 0 {
			id, behind, ok := NextValue(list)
			on, rest, also := NextValue(behind)
			if !ok || !also || id.Tag() != String || len(id.Bytes()) < 16 || !yield(id.Bytes(), on.Tag() == True) {
				return
			}
			list = rest
		}
	}
}
