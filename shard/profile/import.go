package profile

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/valyala/fastjson"

	"millrace/shard/op"
)

// ErrImport is wrapped by Import when a line is not a user in the shape of the export; the text says which member and
// why.
var ErrImport = errors.New("not an exported user")

// ImportOptions is what Import needs to know.
type ImportOptions struct {
	Limits   *Limits                    // nil: all defaults
	Currency [3]byte                    // of total_revenue where revenue_by_currency is missing; zero: USD
	Digits   func(currency [3]byte) int // digits behind the point of a currency; nil: 2
	// the id of an app that is given by name only, nil for unknown; nil: none is known
	AppID   func(name []byte) (id []byte)
	Channel func(group [16]byte) byte // of a subscription group (op.ChannelEmail), 0 for unknown; nil: none is known
	// is told what a line has and the profile does not take, such as `'cards_clicked' is not imported`; nil: no one
	Left func(what string)
}

// Importer reads users back from the shape of the export (decisions.md D9), for one worker; the zero value is ready.
type Importer struct {
	parser fastjson.Parser
	editor Editor
	value  []byte
	opt    ImportOptions
	err    error
	// value is of a custom attribute that /users/track would leave out
	isUnfit bool
}

// Import appends the profile that line (one JSON object) describes. Its home is the external id, else the first alias,
// else the email, else the phone; without any of them it is an error. stamp (Unix µs) stands for the time of every
// change that the shape does not carry. Exporting the result gives line again, except that members which belong to the
// store (svc_id, random_bucket, names of groups and apps) are ignored. Of unknown members, and of values that are left
// out, opt.Left is told, before it is known whether the line is a user.
//
// An event's recent occurrences are not in the shape: its last and, when it counts two, its first are taken for such.
func (im *Importer) Import(
	dst []byte, workspace uint32, line []byte, stamp int64, opt ImportOptions,
) (out []byte, err error) {
	if opt.Limits == nil {
		opt.Limits = &defaultLimits
	}
	im.opt, im.err = opt, nil
	if !utf8.Valid(line) || !json.Valid(line) || loneSurrogate(line) { // the parser below is lenient
		return dst, fmt.Errorf("%w: no valid JSON", ErrImport)
	}
	root, err := im.parser.ParseBytes(line)
	if err != nil {
		return dst, fmt.Errorf("%w: %v", ErrImport, err)
	}
	object, err := root.Object()
	if err != nil {
		return dst, fmt.Errorf("%w: no object", ErrImport)
	}
	im.distinct(object, "user")
	im.unknown(object, "", func(name []byte) bool { return exportBits[string(name)] != 0 })
	created := stamp
	if v := object.Get("created_at"); present(v) {
		created = im.time(v, "created_at") * 1000
	}
	b, home := im.home(object, workspace, created)
	if im.err != nil {
		return dst, im.err
	}
	SetUpdated(b, max(created, stamp))
	b = im.members(b, object, home, stamp)
	if im.err != nil {
		return dst, im.err
	}
	if lim := opt.Limits; overLimit(b, tagEvent, lim) || overLimit(b, tagProduct, lim) ||
		overLimit(b, tagCustom, lim) || Sessions(b) > uint64(lim.MaxSessions) {
		b = im.editor.block(b)
	}
	return append(dst, b...), nil
}

func (im *Importer) leave(format string, args ...any) {
	if im.opt.Left != nil {
		im.opt.Left(fmt.Sprintf(format, args...))
	}
}

// unknown tells of the members of o that are not known and say something. in is what o stands in, with a full stop.
func (im *Importer) unknown(o *fastjson.Object, in string, known func(name []byte) bool) {
	if im.opt.Left == nil {
		return
	}
	o.Visit(func(name []byte, v *fastjson.Value) {
		isEmpty := !present(v) || v.Type() == fastjson.TypeArray && len(v.GetArray()) == 0 ||
			v.Type() == fastjson.TypeObject && v.GetObject().Len() == 0
		if !isEmpty && !known(name) {
			im.leave("'%s%.40s' is not imported", in, name)
		}
	})
}

