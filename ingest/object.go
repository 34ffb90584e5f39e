package ingest

import (
	"encoding/binary"
	"slices"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// What the three kinds of objects have in common: identifiers, the end of an op, and writing into the buffer.

// object reads the object at i and writes its op, or reports why not. The result is -1 only when the request is bad.
func (d *Decoder) object(i int) int {
	d.refusal.rank = rankNone
	d.inObject = true
	d.id = identity{}
	d.owner = memberKey{}
	warned, texts := len(d.warnings), len(d.texts)
	start := d.o
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
	if d.names.used > 0 {
		d.names.rest()
	}
	if i < 0 {
		d.o = start
		return -1
	}
	if d.refusal.rank != rankNone {
		d.o = start
		d.warnings, d.texts = d.warnings[:warned], d.texts[:texts]
		d.report(d.refusal.reason, d.refusalName())
		return i
	}
	d.finish(start, kind, flags)
	return i
}

// slot is a member's value that is kept aside until the whole object has been read.
type slot struct {
	at         int32 // of the value; 0: the member is absent
	start, end int32 // of its content, for a string; for an integer, its digits
	kind       slotKind
}

// given says whether the member is there with a value other than null.
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

// content is what a slot of a string or an integer holds. A JSON integer may be -0, which is 0.
func (d *Decoder) content(s *slot) []byte {
	if s.kind == slotInt && s.end-s.start == 2 && d.in[s.start] == '-' && d.in[s.start+1] == '0' {
		return d.in[s.start+1 : s.end]
	}
	return d.in[s.start:s.end]
}

// identity is what an object says about whose it is.
type identity struct {
	external, service, email, phone slot
	alias                           slot // a string when it is an object, of which label and name are members
	label, name                     slot
	updateOnly, updateGiven         bool
	resolved                        op.IDKind // the identifier that counts
	number                          uint64    // of a svc_id
	unknown                         bool      // a svc_id that nobody has

	pushImport      bool
	hasTokens       bool // the object has push tokens
	tokenApp, token slot // of the first
}

// identifier reads a member that says whose the object is, or how. ok is false when the class is another.
func (d *Decoder) identifier(c class, i int) (next int, ok bool) {
	switch c {
	case classExternalID:
		return d.slotValue(i, &d.id.external), true
	case classEmail:
		return d.slotValue(i, &d.id.email), true
	case classPhone:
		return d.slotValue(i, &d.id.phone), true
	case classSvcID:
		var s slot
		next := d.slotValue(i, &s)
		if s.kind == slotNull {
			return next, true
		}
		if d.id.service.at != 0 { // svc_id and braze_id
			d.refuse(rankIdentifier, 0, reasonTwoIdentifiers)
		}
		d.id.service = s
		return next, true
	case classUserAlias:
		return d.userAlias(i), true
	case classUpdateOnly:
		next, d.id.updateOnly, d.id.updateGiven = d.flag(i)
		return next, true
	}
	return i, false
}

// flag reads a boolean; given is false for null. Anything else refuses the object.
func (d *Decoder) flag(i int) (next int, value, given bool) {
	switch d.in[i] {
	case 't':
		return d.literal(i, "true"), true, true
	case 'f':
		return d.literal(i, "false"), false, true
	case 'n':
		return d.literal(i, "null"), false, false
	}
	return d.skipRefused(i, 0, reasonNotValid), false, false
}

// skipRefused reads a value that the member can't have.
func (d *Decoder) skipRefused(i, level int, why reason) (next int) {
	next = d.skip(i, level)
	d.refuseNamed(rankValue, i, why, d.owner)
	return next
}

// userAlias reads an alias object.
func (d *Decoder) userAlias(i int) int {
	if d.in[i] != '{' {
		next := d.slotValue(i, &d.id.alias)
		if d.id.alias.kind != slotNull {
			d.id.alias.kind = slotOther
		}
		return next
	}
	d.id.alias = slot{at: int32(i), kind: slotString}
	i, more := d.openObject(i)
	p := d.newPath(shapeNested.atLevel(1))
	for more {
		if i = d.member(&p, i); i < 0 {
			return -1
		}
		switch string(d.nameOf(d.key)) {
		case "alias_name":
			i = d.slotValue(i, &d.id.name)
		case "alias_label":
			i = d.slotValue(i, &d.id.label)
		default:
			i = d.skip(i, 1)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	return i
}

// identify judges the identifiers and chooses one; what is wrong is refused with rankIdentifier.
func (d *Decoder) identify() {
	id := &d.id
	external, alias, service := id.external.given(), id.alias.given(), id.service.given()
	switch {
	case external && (alias || service) || alias && service:
		d.refuse(rankIdentifier, 0, reasonTwoIdentifiers)
	case external:
		d.identifyExternal()
	case alias:
		d.identifyAlias()
	case service:
		d.identifyService()
	case id.email.given():
		id.resolved = op.Email
		if id.email.kind != slotString || !field.Email(d.content(&id.email)) {
			d.refuse(rankIdentifier, int(id.email.at), reasonEmail)
		}
	case id.phone.given():
		id.resolved = op.Phone
		d.identifyPhone()
	case !id.pushImport:
		d.refuse(rankIdentifier, 0, reasonNoIdentifier)
	}
}

// identifyPhone judges a phone number that is the identifier.
func (d *Decoder) identifyPhone() {
	ok := d.id.phone.kind == slotString
	if ok {
		d.scratch, ok = d.Phones.Parse(d.scratch[:0], d.content(&d.id.phone))
	}
	if !ok {
		d.refuseText(rankIdentifier, int(d.id.phone.at), reasonNotValid, "phone")
	}
}

func (d *Decoder) identifyExternal() {
	s := &d.id.external
	d.id.resolved = op.ExternalID
	if s.kind != slotString && s.kind != slotInt {
		d.refuseText(rankIdentifier, int(s.at), reasonNotString, "external_id")
		return
	}
	key := d.content(s)
	switch {
	case len(key) == 0:
		d.refuse(rankIdentifier, int(s.at), reasonNoIdentifier)
	case len(key) > field.MaxExternalIDBytes:
		d.refuse(rankIdentifier, int(s.at), reasonExternalIDLong)
	case len(d.ws.Blocked) > 0:
		if _, blocked := d.ws.Blocked[string(key)]; blocked {
			d.refuse(rankIdentifier, int(s.at), reasonBlocked)
		}
	}
}

func (d *Decoder) identifyAlias() {
	d.id.resolved = op.Alias
	if d.id.alias.kind != slotString {
		d.refuse(rankIdentifier, int(d.id.alias.at), reasonAliasType)
		return
	}
	for _, m := range [...]struct {
		name string
		s    *slot
	}{{"alias_name", &d.id.name}, {"alias_label", &d.id.label}} {
		switch {
		case m.s.at == 0 || m.s.kind == slotNull || m.s.kind == slotString && m.s.start == m.s.end:
			d.refuseText(rankIdentifier, int(d.id.alias.at), reasonAliasMember, m.name)
		case m.s.kind != slotString:
			d.refuseText(rankIdentifier, int(d.id.alias.at), reasonNotString, m.name)
		case !field.Alias(d.content(m.s)):
			d.refuseText(rankIdentifier, int(d.id.alias.at), reasonAliasLong, m.name)
		}
	}
}

func (d *Decoder) identifyService() {
	s := &d.id.service
	d.id.resolved = op.SvcID
	if s.kind != slotString {
		d.refuseText(rankIdentifier, int(s.at), reasonNotString, d.ws.profileID())
		return
	}
	if s.start == s.end {
		d.refuse(rankIdentifier, int(s.at), reasonNoIdentifier)
		return
	}
	number, ok := d.r.SvcID(d.content(s))
	d.id.number, d.id.unknown = number, !ok
}

// finish appends the key to the op that begins at start, and has it placed.
func (d *Decoder) finish(start int, kind op.Kind, flags op.Flags) {
	id := &d.id
	keyStart := d.o
	switch id.resolved {
	case op.ExternalID:
		s := id.external
		if s.kind == slotInt && d.in[s.start] == '-' && len(d.content(&s)) == 1 {
			s.start++
		}
		d.put(int(s.start), int(s.end))
	case op.Alias:
		d.need(2 * field.MaxAliasBytes)
		d.adopt(op.AppendAliasKey(d.out[:d.o], d.content(&id.label), d.content(&id.name)))
	case op.Email:
		d.adopt(op.AppendEmailKey(d.out[:d.o], d.content(&id.email)))
	case op.NoID:
		d.tokenKey()
	case op.Phone:
		key, _ := d.Phones.Parse(d.out[:d.o], d.content(&id.phone))
		d.adopt(key)
	}
	if id.updateOnly || id.resolved == op.Alias && !id.updateGiven {
		flags |= op.UpdateOnly
	}
	if kind != op.Attributes && (flags.Has(op.UpdateOnly) || id.resolved != op.ExternalID) {
		flags |= op.Conditional
	}
	if id.unknown {
		d.o = start
		d.counts[d.array]++
		return
	}
	if d.deferring {
		d.pending = append(d.pending, pendingOp{start: start, end: d.o, keyLen: d.o - keyStart, number: id.number, array: d.array,
			index: d.index, kind: kind, flags: flags, id: id.resolved})
		return
	}
	d.place(start, kind, flags, id.resolved, d.o-keyStart, id.number)
}

// tokenKey makes the key of an imported push token that belongs to nobody yet: an alias of its own, so that the same
// token sent again finds the profile that it made (reference.md 1.4, rule 9).
func (d *Decoder) tokenKey() {
	id := &d.id
	id.resolved, id.updateOnly, id.updateGiven = op.Alias, false, true
	d.scratch = append(append(append(d.scratch[:0], d.content(&id.tokenApp)...), ':'), d.content(&id.token)...)
	d.adopt(op.AppendAliasKey(d.out[:d.o], []byte(tokenLabel), d.scratch))
}

// tokenLabel is the alias label of profiles made by `push_token_import`.
const tokenLabel = "push_token"

// place has the op that begins at start, the last one in the record, finished by the router.
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
		d.warnings = slices.DeleteFunc(d.warnings, same) // what was left out of it doesn't matter any more
		d.report(reasonBlocked, nil)
	}
}

// need makes room for n more bytes.
func (d *Decoder) need(n int) {
	if len(d.out)-d.o < n {
		d.grow(n)
	}
}

func (d *Decoder) grow(n int) {
	bigger := make([]byte, 2*len(d.out)+n+4096)
	copy(bigger, d.out[:d.o])
	d.out = bigger[:cap(bigger)]
}

// adopt takes the buffer back from a function that appended to it.
func (d *Decoder) adopt(buf []byte) { d.out, d.o = buf[:cap(buf)], len(buf) }

// put copies d.in[start:end].
func (d *Decoder) put(start, end int) {
	n := end - start
	d.need(n + padding)
	d.copy(d.o, start, n)
	d.o += n
}

// copy copies n bytes of the text to d.out[o:]. There is room for padding bytes more: short ones are copied by whole
// vectors, and what is too much is overwritten later.
func (d *Decoder) copy(o, start, n int) {
	to, from := d.out[o:o+padding], d.in[start:start+padding]
	switch {
	case n <= 32:
		*(*[32]byte)(to) = *(*[32]byte)(from)
	case n <= padding:
		*(*[padding]byte)(to) = *(*[padding]byte)(from)
	default:
		copy(d.out[o:], d.in[start:start+n])
	}
}

// putUvarint writes v; the caller has made room.
func (d *Decoder) putUvarint(v uint64) {
	if v < 0x80 {
		d.out[d.o] = byte(v)
		d.o++
		return
	}
	d.o += binary.PutUvarint(d.out[d.o:], v)
}

// putString writes d.in[start:end] as a value.
func (d *Decoder) putString(start, end int) {
	n := end - start
	d.need(n + padding + 11)
	o := d.o
	d.out[o] = byte(op.String)
	if n < 0x80 {
		d.out[o+1] = byte(n)
		o += 2
	} else {
		o += 1 + binary.PutUvarint(d.out[o+1:], uint64(n))
	}
	d.copy(o, start, n)
	d.o = o + n
}

// putTag writes a value that is a tag only.
func (d *Decoder) putTag(tag op.Tag) {
	d.need(1)
	d.out[d.o] = byte(tag)
	d.o++
}

// putFixed writes a Float or a Time.
func (d *Decoder) putFixed(tag op.Tag, v uint64) {
	d.need(9)
	d.out[d.o] = byte(tag)
	binary.LittleEndian.PutUint64(d.out[d.o+1:], v)
	d.o += 9
}

// putNumber reads the number at i and writes it.
func (d *Decoder) putNumber(i int) int {
	next, kind, v := d.number(i)
	switch kind {
	case numberInt:
		d.need(11)
		o := d.o
		d.out[o] = byte(op.Int)
		if v = v<<1 ^ uint64(int64(v)>>63); v < 1<<14 { // one or two bytes, without asking which
			more := uint64(0)
			if v >= 0x80 {
				more = 1
			}
			d.out[o+1], d.out[o+2] = byte(v)|byte(more<<7), byte(v>>7)
			d.o = o + 2 + int(more)
		} else {
			d.o = o + 1 + binary.PutUvarint(d.out[o+1:], v)
		}
	case numberFloat:
		d.putFixed(op.Float, v)
	default:
		d.putTag(op.Null)
		d.outside(i, kind)
	}
	return next
}

// putJSON writes the text from start to end, as it was sent, as a value.
func (d *Decoder) putJSON(start, end int) {
	d.need(end - start + 11)
	d.adopt(op.AppendBlock(d.out[:d.o], op.JSON, d.body[start:end]))
}

// openBlock begins a value that carries its length; closeBlock writes the length. Most are short: one byte is set apart
// for it.
func (d *Decoder) openBlock(tag op.Tag) (at int) {
	d.need(2)
	at = d.o
	d.out[at] = byte(tag)
	d.o += 2
	return at
}

func (d *Decoder) closeBlock(at int) {
	n := d.o - (at + 2)
	if n < 0x80 {
		d.out[at+1] = byte(n)
		return
	}
	var length [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(length[:], uint64(n))
	d.need(k)
	copy(d.out[at+1+k:], d.out[at+2:d.o])
	copy(d.out[at+1:], length[:k])
	d.o += k - 1
}

// milliseconds of the time in a string, which is not later than now.
func (d *Decoder) pastTime(s *slot) (unixMillis int64, ok bool) {
	if s.kind != slotString {
		return 0, false
	}
	t, ok := field.Time(d.content(s))
	return min(t, d.now), ok
}
