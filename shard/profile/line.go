package profile

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fastjson"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// errImport is wrapped by Import when a line is not a user in the shape of the export; the text says which member is
// wrong and why.
var errImport = errors.New("not an exported user")

// lineReader reads a line that is imported. Each method reads a value as the type that is wanted in its place. The
// first error stays in err, and what is read after it means nothing.
type lineReader struct {
	parser  fastjson.Parser
	left    func(what string) // ImportOptions.Left
	err     error
	isUnfit bool // appendStored is at a value for which /users/track would leave out the custom attribute
}

// read parses a line, which has to be an object. The object is valid until the next line is read.
func (r *lineReader) read(line []byte) *fastjson.Object {
	r.err = nil
	// The parser below is lenient. Names that occur twice are reported by distinct.
	if !jsontext.Value(line).IsValid(jsontext.AllowDuplicateNames(true)) {
		r.fail("no valid JSON")
		return nil
	}
	root, err := r.parser.ParseBytes(line)
	if err != nil {
		r.fail("%v", err)
		return nil
	}
	o, err := root.Object()
	if err != nil {
		r.fail("not an object")
	}
	return o
}

// fail sets err, unless there was an error before.
func (r *lineReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errImport, fmt.Sprintf(format, args...))
	}
}

// leave reports something that is left out.
func (r *lineReader) leave(format string, args ...any) {
	if r.left != nil {
		r.left(fmt.Sprintf(format, args...))
	}
}

// unknown reports the members of o that are neither known nor empty. in names what o stands in, with a full stop at the
// end.
func (r *lineReader) unknown(o *fastjson.Object, in string, known func(name []byte) bool) {
	if r.left == nil {
		return
	}
	o.Visit(func(name []byte, v *fastjson.Value) {
		isEmpty := !present(v) || v.Type() == fastjson.TypeArray && len(v.GetArray()) == 0 ||
			v.Type() == fastjson.TypeObject && v.GetObject().Len() == 0
		if !isEmpty && !known(name) {
			r.leave("'%s%.40s' is not imported", in, name)
		}
	})
}

// element reads an element of the array called in: an object whose members have these names.
func (r *lineReader) element(v *fastjson.Value, in string, names ...string) *fastjson.Object {
	o := r.object(v, in)
	r.unknown(o, in+".", func(name []byte) bool { return slices.Contains(names, string(name)) })
	return o
}

// object reads an object that has no name twice. When v is no object, the result has no members.
func (r *lineReader) object(v *fastjson.Value, what string) *fastjson.Object {
	o, err := v.Object()
	if err != nil {
		r.fail("%s: not an object", what)
		return new(fastjson.Object)
	}
	r.distinct(o, what)
	return o
}

// distinct fails when an object has a name twice.
func (r *lineReader) distinct(o *fastjson.Object, what string) {
	seen := make(map[string]bool, o.Len())
	o.Visit(func(name []byte, _ *fastjson.Value) {
		if seen[string(name)] {
			r.fail("%s: %.40q appears twice", what, name)
		}
		seen[string(name)] = true
	})
}

func present(v *fastjson.Value) bool { return v != nil && v.Type() != fastjson.TypeNull }

func (r *lineReader) text(v *fastjson.Value, what string) []byte {
	if v == nil {
		r.fail("%s is missing", what)
		return nil
	}
	s, err := v.StringBytes()
	if err != nil {
		r.fail("%s is not a string", what)
	}
	return s
}

// short reads a string of 1 to most bytes.
func (r *lineReader) short(v *fastjson.Value, what string, most int) []byte {
	s := r.text(v, what)
	if r.err == nil && (len(s) == 0 || len(s) > most) {
		r.fail("%s has %d bytes: want 1 to %d", what, len(s), most)
	}
	return s
}

// flag reads a boolean.
func (r *lineReader) flag(v *fastjson.Value, what string) bool {
	if v.Type() != fastjson.TypeTrue && v.Type() != fastjson.TypeFalse {
		r.fail("%s: not a boolean", what)
	}
	return v.Type() == fastjson.TypeTrue
}

func (r *lineReader) array(o *fastjson.Object, name string) []*fastjson.Value {
	v := o.Get(name)
	if !present(v) {
		return nil
	}
	list, err := v.Array()
	if err != nil {
		r.fail("%s is not an array", name)
	}
	return list
}

func (r *lineReader) count(v *fastjson.Value, what string) uint64 {
	if v == nil {
		r.fail("%s is missing", what)
		return 0
	}
	n, err := v.Uint64()
	if err != nil || n > maxCount {
		r.fail("%s is not a count", what)
	}
	return n
}

// timeLayouts are the forms of times in exports: ours, which is tried first, and those of others.
var timeLayouts = []string{
	jsonvalue.TimeLayout, time.RFC3339Nano, "2006-01-02 15:04:05.999 UTC", "2006-01-02 15:04:05 -0700",
	"2006-01-02T15:04:05", "2006-01-02",
}

