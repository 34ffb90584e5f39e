package ingest

import (
	"millrace/ingest/field"
	"millrace/shard/op"
)

// Identifiers: which one counts, and the rules for each.

// aside is a member whose value is kept aside.
type aside uint8

const (
	asideNone aside = iota
	asideExternalID
	asideEmail
	asidePhone
	asideApp
	asideName // of an event, or of the product
	asideTime
	asideCurrency
	asides // a power of two
)

// asideOf has, by class, the members that are kept aside.
var asideOf = [256]aside{classExternalID: asideExternalID, classEmail: asideEmail, classPhone: asidePhone,
	classAppID: asideApp,
	className:  asideName, classProductID: asideName, classTime: asideTime, classCurrency: asideCurrency}

// identity is what an object says about whose it is.
type identity struct {
	service                 slot
	alias                   slot // a string if it is an object, of which label and name are members
	label, name             slot
	updateOnly, updateGiven bool
	resolved                op.IDKind // the identifier that counts
	number                  uint64    // of a svc_id
	unknown                 bool      // a svc_id that belongs to nobody

	pushImport      bool
	hasTokens       bool // the object has push tokens
	tokenApp, token slot // of the first token
}

// identifier reads a member that says whose the object is, or how. ok is false for members of other classes.
func (d *Decoder) identifier(c class, i int) (next int, ok bool) {
	switch c {
	case classExternalID:
		return d.slotValue(i, &d.aside[asideExternalID]), true
	case classEmail:
		return d.slotValue(i, &d.aside[asideEmail]), true
	case classPhone:
		return d.slotValue(i, &d.aside[asidePhone]), true
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

// flag reads a boolean; given is false for null. Any other value refuses the object.
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

// skipRefused skips a value that the member can't have, and refuses the object.
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

// identify judges the identifiers and chooses one; a fault refuses the object with rankIdentifier.
func (d *Decoder) identify() {
	id := &d.id
	external, alias, service := d.aside[asideExternalID].given(), id.alias.given(), id.service.given()
	switch {
	case external && (alias || service) || alias && service:
		d.refuse(rankIdentifier, 0, reasonTwoIdentifiers)
	case external:
		d.identifyExternal()
	case alias:
		d.identifyAlias()
	case service:
		d.identifyService()
	case d.aside[asideEmail].given():
		id.resolved = op.Email
		if d.aside[asideEmail].kind != slotString || !field.Email(d.content(&d.aside[asideEmail])) {
			d.refuse(rankIdentifier, int(d.aside[asideEmail].at), reasonEmail)
		}
	case d.aside[asidePhone].given():
		id.resolved = op.Phone
		d.identifyPhone()
	case !id.pushImport:
		d.refuse(rankIdentifier, 0, reasonNoIdentifier)
	}
}

// identifyPhone judges a phone number that is the identifier.
func (d *Decoder) identifyPhone() {
	ok := d.aside[asidePhone].kind == slotString
	if ok {
		d.scratch, ok = d.Phones.Parse(d.scratch[:0], d.content(&d.aside[asidePhone]))
	}
	if !ok {
		d.refuseText(rankIdentifier, int(d.aside[asidePhone].at), reasonNotValid, "phone")
	}
}

func (d *Decoder) identifyExternal() {
	s := &d.aside[asideExternalID]
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

// tokenKey makes the key of an imported push token that belongs to nobody yet: an alias of its own, so that the same
// token sent again finds the profile that it has made (reference.md 1.4, rule 9).
func (d *Decoder) tokenKey() {
	id := &d.id
	id.resolved, id.updateOnly, id.updateGiven = op.Alias, false, true
	d.scratch = append(append(append(d.scratch[:0], d.content(&id.tokenApp)...), ':'), d.content(&id.token)...)
	d.adopt(op.AppendAliasKey(d.out[:d.o], []byte(tokenLabel), d.scratch))
}

// tokenLabel is the alias label of profiles made by `push_token_import`.
const tokenLabel = "push_token"
