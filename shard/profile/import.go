package profile

import (
	"bytes"
	"encoding/hex"
	"time"

	"github.com/valyala/fastjson"

	"millrace/shard/op"
)

// ImportOptions are what Import has to know besides the line.
type ImportOptions struct {
	Limits   *Limits                    // nil: all defaults
	Currency [3]byte                    // of total_revenue where revenue_by_currency is missing; zero: USD
	Digits   func(currency [3]byte) int // digits behind the point of a currency; nil: 2
	// the id of an app that is given by name only, nil for unknown; nil: none is known
	AppID   func(name []byte) (id []byte)
	Channel func(group [16]byte) byte // of a subscription group (op.ChannelEmail), 0 for unknown; nil: none is known
	// the text of a reserved attribute, as it is stored; one that is not ok is left out; nil: all are stored as sent
	Text func(code uint32, text []byte) (stored []byte, ok bool)
	// is told of each thing in a line that the profile doesn't take, as in `'cards_clicked' is not imported`; nil: no
	// one is
	Left func(what string)
}

// Importer reads users back from the shape of the export (decisions.md D9), for one worker; the zero value is ready.
type Importer struct {
	lineReader
	editor Editor
	value  []byte
	opt    ImportOptions
}

// Import appends the profile that line (one JSON object) describes. The profile's home is the external id, else the
// first alias, else the email, else the phone; a line without any of them is an error. stamp (Unix µs) stands for the
// time of every change that the shape does not carry. Exporting the result gives line again, except that members which
// belong to the store (svc_id, random_bucket, names of groups and apps) are ignored. opt.Left is told of unknown
// members and of values that are left out, before it is known whether the line is a user.
//
// The shape doesn't have the recent occurrences of events and products. The last one, and the first one when there are
// several, are taken for them.
func (im *Importer) Import(
	dst []byte, workspace uint32, line []byte, stamp int64, opt ImportOptions,
) (out []byte, err error) {
	if opt.Limits == nil {
		opt.Limits = &defaultLimits
	}
	im.opt, im.left = opt, opt.Left
	object := im.read(line)
	if im.err != nil {
		return dst, im.err
	}
	im.distinct(object, "user")
	im.unknown(object, "", func(name []byte) bool { return exportBits[string(name)] != 0 })
	created := stamp
	if v := object.Get("created_at"); present(v) {
		created = im.past(v, "created_at", stamp)
	}
	b := im.home(object, workspace, created)
	if im.err != nil {
		return dst, im.err
	}
	SetUpdated(b, max(created, stamp))
	b = im.members(b, object, stamp)
	if im.err != nil {
		return dst, im.err
	}
	if lim := opt.Limits; overLimit(b, tagEvent, lim) || overLimit(b, tagProduct, lim) ||
		overLimit(b, tagCustom, lim) || Sessions(b) > maxSessions {
		b = im.editor.block(b)
	}
	return append(dst, b...), nil
}

// home makes the profile with its home identifier and nothing else.
func (im *Importer) home(o *fastjson.Object, workspace uint32, created int64) []byte {
	kind, key := op.NoID, []byte(nil)
	if v := o.Get("external_id"); present(v) {
		kind, key = op.ExternalID, im.text(v, "external_id")
	} else if list := im.array(o, "user_aliases"); len(list) > 0 {
		label, name := im.alias(list[0])
		kind, key = op.Alias, op.AppendAliasKey(nil, label, name)
	} else if v := o.Get("email"); present(v) {
		kind, key = op.Email, op.AppendEmailKey(nil, im.text(v, "email"))
	} else if v := o.Get("phone"); present(v) {
		kind, key = op.Phone, im.text(v, "phone")
	}
	if len(key) == 0 || len(key) > op.MaxKeyBytes {
		im.fail("no identifier")
		return nil
	}
	return New(im.editor.buf[:0], workspace, kind, key, created)
}

func (im *Importer) alias(v *fastjson.Value) (label, name []byte) {
	im.element(v, "user_aliases", "alias_label", "alias_name")
	label, name = im.text(v.Get("alias_label"), "alias_label"), im.text(v.Get("alias_name"), "alias_name")
	if im.err == nil && (len(label) == 0 || len(name) == 0 || len(label)+len(name)+2 > op.MaxKeyBytes) {
		im.fail("user_aliases: empty or too long")
	}
	return label, name
}

