package profile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"millrace/shard/op"
)

// Verdict is what Apply says beyond the new blob.
type Verdict uint8

const (
	Applied     Verdict = iota // done
	JustBlocked                // done, and the profile has crossed a limit: its user is a dummy user from now on
	Ignored                    // nothing done: an op of another kind, or one whose body is not that of an object
)

// Unmet says that an operator of an attributes object could not be applied, and why.
type Unmet struct {
	Ref uint16 // as the op has it (op.AttrOperators)
	Why Impossible
}

// Impossible says why an operator could not be applied.
type Impossible uint8

const (
	OutOfRange Impossible = iota + 1 // the sum is beyond the end of an integer's range, and stays at the end
	TooLarge                         // the value would grow beyond Limits.MaxValueBytes; it stays as it was
	NotArray                         // the value to be removed from, or updated, is no array; it stays as it was
	NotNumber                        // the value to be incremented is no number; it stays as it was
)

// Apply applies an op.Attributes, op.Event or op.Purchase of rec to a profile and moves its time of update to rec's
// stamp. lim has its defaults (EnsureDefaults); nil means all defaults.
//
// The operators that could not be applied are in e.Unmet, until the next Apply.
//
// A blocked profile is changed like any other, since what is in the log has been acknowledged. Refusing is up to the
// door (see Blocked).
func (e *Editor) Apply(blob []byte, o op.Op, rec *op.Record, lim *Limits) (out []byte, verdict Verdict) {
	if lim == nil {
		lim = &defaultLimits
	}
	e.Unmet, e.unmet = e.Unmet[:0], e.unmet[:0]
	var fresh byte // tag of the fields whose number is limited and has grown
	switch o.Kind() {
	case op.Event:
		body := op.EventBody(o.Body())
		if len(body) < eventBytes {
			return blob, Ignored
		}
		name, ok := nameAt(rec, body.Name())
		if !ok {
			return blob, Ignored
		}
		var isNew bool
		if out, isNew = e.observe(blob, tagEvent, name, body.Time(), 1); isNew {
			fresh = tagEvent
		}
	case op.Purchase:
		body := op.PurchaseBody(o.Body())
		if len(body) < purchaseBytes {
			return blob, Ignored
		}
		name, ok := nameAt(rec, body.Product())
		if !ok {
			return blob, Ignored
		}
		var isNew bool
		if out, isNew = e.observe(blob, tagProduct, name, body.Time(), max(body.Quantity(), 1)); isNew {
			fresh = tagProduct
		}
		out = e.addRevenue(out, body.Currency(), body.Total())
	case op.Attributes:
		out, fresh = e.applyAttributes(blob, o, rec, lim)
	default:
		return blob, Ignored
	}
	touch(out, rec.Stamp)
	if fresh != 0 && overLimit(out, fresh, lim) && !Blocked(out) {
		return e.block(out), JustBlocked
	}
	return out, Applied
}

// Sizes of the fixed parts of bodies, and the longest name a field can carry.
const (
	eventBytes    = 16
	purchaseBytes = 40
	maxNameBytes  = 1<<16 - 1
)

var defaultLimits = *DefaultLimits()

func nameAt(rec *op.Record, index uint32) (name []byte, ok bool) {
	name = rec.Names.At(index)
	return name, len(name) > 0 && len(name) <= maxNameBytes
}

func overLimit(b []byte, tag byte, lim *Limits) bool {
	switch tag {
	case tagEvent:
		return more(b, tag, lim.MaxEventNames, namedMinimum+summaryFixed)
	case tagProduct:
		return more(b, tag, lim.MaxProductNames, namedMinimum+summaryFixed)
	case tagCustom:
		return more(b, tag, lim.MaxAttributes, namedMinimum+1)
	}
	return false
}

