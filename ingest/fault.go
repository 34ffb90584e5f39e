package ingest

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/ingest/field"
)

// Fault is one thing that the answer reports: why a request or an object was refused, or what was left out of an
// accepted object. It is lent: it is valid until the function that gets it returns.
type Fault struct {
	// Array and Index identify the object in the request; Array is empty when the request as a whole was refused.
	Array string
	Index int
	// Object is the object as it was sent; nil for a request.
	Object []byte
	// Rule is the name of the rule that was broken (ruleNames). Text is what the answer says.
	Rule, Text string
	// IsRefused says that nothing was taken. Otherwise only a value was left out.
	IsRefused bool
}

// Rules that requests break as a whole. Unsafe JSON outside objects has the rule that it would break within one.
const (
	malformed = "malformed"
	noObjects = "no-objects"
	tooMany   = "too-many-objects"
	tooLong   = "too-long"
)

// ruleNames are the names of rules by their reasons. docs/http.md describes each.
var ruleNames = [...]string{
	reasonDuplicate: "duplicate-member", reasonSurrogate: "lone-surrogate", reasonDepth: "too-deep",
	reasonNotObject: "not-an-object", reasonNoIdentifier: "no-identifier", reasonTwoIdentifiers: "two-identifiers",
	reasonNotString:      "not-a-string",
	reasonExternalIDLong: "external-id-too-long", reasonBlocked: "blocked-user", reasonAliasType: "alias-shape",
	reasonAliasMember: "alias-incomplete",
	reasonAliasLong:   "alias-too-long", reasonEmail: "email-not-valid", reasonPushImport: "push-token-import",
	reasonRequired: "required", reasonNotValid: "not-valid", reasonNumber: "number-out-of-range",
	reasonNumberLong: "number-too-long", reasonLong: "too-long-text",
	reasonTooLarge: "too-large", reasonAttributeName: "attribute-name",
	reasonAttributeBlanks: "reserved-attribute", reasonForbidden: "forbidden-attribute",
	reasonEmailSubscribe: "email-subscribe",
	reasonPushSubscribe:  "push-subscribe", reasonGroupArray: "subscription-groups",
	reasonGroupID: "subscription-group-id", reasonGroupState: "subscription-state",
	reasonTokenArray: "push-tokens", reasonTokenApp: "push-token-app", reasonTokenText: "push-token-text",
	reasonDeviceID:   "device-id",
	reasonProperties: "properties", reasonPropertyNameEmpty: "property-name-empty",
	reasonPropertyNameDollar: "property-name-dollar",
	reasonPropertyNameLong:   "property-name-too-long", reasonPropertyNull: "property-null",
	reasonPropertyLong: "property-too-long",
	reasonPropertyTime: "property-time", reasonPropertyNumber: "property-number-out-of-range",
	reasonPropertyNumberLong: "property-number-too-long",
	reasonPropertiesBytes:    "properties-too-large", reasonManyProperties: "too-many-properties",
	reasonMoreWarnings: "more-warnings",
}

// Rules are the names of all rules that a Fault may have, in no order.
func Rules() []string {
	return append([]string{malformed, noObjects, tooMany, tooLong}, ruleNames[1:]...)
}

// noteObjects passes on what the answer to a readable request reports.
func (d *Decoder) noteObjects(note func(Fault)) {
	if note == nil {
		return
	}
	if d.total == 0 {
		note(Fault{Rule: noObjects, Text: nothingValid, IsRefused: true})
	}
	for _, e := range d.errors {
		note(d.fault(e, true))
	}
	for _, e := range d.warnings {
		note(d.fault(e, false))
	}
}

func (d *Decoder) fault(e entry, isRefused bool) Fault {
	return Fault{Array: arrayNames[e.array], Index: e.index, Object: d.body[e.from:e.to:e.to], Rule: ruleNames[e.why],
		Text:      plainText(d.texts[e.start:e.end]),
		IsRefused: isRefused}
}

// noteRequest passes on why the request as a whole is refused.
func (d *Decoder) noteRequest(note func(Fault)) {
	if note == nil {
		return
	}
	rule := d.badRule
	switch {
	case d.badWhy != 0:
		rule = ruleNames[d.badWhy]
	case rule == "":
		rule = malformed
	}
	note(Fault{Rule: rule, Text: plainText([]byte(d.badText())), IsRefused: true})
}