func (im *Importer) members(b []byte, o *fastjson.Object, stamp int64) []byte {
	e, known := &im.editor, make(map[string]bool)
	Aliases(b, func(label, name []byte) { known[string(op.AppendAliasKey(nil, label, name))] = true }) // its home
	for _, v := range im.array(o, "user_aliases") {
		label, name := im.alias(v)
		if key := op.AppendAliasKey(nil, label, name); im.err == nil && !known[string(key)] {
			known[string(key)] = true
			b = im.append(b, appendField(nil, tagAlias, key))
		}
	}
	if v := o.Get("last_coordinates"); present(v) && !present(o.Get(op.AttrName(op.AttrCurrentLocation))) {
		b = e.SetAttr(b, op.AttrCurrentLocation, im.coordinates(v))
	}
	for code := uint32(1); code < op.ReservedCodes; code++ {
		name := op.AttrName(code)
		if v := o.Get(name); name != "" && code != op.AttrSubscriptionGroups && present(v) {
			b = im.attribute(b, code, v, stamp)
		}
	}
	im.value = im.appendDevices(im.value[:0], im.array(o, "devices"))
	if len(im.value) > 0 && im.err == nil {
		b = e.SetAttr(b, op.AttrDevices, im.value)
	}
	if v := o.Get("email_hard_bounced_at"); present(v) && !find(b, tagEmail).none() { // the mark belongs to the email
		at := im.past(v, "email_hard_bounced_at", stamp) // else it couldn't be taken back before that time
		b = e.SetState(b, StateChange{State{Kind: StateBounce, On: true}, at, 0, op.SourceImport})
	}
	b = im.groups(b, im.array(o, "subscription_groups"), stamp)
	b = im.customs(b, o.Get("custom_attributes"))
	b = im.summaries(b, tagEvent, o, "custom_events")
	b = im.summaries(b, tagProduct, o, "purchases")
	b = im.revenue(b, o)
	return im.apps(b, o)
}

// coordinates reads a location in the form of last_coordinates: longitude, latitude.
func (im *Importer) coordinates(v *fastjson.Value) op.Value {
	list, err := v.Array()
	if err != nil || len(list) != 2 || list[0].Type() != fastjson.TypeNumber || list[1].Type() != fastjson.TypeNumber {
		im.fail("last_coordinates: not two numbers")
		return op.Value{byte(op.Null)}
	}
	im.value = im.value[:0]
	for i, name := range [][]byte{memberLongitude, memberLatitude} {
		im.value = im.appendNumber(appendName(im.value, name), list[i].MarshalTo(nil))
	}
	im.value = closeBlock(im.value, 0, op.Object)
	return im.value
}

func (im *Importer) attribute(b []byte, code uint32, v *fastjson.Value, stamp int64) []byte {
	name := op.AttrName(code)
	switch code {
	case op.AttrEmailSubscribe, op.AttrPushSubscribe:
		return im.contactState(b, code, v, stamp)
	case op.AttrDateOfBirth:
		im.value = op.AppendString(im.value[:0], im.instant(v, name).AppendFormat(nil, time.DateOnly))
	case op.AttrDateOfFirstSession, op.AttrDateOfLastSession, op.AttrMarkedEmailAsSpamAt:
		im.value = op.AppendTime(im.value[:0], im.time(v, name))
	case op.AttrEmailOpenTrackingOff, op.AttrEmailClickTrackingOff:
		im.value = op.AppendBool(im.value[:0], im.flag(v, name))
	case op.AttrPushTokens:
		if !im.pushTokens(v, name) {
			return b
		}
	case op.AttrCurrentLocation, op.AttrFacebook, op.AttrTwitter:
		if v.Type() != fastjson.TypeObject {
			im.fail("%s: not an object", name)
		}
		var ok bool
		if im.value, ok = im.appendStored(im.value[:0], v); !ok {
			im.leave("'%s' is not valid", name)
			return b
		}
	default:
		text, ok := im.text(v, name), true
		if im.opt.Text != nil && im.err == nil {
			text, ok = im.opt.Text(code, text)
		}
		if !ok {
			im.leave("'%s' is not valid", name)
			return b
		}
		im.value = op.AppendString(im.value[:0], text)
	}
	return im.editor.SetAttr(b, code, im.value)
}