func (e *Editor) applyAttributes(b []byte, o op.Op, rec *op.Record, lim *Limits) (out []byte, fresh byte) {
	merge := o.Flags().Has(op.MergeObjects)
	many := e.isMany(b, o.Body()) && e.listChanges(o.Body(), rec)
	if many {
		b, fresh = e.applyMany(b, o, rec, lim)
	}
	// next is behind the field that was set last, since clients send the same attributes in the same order again and
	// again
	next := fieldsStart(b)
	composites := 0
	for fields := o.Body(); len(fields) > 0; {
		code, v, rest, ok := op.NextField(fields)
		if !ok {
			break
		}
		fields = rest
		if code == op.AttrOperators {
			e.reportUnmet(v)
			continue
		}
		if code < op.ReservedCodes {
			b, next = e.applyReserved(b, next, code, v, rec)
			continue
		}
		name, ok := nameAt(rec, code-op.ReservedCodes)
		if !ok || many {
			continue
		}
		s := near(b, next, tagCustom, name)
		if s.none() {
			s = e.findNamed(b, tagCustom, name)
		}
		switch v.Tag() {
		case op.Null:
			b = e.remove(b, s)
			next = max(s.at, fieldsStart(b))
			continue
		case op.Array, op.Object, op.Increment, op.Update, op.ArrayEdit:
			var old op.Value
			if !s.none() {
				old = valueIn(b[s.start+2+len(name) : s.end])
			}
			var why Impossible
			if v, why = e.combine(old, v, merge, lim); why != 0 {
				e.unmet = append(e.unmet, unmet{composites, why})
			}
			composites++
			if v == nil {
				continue
			}
		}
		if s.none() {
			fresh = tagCustom
		}
		b = e.setValue(b, s, tagCustom, name, v)
		next = behind(b, e.at)
	}
	return b, fresh
}

// An attributes op is applied field by field, which costs little for the few fields that ops have. An op with very many
// fields, or one for a very large profile, would walk and move the profile for each of them. Its custom attributes are
// applied in one pass: the profile is written anew, and each of its fields looks for its change. The bytes that come
// out are the same.
const (
	// manyBytes is the size of profile and op together below which an op is never applied in one pass.
	manyBytes = 8 << 10
	// indexedWork is manyWork for the custom attributes of a profile with an index: it is not walked, and moved only
	// for fields that are new or change their size.
	indexedWork = 64 << 20
)

// isMany says whether an op is to be applied in one pass.
func (e *Editor) isMany(profile, body []byte) bool {
	size, work := len(profile)+len(body), manyWork
	if size < manyBytes {
		return false
	}
	if e.index.on {
		work = indexedWork
	}
	fields := 0
	for range op.Fields(body) {
		fields++
	}
	return fields > 1 && fields*size >= work
}

// listChanges lists the custom attributes of an op in e.changes, by hash. It returns false when a name occurs twice.
func (e *Editor) listChanges(body []byte, rec *op.Record) bool {
	e.changes = e.changes[:0]
	places := uint32(0)
	for fields := body; len(fields) > 0; {
		code, v, rest, ok := op.NextField(fields)
		if !ok {
			break
		}
		at := len(body) - len(fields)
		fields = rest
		if code < op.ReservedCodes {
			continue
		}
		if name, ok := nameAt(rec, code-op.ReservedCodes); ok {
			e.changes = append(e.changes, change{hash: uint32(xxh3.Hash(name)), at: uint32(at), place: places})
			if isComposite(v) {
				places++
			}
		}
	}
	slices.SortFunc(e.changes, func(a, b change) int {
		if a.hash != b.hash { // without reading the name
			return cmp.Compare(a.hash, b.hash)
		}
		name, _ := b.in(body, rec)
		return a.compare(b.hash, name, body, rec)
	})
	for i := 1; i < len(e.changes); i++ {
		name, _ := e.changes[i].in(body, rec)
		if e.changes[i-1].compare(e.changes[i].hash, name, body, rec) == 0 {
			return false
		}
	}
	return true
}

// compare orders changes by hash and, as names may be chosen to have the same one, by name.
func (c *change) compare(hash uint32, name, body []byte, rec *op.Record) int {
	if c.hash != hash {
		return cmp.Compare(c.hash, hash)
	}
	own, _ := c.in(body, rec)
	return bytes.Compare(own, name)
}

