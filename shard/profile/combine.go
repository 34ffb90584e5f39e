package profile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"millrace/shard/op"
)

// How the new value of a custom attribute is made of the stored one and of what an op brings.

// combine makes the new value of a custom attribute from the stored one (nil for none) and an array, object or
// operator. nil means that nothing changes; why says that something should have changed. What adds elements replaces a
// value of another type; what counts, removes or updates leaves such a value alone. The result is scratch.
func (e *Editor) combine(old, v op.Value, merge bool, lim *Limits) (made op.Value, why Impossible) {
	e.refs = e.refs[:0]
	switch v.Tag() {
	case op.Array:
		return e.newest(v, lim.MaxArray), 0
	case op.Object:
		var members []byte
		if merge {
			members = content(old, op.Object)
		}
		e.tmp = e.mergeObject(e.tmp[:0], members, v.Bytes(), nullDeletes, 0)
	case op.Increment:
		return e.increment(old, v.Int())
	case op.Update:
		if !e.updateArray(old, v.Bytes(), lim) {
			return nil, noArray(old)
		}
	case op.ArrayEdit:
		var edited bool
		if edited, why = e.editArray(old, v.Bytes(), merge, lim); !edited {
			return nil, why
		}
	}
	clear(e.refs)
	if len(e.tmp) > lim.MaxValueBytes && len(old) > 0 && len(e.tmp) > len(old) && len(e.tmp) > len(v) {
		return nil, TooLarge // merging has made it larger than the bound
	}
	return e.tmp, why
}

// noArray says why an array was not changed: when there is none, there is nothing to be removed.
func noArray(old op.Value) Impossible {
	if old == nil || old.Tag() == op.Array {
		return 0
	}
	return NotArray
}

// increment adds n to a number: an integer stops at the ends of its range, a float at the largest finite one. An absent
// value becomes n. A value that is no number is left alone.
func (e *Editor) increment(old op.Value, n int64) (made op.Value, why Impossible) {
	switch {
	case len(old) > 0 && old.Tag() == op.Int:
		sum := saturatingAdd(old.Int(), n)
		if sum != old.Int()+n { // this sum wraps around
			why = OutOfRange
		}
		e.tmp = op.AppendInt(e.tmp[:0], sum)
	case len(old) > 0 && old.Tag() == op.Float:
		e.tmp = op.AppendFloat(e.tmp[:0], min(max(old.Float()+float64(n), -math.MaxFloat64), math.MaxFloat64))
	case len(old) > 0:
		return nil, NotNumber
	default:
		e.tmp = op.AppendInt(e.tmp[:0], n)
	}
	return e.tmp, why
}

// newest keeps the last limit elements of an array.
func (e *Editor) newest(v op.Value, limit int) op.Value {
	elements := v.Bytes()
	if len(elements) <= limit { // an element has at least one byte
		return v
	}
	kept := skipOldest(elements, limit)
	if len(kept) == len(elements) {
		return v
	}
	e.tmp = op.AppendBlock(e.tmp[:0], op.Array, kept)
	return e.tmp
}

func skipOldest(elements []byte, limit int) []byte {
	n := 0
	for rest := elements; len(rest) > 0; n++ {
		var ok bool
		if _, rest, ok = op.NextValue(rest); !ok {
			return nil
		}
	}
	for ; n > limit; n-- {
		_, elements, _ = op.NextValue(elements)
	}
	return elements
}

// updateArray does {"add": […], "remove": […]}. Added elements leave their place and go to the end, in the order in
// which they were last named; removed ones are gone, even when they are added, too; only then the oldest beyond
// MaxArray are dropped. Elements that are not named stay as they are, repetitions included. Equal means the same type
// and value: 1 is not 1.0.
func (e *Editor) updateArray(old op.Value, operands []byte, lim *Limits) bool {
	add, rest, ok := op.NextValue(operands)
	if !ok {
		return false
	}
	remove, _, ok := op.NextValue(rest)
	if !ok || old != nil && old.Tag() != op.Array && len(content(add, op.Array)) == 0 || old == nil &&
		len(content(add, op.Array)) == 0 {
		return false
	}
	e.pushValues(content(remove, op.Array))
	removed := len(e.refs)
	slices.SortFunc(e.refs, compareKeys)
	e.pushValues(content(old, op.Array))
	added := len(e.refs)
	e.pushValues(content(add, op.Array))

	e.kept = e.kept[:0]
	room := e.keepNewest(added, len(e.refs), lim.MaxArray, e.refs[:removed], true)
	e.keepNewest(removed, added, room, e.refs[:removed], false)
	e.tmp = e.tmp[:0]
	for _, r := range e.refs[removed:] {
		if r.used {
			e.tmp = append(e.tmp, r.value...)
		}
	}
	e.tmp = closeBlock(e.tmp, 0, op.Array)
	return true
}

