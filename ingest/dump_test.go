package ingest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"millrace/shard/op"
)

// dump writes a record's ops as text, one a line, with names in place of indices.
func dump(rec op.Record) (lines []string) {
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		var w strings.Builder
		switch o.Kind() {
		case op.Attributes:
			fmt.Fprintf(&w, "attributes %s", dumpKey(o))
			dumpFields(&w, o.Body(), func(code uint32) string {
				if code < op.ReservedCodes {
					return op.AttrName(code)
				}
				return "~" + string(rec.Names.At(code-op.ReservedCodes))
			})
		case op.Event:
			b := op.EventBody(o.Body())
			fmt.Fprintf(&w, "event %s %q app=%s time=%d", dumpKey(o), rec.Names.At(b.Name()), dumpApp(rec, b.App()), b.Time())
			dumpFields(&w, b.Properties(), func(i uint32) string { return string(rec.Names.At(i)) })
		case op.Purchase:
			b := op.PurchaseBody(o.Body())
			c := b.Currency()
			fmt.Fprintf(&w, "purchase %s %q app=%s time=%d %s %d %016x x%d", dumpKey(o), rec.Names.At(b.Product()), dumpApp(rec, b.App()),
				b.Time(), c[:], b.Total(), b.PriceBits(), b.Quantity())
			dumpFields(&w, b.Properties(), func(i uint32) string { return string(rec.Names.At(i)) })
		default:
			fmt.Fprintf(&w, "kind %d", o.Kind())
		}
		lines = append(lines, w.String())
	}
	return lines
}

func dumpApp(rec op.Record, app uint32) string {
	if app == 0 {
		return "-"
	}
	return string(rec.Names.At(app - 1))
}

func dumpKey(o op.Op) string {
	f := o.Flags()
	s := f.ID().String() + "="
	switch f.ID() {
	case op.Alias:
		label, name, ok := op.SplitAliasKey(o.Key())
		s += fmt.Sprintf("%q/%q/%v", label, name, ok)
	case op.SvcID:
		s += strconv.FormatUint(o.Number(), 10)
	default:
		s += strconv.Quote(string(o.Key()))
	}
	for _, x := range []struct {
		flag op.Flags
		name string
	}{{op.UpdateOnly, "update-only"}, {op.MergeObjects, "merge"}, {op.Contact, "contact"}, {op.Conditional, "conditional"}} {
		if f.Has(x.flag) {
			s += "+" + x.name
		}
	}
	return s
}

func dumpFields(w *strings.Builder, fields []byte, name func(uint32) string) {
	for len(fields) > 0 {
		code, v, rest, ok := op.NextField(fields)
		if !ok {
			fmt.Fprintf(w, " BROKEN %x", fields)
			return
		}
		fmt.Fprintf(w, " %s:", dumpString(name(code)))
		dumpValue(w, v)
		fields = rest
	}
}

func dumpString(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func dumpValue(w *strings.Builder, v op.Value) {
	switch v.Tag() {
	case op.Null:
		w.WriteString("null")
	case op.False:
		w.WriteString("false")
	case op.True:
		w.WriteString("true")
	case op.Int:
		fmt.Fprintf(w, "%d", v.Int())
	case op.Increment:
		fmt.Fprintf(w, "inc(%d)", v.Int())
	case op.Float:
		fmt.Fprintf(w, "f%s", strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case op.Time:
		fmt.Fprintf(w, "t%d", v.Millis())
	case op.String:
		w.WriteString(dumpString(string(v.Bytes())))
	case op.JSON:
		fmt.Fprintf(w, "json<%s>", v.Bytes())
	case op.Array:
		w.WriteByte('[')
		dumpList(w, v.Bytes())
		w.WriteByte(']')
	case op.Update:
		w.WriteString("update(")
		dumpList(w, v.Bytes())
		w.WriteByte(')')
	case op.ArrayEdit:
		w.WriteString("edit(")
		for rest := v.Bytes(); len(rest) > 0; {
			fmt.Fprintf(w, "%d", rest[0])
			n := []int{1, 3, 2}[rest[0]]
			rest = rest[1:]
			for range n {
				var x op.Value
				x, rest, _ = op.NextValue(rest)
				w.WriteByte(' ')
				dumpValue(w, x)
			}
			w.WriteByte(';')
		}
		w.WriteByte(')')
	case op.Object:
		w.WriteByte('{')
		for rest := v.Bytes(); len(rest) > 0; {
			name, x, next, ok := op.NextMember(rest)
			if !ok {
				fmt.Fprintf(w, " BROKEN %x", rest)
				return
			}
			w.WriteString(dumpString(string(name)) + ":")
			dumpValue(w, x)
			if rest = next; len(rest) > 0 {
				w.WriteByte(',')
			}
		}
		w.WriteByte('}')
	}
}

func dumpList(w *strings.Builder, values []byte) {
	for len(values) > 0 {
		x, next, ok := op.NextValue(values)
		if !ok {
			fmt.Fprintf(w, " BROKEN %x", values)
			return
		}
		dumpValue(w, x)
		if values = next; len(values) > 0 {
			w.WriteByte(',')
		}
	}
}
