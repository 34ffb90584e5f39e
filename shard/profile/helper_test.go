package profile

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// In tests these Go values stand for op values.
type (
	object []pair // an ordered object
	pair   struct {
		name  string
		value any
	}
	inc    int64
	update struct{ add, remove []any }
	edits  []edit
	edit   struct {
		kind  byte
		key   string
		match any
		value any // object to put, or []any to add
	}
	jsonText string
)

func val(v any) op.Value { return appendVal(nil, v) }

func appendVal(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, byte(op.Null))
	case bool:
		return op.AppendBool(dst, v)
	case int:
		return op.AppendInt(dst, int64(v))
	case int64:
		return op.AppendInt(dst, v)
	case float64:
		return op.AppendFloat(dst, v)
	case string:
		return op.AppendString(dst, []byte(v))
	case jsonText:
		return op.AppendBlock(dst, op.JSON, []byte(v))
	case time.Time:
		return op.AppendTime(dst, v.UnixMilli())
	case []any:
		var c []byte
		for _, x := range v {
			c = appendVal(c, x)
		}
		return op.AppendBlock(dst, op.Array, c)
	case object:
		var c []byte
		for _, m := range v {
			c = appendVal(appendName(c, []byte(m.name)), m.value)
		}
		return op.AppendBlock(dst, op.Object, c)
	case inc:
		dst = op.AppendInt(dst, int64(v))
		dst[len(dst)-len(op.AppendInt(nil, int64(v)))] = byte(op.Increment)
		return dst
	case update:
		return op.AppendBlock(dst, op.Update, appendVal(appendVal(nil, v.add), v.remove))
	case edits:
		var c []byte
		for _, x := range v {
			c = append(c, x.kind)
			if x.kind != op.EditAdd {
				c = appendVal(appendVal(c, x.key), x.match)
			}
			if x.kind != op.EditRemove {
				c = appendVal(c, x.value)
			}
		}
		return op.AppendBlock(dst, op.ArrayEdit, c)
	}
	panic("BUG: no such value")
}

const (
	testStamp = int64(1_760_000_000_000_000) // µs
	testActor = 7
)

// one makes a record with one op.
func one(t testing.TB, stamp int64, build func(b *op.Builder) (op.Kind, op.Flags)) (op.Op, *op.Record) {
	t.Helper()
	var b op.Builder
	b.Reset(0)
	start := b.Begin()
	kind, flags := build(&b)
	b.End(start, kind, flags, 0, 1)
	rec, err := op.ParseRecord(b.Finish(1, testActor, stamp), nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	return o, &rec
}

func attrsOp(t testing.TB, flags op.Flags, fields ...any) (op.Op, *op.Record) {
	t.Helper()
	return one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
		for i := 0; i < len(fields); i += 2 {
			var code uint64
			switch key := fields[i].(type) {
			case int:
				code = uint64(key)
			case string:
				code = uint64(b.Intern([]byte(key))) + op.ReservedCodes
			}
			b.Buf = appendUvarint(b.Buf, code)
			b.Buf = appendVal(b.Buf, fields[i+1])
		}
		return op.Attributes, flags
	})
}

func appendUvarint(dst []byte, v uint64) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

func eventOp(t testing.TB, name string, millis int64) (op.Op, *op.Record) {
	t.Helper()
	return one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
		at := len(b.Buf)
		b.Buf = op.AppendEventBody(b.Buf)
		index := b.Name([]byte(name))
		op.PutEvent(b.Buf[at:], millis, index, 0)
		return op.Event, 0
	})
}

func purchaseOp(t testing.TB, product string, millis, total int64, quantity uint32, currency string) (op.Op, *op.Record) {
	t.Helper()
	return one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
		at := len(b.Buf)
		b.Buf = op.AppendPurchaseBody(b.Buf)
		index := b.Name([]byte(product))
		op.PutPurchase(b.Buf[at:], millis, total, 0, quantity, index, 0, [3]byte([]byte(currency)))
		return op.Purchase, 0
	})
}

