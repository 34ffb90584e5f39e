package profile

import (
	"bytes"
	"cmp"
	"encoding/binary"
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
		if !body.IsWhole() {
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
		if !body.IsWhole() {
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

// maxNameBytes is the longest name a field can carry.
const maxNameBytes = 1<<16 - 1

var defaultLimits = *DefaultLimits()

func nameAt(rec *op.Record, index uint32) (name []byte, ok bool) {
	name = rec.Names.At(index)
	return name, len(name) > 0 && len(name) <= maxNameBytes
}

func overLimit(b []byte, tag byte, lim *Limits) bool {
	switch tag {
	case tagEvent:
		return more(b, tag, lim.MaxEventNames, namedMinimum+leastSummary)
	case tagProduct:
		return more(b, tag, lim.MaxProductNames, namedMinimum+leastSummary)
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
