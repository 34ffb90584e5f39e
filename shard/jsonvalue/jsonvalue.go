// Package jsonvalue writes values of profiles and events as JSON, and what else stands in the same texts: strings,
// numbers, times, UUIDs. All functions append to dst and return it; they keep nothing of their arguments.
package jsonvalue

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"millrace/shard/op"
)

// Append appends a value as JSON. Times are ISO 8601 strings, floats always have a point or an
// exponent, and text that was kept as JSON is that JSON.
func Append(dst []byte, v op.Value) []byte {
	switch v.Tag() {
	case op.False:
		return append(dst, "false"...)
	case op.True:
		return append(dst, "true"...)
	case op.Int:
		return strconv.AppendInt(dst, v.Int(), 10)
	case op.Float:
		return AppendFloat(dst, v.Float())
	case op.String:
		return AppendString(dst, v.Bytes())
	case op.Time:
		return AppendTimeString(dst, v.Millis())
	case op.JSON:
		if text := v.Bytes(); json.Valid(text) && utf8.Valid(text) {
			for _, c := range text {
				if c >= 0x20 { // a line break between tokens would cut a line of the export in two
					dst = append(dst, c)
				}
			}
			return dst
		}
		return AppendString(dst, v.Bytes())
	case op.Array, op.Object:
		return AppendNested(dst, v, Append)
	}
	return append(dst, "null"...)
}

// AppendNested appends an array or an object as JSON, and the values in it by appendValue.
func AppendNested(dst []byte, v op.Value, appendValue func([]byte, op.Value) []byte) []byte {
	if v.Tag() == op.Object {
		dst = append(dst, '{')
		for name, value := range op.Members(v.Bytes()) {
			dst = appendValue(append(AppendString(AppendComma(dst), name), ':'), value)
		}
		return append(dst, '}')
	}
	dst = append(dst, '[')
	for value := range op.Elements(v.Bytes()) {
		dst = appendValue(AppendComma(dst), value)
	}
	return append(dst, ']')
}

// AppendComma appends a comma to what has an element or a member before, to nothing else: dst ends with an opening
// bracket then.
func AppendComma(dst []byte) []byte {
	if last := dst[len(dst)-1]; last != '{' && last != '[' {
		dst = append(dst, ',')
	}
	return dst
}

// AppendSent appends a value as JSON, with operators in the form in which clients send them.
func AppendSent(dst []byte, v op.Value) []byte {
	switch v.Tag() {
	case op.Increment:
		return append(strconv.AppendInt(append(dst, `{"inc":`...), v.Int(), 10), '}')
	case op.Update:
		add, rest, ok := op.NextValue(v.Bytes())
		remove, _, also := op.NextValue(rest)
		if !ok || !also {
			break
		}
		dst = Append(append(dst, `{"add":`...), add)
		return append(Append(append(dst, `,"remove":`...), remove), '}')
	case op.ArrayEdit:
		if len(v.Bytes()) == 0 { // without edits; {} would be an object
			return append(dst, `{"$add":[]}`...)
		}
		return append(appendEdits(append(dst, '{'), v.Bytes()), '}')
	}
	return Append(dst, v)
}

// appendEdits appends the edits of an array of objects as members, one for each edit.
func appendEdits(dst, edits []byte) []byte {
	for len(edits) > 0 {
		kind, rest := edits[0], edits[1:]
		var values [3]op.Value
		n, ok := map[byte]int{op.EditAdd: 1, op.EditUpdate: 3, op.EditRemove: 2}[kind]
		if !ok { // only in a forged block of the event log
			return dst
		}
		for k := range n {
			if values[k], rest, ok = op.NextValue(rest); !ok {
				return dst
			}
		}
		edits, dst = rest, AppendComma(dst)
		if kind == op.EditAdd {
			dst = Append(append(dst, `"$add":`...), values[0])
			continue
		}
		dst = append(append(dst, map[byte]string{op.EditUpdate: `"$update"`, op.EditRemove: `"$remove"`}[kind]...),
			`:[{"$identifier_key":`...)
		dst = Append(dst, values[0])
		dst = Append(append(dst, `,"$identifier_value":`...), values[1])
		if kind == op.EditUpdate {
			dst = Append(append(dst, `,"$new_object":`...), values[2])
		}
		dst = append(dst, "}]"...)
	}
	return dst
}