// element is an element of the array in, an object with members of these names.
func (im *Importer) element(v *fastjson.Value, in string, names ...string) *fastjson.Object {
	o, err := v.Object()
	if err != nil {
		im.fail("%s: no object", in)
		return new(fastjson.Object)
	}
	im.distinct(o, in)
	im.unknown(o, in+".", func(name []byte) bool { return slices.Contains(names, string(name)) })
	return o
}

func (im *Importer) fail(format string, args ...any) {
	if im.err == nil {
		im.err = fmt.Errorf("%w: %s", ErrImport, fmt.Sprintf(format, args...))
	}
}

// home makes the empty profile.
func (im *Importer) home(o *fastjson.Object, workspace uint32, created int64) ([]byte, op.IDKind) {
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
		return nil, kind
	}
	return New(im.editor.buf[:0], workspace, kind, key, created), kind
}

func (im *Importer) members(b []byte, o *fastjson.Object, home op.IDKind, stamp int64) []byte {
	e, lim := &im.editor, im.opt.Limits
	for _, v := range im.array(o, "user_aliases") {
		label, name := im.alias(v)
		if im.err == nil && !HasAlias(b, label, name) {
			b = e.set(b, span{}, tagAlias, op.AppendAliasKey(nil, label, name))
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
	b = im.devices(b, im.array(o, "devices"))
	if v := o.Get("email_hard_bounced_at"); present(v) && !find(b, tagEmail).none() { // a mark of the email
		b = e.SetState(b, StateChange{State{Kind: StateBounce, On: true}, im.time(v, "email_hard_bounced_at") * 1000, 0,
			op.SourceImport})
	}
	for _, v := range im.array(o, "subscription_groups") {
		im.element(v, "subscription_groups", "id", "name", "status")
		var id [16]byte
		raw := bytes.ReplaceAll(im.text(v.Get("id"), "subscription_groups id"), []byte("-"), nil)
		if n, err := hex.Decode(id[:], raw[:min(len(raw), 32)]); err != nil || n != 16 || len(raw) != 32 {
			im.fail("subscription_groups: id is no UUID")
			break
		}
		switch state := bytes.ToLower(im.text(v.Get("status"), "subscription_groups status")); string(state) {
		case "subscribed", "unsubscribed":
			set := State{Kind: StateGroup, Group: id, On: string(state) == "subscribed"}
			if im.opt.Channel != nil {
				set.Channel = im.opt.Channel(id)
			}
			b = e.SetState(b, StateChange{set, stamp, 0, op.SourceImport})
		default:
			im.fail("subscription_groups: status %q", state)
		}
	}
	b = im.customs(b, o.Get("custom_attributes"))
	b = im.summaries(b, tagEvent, im.array(o, "custom_events"), lim)
	b = im.summaries(b, tagProduct, im.array(o, "purchases"), lim)
	b = im.revenue(b, o)
	b = im.apps(b, o)
	return b
}

func (im *Importer) attribute(b []byte, code uint32, v *fastjson.Value, stamp int64) []byte {
	e, name := &im.editor, op.AttrName(code)
	switch code {
	case op.AttrEmailSubscribe, op.AttrPushSubscribe:
		state := im.text(v, name)
		if s := string(state); im.err == nil && s != "opted_in" && s != "subscribed" && s != "unsubscribed" {
			im.fail("%s: %q", name, s)
		}
		// What an export has of who has said nothing.
		if code == op.AttrEmailSubscribe && string(state) == "subscribed" {
			return b
		}
		return e.setContactState(b, code, state, stamp, 0, op.SourceImport)
	case op.AttrDateOfBirth:
		im.value = op.AppendString(im.value[:0], im.instant(v, name).AppendFormat(nil, time.DateOnly))
	case op.AttrDateOfFirstSession, op.AttrDateOfLastSession, op.AttrMarkedEmailAsSpamAt:
		im.value = op.AppendTime(im.value[:0], im.time(v, name))
	case op.AttrEmailOpenTrackingOff, op.AttrEmailClickTrackingOff:
		if v.Type() != fastjson.TypeTrue && v.Type() != fastjson.TypeFalse {
			im.fail("%s: no boolean", name)
		}
		im.value = op.AppendBool(im.value[:0], v.Type() == fastjson.TypeTrue)
	case op.AttrPushTokens:
		if v.Type() != fastjson.TypeArray {
			im.fail("%s: no array", name)
		}
		im.value = im.value[:0]
		for _, token := range v.GetArray() {
			im.pushToken(token)
		}
		if len(v.GetArray()) > im.opt.Limits.MaxPushTokens {
			im.leave("'%s' has more than %d: only the last ones are imported", name, im.opt.Limits.MaxPushTokens)
		}
		im.value = append(im.value[:0], e.mergeTokens(nil, im.value, im.opt.Limits)...)
	case op.AttrCurrentLocation, op.AttrFacebook, op.AttrTwitter:
		if v.Type() != fastjson.TypeObject {
			im.fail("%s: no object", name)
		}
		im.isUnfit = false
		im.value = im.appendValue(im.value[:0], v, 0, false)
		if im.isUnfit {
			im.leave("'%s' is not valid", name)
			return b
		}
	default:
		im.value = op.AppendString(im.value[:0], im.text(v, name))
	}
	return e.SetAttr(b, code, im.value)
}

// pushToken appends a push token to im.value. It names its app as ours do, by app_id, or by app, as exports from
// elsewhere do; the name of an app that isn't there stays.
func (im *Importer) pushToken(v *fastjson.Value) {
	const in = "push_tokens"
	o := im.element(v, in, "app_id", "app", "platform", "token", "device_id", "notifications_enabled")
	mark := len(im.value)
	if id := o.Get("app_id"); present(id) {
		im.member("app_id", im.short(id, in+" app_id", maxNameBytes))
	} else {
		name := im.short(o.Get("app"), in+" app", maxNameBytes)
		if im.err == nil && im.opt.AppID != nil {
			if id := im.opt.AppID(name); len(id) > 0 {
				im.member("app_id", id)
				name = nil
			}
		}
		if len(name) > 0 {
			im.member("app", name)
			im.leave("%s: there is no app %.40q", in, name)
		}
	}
	if v := o.Get("platform"); present(v) {
		im.member("platform", im.short(v, in+" platform", maxImportedID))
	}
	im.member("token", im.short(o.Get("token"), in+" token", maxImportedToken))
	if v := o.Get("device_id"); present(v) {
		im.member("device_id", im.short(v, in+" device_id", maxImportedID))
	}
	im.flag(o, in, "notifications_enabled")
	im.value = closeBlock(im.value, mark, op.Object)
}

const (
	maxImportedID    = 255  // bytes of an id of a device, an advertiser, a vendor
	maxImportedText  = 255  // characters of a model, a system, a carrier
	maxImportedToken = 4096 // bytes, as for /users/track
	maxDevices       = 100  // the last ones stay
)

// deviceTexts are the members of a device that are strings, and whether they are ids.
var deviceTexts = []struct {
	name string
	isID bool
}{{"model", false}, {"os", false}, {"carrier", false}, {"device_id", true}, {"idfv", true}, {"idfa", true},
	{"google_ad_id", true}, {"roku_ad_id", true}, {"windows_ad_id", true}}

const deviceTracking = "ad_tracking_enabled" // the only other member

var deviceMembers = func() []string {
	names := []string{deviceTracking}
	for _, m := range deviceTexts {
		names = append(names, m.name)
	}
	return names
}()

// devices sets the devices. Of those with the same device_id the last one stays.
func (im *Importer) devices(b []byte, list []*fastjson.Value) []byte {
	var made [][]byte
	place := map[string]int{} // of the last one with a device_id
	for _, v := range list {
		im.value = im.value[:0]
		id := im.device(v)
		if at, twice := place[id]; twice && id != "" {
			made[at] = nil
		}
		place[id] = len(made)
		made = append(made, bytes.Clone(im.value))
	}
	made = slices.DeleteFunc(made, func(device []byte) bool { return device == nil })
	if len(made) > maxDevices {
		im.leave("'devices' has more than %d: only the last ones are imported", maxDevices)
		made = made[len(made)-maxDevices:]
	}
	if len(made) == 0 || im.err != nil {
		return b
	}
	im.value = closeBlock(append(im.value[:0], bytes.Join(made, nil)...), 0, op.Array)
	return im.editor.SetAttr(b, op.AttrDevices, im.value)
}

// device appends a device to im.value.
func (im *Importer) device(v *fastjson.Value) (id string) {
	const in = "devices"
	o := im.element(v, in, deviceMembers...)
	for _, m := range deviceTexts {
		v := o.Get(m.name)
		switch {
		case v == nil:
		case v.Type() == fastjson.TypeNull:
			if m.name == "carrier" { // the one that the shape has null for
				im.value = append(appendName(im.value, []byte(m.name)), byte(op.Null))
			}
		case m.isID:
			im.member(m.name, im.short(v, in+" "+m.name, maxImportedID))
		default:
			s := im.text(v, in+" "+m.name)
			if utf8.RuneCount(s) > maxImportedText {
				im.fail("%s %s has more than %d characters", in, m.name, maxImportedText)
			}
			im.member(m.name, s)
		}
	}
	im.flag(o, in, deviceTracking)
	im.value = closeBlock(im.value, 0, op.Object)
	return string(v.GetStringBytes("device_id"))
}

// member appends a String member of an Object.
func (im *Importer) member(name string, s []byte) {
	im.value = op.AppendString(appendName(im.value, []byte(name)), s)
}

// flag appends a member that is true or false, when it is there.
func (im *Importer) flag(o *fastjson.Object, in, name string) {
	v := o.Get(name)
	if !present(v) {
		return
	}
	if v.Type() != fastjson.TypeTrue && v.Type() != fastjson.TypeFalse {
		im.fail("%s %s: no boolean", in, name)
	}
	im.value = op.AppendBool(appendName(im.value, []byte(name)), v.Type() == fastjson.TypeTrue)
}

// short is a string of 1 to most bytes.
func (im *Importer) short(v *fastjson.Value, what string, most int) []byte {
	s := im.text(v, what)
	if im.err == nil && (len(s) == 0 || len(s) > most) {
		im.fail("%s has %d bytes: want 1 to %d", what, len(s), most)
	}
	return s
}

// coordinates are a location as last_coordinates has it: longitude, latitude.
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

func (im *Importer) customs(b []byte, v *fastjson.Value) []byte {
	if !present(v) {
		return b
	}
	o, err := v.Object()
	if err != nil {
		im.fail("custom_attributes: no object")
		return b
	}
	im.distinct(o, "custom_attributes")
	o.Visit(func(name []byte, v *fastjson.Value) {
		if !present(v) {
			return
		}
		if len(name) == 0 || len(name) > maxNameBytes {
			im.fail("custom_attributes: name of %d bytes", len(name))
			return
		}
		im.isUnfit = false
		im.value = im.appendValue(im.value[:0], v, 0, false)
		if im.isUnfit {
			im.leave("'custom_attributes.%.40s' is not valid", name)
			return
		}
		stored := op.Value(im.value)
		if stored.Tag() == op.Array {
			stored = im.editor.newest(stored, im.opt.Limits.MaxArray)
		}
		b = im.append(b, appendField(nil, tagCustom, appendNamed(nil, name, stored))) // distinct, so there is none yet
	})
	return b
}

func (im *Importer) summaries(b []byte, tag byte, list []*fastjson.Value, lim *Limits) []byte {
	e := &im.editor
	known := make(map[string]bool, len(list))
	in := map[byte]string{tagEvent: "custom_events", tagProduct: "purchases"}[tag]
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
		e.recent = e.recent[:0]
		if count > 1 {
			e.recent = append(e.recent, seconds(first))
		}
		im.value = appendSummary(im.value[:0], tag, name, count, first, last, trimRecent(e.recent, last, lim))
		b = im.append(b, im.value)
	}
	return b
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
		im.value = appendSummary(im.value[:0], tagApp, id, sessions, first, last, nil)
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
	digits := Export{Digits: im.opt.Digits}
	if v := o.Get("revenue_by_currency"); present(v) {
		amounts, err := v.Object()
		if err != nil {
			im.fail("revenue_by_currency: no object")
			return b
		}
		im.distinct(amounts, "revenue_by_currency")
		amounts.Visit(func(name []byte, v *fastjson.Value) {
			currency, ok := currencyOf(name)
			if !ok {
				im.fail("revenue_by_currency: %.10q is no currency", name)
				return
			}
			b = im.editor.addRevenue(b, currency, im.minor(v, digits.digits(currency)))
		})
	} else if v := o.Get("total_revenue"); present(v) {
		x := Export{Currency: im.opt.Currency}
		currency := x.currency()
		if minor := im.minor(v, digits.digits(currency)); minor != 0 {
			b = im.editor.addRevenue(b, currency, minor)
		}
	}
	return b
}

// append adds a whole field, which is the last one by its rank.
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

func present(v *fastjson.Value) bool { return v != nil && v.Type() != fastjson.TypeNull }

func (im *Importer) text(v *fastjson.Value, what string) []byte {
	if v == nil {
		im.fail("%s is missing", what)
		return nil
	}
	s, err := v.StringBytes()
	if err != nil {
		im.fail("%s is no string", what)
	}
	return s
}

func (im *Importer) array(o *fastjson.Object, name string) []*fastjson.Value {
	v := o.Get(name)
	if !present(v) {
		return nil
	}
	list, err := v.Array()
	if err != nil {
		im.fail("%s is no array", name)
	}
	return list
}

func (im *Importer) alias(v *fastjson.Value) (label, name []byte) {
	im.element(v, "user_aliases", "alias_label", "alias_name")
	label, name = im.text(v.Get("alias_label"), "alias_label"), im.text(v.Get("alias_name"), "alias_name")
	if im.err == nil && (len(label) == 0 || len(name) == 0 || len(label)+len(name)+2 > op.MaxKeyBytes) {
		im.fail("user_aliases: empty or too long")
	}
	return label, name
}

func (im *Importer) count(v *fastjson.Value, what string) uint64 {
	if v == nil {
		im.fail("%s is missing", what)
		return 0
	}
	n, err := v.Uint64()
	if err != nil || n > maxCount {
		im.fail("%s is no count", what)
	}
	return n
}

// timeLayouts are what other exports write; our own is tried first.
var timeLayouts = []string{timeLayout, time.RFC3339Nano, "2006-01-02 15:04:05.999 UTC", "2006-01-02 15:04:05 -0700",
	"2006-01-02T15:04:05", "2006-01-02"}

func (im *Importer) time(v *fastjson.Value, what string) int64 {
	return im.instant(v, what).UnixMilli()
}

// instant is a time with the zone that it was written in.
func (im *Importer) instant(v *fastjson.Value, what string) (t time.Time) {
	s := im.text(v, what)
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, string(s)); err == nil {
			return t
		}
	}
	im.fail("%s is no time", what)
	return t
}

