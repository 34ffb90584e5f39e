package ingest

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
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c != '\\':
			out = append(out, c)
		case text[i+1] == 'u':
			i += 5
			out = append(out, unhex(text[i-1])<<4|unhex(text[i]))
		default:
			i++
			out = append(out, text[i])
		}
	}
	return string(out)
}

func unhex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}