// in is the name and value of a change in its op.
func (c *change) in(body []byte, rec *op.Record) (name []byte, v op.Value) {
	code, v, _, _ := op.NextField(body[c.at:])
	name, _ = nameAt(rec, code-op.ReservedCodes)
	return name, v
}

// changeOf returns the change of the attribute with this name and its value, nil when the op has none.
func (e *Editor) changeOf(name, body []byte, rec *op.Record) (*change, op.Value) {
	hash := uint32(xxh3.Hash(name))
	i, ok := slices.BinarySearchFunc(e.changes, name,
		func(c change, name []byte) int { return c.compare(hash, name, body, rec) })
	if !ok {
		return nil, nil
	}
	_, v := e.changes[i].in(body, rec)
	return &e.changes[i], v
}

// applyMany applies the custom attributes that listChanges has listed.
func (e *Editor) applyMany(b []byte, o op.Op, rec *op.Record, lim *Limits) (out []byte, fresh byte) {
	body, merge := o.Body(), o.Flags().Has(op.MergeObjects)
	out = append(slices.Grow(e.spare[:0], len(b)+2*len(body)), b[:fieldsStart(b)]...)
	for i := fieldsStart(b); i < len(b); {
		tag, start, end := fieldAt(b, i)
		field := b[i:end]
		i = end
		if tag != tagCustom {
			out = append(out, field...)
			continue
		}
		name, old := splitName(b[start:end])
		c, v := e.changeOf(name, body, rec)
		if c == nil || c.done {
			out = append(out, field...)
			continue
		}
		c.done = true
		if v.Tag() == op.Null {
			continue
		}
		if v = e.combineMany(valueIn(old), v, merge, lim, c.place); v == nil {
			out = append(out, field...)
			continue
		}
		out = appendCustom(out, name, v, valueRoom(end-start, 2+len(name)+len(v)))
	}
	slices.SortFunc(e.changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	for i := range e.changes {
		c := &e.changes[i]
		name, v := c.in(body, rec)
		if c.done || v.Tag() == op.Null {
			continue
		}
		if v = e.combineMany(nil, v, merge, lim, c.place); v != nil {
			out = appendCustom(out, name, v, 2+len(name)+len(v))
			fresh = tagCustom
		}
	}
	slices.SortFunc(e.unmet, func(a, b unmet) int { return cmp.Compare(a.place, b.place) })
	e.spare, e.buf = e.buf, out
	if cap(e.changes) > maxKeptChanges {
		e.changes = nil
	}
	e.index.leave()
	return out, fresh
}

// maxKeptChanges is how many changes an Editor keeps room for.
const maxKeptChanges = 1 << 12

func isComposite(v op.Value) bool {
	switch v.Tag() {
	case op.Array, op.Object, op.Increment, op.Update, op.ArrayEdit:
		return true
	}
	return false
}

// combineMany returns the new value of an attribute, nil when nothing changes.
func (e *Editor) combineMany(old, v op.Value, merge bool, lim *Limits, place uint32) op.Value {
	if !isComposite(v) {
		return v
	}
	made, why := e.combine(old, v, merge, lim)
	if why != 0 {
		e.unmet = append(e.unmet, unmet{int(place), why})
	}
	return made
}

// appendCustom appends a custom attribute whose payload has size bytes.
func appendCustom(dst, name []byte, v op.Value, size int) []byte {
	dst = appendFieldHeader(dst, tagCustom, size)
	end := len(dst) + size
	dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(name))), name...)
	dst = append(dst, v...)
	return append(dst, make([]byte, end-len(dst))...)
}

// unmet is an operator that could not be applied, named by its place among the composite values.
type unmet struct {
	place int
	why   Impossible
}

// reportUnmet adds to Unmet those operators of e.unmet that have a reference in an op.AttrOperators.
func (e *Editor) reportUnmet(operators op.Value) {
	places := e.unmet
	for rest := content(operators, op.Array); len(rest) > 0 && len(places) > 0; {
		place, tail, _ := op.NextValue(rest)
		ref, tail, ok := op.NextValue(tail)
		if !ok || place.Tag() != op.Int || ref.Tag() != op.Int {
			break
		}
		rest = tail
		if place.Int() == int64(places[0].place) { // both rise
			e.Unmet = append(e.Unmet, Unmet{uint16(ref.Int()), places[0].why})
			places = places[1:]
		}
	}
}