// minor reads a decimal as minor units; digits beyond those of the currency are rounded half away from zero.
func (im *Importer) minor(v *fastjson.Value, digits int) int64 {
	if v.Type() != fastjson.TypeNumber {
		im.fail("revenue is no number")
		return 0
	}
	text := v.MarshalTo(nil)
	negative := text[0] == '-'
	text = bytes.TrimPrefix(text, []byte("-"))
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	if bytes.ContainsAny(text, "eE") {
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			im.fail("revenue is out of range")
			return 0
		}
		whole, fraction, _ = bytes.Cut(strconv.AppendFloat(nil, f, 'f', digits, 64), []byte("."))
	}
	up := len(fraction) > digits && fraction[digits] >= '5'
	units := append([]byte(nil), whole...)
	for i := range digits {
		if i < len(fraction) {
			units = append(units, fraction[i])
		} else {
			units = append(units, '0')
		}
	}
	n, err := strconv.ParseUint(string(units), 10, 64)
	if err == nil && up {
		n++
	}
	switch {
	case err != nil || n > 1<<63 || n == 1<<63 && !negative:
		im.fail("revenue is out of range")
		return 0
	case negative:
		return -int64(n) // also of 1<<63: it is its own negative
	}
	return int64(n)
}

// distinct fails on a name that an object has twice.
func (im *Importer) distinct(o *fastjson.Object, what string) {
	seen := make(map[string]bool, o.Len())
	o.Visit(func(name []byte, _ *fastjson.Value) {
		if seen[string(name)] {
			im.fail("%s: %.40q stands there twice", what, name)
		}
		seen[string(name)] = true
	})
}

