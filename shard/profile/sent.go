package profile

import "millrace/shard/op"

// AppendSentValue appends a value as JSON, with operators in the form in which clients send them.
func AppendSentValue(dst []byte, v op.Value) []byte {
	switch v.Tag() {
	case op.Increment:
		number := op.AppendInt(nil, v.Int())
		return append(appendJSONValue(append(dst, `{"inc":`...), number), '}')
	case op.Update:
		add, rest, ok := op.NextValue(v.Bytes())
		remove, _, also := op.NextValue(rest)
		if !ok || !also {
			break
		}
		dst = appendJSONValue(append(dst, `{"add":`...), add)
		return append(appendJSONValue(append(dst, `,"remove":`...), remove), '}')
	case op.ArrayEdit:
		return append(appendEdits(append(dst, '{'), v.Bytes()), '}')
	}
	return appendJSONValue(dst, v)
}

// appendEdits appends the edits of an array of objects as members, one for each edit.
func appendEdits(dst, edits []byte) []byte {
	for first := true; len(edits) > 0; first = false {
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
		edits = rest
		if !first {
			dst = append(dst, ',')
		}
		if kind == op.EditAdd {
			dst = appendJSONValue(append(dst, `"$add":`...), values[0])
			continue
		}
		dst = append(append(dst, map[byte]string{op.EditUpdate: `"$update"`, op.EditRemove: `"$remove"`}[kind]...),
			`:[{"$identifier_key":`...)
		dst = appendJSONValue(dst, values[0])
		dst = appendJSONValue(append(dst, `,"$identifier_value":`...), values[1])
		if kind == op.EditUpdate {
			dst = appendJSONValue(append(dst, `,"$new_object":`...), values[2])
		}
		dst = append(dst, "}]"...)
	}
	return dst
}
