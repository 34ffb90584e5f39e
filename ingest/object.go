package ingest

import (
	"slices"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// What the three kinds of objects have in common: values that are kept aside, and the end of an op.

// object reads the object at i and writes its op, or reports why it doesn't. The result is -1 only if the request is
// bad.
func (d *Decoder) object(i int) int {
	d.refusal.rank = rankNone
	d.inObject = true
	d.id, d.aside = identity{}, [asides]slot{}
	d.owner = memberKey{}
	warned, texts := len(d.warnings), len(d.texts)
	start := d.o
	d.from = i
	d.need(op.OpHeaderBytes + 64)
	d.o += op.OpHeaderBytes
	var kind op.Kind
	var flags op.Flags
	switch {
	case d.in[i] != '{':
		d.refuse(rankIdentifier, i, reasonNotObject)
		i = d.skip(i, 0)
	case d.array == arrayAttributes:
		kind = op.Attributes
		i, flags = d.attributes(i)
	case d.array == arrayEvents:
		kind = op.Event
		i = d.event(i, d.o)
	default:
		kind = op.Purchase
		i = d.purchase(i, d.o)
	}
	d.inObject = false
	if d.others.used > 0 {
		d.others.rest()
	}
	if i < 0 {
		d.o = start
		return -1
	}
	d.to = i
	if d.refusal.rank != rankNone {
		d.o = start
		d.warnings, d.texts = d.warnings[:warned], d.texts[:texts]
		d.report(d.refusal.reason, d.refusalName())
		return i
	}
	for k := warned; k < len(d.warnings); k++ {
		d.warnings[k].to = i
	}
	d.finish(start, kind, flags)
	return i
}

// slot is a member's value that is kept aside until the whole object has been read.
type slot struct {
	at         int32 // where the value is; 0: the member is absent
	start, end int32 // of the content of a string; of the digits of an integer
	kind       slotKind
}

// given reports whether the member is there with a value other than null.
func (s *slot) given() bool { return s.at != 0 && s.kind != slotNull }

type slotKind uint8

const (
	slotOther  slotKind = iota // of a type that the member can't have
	slotString                 // start, end
	slotInt                    // start, end
	slotNull
)

// slotValue reads any value into s.
func (d *Decoder) slotValue(i int, s *slot) (next int) {
	switch c := d.in[i]; {
	case c == '"':
		end, next := d.text(i + 1)
		if next >= 0 {
			*s = slot{at: int32(i), start: int32(i + 1), end: int32(end), kind: slotString}
		}
		return next
	case c == '-' || c-'0' <= 9:
		next, kind, _ := d.number(i)
		*s = slot{at: int32(i)}
		switch kind {
		case numberInt:
			s.start, s.end, s.kind = int32(i), int32(next), slotInt
		case numberOutside, numberLong:
			d.outside(i, kind)
		}
		return next
	case c == 'n':
		*s = slot{at: int32(i), kind: slotNull}
		return d.literal(i, "null")
	}
	*s = slot{at: int32(i)}
	return d.skip(i, 0)
}

// content returns what a slot of a string or an integer holds. A JSON integer may be -0, which is 0.
func (d *Decoder) content(s *slot) []byte {
	if s.kind == slotInt && s.end-s.start == 2 && d.in[s.start] == '-' && d.in[s.start+1] == '0' {
		return d.in[s.start+1 : s.end]
	}
	return d.in[s.start:s.end]
}

// finish appends the key to the op that begins at start, and has the op placed.
func (d *Decoder) finish(start int, kind op.Kind, flags op.Flags) {
	id := &d.id
	keyStart := d.o
	switch id.resolved {
	case op.ExternalID:
		s := d.aside[asideExternalID]
		if s.kind == slotInt && d.in[s.start] == '-' && len(d.content(&s)) == 1 {
			s.start++
		}
		d.put(int(s.start), int(s.end))
	case op.Alias:
		d.need(2 * field.MaxAliasBytes)
		d.adopt(op.AppendAliasKey(d.out[:d.o], d.content(&id.label), d.content(&id.name)))
	case op.Email:
		d.adopt(op.AppendEmailKey(d.out[:d.o], d.content(&d.aside[asideEmail])))
	case op.NoID:
		d.tokenKey()
	case op.Phone:
		key, _ := d.Phones.Parse(d.out[:d.o], d.content(&d.aside[asidePhone]))
		d.adopt(key)
	}
	if id.updateOnly || id.resolved == op.Alias && !id.updateGiven {
		flags |= op.UpdateOnly
	}
	if kind != op.Attributes && (flags.Has(op.UpdateOnly) || id.resolved != op.ExternalID) {
		flags |= op.Conditional
	}
	if kind == op.Attributes && d.ws.StreamsAttributes {
		flags |= op.Streamed
	}
	if id.unknown {
		d.o = start
		d.counts[d.array]++
		return
	}
	if d.limits.PerUser > 0 {
		d.noteUser(d.out[keyStart:d.o])
	}
	if d.deferring {
		d.pending = append(d.pending,
			pendingOp{start: start, end: d.o, keyLen: d.o - keyStart, number: id.number, array: d.array,
				index: d.index, from: d.from, to: d.to, kind: kind, flags: flags, id: id.resolved})
		return
	}
	d.place(start, kind, flags, id.resolved, d.o-keyStart, id.number)
}

// place makes the router finish the op that begins at start, the last one in the record.
func (d *Decoder) place(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int, number uint64) {
	d.b.Buf = d.out[:d.o]
	var accepted bool
	if id == op.SvcID {
		accepted = d.r.EndNumber(start, kind, flags, number)
	} else {
		accepted = d.r.End(start, kind, flags, id, keyLen)
	}
	d.out, d.o = d.b.Buf[:cap(d.b.Buf)], len(d.b.Buf)
	if accepted {
		d.counts[d.array]++
	} else {
		same := func(e entry) bool { return e.array == d.array && e.index == d.index }
		d.warnings = slices.DeleteFunc(d.warnings, same) // what was left out of the object no longer matters
		d.report(reasonBlocked, nil)
	}
}

// pastTime returns the time in a string, in milliseconds; now replaces a later time.
func (d *Decoder) pastTime(s *slot) (unixMillis int64, ok bool) {
	if s.kind != slotString {
		return 0, false
	}
	t, ok := d.times.Time(d.content(s))
	return min(t, d.now), ok
}
