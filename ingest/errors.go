package ingest

import (
	"unicode/utf8"
)

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

// maxNameInText is how many bytes of a name an error text shows.
const maxNameInText = 64

// appendText appends the text of why for a member, as the inside of a JSON string.
func appendText(dst []byte, why reason, name []byte) []byte {
	for _, c := range []byte(reasonTexts[why]) {
		if c != '%' {
			dst = append(dst, c)
			continue
		}
		short := name
		if len(short) > maxNameInText {
			end := maxNameInText
			for !utf8.RuneStart(short[end]) {
				end--
			}
			short = short[:end]
		}
		dst = appendEscaped(dst, short)
		if len(short) < len(name) {
			dst = append(dst, "…"...)
		}
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