func (e *Editor) pushValues(elements []byte) {
	for v := range op.Elements(elements) {
		e.refs = append(e.refs, ref{key: v, value: v})
	}
}

// keepNewest marks the last refs of [from, to) as used, at most room of them, and returns how much room is left. It
// passes over a ref whose key is among skip or equals the key of a kept one: of one that was kept before the call, or,
// when distinct is true, of any.
func (e *Editor) keepNewest(from, to, room int, skip []ref, distinct bool) int {
	before := len(e.kept)
next:
	for i := to - 1; i >= from && room > 0; i-- {
		r := &e.refs[i]
		against := e.kept
		if !distinct {
			against = e.kept[:before]
		}
		for _, k := range against {
			if bytes.Equal(e.refs[k].key, r.key) && bytes.Equal(e.refs[k].extra, r.extra) {
				continue next
			}
		}
		if findKey(skip, r.key) {
			continue
		}
		r.used = true
		e.kept = append(e.kept, i)
		room--
	}
	return room
}

func compareKeys(a, b ref) int { return bytes.Compare(a.key, b.key) }

func findKey(sorted []ref, key []byte) bool {
	_, ok := slices.BinarySearchFunc(sorted, key, func(r ref, key []byte) int { return bytes.Compare(r.key, key) })
	return ok
}

// editArray does $remove, $update and $add on an array of objects. Removals and updates apply to the elements that were
// there before, to each element in the order of the edits; added elements go to the end. Whether or not it edits, why
// says what of the edits is impossible.
func (e *Editor) editArray(old op.Value, edits []byte, merge bool, lim *Limits) (edited bool, why Impossible) {
	adds := false
	for len(edits) > 0 && edits[0] <= op.EditRemove {
		r := ref{tag: edits[0]}
		var v op.Value
		var ok bool
		if v, edits, ok = op.NextValue(edits[1:]); !ok {
			break
		}
		if r.tag == op.EditAdd {
			r.value, adds = content(v, op.Array), true
			e.refs = append(e.refs, r)
			continue
		}
		r.key = content(v, op.String)
		if v, edits, ok = op.NextValue(edits); !ok {
			break
		}
		r.extra = v
		if r.tag == op.EditUpdate {
			if v, edits, ok = op.NextValue(edits); !ok {
				break
			}
			r.value = v
		}
		e.refs = append(e.refs, r)
	}
	list := e.refs
	if !adds && (old == nil || old.Tag() != op.Array) {
		return false, cmp.Or(noArray(old), noMatch(list))
	}
	e.tmp = e.tmp[:0]
	for element := range op.Elements(content(old, op.Array)) {
		e.tmp = e.appendEdited(e.tmp, element, list, merge)
	}
	for i := range list {
		if list[i].tag != op.EditAdd {
			continue
		}
		for element := range op.Elements(list[i].value) {
			e.tmp = e.appendClean(e.tmp, element, 1)
		}
	}
	kept := skipOldest(e.tmp, lim.MaxArray)
	e.tmp = append(e.tmp[:0], kept...)
	e.tmp = closeBlock(e.tmp, 0, op.Array)
	return true, noMatch(list)
}

// noMatch says whether one of the edits is a $update that no element matched. A $remove has nothing to lose.
func noMatch(edits []ref) Impossible {
	if slices.ContainsFunc(edits, func(r ref) bool { return r.tag == op.EditUpdate && !r.used }) {
		return NoMatch
	}
	return 0
}

// appendEdited appends an element as the edits leave it, and marks the edits that matched as used.
func (e *Editor) appendEdited(dst []byte, element op.Value, edits []ref, merge bool) []byte {
	if element.Tag() != op.Object {
		return append(dst, element...)
	}
	for i := range edits {
		r := &edits[i]
		if r.tag == op.EditAdd {
			continue
		}
		if has := op.Member(element.Bytes(), r.key); has == nil || !bytes.Equal(has, r.extra) {
			continue
		}
		r.used = true
		switch {
		case r.tag == op.EditRemove:
			return dst
		case merge && len(r.value) > 0 && op.Value(r.value).Tag() == op.Object:
			made := e.mergeObject(e.tmp2[:0], element.Bytes(), op.Value(r.value).Bytes(), nullKeeps, 1)
			e.tmp2, e.tmp3 = e.tmp3, made // element may be a view of tmp3
			element = made
		default:
			made := e.appendClean(e.tmp2[:0], r.value, 1)
			e.tmp2, e.tmp3 = e.tmp3, made
			element = made
			if element.Tag() != op.Object {
				return append(dst, element...)
			}
		}
	}
	return append(dst, element...)
}