func (r *lineReader) time(v *fastjson.Value, what string) int64 {
	return r.instant(v, what).UnixMilli()
}

// past reads a time in Unix µs; one that is still to come is taken as now.
func (r *lineReader) past(v *fastjson.Value, what string, now int64) int64 {
	return min(r.time(v, what)*1000, now)
}

// instant reads a time and keeps the zone that it was written in.
func (r *lineReader) instant(v *fastjson.Value, what string) (t time.Time) {
	s := r.text(v, what)
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, string(s)); err == nil {
			return t
		}
	}
	r.fail("%s is not a time", what)
	return t
}

// minor reads a decimal as minor units; digits beyond those of the currency are rounded half away from zero.
func (r *lineReader) minor(v *fastjson.Value, digits int) int64 {
	if v.Type() != fastjson.TypeNumber {
		r.fail("revenue is not a number")
		return 0
	}
	text := v.MarshalTo(nil)
	negative := text[0] == '-'
	text = bytes.TrimPrefix(text, []byte("-"))
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	if bytes.ContainsAny(text, "eE") {
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			r.fail("revenue is out of range")
			return 0
		}
		whole, fraction, _ = bytes.Cut(strconv.AppendFloat(nil, f, 'f', digits, 64), []byte("."))
	}
	up := len(fraction) > digits && fraction[digits] >= '5'
	units := append([]byte(nil), whole...)
	for i := range digits {
		if i < len(fraction) {
			units = append(units, fraction[i])
		} else {
			units = append(units, '0')
		}
	}
	n, err := strconv.ParseUint(string(units), 10, 64)
	if up && n < math.MaxUint64 {
		n++
	}
	switch {
	case err != nil || n > 1<<63 || n == 1<<63 && !negative:
		r.fail("revenue is out of range")
		return 0
	case negative:
		return -int64(n) // right for 1<<63, too, which is its own negative
	}
	return int64(n)
}

// afterYear3000 is 3001-01-01T00:00:00Z in Unix ms. Times of custom attributes lie before it (reference.md 1.5). A
// string with this or a later time stays a string; an attribute with such a $time is left out, as by /users/track.
const afterYear3000 = 32_535_216_000_000

// maxImportDepth is how deep values may nest; the door allows the same (decisions.md D1).
const maxImportDepth = 32

// appendStored appends a JSON value in its stored form. ok is false for a value that /users/track would leave out.
func (r *lineReader) appendStored(dst []byte, v *fastjson.Value) (_ []byte, ok bool) {
	r.isUnfit = false
	dst = r.appendValue(dst, v, 0, false)
	return dst, !r.isUnfit
}

// appendValue is appendStored for a value at a depth. inArray says that the value is an element of an array; an array
// is then kept as its text.
func (r *lineReader) appendValue(dst []byte, v *fastjson.Value, depth int, inArray bool) []byte {
	if depth > maxImportDepth {
		r.fail("a value is nested too deep")
		return append(dst, byte(op.Null))
	}
	switch v.Type() {
	case fastjson.TypeTrue, fastjson.TypeFalse:
		return op.AppendBool(dst, v.Type() == fastjson.TypeTrue)
	case fastjson.TypeNumber:
		return r.appendNumber(dst, v.MarshalTo(nil))
	case fastjson.TypeString:
		s := v.GetStringBytes()
		if len(s) == len(jsonvalue.TimeLayout) {
			if t, err := time.Parse(jsonvalue.TimeLayout, string(s)); err == nil && t.UnixMilli() < afterYear3000 {
				return op.AppendTime(dst, t.UnixMilli())
			}
		}
		return op.AppendString(dst, s)
	case fastjson.TypeArray:
		if inArray {
			return op.AppendBlock(dst, op.JSON, v.MarshalTo(nil))
		}
		mark := len(dst)
		for _, element := range v.GetArray() {
			dst = r.appendValue(dst, element, depth+1, true)
		}
		return closeBlock(dst, mark, op.Array)
	case fastjson.TypeObject:
		o := v.GetObject()
		if text := v.Get("$time"); o.Len() == 1 && text != nil {
			t := r.time(text, "$time")
			r.isUnfit = r.isUnfit || t >= afterYear3000
			return op.AppendTime(dst, t)
		}
		r.distinct(o, "an object")
		mark := len(dst)
		o.Visit(func(name []byte, member *fastjson.Value) {
			if present(member) {
				dst = r.appendValue(appendName(dst, name), member, depth+1, false)
			}
		})
		return closeBlock(dst, mark, op.Object)
	}
	return append(dst, byte(op.Null))
}

func (r *lineReader) appendNumber(dst, text []byte) []byte {
	if !bytes.ContainsAny(text, ".eE") {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			r.fail("number %.40s does not fit 64 bits", text)
		}
		return op.AppendInt(dst, n)
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.IsInf(f, 0) {
		r.fail("number %.40s is out of range", text)
	}
	return op.AppendFloat(dst, f)
}