// plainText returns the text from which appendEscaped has made the inside of a JSON string.
func plainText(text []byte) string {
	plain, _ := jsontext.AppendUnquote(nil, slices.Concat(quote, text, quote)) // texts and names are UTF-8
	return string(plain)
}

var quote = []byte{'"'}

// reason is why an object is refused, or something in it is not taken. The texts are those of reference.md 1.2, where
// it has one.
type reason uint8

const (
	_ reason = iota
	// Unsafe JSON (decisions.md D1).
	reasonDuplicate
	reasonSurrogate
	reasonDepth
	// Identifiers.
	reasonNotObject
	reasonNoIdentifier
	reasonTwoIdentifiers
	reasonNotString
	reasonExternalIDLong
	reasonBlocked
	reasonAliasType
	reasonAliasMember
	reasonAliasLong
	reasonEmail
	reasonPushImport
	// Fields and values; the text names the member.
	reasonRequired
	reasonNotValid
	reasonNumber
	reasonNumberLong
	reasonLong
	reasonTooLarge
	reasonAttributeName
	reasonAttributeBlanks
	reasonForbidden
	reasonEmailSubscribe
	reasonPushSubscribe
	reasonGroupArray
	reasonGroupID
	reasonGroupState
	reasonTokenArray
	reasonTokenApp
	reasonTokenText
	reasonDeviceID
	// Properties; the text names the property.
	reasonProperties
	reasonPropertyNameEmpty
	reasonPropertyNameDollar
	reasonPropertyNameLong
	reasonPropertyNull
	reasonPropertyLong
	reasonPropertyTime
	reasonPropertyNumber
	reasonPropertyNumberLong
	reasonPropertiesBytes
	reasonManyProperties
	// Of the request; the text has no name.
	reasonMoreWarnings
)

// reasonTexts are the texts; % stands for the name.
var reasonTexts = [...]string{
	reasonDuplicate: "member '%' is there more than once",
	reasonSurrogate: "a string has an escaped surrogate without its other half",
	reasonDepth:     "the object is nested too deeply",

	reasonNotObject:      "must be an object",
	reasonNoIdentifier:   "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required",
	reasonTwoIdentifiers: "You must specify only one of 'external_id', 'user_alias' or 'svc_id'",
	reasonNotString:      "'%' must be a String",
	reasonExternalIDLong: "'external_id' must be fewer than 988 bytes",
	reasonBlocked:        "provided external_id is blacklisted and disallowed",
	reasonAliasType:      "'user_alias' must be an object with 'alias_name' and 'alias_label'",
	reasonAliasMember:    "'%' is required",
	reasonAliasLong:      "'%' must be fewer than 237 bytes",
	reasonEmail:          "The value provided for the 'email' field is not a valid email.",
	reasonPushImport:     "'push_token_import' needs 'push_tokens' and allows neither 'external_id' nor 'svc_id'",

	reasonRequired:        "'%' is required",
	reasonNotValid:        "'%' is not valid",
	reasonNumber:          "'%' has an integer outside the signed 64-bit range or a number that is no finite double",
	reasonNumberLong:      "'%' has a number of more than 1,024 characters",
	reasonLong:            "'%' must be at most 255 characters",
	reasonTooLarge:        "'%' is too large",
	reasonAttributeName:   "the attribute name '%' must have 1 to 255 characters",
	reasonAttributeBlanks: "the attribute name '%' is reserved without the blanks around it",
	reasonForbidden:       "'%' may not be set",
	reasonEmailSubscribe:  "'email_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'",
	reasonPushSubscribe:   "'push_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'",
	reasonGroupArray: "'subscription_groups' must be an array of objects with 'subscription_group_id' and " +
		"'subscription_state'",
	reasonGroupID:    "'subscription_group_id' is not valid",
	reasonGroupState: "'subscription_state' must be 'subscribed' or 'unsubscribed'",
	reasonTokenArray: "'push_tokens' must be an array of objects with 'app_id' and 'token'",
	reasonTokenApp:   "the 'app_id' of a push token is not an app of this workspace",
	reasonTokenText:  "the 'token' of a push token is not valid",
	reasonDeviceID:   "token import with 'device_id' must have a device_id less than 255 bytes and at least 8 bytes",

	reasonProperties:         "Invalid 'properties' field",
	reasonPropertyNameEmpty:  "a property name must not be empty",
	reasonPropertyNameDollar: "the property name '%' must not start with a dollar sign",
	reasonPropertyNameLong:   "the property name '%' must be at most 255 characters",
	reasonPropertyNull:       "property '%' must not be null",
	reasonPropertyLong:       "property '%' must be at most 255 characters",
	reasonPropertyTime:       "property '%' must not have a datetime in an array",
	reasonPropertyNumber: "property '%' has an integer outside the signed 64-bit range or a number that is no " +
		"finite double",
	reasonPropertyNumberLong: "property '%' has a number of more than 1,024 characters",
	reasonPropertiesBytes:    "'properties' with arrays or objects must be at most %",
	reasonManyProperties:     "property '%' and those after it are more than are kept",

	reasonMoreWarnings: "more is left out from here on",
}

