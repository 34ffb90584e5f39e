package ingest

import (
	"millrace/ingest/field"
	"millrace/shard/op"
)

// attributes reads an attributes object (service.md 2.4) and writes its fields.
func (d *Decoder) attributes(i int) (next int, flags op.Flags) {
	d.composites, d.operators = 0, d.operators[:0]
	i, more := d.openObject(i)
	p := d.newPath(shapeAttributes)
	for more {
		if i, more = d.members(&p, i); !more {
			break
		}
		d.owner = d.key
		switch c := d.key.class(); {
		case c == classOther:
			i = d.customAttribute(i)
		case c == classEmail || c == classPhone || c >= op.ReservedCodes:
			var f op.Flags
			i, f = d.attributeControl(c, i)
			flags |= f
		default:
			switch c {
			case class(op.AttrEmailSubscribe), class(op.AttrSubscriptionGroups), class(op.AttrMarkedEmailAsSpamAt):
				flags |= op.Contact
			}
			i = d.reservedAttribute(c, i)
		}
		if i < 0 {
			return -1, 0
		}
		i, more = d.nextMember(i)
	}
	if i < 0 {
		return -1, 0
	}
	flags |= d.identifyAttributes()
	if len(d.operators) > 0 && d.refusal.rank == rankNone {
		d.reportOperators(flags.Has(op.MergeObjects))
	}
	return i, flags
}

// attributeControl reads a member that is not an attribute, or that may be the identifier.
func (d *Decoder) attributeControl(c class, i int) (next int, flags op.Flags) {
	if next, ok := d.identifier(c, i); ok {
		return next, 0
	}
	switch c {
	case classMergeObjects:
		next, merge, _ := d.flag(i)
		if merge {
			flags = op.MergeObjects
		}
		return next, flags
	case classPushTokenImport:
		next, d.id.pushImport, _ = d.flag(i)
		return next, 0
	case classForbidden:
		return d.skipRefused(i, 0, reasonForbidden), 0
	}
	return d.skip(i, 0), 0
}

// identifyAttributes is identify for attributes objects, whose email and phone are attributes unless they are the
// identifier. (If they are, the profile has them from its creation.)
func (d *Decoder) identifyAttributes() (flags op.Flags) {
	id := &d.id
	d.identify()
	if id.pushImport && (!id.hasTokens || id.resolved == op.ExternalID || id.resolved == op.SvcID) {
		d.refuse(rankIdentifier, 0, reasonPushImport)
	}
	if d.aside[asideEmail].at != 0 && id.resolved != op.Email {
		flags = op.Contact
		switch {
		case d.aside[asideEmail].kind == slotNull:
			d.putField(op.AttrEmail)
			d.putTag(op.Null)
		case d.aside[asideEmail].kind == slotString && field.Email(d.content(&d.aside[asideEmail])):
			d.putField(op.AttrEmail)
			d.putString(int(d.aside[asideEmail].start), int(d.aside[asideEmail].end))
		default:
			d.refuseText(rankValue, int(d.aside[asideEmail].at), reasonEmail, "email")
		}
	}
	if d.aside[asidePhone].at != 0 && id.resolved != op.Phone {
		flags = op.Contact
		if d.aside[asidePhone].kind == slotNull {
			d.putField(op.AttrPhone)
			d.putTag(op.Null)
			return flags
		}
		ok := d.aside[asidePhone].kind == slotString
		if ok {
			d.scratch, ok = d.Phones.Parse(d.scratch[:0], d.content(&d.aside[asidePhone]))
		}
		if ok {
			d.putField(op.AttrPhone)
			d.putBytes(op.String, d.scratch)
		} else {
			d.warn(reasonNotValid, append(d.scratch[:0], "phone"...))
		}
	}
	return flags
}

// putField writes the code of a reserved attribute.
func (d *Decoder) putField(code uint32) {
	d.need(1)
	d.out[d.o] = byte(code) // below op.ReservedCodes: a varint of one byte
	d.o++
}

// putBytes writes a value that carries its length.
func (d *Decoder) putBytes(tag op.Tag, content []byte) {
	d.need(len(content) + 11)
	d.adopt(op.AppendBlock(d.out[:d.o], tag, content))
}