// afterYear3000 is 3001-01-01T00:00:00Z. What is not before it is no time of a custom attribute (reference.md 1.5): a
// string stays one, and a $time is left out with its attribute, as by /users/track.
const afterYear3000 = 32_535_216_000_000

// maxImportDepth is the depth of values that the door allows too (decisions.md D1).
const maxImportDepth = 32

// appendValue appends a JSON value as it is stored. inArray: an array or a second level of one is kept as its text.
func (im *Importer) appendValue(dst []byte, v *fastjson.Value, depth int, inArray bool) []byte {
	if depth > maxImportDepth {
		im.fail("a value is nested too deep")
		return append(dst, byte(op.Null))
	}
	switch v.Type() {
	case fastjson.TypeTrue, fastjson.TypeFalse:
		return op.AppendBool(dst, v.Type() == fastjson.TypeTrue)
	case fastjson.TypeNumber:
		return im.appendNumber(dst, v.MarshalTo(nil))
	case fastjson.TypeString:
		s := v.GetStringBytes()
		if len(s) == len(timeLayout) {
			if t, err := time.Parse(timeLayout, string(s)); err == nil && t.UnixMilli() < afterYear3000 {
				return op.AppendTime(dst, t.UnixMilli())
			}
		}
		return op.AppendString(dst, s)
	case fastjson.TypeArray:
		if inArray {
			return op.AppendBlock(dst, op.JSON, v.MarshalTo(nil))
		}
		mark := len(dst)
		for _, element := range v.GetArray() {
			dst = im.appendValue(dst, element, depth+1, true)
		}
		return closeBlock(dst, mark, op.Array)
	case fastjson.TypeObject:
		o := v.GetObject()
		if text := v.Get("$time"); o.Len() == 1 && text != nil {
			t := im.time(text, "$time")
			im.isUnfit = im.isUnfit || t >= afterYear3000
			return op.AppendTime(dst, t)
		}
		im.distinct(o, "an object")
		mark := len(dst)
		o.Visit(func(name []byte, member *fastjson.Value) {
			if present(member) {
				dst = im.appendValue(appendName(dst, name), member, depth+1, false)
			}
		})
		return closeBlock(dst, mark, op.Object)
	}
	return append(dst, byte(op.Null))
}

func (im *Importer) appendNumber(dst, text []byte) []byte {
	if !bytes.ContainsAny(text, ".eE") {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			im.fail("number %.40s does not fit 64 bits", text)
		}
		return op.AppendInt(dst, n)
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.IsInf(f, 0) {
		im.fail("number %.40s is out of range", text)
	}
	return op.AppendFloat(dst, f)
}

// loneSurrogate looks for an escape of half a surrogate pair.
func loneSurrogate(text []byte) bool {
	for i := 0; i+1 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		if text[i] != 'u' {
			continue
		}
		switch unit := hexUnit(text[i+1:]); {
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return true
		case unit >= 0xD800 && unit <= 0xDBFF:
			rest := text[i+5:]
			if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
				return true
			}
			if low := hexUnit(rest[2:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
		i += 4
	}
	return false
}

func hexUnit(digits []byte) uint64 {
	if len(digits) < 4 {
		return 0
	}
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 32)
	return n
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