func user(id string) []byte { return New(nil, 3, op.ExternalID, []byte(id), testStamp-1000) }

// apply applies an op to copies of a profile without room, with a little and with plenty, and checks that the results
// are well-formed and equal.
func apply(t testing.TB, e *Editor, blob []byte, o op.Op, rec *op.Record, lim *Limits) (out []byte, verdict Verdict) {
	t.Helper()
	for i, room := range []int{0, 20, 100_000} {
		in := make([]byte, len(blob), len(blob)+room)
		copy(in, blob)
		got, v := e.Apply(in, o, rec, lim)
		require.NoError(t, Check(got))
		if i == 0 {
			out, verdict = slices.Clone(got), v
		}
		require.Equal(t, out, got, "room %d", room)
		require.Equal(t, verdict, v)
	}
	return out, verdict
}

func set(t testing.TB, blob []byte, flags op.Flags, fields ...any) []byte {
	t.Helper()
	var e Editor
	o, rec := attrsOp(t, flags, fields...)
	out, _ := apply(t, &e, blob, o, rec, nil)
	return out
}

func buy(t testing.TB, blob []byte, product string, millis, total int64, quantity uint32, currency string) []byte {
	t.Helper()
	var e Editor
	o, rec := purchaseOp(t, product, millis, total, quantity, currency)
	out, _ := apply(t, &e, blob, o, rec, nil)
	return out
}

func event(t testing.TB, blob []byte, name string, millis int64) []byte {
	t.Helper()
	var e Editor
	o, rec := eventOp(t, name, millis)
	out, _ := apply(t, &e, blob, o, rec, nil)
	return out
}

// customOf is the custom attribute called name.
func customOf(blob, name []byte) (op.Value, bool) {
	s := findNamed(blob, tagCustom, name)
	if s.none() {
		return nil, false
	}
	_, rest := splitName(blob[s.start:s.end:s.end])
	return valueIn(rest), true
}

// aliasOf is the first name under label.
func aliasOf(blob, label []byte) (name []byte, ok bool) {
	s := findNamed(blob, tagAlias, label)
	if s.none() {
		return nil, false
	}
	return blob[s.start+2+len(label) : s.end : s.end], true
}

func hasAlias(blob []byte, label, name string) bool {
	return IsNamed(blob, op.Alias, op.AppendAliasKey(nil, []byte(label), []byte(name)))
}

// occurrences are the hours of the recent occurrences (since 1970, ascending), each as often as it is counted.
func occurrences(s Summary) (list []int64) {
	newest := hourOf(s.Last)
	for i := range s.recent.len() {
		for range s.recent.at(i) & hourCount {
			list = append(list, newest-s.recent.age(i, newest))
		}
	}
	slices.Reverse(list)
	return list
}

// purchases sums up the products: number of purchases, time of the first and the last one (Unix ms; 0 when there is
// none).
func purchases(blob []byte) (count uint64, first, last int64) {
	Products(blob, func(_ []byte, s Summary) {
		if count == 0 || s.First < first {
			first = s.First
		}
		if count == 0 || s.Last > last {
			last = s.Last
		}
		count += s.Count
	})
	return count, first, last
}

func custom(t testing.TB, blob []byte, name string) string {
	t.Helper()
	v, ok := customOf(blob, []byte(name))
	if !ok {
		return ""
	}
	return string(jsonvalue.Append(nil, v))
}

func attr(t testing.TB, blob []byte, code uint32) string {
	t.Helper()
	v, ok := Attr(blob, code)
	if !ok {
		return ""
	}
	return string(jsonvalue.Append(nil, v))
}

func export(t testing.TB, blob []byte, x Export) string {
	t.Helper()
	out := AppendJSON(nil, blob, 0, x)
	require.True(t, json.Valid(out), "%s", out)
	return string(out)
}