// mergeTokens merges push tokens by app and token. A token that comes again goes to the end, as it came last. The
// newest maxPushTokens stay.
func (e *Editor) mergeTokens(old, add []byte) op.Value {
	e.refs = e.refs[:0]
	e.pushTokens(old)
	e.pushTokens(add)
	e.kept = e.kept[:0]
	e.keepNewest(0, len(e.refs), maxPushTokens, nil, true)
	e.tmp = e.tmp[:0]
	for _, r := range e.refs {
		if r.used {
			e.tmp = append(e.tmp, r.value...)
		}
	}
	clear(e.refs)
	e.tmp = closeBlock(e.tmp, 0, op.Array)
	return e.tmp
}

func (e *Editor) pushTokens(elements []byte) {
	for v := range op.Elements(elements) {
		if v.Tag() != op.Object {
			continue
		}
		token, app := op.Member(v.Bytes(), memberToken), op.Member(v.Bytes(), memberAppID)
		if app == nil { // imported, with an app that did not exist
			app = op.Member(v.Bytes(), memberApp)
		}
		e.refs = append(e.refs, ref{key: token, extra: app, value: v})
	}
}

var memberToken, memberAppID, memberApp = []byte("token"), []byte("app_id"), []byte("app")

// nullRule says what a null member of an incoming object means.
type nullRule bool

const (
	nullDeletes nullRule = true  // _merge_objects
	nullKeeps   nullRule = false // $update, which cannot delete a member (reference.md 3)
)

// maxDepth is how deep values may nest. The door allows 32.
const maxDepth = 64

// mergeObject appends the object that has old's members, in their order and as changed by add's, and then add's other
// members. Objects that both have are merged in turn. Null members are never stored.
func (e *Editor) mergeObject(dst, old, add []byte, nulls nullRule, depth int) []byte {
	mark, base := len(dst), len(e.refs)
	if len(old) > 0 {
		for name, v := range op.Members(add) {
			e.refs = append(e.refs, ref{key: name, value: v})
		}
		slices.SortFunc(e.refs[base:], compareKeys)
	}
	end := len(e.refs)
	for name, v := range op.Members(old) {
		i, found := slices.BinarySearchFunc(e.refs[base:end], name,
			func(r ref, key []byte) int { return bytes.Compare(r.key, key) })
		if !found {
			dst = append(appendName(dst, name), v...)
			continue
		}
		r := &e.refs[base+i]
		r.used = true
		given := op.Value(r.value)
		switch {
		case given.Tag() == op.Null && nulls == nullDeletes:
		case given.Tag() == op.Null:
			dst = append(appendName(dst, name), v...)
		case given.Tag() == op.Object && v.Tag() == op.Object && depth < maxDepth:
			dst = e.mergeObject(appendName(dst, name), v.Bytes(), given.Bytes(), nulls, depth+1)
		default:
			dst = e.appendClean(appendName(dst, name), given, depth+1)
		}
	}
	for name, v := range op.Members(add) {
		if v.Tag() == op.Null {
			continue
		}
		if i, found := slices.BinarySearchFunc(e.refs[base:end], name,
			func(r ref, key []byte) int { return bytes.Compare(r.key, key) }); found && e.refs[base+i].used {
			continue
		}
		dst = e.appendClean(appendName(dst, name), v, depth+1)
	}
	clear(e.refs[base:end])
	e.refs = e.refs[:base]
	return closeBlock(dst, mark, op.Object)
}

// appendClean appends a value; objects without their null members.
func (e *Editor) appendClean(dst []byte, v op.Value, depth int) []byte {
	if v.Tag() != op.Object || depth >= maxDepth {
		return append(dst, v...)
	}
	return e.mergeObject(dst, nil, v.Bytes(), nullDeletes, depth)
}

func appendName(dst, name []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(name))), name...)
}

// closeBlock makes what is behind mark the content of a value with tag.
func closeBlock(dst []byte, mark int, tag op.Tag) []byte {
	var head [1 + binary.MaxVarintLen64]byte
	head[0] = byte(tag)
	size := len(dst) - mark
	n := 1 + binary.PutUvarint(head[1:], uint64(size))
	dst = append(dst, head[:n]...)
	copy(dst[mark+n:], dst[mark:mark+size])
	copy(dst[mark:], head[:n])
	return dst
}

// content is the content of a value with tag, nil for a value with another tag or for none.
func content(v op.Value, tag op.Tag) []byte {
	if len(v) == 0 || v.Tag() != tag {
		return nil
	}
	return v.Bytes()
}