// customAttribute reads the value of a custom attribute (reference.md 3) and writes the field.
func (d *Decoder) customAttribute(i int) int {
	if d.key.rule() != 0 {
		d.refuse(rankValue, i, d.key.rule())
	}
	undo := d.o
	d.putFieldName(shapeAttributes)
	switch d.in[i] {
	case '"':
		return d.attributeString(i)
	case '{':
		return d.attributeObject(i, undo)
	case '[':
		return d.attributeArray(i, undo)
	}
	return d.putWordOrNumber(i)
}

// putWordOrNumber writes true, false, null or a number.
func (d *Decoder) putWordOrNumber(i int) int {
	switch d.in[i] {
	case 't':
		d.putTag(op.True)
		return d.literal(i, "true")
	case 'f':
		d.putTag(op.False)
		return d.literal(i, "false")
	case 'n':
		d.putTag(op.Null)
		return d.literal(i, "null")
	}
	return d.putNumber(i)
}

// attributeString writes a string, or the time that it looks like.
func (d *Decoder) attributeString(i int) int {
	end, next := d.text(i + 1)
	if next < 0 {
		return -1
	}
	s := d.in[i+1 : end]
	if mayBeTime(s) {
		if t, ok := d.times.AttributeTime(s); ok {
			d.putFixed(op.Time, uint64(t))
			return next
		}
	}
	if len(s) > field.MaxStringChars && !field.Runes255(s) {
		d.refuseNamed(rankValue, i, reasonLong, d.owner)
	}
	d.putString(i+1, end)
	return next
}

// mayBeTime rules out most strings that are not times by their first bytes: times begin with a digit, or with a day of
// the week.
func mayBeTime(s []byte) bool {
	return len(s) >= len("1/1/2026") && (s[0]-'0' <= 9 || len(s) >= len("Sat 1 1 04:23:01.Z 2026") && s[3] == ' ')
}

// reservedAttribute reads the value of a reserved attribute (reference.md 2) and writes the field. null clears it.
func (d *Decoder) reservedAttribute(c class, i int) int {
	if d.in[i] == 'n' {
		if next := d.literal(i, "null"); next < 0 || c == class(op.AttrSubscriptionGroups) {
			return next // consent can't be cleared, only changed
		}
		d.putField(uint32(c))
		d.putTag(op.Null)
		return i + len("null")
	}
	if d.in[i] == '"' {
		if next := d.recentField(c, i+1); next > 0 {
			return next
		}
	}
	switch uint32(c) {
	case op.AttrCurrentLocation:
		return d.location(i)
	case op.AttrEmailOpenTrackingOff, op.AttrEmailClickTrackingOff:
		next, value, given := d.flag(i)
		if given {
			d.putField(uint32(c))
			d.putTag(op.False + op.Tag(boolBit(value)))
		}
		return next
	case op.AttrPushTokens:
		return d.pushTokens(i)
	case op.AttrSubscriptionGroups:
		return d.subscriptionGroups(i)
	case op.AttrFacebook, op.AttrTwitter:
		return d.socialObject(uint32(c), i)
	}
	var s slot
	next := d.slotValue(i, &s)
	if next < 0 {
		return -1
	}
	if s.kind != slotString {
		why := reasonNotValid
		switch uint32(c) {
		case op.AttrCountry, op.AttrLanguage, op.AttrGender, op.AttrDateOfBirth, op.AttrTimeZone:
			d.warn(reasonNotValid, d.nameOf(d.owner))
			return next
		case op.AttrEmailSubscribe:
			why = reasonEmailSubscribe
		case op.AttrPushSubscribe:
			why = reasonPushSubscribe
		}
		d.refuseNamed(rankValue, i, why, d.owner)
		return next
	}
	start, warned := d.o, len(d.warnings)
	d.reservedString(uint32(c), &s)
	if d.o > start && len(d.warnings) == warned {
		d.rememberField(c, &s, start)
	}
	return next
}

// recentField is a string of at most 16 bytes that was valid as the value of a reserved attribute, and the resulting
// field. The countries, languages and states in a request are mostly the same few.
type recentField struct {
	nameWords // of the string, with the class in the place of a shape
	size      uint8
	bytes     [24]byte
}