// near looks whether one of the next few fields from i on has this tag and, if it is a named one, this name.
func near(b []byte, i int, tag byte, name []byte) span {
	for range 3 {
		if i >= len(b) {
			break
		}
		t, start, end := fieldAt(b, i)
		if t == tag && (name == nil || isNamed(b, start, name)) {
			return span{i, start, end}
		}
		i = end
	}
	return span{}
}

// behind is where the field that begins at i ends.
func behind(b []byte, i int) int {
	_, _, end := fieldAt(b, i)
	return end
}

// applyReserved sets a reserved attribute, which is likely at next, and returns where the attribute after it likely is.
func (e *Editor) applyReserved(b []byte, next int, code uint32, v op.Value, rec *op.Record) ([]byte, int) {
	switch code {
	case op.AttrSubscriptionGroups:
		return e.applyGroups(b, v, rec), fieldsStart(b)
	case op.AttrHardBounce, op.AttrSpam: // marks of the address, not of its users
		return b, next
	case op.AttrEmailSubscribe, op.AttrPushSubscribe, op.AttrMarkedEmailAsSpamAt:
		b = e.markChange(b, changeTag(code), rec.Stamp, rec.Actor, rec.Source)
		next = fieldsStart(b) // markChange may have moved the fields
	case op.AttrPushTokens:
		if v.Tag() == op.Array {
			s := e.find(b, reservedTag(code))
			v = e.mergeTokens(content(valueIn(b[s.start:s.end]), op.Array), v.Bytes())
		}
	}
	switch v.Tag() {
	case op.Null:
		return e.removeAttr(b, code), fieldsStart(b)
	case op.Increment, op.Update, op.ArrayEdit: // operators are for custom attributes
		return b, next
	}
	tag := reservedTag(code)
	s := near(b, next, tag, nil)
	if s.none() {
		s = e.find(b, tag)
	}
	b = e.setValue(b, s, tag, nil, v)
	return b, behind(b, e.at)
}

func (e *Editor) applyGroups(b []byte, v op.Value, rec *op.Record) []byte {
	many := isManyGroups(len(b), len(v)/leastGroup)
	var groups []StateChange
	for rest := content(v, op.Array); len(rest) > 0; {
		id, tail, ok := op.NextValue(rest)
		if !ok {
			break
		}
		state, tail, ok := op.NextValue(tail)
		if !ok {
			break
		}
		rest = tail
		if raw := content(id, op.String); (len(raw) == 16 || len(raw) == 17) &&
			(state.Tag() == op.True || state.Tag() == op.False) {
			set := State{Kind: StateGroup, Group: [16]byte(raw), On: state.Tag() == op.True}
			if len(raw) == 17 {
				set.Channel = raw[16]
			}
			if c := (StateChange{set, rec.Stamp, rec.Actor, rec.Source}); many {
				groups = append(groups, c)
			} else {
				b = e.setGroup(b, c)
			}
		}
	}
	if many {
		b = e.setManyGroups(b, groups)
	}
	return b
}

// leastGroup is how many bytes a group has in an op, at least: a string of 16 bytes, and whether it is on.
const leastGroup = 2 + 16 + 1

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
		if !e.editArray(old, v.Bytes(), merge, lim) {
			return nil, noArray(old)
		}
	}
	clear(e.refs)
	if len(e.tmp) > lim.MaxValueBytes && len(old) > 0 && len(e.tmp) > len(old) && len(e.tmp) > len(v) {
		return nil, TooLarge // merging has made it larger than the bound
	}
	return e.tmp, 0
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
// there before, to each element in the order of the edits; added elements go to the end.
func (e *Editor) editArray(old op.Value, edits []byte, merge bool, lim *Limits) bool {
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
	if !adds && (old == nil || old.Tag() != op.Array) {
		return false
	}
	e.tmp = e.tmp[:0]
	list := e.refs
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
	return true
}

// appendEdited appends an element as the edits leave it.
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
