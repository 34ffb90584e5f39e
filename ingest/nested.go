package ingest

import (
	"math"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// Values of custom attributes that are objects or arrays (reference.md 3): nested attributes, operators, arrays of
// objects.

// nestedState is what was seen in the value that is being read.
type nestedState struct {
	bad     bool // a member that is not allowed: the whole attribute is left out
	dollars int  // names of operators that are not yet accounted for
	arrays  int  // the arrays around what is being read
}

// attributeObject reads the object at i as the value of the attribute whose field began at undo.
func (d *Decoder) attributeObject(i, undo int) int {
	d.nested = nestedState{}
	at := d.o
	if next := d.shortIncrement(i); next > 0 {
		d.judgeNested(at, next-i, undo)
		return next
	}
	next := d.nestedObject(i, 0)
	if next < 0 {
		return -1
	}
	if d.refusal.rank == rankUnsafe { // what has been written may be incomplete
		return next
	}
	d.operator(at, i)
	d.judgeNested(at, next-i, undo)
	return next
}

// shortIncrement reads and writes the object at i if it is {"inc":…} with an integer of few digits; otherwise it
// returns 0.
func (d *Decoder) shortIncrement(i int) (next int) {
	const start = `{"inc":`
	if string(d.in[i:i+len(start)]) != start {
		return 0
	}
	n, next := d.shortDecimal(i + len(start))
	if next == 0 || n.places > 0 || d.in[next] != '}' {
		return 0
	}
	d.need(11)
	at := d.o
	d.o = d.putInt(at, int64(n.digits))
	d.out[at] = byte(op.Increment)
	return next + 1
}

// maxNestedBytes bounds the length of a custom attribute's value that is an object or an array, as JSON text.
const maxNestedBytes = 100 << 10

// judgeNested removes the value at at, of size bytes as it was sent, with a warning, if something in it is wrong or it
// is too large.
func (d *Decoder) judgeNested(at, size, undo int) {
	switch {
	case d.nested.bad || d.nested.dollars != 0:
		d.warn(reasonNotValid, d.nameOf(d.owner))
	case size > maxNestedBytes:
		d.warn(reasonTooLarge, d.nameOf(d.owner))
	default:
		d.noteOperator(op.Tag(d.out[at]))
		return
	}
	d.o = undo
}

// operator is a value that apply may find impossible, because what is stored is of another type or the result is out of
// bounds.
type operator struct {
	number int       // index among the object's composites
	key    memberKey // of the attribute
	plain  bool      // an object, which is an operator if the attributes object says _merge_objects
}

// noteOperator counts the value of an attribute in the same way as op.AttrOperators does.
func (d *Decoder) noteOperator(tag op.Tag) {
	if d.owner.class() != classOther || tag == op.Time {
		return
	}
	if tag != op.Array {
		d.operators = append(d.operators, operator{d.composites, d.owner, tag == op.Object})
	}
	d.composites++
}

// reportOperators writes the references under which apply shall report impossible operators.
func (d *Decoder) reportOperators(merge bool) {
	refs := d.scratch[:0]
	for _, o := range d.operators {
		if o.plain && !merge {
			continue
		}
		ref := d.r.Operator(d.index, d.nameOf(o.key))
		if ref < 0 {
			break
		}
		refs = op.AppendInt(op.AppendInt(refs, int64(o.number)), int64(ref))
	}
	if d.scratch = refs; len(refs) > 0 {
		d.putField(op.AttrOperators)
		d.putBytes(op.Array, refs)
	}
}

// attributeArray does for an array at i what attributeObject does for an object.
func (d *Decoder) attributeArray(i, undo int) int {
	d.nested = nestedState{}
	at := d.o
	next := d.nestedArray(i, 0, false)
	if next < 0 {
		return -1
	}
	d.judgeNested(at, next-i, undo)
	return next
}

// nestedObject reads and writes an object that is inside level others. A null member takes away what is stored, so it
// says nothing in an array, whose objects meet none, and is left out. ($update can't delete a member: reference.md 3.)
func (d *Decoder) nestedObject(i, level int) int {
	if level >= d.maxDepth {
		d.putTag(op.Null)
		return d.skipDeep(i)
	}
	at := d.openBlock(op.Object)
	i, more := d.openObject(i)
	p := d.newPath(shapeObject.atLevel(level + 1))
	members, isTime := 0, false
	for more {
		if i = d.member(&p, i); i < 0 {
			return -1
		}
		key := d.key
		switch {
		case key.rule() != 0:
			d.nested.bad = true
		case key.class() == classOperator:
			d.nested.dollars++
			isTime = string(d.nameOf(key)) == "$time"
		}
		members++
		d.need(11)
		member := d.o
		d.putUvarint(uint64(key.end() - key.start()))
		d.put(key.start(), key.end())
		value := d.o
		if i = d.nestedValue(i, level+1, true); i < 0 {
			return -1
		}
		if d.nested.arrays > 0 && op.Tag(d.out[value]) == op.Null {
			d.o = member
		}
		i, more = d.nextMember(i)
	}
	if i < 0 {
		return -1
	}
	d.closeBlock(at)
	if isTime && members == 1 {
		d.timeObject(at)
	}
	return i
}

// timeObject makes a Time of the Object {"$time": …} that begins at at. A value that is not a time, or is after the
// year 3000, is not stored (reference.md 1.5).
func (d *Decoder) timeObject(at int) {
	_, v, _, ok := op.NextMember(op.Value(d.out[at:d.o]).Bytes())
	if !ok || v.Tag() != op.String {
		return // the name stays unaccounted for
	}
	if t, ok := field.AttributeTime(v.Bytes()); ok {
		d.nested.dollars--
		d.o = at
		d.putFixed(op.Time, uint64(t))
	}
}

// nestedArray reads and writes an array that is inside level others. Arrays in it are kept as their text. If it is the
// attribute's value, inObject is false and it is a set: of equal values the first one counts (decisions.md D9). Objects
// in it are a list.
func (d *Decoder) nestedArray(i, level int, inObject bool) int {
	if level >= d.maxDepth {
		d.putTag(op.Null)
		return d.skipDeep(i)
	}
	at := d.openBlock(op.Array)
	if i = d.space(i + 1); d.in[i] == ']' {
		d.closeBlock(at)
		return i + 1
	}
	d.nested.arrays++
	d.objects++ // used like an object of names, to tell what is in this array
	set := d.objects
	for more := true; more; {
		element := d.o
		if d.in[i] == '[' {
			next := d.skip(i, level+1)
			if next < 0 {
				return -1
			}
			d.putJSON(i, next)
			i = next
		} else if i = d.nestedValue(i, level+1, inObject); i < 0 {
			return -1
		}
		if v := d.out[element:d.o]; !inObject && op.Tag(v[0]) != op.Object && !d.others.add(set, d.others.hash(v)) {
			d.o = element
		}
		i, more = d.nextElement(i)
	}
	if i < 0 {
		return -1
	}
	d.nested.arrays--
	d.closeBlock(at)
	return i
}

// nestedValue reads and writes a value in an object or an array that is inside level others.
func (d *Decoder) nestedValue(i, level int, inObject bool) int {
	switch d.in[i] {
	case '"':
		end, next := d.text(i + 1)
		if next < 0 {
			return -1
		}
		if end-i > field.MaxStringChars && !field.Runes255(d.in[i+1:end]) {
			if inObject {
				d.nested.bad = true
			} else {
				d.refuseNamed(rankValue, i, reasonLong, d.owner)
			}
		}
		d.putString(i+1, end)
		return next
	case '{':
		return d.nestedObject(i, level)
	case '[':
		return d.nestedArray(i, level, inObject)
	}
	return d.putWordOrNumber(i)
}

// operator replaces the Object that begins at at, and was sent at i, by what it stands for, if it has the names of an
// operator and no others.
func (d *Decoder) operator(at, i int) {
	v := op.Value(d.out[at:d.o])
	if v.Tag() != op.Object {
		return
	}
	name, first, rest, ok := op.NextMember(v.Bytes())
	if !ok {
		return
	}
	switch string(name) {
	case "inc":
		if len(rest) > 0 {
			return
		}
		n, ok := increment(first)
		if !ok {
			d.refuseNamed(rankValue, i, reasonNotValid, d.owner)
			return
		}
		d.need(11)
		d.o = d.putInt(at, n)
		d.out[at] = byte(op.Increment)
	case "add", "remove":
		d.update(at, i, v.Bytes())
	case "$add", "$update", "$remove":
		d.arrayEdit(at, v.Bytes())
	}
}

// increment returns the integer that {"inc": v} adds.
func increment(v op.Value) (n int64, ok bool) {
	switch v.Tag() {
	case op.Int:
		return v.Int(), true
	case op.Float:
		return whole(numberFloat, math.Float64bits(v.Float()))
	}
	return 0, false
}

// update makes an Update of {"add": […], "remove": […]}, of which one may be absent.
func (d *Decoder) update(at, i int, members []byte) {
	var add, remove op.Value
	for name, v := range op.Members(members) {
		switch string(name) {
		case "add":
			add = v
		case "remove":
			remove = v
		default:
			return // an object with other members is a nested attribute
		}
	}
	if add != nil && add.Tag() != op.Array || remove != nil && remove.Tag() != op.Array {
		d.refuseNamed(rankValue, i, reasonNotValid, d.owner)
		return
	}
	d.scratch = appendArray(appendArray(d.scratch[:0], add), remove)
	d.replace(at, op.Update)
}

// appendArray appends v, or an empty Array for nil.
func appendArray(dst []byte, v op.Value) []byte {
	if v == nil {
		return op.AppendBlock(dst, op.Array, nil)
	}
	return append(dst, v...)
}

// replace replaces the last value, which began at at, by one made of scratch.
func (d *Decoder) replace(at int, tag op.Tag) {
	d.o = at
	d.putBytes(tag, d.scratch)
}

// arrayEdit makes an ArrayEdit of {"$add": …, "$update": …, "$remove": …}. If something is wrong, the names stay
// unaccounted for.
func (d *Decoder) arrayEdit(at int, members []byte) {
	edits := d.scratch[:0]
	for _, name := range [...]string{"$remove", "$update", "$add"} {
		v := op.Member(members, []byte(name))
		if v == nil {
			continue
		}
		if v.Tag() != op.Array {
			return
		}
		d.nested.dollars--
		if name == "$add" {
			if !allObjects(v) {
				d.nested.bad = true
			}
			if len(v.Bytes()) > 0 { // adding nothing makes no array of another value
				edits = append(append(edits, op.EditAdd), v...)
			}
			continue
		}
		for element := range op.Elements(v.Bytes()) {
			var ok bool
			if edits, ok = d.appendEdit(edits, element, name == "$update"); !ok {
				d.nested.bad = true
				return
			}
		}
	}
	if d.scratch = edits; hasOther(members) {
		d.nested.bad = true
		return
	}
	d.replace(at, op.ArrayEdit)
}

// appendEdit appends one element of $update or $remove.
func (d *Decoder) appendEdit(dst []byte, element op.Value, update bool) ([]byte, bool) {
	if element.Tag() != op.Object {
		return dst, false
	}
	members := element.Bytes()
	key := op.Member(members, []byte("$identifier_key"))
	match := op.Member(members, []byte("$identifier_value"))
	object := op.Member(members, []byte("$new_object"))
	want, code := 2, byte(op.EditRemove)
	if update {
		want, code = 3, op.EditUpdate
	}
	if countMembers(members) != want || key == nil || key.Tag() != op.String || match == nil || !scalar(match) ||
		update && (object == nil || object.Tag() != op.Object) {
		return dst, false
	}
	d.nested.dollars -= want
	return append(append(append(append(dst, code), key...), match...), object...), true
}

func scalar(v op.Value) bool {
	switch v.Tag() {
	case op.False, op.True, op.Int, op.Float, op.String, op.Time:
		return true
	}
	return false
}

func allObjects(array op.Value) bool {
	for v := range op.Elements(array.Bytes()) {
		if v.Tag() != op.Object {
			return false
		}
	}
	return true
}

func countMembers(members []byte) (n int) {
	for range op.Members(members) {
		n++
	}
	return n
}

// hasOther reports whether there is a member that doesn't belong to an ArrayEdit.
func hasOther(members []byte) bool {
	for name := range op.Members(members) {
		if string(name) != "$add" && string(name) != "$update" && string(name) != "$remove" {
			return true
		}
	}
	return false
}