// rank orders the rules: of all rules that an object breaks, the one with the lowest rank is reported, and among equal
// ranks the first one in the object (decisions.md D9). What makes an object unreadable comes first.
type rank uint8

const (
	rankUnsafe rank = iota
	rankIdentifier
	rankRequired
	rankValue
	rankProperty
	rankNone // nothing is wrong
)

// refusal is the rule that the object is so far known to break.
type refusal struct {
	rank   rank
	reason reason
	at     int
	key    memberKey // the member that the text names
	name   string    // its name, if it was not read from the body
}

// refuse notes that the object breaks a rule at i; the text names the member that was last read.
func (d *Decoder) refuse(r rank, i int, why reason) { d.refuseNamed(r, i, why, d.key) }

// refuseNamed is refuse for a given member. Outside an object only the request can be refused: the result is then -1.
func (d *Decoder) refuseNamed(r rank, i int, why reason, key memberKey) int {
	if !d.inObject {
		d.badWhy = why
		return d.fail(i)
	}
	if r < d.refusal.rank || r == d.refusal.rank && i < d.refusal.at {
		d.refusal = refusal{rank: r, reason: why, at: i, key: key}
	}
	return i
}

// refuseText is refuse for a member whose name is given as text.
func (d *Decoder) refuseText(r rank, i int, why reason, name string) {
	if r < d.refusal.rank || r == d.refusal.rank && i < d.refusal.at {
		d.refusal = refusal{rank: r, reason: why, at: i, name: name}
	}
}

// refusalName returns the name for the text of the refusal.
func (d *Decoder) refusalName() []byte {
	if r := &d.refusal; r.name == "" {
		return d.nameOf(r.key)
	}
	d.scratch = append(d.scratch[:0], d.refusal.name...)
	return d.scratch
}

// unsound refuses the object, or outside one the request, for what is grammatical but means different things to
// different readers.
func (d *Decoder) unsound(i int, why reason) int {
	return d.refuseNamed(rankUnsafe, i, why, d.key)
}

// outside notes a number of the kind numberOutside or numberLong. Outside objects nobody needs its value.
func (d *Decoder) outside(i int, kind numberKind) {
	long := kind == numberLong
	switch {
	case !d.inObject:
	case d.inProperties && long:
		d.refuseNamed(rankProperty, i, reasonPropertyNumberLong, d.owner)
	case d.inProperties:
		d.refuseNamed(rankProperty, i, reasonPropertyNumber, d.owner)
	case long:
		d.refuseNamed(rankValue, i, reasonNumberLong, d.owner)
	default:
		d.refuseNamed(rankValue, i, reasonNumber, d.owner)
	}
}

// appendText appends the text of why for a member, as the inside of a JSON string.
func appendText(dst []byte, why reason, name []byte) []byte {
	for _, c := range []byte(reasonTexts[why]) {
		if c != '%' {
			dst = append(dst, c)
			continue
		}
		dst = appendEscaped(dst, field.ShortName(name))
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends s as the inside of a JSON string.
func appendEscaped(dst, s []byte) []byte {
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