func (im *Importer) contactState(b []byte, code uint32, v *fastjson.Value, stamp int64) []byte {
	state := im.text(v, op.AttrName(code))
	switch string(state) {
	case "subscribed":
		if code == op.AttrEmailSubscribe { // an export has this state for a user who has said nothing
			return b
		}
	case "opted_in", "unsubscribed":
	default:
		im.fail("%s: %q", op.AttrName(code), state)
	}
	return im.editor.setContactState(b, code, state, stamp, 0, op.SourceImport)
}

// pushTokens reads push tokens into im.value. It returns false when there are none.
func (im *Importer) pushTokens(v *fastjson.Value, name string) bool {
	if v.Type() != fastjson.TypeArray {
		im.fail("%s: not an array", name)
	}
	list := v.GetArray()
	if len(list) == 0 {
		return false
	}
	im.value = im.value[:0]
	for _, token := range list {
		im.value = im.appendPushToken(im.value, token, im.opt.AppID)
	}
	if len(list) > maxPushTokens {
		im.leave("'%s' has more than %d: only the last ones are imported", name, maxPushTokens)
	}
	im.value = append(im.value[:0], im.editor.mergeTokens(nil, im.value)...)
	return true
}

func (im *Importer) groups(b []byte, list []*fastjson.Value, stamp int64) []byte {
	var changes []StateChange
	for _, v := range list {
		im.element(v, "subscription_groups", "id", "name", "status")
		var id [16]byte
		raw := bytes.ReplaceAll(im.text(v.Get("id"), "subscription_groups id"), []byte("-"), nil)
		if n, err := hex.Decode(id[:], raw[:min(len(raw), 32)]); err != nil || n != 16 || len(raw) != 32 {
			im.fail("subscription_groups: id is no UUID")
			return b
		}
		switch state := bytes.ToLower(im.text(v.Get("status"), "subscription_groups status")); string(state) {
		case "subscribed", "unsubscribed":
			set := State{Kind: StateGroup, Group: id, On: string(state) == "subscribed"}
			if im.opt.Channel != nil {
				set.Channel = im.opt.Channel(id)
			}
			changes = append(changes, StateChange{set, stamp, 0, op.SourceImport})
		default:
			im.fail("subscription_groups: status %q", state)
		}
	}
	return im.editor.SetStates(b, changes)
}

func (im *Importer) customs(b []byte, v *fastjson.Value) []byte {
	if !present(v) {
		return b
	}
	im.object(v, "custom_attributes").Visit(func(name []byte, v *fastjson.Value) {
		if !present(v) {
			return
		}
		if len(name) == 0 || len(name) > maxNameBytes {
			im.fail("custom_attributes: name of %d bytes", len(name))
			return
		}
		var ok bool
		if im.value, ok = im.appendStored(im.value[:0], v); !ok {
			im.leave("'custom_attributes.%.40s' is not valid", name)
			return
		}
		stored := op.Value(im.value)
		if stored.Tag() == op.Array {
			stored = im.editor.newest(firsts(stored), im.opt.Limits.MaxArray)
		}
		b = im.append(b, appendField(nil, tagCustom, appendNamed(nil, name, stored))) // distinct names: none is there
	})
	return b
}

// firsts leaves out of an array each value that is there already, as /users/track does (decisions.md D9). Objects in it
// are a list.
func firsts(array op.Value) op.Value {
	seen, kept := map[string]bool{}, []byte(nil)
	for v := range op.Elements(array.Bytes()) {
		if v.Tag() == op.Object || !seen[string(v)] {
			seen[string(v)] = true
			kept = append(kept, v...)
		}
	}
	return op.AppendBlock(nil, op.Array, kept)
}

