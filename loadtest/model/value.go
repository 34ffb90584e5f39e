package model

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
)

// Values are those of encoding/json, but for numbers: int64 when they are integers, else float64. They are never
// changed in place.

// decode reads JSON.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return plain(v), nil
}

func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}

// cents of a number with two decimals.
func cents(v any) int64 {
	switch v := v.(type) {
	case int64:
		return 100 * v
	case float64:
		return int64(math.Round(100 * v))
	case string:
		f, _ := strconv.ParseFloat(v, 64)
		return int64(math.Round(100 * f))
	}
	return 0
}

// maxElements of a custom array, by default.
const maxElements = 25

// operators are the members of an object that is an operation and no value.
var operators = []string{"inc", "add", "remove", "$add", "$update", "$remove"}

func isOperator(v any) bool {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 {
		return false
	}
	for k := range m {
		if !slices.Contains(operators, k) {
			return false
		}
	}
	return true
}

// operate returns the value of a custom attribute after an object has set it to v; nil when it has none.
func operate(was, v any, merges bool) any {
	switch v := v.(type) {
	case map[string]any:
		if isOperator(v) {
			return operateArray(was, v, merges)
		}
		if m, ok := was.(map[string]any); ok && merges {
			return mergeObject(m, v)
		}
		return withoutNulls(v)
	case []any:
		return newest(distinct(v))
	}
	return v
}

func operateArray(was any, operator map[string]any, merges bool) any {
	if n, ok := operator["inc"].(int64); ok {
		if !isCountable(was) {
			return was
		}
		m, _ := was.(int64)
		return m + n
	}
	list, _ := was.([]any)
	list = slices.Clone(list)
	for _, e := range elements(operator["add"]) {
		if i := indexOf(list, e); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		list = append(list, e)
	}
	// reference.md: appended; whether equal objects may be there twice is not said
	list = append(list, elements(operator["$add"])...)
	for _, e := range elements(operator["remove"]) {
		if i := indexOf(list, e); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	for _, e := range elements(operator["$update"]) {
		list = updateObjects(list, e.(map[string]any), merges)
	}
	for _, e := range elements(operator["$remove"]) {
		list = slices.DeleteFunc(list, func(v any) bool { return isNamed(v, e.(map[string]any)) })
	}
	if list == nil && was == nil {
		return nil
	}
	return newest(list)
}

// isCount says whether v counts an attribute up or down.
func isCount(v any) bool {
	m, _ := v.(map[string]any)
	_, ok := m["inc"].(int64)
	return ok && isOperator(m)
}

// isCountable says whether an attribute with the value v can be counted. The generator counts integers only.
func isCountable(v any) bool {
	_, ok := v.(int64)
	return ok || v == nil
}

func elements(v any) []any {
	list, _ := v.([]any)
	return list
}

func indexOf(list []any, v any) int {
	return slices.IndexFunc(list, func(e any) bool { return reflect.DeepEqual(e, v) })
}

// isNamed says whether an element of an array of objects is the one that $update or $remove names.
func isNamed(v any, by map[string]any) bool {
	m, ok := v.(map[string]any)
	return ok && reflect.DeepEqual(m[text(by, "$identifier_key")], by["$identifier_value"])
}

func updateObjects(list []any, by map[string]any, merges bool) []any {
	next, _ := by["$new_object"].(map[string]any)
	for i, v := range list {
		if !isNamed(v, by) {
			continue
		}
		if merges {
			list[i] = mergeObject(v.(map[string]any), next)
		} else {
			list[i] = next
		}
	}
	return list
}

// updatesNothing says whether v has a $update for which was has no element.
func updatesNothing(was, v any) bool {
	if !isOperator(v) {
		return false
	}
	list, _ := was.([]any)
	return slices.ContainsFunc(elements(v.(map[string]any)["$update"]), func(by any) bool {
		return !slices.ContainsFunc(list, func(e any) bool { return isNamed(e, by.(map[string]any)) })
	})
}

// distinct keeps the first of equal elements.
func distinct(list []any) []any {
	out := []any{}
	for _, v := range list {
		if indexOf(out, v) < 0 {
			out = append(out, v)
		}
	}
	return out
}

func newest(list []any) []any { return list[max(0, len(list)-maxElements):] }

// mergeObject merges deeply; null takes a member away.
func mergeObject(was, next map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, was)
	for k, v := range next {
		inner, isObject := v.(map[string]any)
		old, _ := out[k].(map[string]any)
		switch {
		case v == nil:
			delete(out, k)
		case isObject && old != nil:
			out[k] = mergeObject(old, inner)
		case isObject:
			out[k] = withoutNulls(inner)
		default:
			out[k] = v
		}
	}
	return out
}

func withoutNulls(v map[string]any) map[string]any { return mergeObject(nil, v) }