// recentFields is how many such fields are remembered, a power of two.
const recentFields = 128

func (d *Decoder) recentFieldAt(w nameWords) *recentField {
	return &d.fields[w.hash()>>(64-7)%recentFields]
}

// recentField writes the field of a reserved attribute for the string that begins at i, if the string is remembered;
// otherwise it returns 0 and the string has to be judged.
func (d *Decoder) recentField(c class, i int) (next int) {
	end := d.stopAt(i)
	w := d.wordsAt(i, end-i, shape(c))
	f := d.recentFieldAt(w)
	if f.nameWords != w || at(d.in, end) != '"' {
		return 0
	}
	d.need(len(f.bytes))
	*(*[len(f.bytes)]byte)(d.out[d.o:]) = f.bytes
	d.o += int(f.size)
	return end + 1
}

// rememberField remembers the string in s with the field that begins at start.
func (d *Decoder) rememberField(c class, s *slot, start int) {
	begin, end, f := int(s.start), int(s.end), d.out[start:d.o]
	if end-begin > 16 || d.stopAt(begin) != end || len(f) > len(recentField{}.bytes) {
		return
	}
	w := d.wordsAt(begin, end-begin, shape(c))
	r := d.recentFieldAt(w)
	r.nameWords, r.size = w, uint8(len(f))
	copy(r.bytes[:], f)
}

func boolBit(v bool) (bit byte) {
	if v {
		bit = 1
	}
	return bit
}

// maxURLBytes bounds image_url, for which the reference has no limit.
const maxURLBytes = 2048

// reservedString judges and writes a reserved attribute that is sent as a string.
func (d *Decoder) reservedString(code uint32, s *slot) {
	value := d.content(s)
	why := reason(0)
	switch code {
	case op.AttrFirstName, op.AttrLastName, op.AttrHomeCity:
		if !field.Runes255(value) {
			why = reasonLong
		}
	case op.AttrImageURL:
		if len(value) > maxURLBytes {
			why = reasonNotValid
		}
	case op.AttrCountry:
		country, ok := field.Country(value)
		d.putOrWarn(code, country[:], ok)
		return
	case op.AttrLanguage:
		language, ok := field.Language(value)
		d.putOrWarn(code, append(d.scratch[:0], language...), ok)
		return
	case op.AttrGender:
		letter, ok := field.Gender(value)
		d.putOrWarn(code, append(d.scratch[:0], letter), ok)
		return
	case op.AttrDateOfBirth:
		date, ok := field.DateOfBirth(value)
		d.putOrWarn(code, date[:], ok)
		return
	case op.AttrTimeZone:
		zone, ok := field.TimeZone(value)
		d.putOrWarn(code, append(d.scratch[:0], zone...), ok)
		return
	case op.AttrDateOfFirstSession, op.AttrDateOfLastSession, op.AttrMarkedEmailAsSpamAt:
		t, ok := field.Time(value)
		if ok {
			d.putField(code)
			d.putFixed(op.Time, uint64(t))
			return
		}
		why = reasonNotValid
	case op.AttrEmailSubscribe:
		if !subscriptionState(value) {
			why = reasonEmailSubscribe
		}
	case op.AttrPushSubscribe:
		if !subscriptionState(value) {
			why = reasonPushSubscribe
		}
	}
	if why != 0 {
		d.refuseNamed(rankValue, int(s.at), why, d.owner)
		return
	}
	d.putField(code)
	d.putString(int(s.start), int(s.end))
}

// putOrWarn writes a reserved attribute in its stored form; an invalid value is left out, with a warning (decisions.md
// D3).
func (d *Decoder) putOrWarn(code uint32, stored []byte, ok bool) {
	if !ok {
		d.warn(reasonNotValid, d.nameOf(d.owner))
		return
	}
	d.putField(code)
	d.putBytes(op.String, stored)
}

// subscriptionState reports whether s is a state of email or push.
func subscriptionState(s []byte) bool {
	return string(s) == "subscribed" || string(s) == "unsubscribed" || string(s) == "opted_in"
}