func (im *Importer) summaries(b []byte, tag byte, o *fastjson.Object, in string) []byte {
	list := im.array(o, in)
	known := make(map[string]bool, len(list))
	for _, v := range list {
		im.element(v, in, "name", "first", "last", "count")
		name := im.text(v.Get("name"), "name of an event or product")
		first, last := clampMillis(im.time(v.Get("first"), "first")), clampMillis(im.time(v.Get("last"), "last"))
		count := im.count(v.Get("count"), "count")
		switch {
		case im.err != nil:
			return b
		case len(name) == 0 || len(name) > maxNameBytes || known[string(name)]:
			im.fail("name %.40q of an event or product", name)
		case first > last || count == 0:
			im.fail("%.40q: count, first and last don't agree", name)
		}
		known[string(name)] = true
		im.value = appendSummary(im.value[:0], tag, name, Summary{count, first, last, firstAndLast(count, first, last)})
		b = im.append(b, im.value)
	}
	return b
}

// firstAndLast are the recent occurrences as far as a line says when they were.
func firstAndLast(count uint64, first, last int64) hours {
	h := make(hours, 1+2*2)
	h.add(hourOf(last), hourOf(last), 1)
	if count > 1 {
		h.add(hourOf(last), hourOf(first), 1)
	}
	return h
}

func (im *Importer) apps(b []byte, o *fastjson.Object) []byte {
	var sum uint64
	known := map[string]bool{}
	for _, v := range im.array(o, "apps") {
		im.element(v, "apps", "app_id", "name", "sessions", "first", "last", "first_used", "last_used")
		id := []byte(nil)
		if given := v.Get("app_id"); present(given) {
			id = im.text(given, "app_id")
		} else if name := im.text(v.Get("name"), "name of an app"); im.opt.AppID != nil {
			id = im.opt.AppID(name)
		}
		first, last := clampMillis(im.time(either(v, "first", "first_used"), "first")),
			clampMillis(im.time(either(v, "last", "last_used"), "last"))
		sessions := im.count(v.Get("sessions"), "sessions")
		if im.err == nil && (len(id) == 0 || len(id) > maxNameBytes || known[string(id)] || first > last) {
			im.fail("apps: unknown or repeated app, or first after last")
		}
		if im.err != nil {
			return b
		}
		known[string(id)] = true
		sum = saturatingSum(sum, sessions)
		im.value = appendSummary(im.value[:0], tagApp, id, Summary{sessions, first, last, noHours})
		_, start, end := fieldAt(im.value, 0)
		b = im.editor.set(b, span{}, tagApp, im.value[start:end])
	}
	if v := o.Get("session_count"); present(v) {
		sum = im.count(v, "session_count")
	}
	if sum > 0 {
		b = im.editor.setSessions(b, sum)
	}
	return b
}

func either(v *fastjson.Value, a, b string) *fastjson.Value {
	if m := v.Get(a); m != nil {
		return m
	}
	return v.Get(b)
}

func (im *Importer) revenue(b []byte, o *fastjson.Object) []byte {
	x := Export{Currency: im.opt.Currency, Digits: im.opt.Digits}
	if v := o.Get("revenue_by_currency"); present(v) {
		im.object(v, "revenue_by_currency").Visit(func(name []byte, v *fastjson.Value) {
			currency, ok := currencyOf(name)
			if !ok {
				im.fail("revenue_by_currency: %.10q is not a currency", name)
				return
			}
			b = im.editor.addRevenue(b, currency, im.minor(v, x.digits(currency)))
		})
	} else if v := o.Get("total_revenue"); present(v) {
		currency := x.currency()
		if minor := im.minor(v, x.digits(currency)); minor != 0 {
			b = im.editor.addRevenue(b, currency, minor)
		}
	}
	return b
}

// currencyOf reads a code of three capital letters.
func currencyOf(s []byte) (c [3]byte, ok bool) {
	if len(s) != 3 {
		return c, false
	}
	for _, b := range s {
		if b < 'A' || b > 'Z' {
			return c, false
		}
	}
	return [3]byte(s), true
}

// append adds a whole field at the end of the profile, where its rank puts it.
func (im *Importer) append(b, field []byte) []byte {
	at := len(b)
	b = im.editor.splice(b, at, len(field))
	copy(b[at:], field)
	return b
}

func appendNamed(dst, name, rest []byte) []byte {
	dst = append(dst, byte(len(name)), byte(len(name)>>8))
	return append(append(dst, name...), rest...)
}
