package profile

import (
	"math"
	"strconv"
	"time"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// Fields is a set of keys of the export; 0 stands for all.
type Fields uint64

// AddField adds a name of fields_to_export to the set; ok is false for a name that the export doesn't know.
func (f Fields) AddField(name []byte) (_ Fields, ok bool) {
	bit, ok := exportBits[string(name)]
	return f | bit, ok
}

func (f Fields) has(bit Fields) bool { return f == 0 || f&bit != 0 }

// Keys of the export that are no attributes. They have the bits from 32 on; the bit of an attribute is its code.
const (
	fieldCreatedAt Fields = 1 << (32 + iota)
	fieldExternalID
	fieldUserAliases
	fieldSvcID
	fieldRandomBucket
	fieldCustomAttributes
	fieldCustomEvents
	fieldPurchases
	fieldTotalRevenue
	fieldRevenueByCurrency
	fieldEmailHardBouncedAt
	fieldSubscriptionGroups
	fieldApps
	fieldSessionCount
	fieldLastCoordinates
	fieldAppboyID
)

var exportBits = func() map[string]Fields {
	m := map[string]Fields{
		"created_at": fieldCreatedAt, "external_id": fieldExternalID, "user_aliases": fieldUserAliases,
		"svc_id":   fieldSvcID,
		"braze_id": fieldSvcID, "random_bucket": fieldRandomBucket, "custom_attributes": fieldCustomAttributes,
		"custom_events": fieldCustomEvents, "purchases": fieldPurchases, "total_revenue": fieldTotalRevenue,
		"revenue_by_currency": fieldRevenueByCurrency, "email_hard_bounced_at": fieldEmailHardBouncedAt,
		"subscription_groups": fieldSubscriptionGroups, "apps": fieldApps, "session_count": fieldSessionCount,
		"last_coordinates": fieldLastCoordinates, "appboy_id": fieldAppboyID, "devices": 1 << op.AttrDevices,
	}
	for code := uint32(1); code < 32; code++ {
		if name := op.AttrName(code); name != "" && code != op.AttrSubscriptionGroups {
			m[name] = 1 << code
		}
	}
	return m
}()

// Export is what an exported user shows beyond the profile itself.
type Export struct {
	SvcID  []byte // text; left out when empty
	Braze  bool   // SvcID is called braze_id, and is there as appboy_id, too (`profile_id_name: braze_id`)
	Number uint64 // of the profile: random_bucket comes from it; left out when 0

	Currency [3]byte                    // of total_revenue; zero: USD
	Digits   func(currency [3]byte) int // digits behind the point of a currency; nil: 2
	// one unit of a currency in Currency; nil: none is known
	Rate func(currency [3]byte) (inCurrency float64, ok bool)

	// Only says which custom attributes, events and purchases are shown; nil: all.
	Only func(name []byte) bool

	GroupName func(id [16]byte) string // of a subscription group, "" for unknown; nil: no names
	AppName   func(id []byte) string   // the same for apps
}

// AppendJSON appends a profile as a user of /users/export/ids (export-shape.md, decisions.md D9). Keys that have a
// value whether it was set or not are always there: aliases, the email and push state, revenue. Other attributes are
// left out when they are absent. Times and the date of birth are ISO 8601 in UTC with milliseconds; amounts are exact
// decimals. An amount that is converted by a rate is rounded to the currency's digits; a currency without a rate is in
// revenue_by_currency only. session_count is the sum that merges conserve.
//
// The result is a view for people and clients, without recent occurrences and without actors and times of changes.
func AppendJSON(dst, blob []byte, fields Fields, x Export) []byte {
	w := jsonWriter{dst: append(dst, '{')}
	if fields.has(fieldCreatedAt) {
		w.key("created_at")
		w.dst = jsonvalue.AppendTimeString(w.dst, floorDiv(Created(blob), 1000))
	}
	if id := ExternalID(blob); id != nil && fields.has(fieldExternalID) {
		w.key("external_id")
		w.dst = jsonvalue.AppendString(w.dst, id)
	}
	if fields.has(fieldUserAliases) {
		w.aliases(blob)
	}
	w.serviceIDs(fields, x)
	if x.Number != 0 && fields.has(fieldRandomBucket) {
		w.key("random_bucket")
		w.dst = strconv.AppendUint(w.dst, randomBucket(x.Number), 10)
	}
	w.attributes(blob, fields, x.AppName)
	if v, ok := Attr(blob, op.AttrDevices); ok && fields.has(1<<op.AttrDevices) {
		w.key("devices")
		w.dst = jsonvalue.Append(w.dst, v)
	}
	if at, ok := HardBounce(blob); ok && fields.has(fieldEmailHardBouncedAt) {
		w.key("email_hard_bounced_at")
		w.dst = jsonvalue.AppendTimeString(w.dst, floorDiv(at, 1000))
	}
	if fields.has(fieldSubscriptionGroups) {
		w.groups(blob, x.GroupName)
	}
	if fields.has(fieldCustomAttributes) {
		w.customs(blob, x.Only)
	}
	if fields.has(fieldCustomEvents) {
		w.summaries(blob, tagEvent, "custom_events", x.Only)
	}
	if fields.has(fieldPurchases) {
		w.summaries(blob, tagProduct, "purchases", x.Only)
	}
	w.revenue(blob, fields, x)
	if fields.has(fieldApps) {
		w.apps(blob, x.AppName)
	}
	if n := Sessions(blob); n > 0 && fields.has(fieldSessionCount) {
		w.key("session_count")
		w.dst = strconv.AppendUint(w.dst, n, 10)
	}
	return append(w.dst, '}')
}

// randomBucket is the bucket, 0 to 9999, that follows from a profile's number.
func randomBucket(number uint64) uint64 {
	number ^= number >> 33
	number *= 0xFF51AFD7ED558CCD
	number ^= number >> 33
	number *= 0xC4CEB9FE1A85EC53
	return (number ^ number>>33) % 10_000
}

func (w *jsonWriter) aliases(blob []byte) {
	w.key("user_aliases")
	w.dst = append(w.dst, '[')
	Aliases(blob, func(label, name []byte) {
		w.separate()
		w.dst = append(w.dst, '{')
		w.text("alias_name", name)
		w.text("alias_label", label)
		w.dst = append(w.dst, '}')
	})
	w.dst = append(w.dst, ']')
}

func (w *jsonWriter) serviceIDs(fields Fields, x Export) {
	name := "svc_id"
	if x.Braze {
		name = "braze_id"
	}
	if len(x.SvcID) > 0 && fields.has(fieldSvcID) {
		w.text(name, x.SvcID)
	}
	if len(x.SvcID) > 0 && x.Braze && fields.has(fieldAppboyID) {
		w.text("appboy_id", x.SvcID)
	}
}

func (w *jsonWriter) attributes(blob []byte, fields Fields, appName func([]byte) string) {
	for code := uint32(1); code < 32; code++ {
		name := op.AttrName(code)
		if name == "" || code == op.AttrSubscriptionGroups {
			continue
		}
		v, ok := Attr(blob, code)
		switch {
		case code == op.AttrCurrentLocation && ok && fields.has(fieldLastCoordinates):
			w.coordinates(v)
		case code == op.AttrEmailSubscribe || code == op.AttrPushSubscribe:
			if !ok { // reference.md 2.2
				v, ok = subscribed, true
			}
		}
		if !ok || !fields.has(1<<code) {
			continue
		}
		w.key(name)
		if code == op.AttrPushTokens {
			w.pushTokens(v, appName)
			continue
		}
		if w.dst = jsonvalue.Append(w.dst, v); code == op.AttrDateOfBirth && v.Tag() == op.String &&
			len(v.Bytes()) == len(time.DateOnly) {
			w.dst = append(w.dst[:len(w.dst)-1], `T00:00:00.000Z"`...)
		}
	}
}

// subscribed is the default of the email and the push state.
var subscribed = op.Value(op.AppendString(nil, []byte("subscribed")))

// pushTokens appends the tokens, each also with the name of its app, by which readers of the public API know the app.
func (w *jsonWriter) pushTokens(v op.Value, nameOf func([]byte) string) {
	w.dst = append(w.dst, '[')
	for token := range op.Elements(content(v, op.Array)) {
		w.separate()
		w.dst = jsonvalue.Append(w.dst, token)
		app := op.Member(content(token, op.Object), memberAppID)
		if id := content(app, op.String); len(id) > 0 && nameOf != nil {
			if name := nameOf(id); name != "" {
				w.dst = w.dst[:len(w.dst)-1]
				w.text("app", []byte(name))
				w.dst = append(w.dst, '}')
			}
		}
	}
	w.dst = append(w.dst, ']')
}

// coordinates appends the location once more, in the form that readers of the public API know.
func (w *jsonWriter) coordinates(location op.Value) {
	members := content(location, op.Object)
	longitude, latitude := op.Member(members, memberLongitude), op.Member(members, memberLatitude)
	if longitude == nil || latitude == nil {
		return
	}
	w.key("last_coordinates")
	w.dst = append(jsonvalue.Append(append(w.dst, '['), longitude), ',')
	w.dst = append(jsonvalue.Append(w.dst, latitude), ']')
}

var memberLongitude, memberLatitude = []byte("longitude"), []byte("latitude")

func (w *jsonWriter) groups(blob []byte, nameOf func([16]byte) string) {
	first := true
	Groups(blob, func(id [16]byte, subscribed bool, _ int64, _ uint32) {
		w.element("subscription_groups", &first)
		w.dst = append(w.dst, '{')
		w.key("id")
		w.dst = append(jsonvalue.AppendUUID(append(w.dst, '"'), id), '"')
		if nameOf != nil {
			if name := nameOf(id); name != "" {
				w.text("name", []byte(name))
			}
		}
		w.key("status")
		if subscribed {
			w.dst = append(w.dst, `"Subscribed"}`...)
		} else {
			w.dst = append(w.dst, `"Unsubscribed"}`...)
		}
	})
	w.close(first)
}

func (w *jsonWriter) customs(blob []byte, only func(name []byte) bool) {
	first := true
	Customs(blob, func(name []byte, v op.Value) {
		if only != nil && !only(name) {
			return
		}
		if first {
			w.key("custom_attributes")
			w.dst = append(w.dst, '{')
			first = false
		}
		w.separate()
		w.dst = append(jsonvalue.AppendString(w.dst, name), ':')
		w.dst = jsonvalue.Append(w.dst, v)
	})
	if !first {
		w.dst = append(w.dst, '}')
	}
}

func (w *jsonWriter) summaries(blob []byte, tag byte, key string, only func(name []byte) bool) {
	first := true
	eachSummary(blob, tag, func(name []byte, s Summary) {
		if only != nil && !only(name) {
			return
		}
		w.element(key, &first)
		w.dst = append(w.dst, '{')
		w.text("name", name)
		w.time("first", s.First)
		w.time("last", s.Last)
		w.key("count")
		w.dst = append(strconv.AppendUint(w.dst, s.Count, 10), '}')
	})
	w.close(first)
}

func (w *jsonWriter) apps(blob []byte, nameOf func([]byte) string) {
	first := true
	Apps(blob, func(id []byte, s Summary) {
		w.element("apps", &first)
		w.dst = append(w.dst, '{')
		w.text("app_id", id)
		if nameOf != nil {
			if name := nameOf(id); name != "" {
				w.text("name", []byte(name))
			}
		}
		w.key("sessions")
		w.dst = strconv.AppendUint(w.dst, s.Count, 10)
		w.time("first", s.First)
		w.time("last", s.Last)
		w.dst = append(w.dst, '}')
	})
	w.close(first)
}

func (w *jsonWriter) revenue(blob []byte, fields Fields, x Export) {
	none := find(blob, tagRevenue).none()
	if fields.has(fieldTotalRevenue) {
		w.key("total_revenue")
		if none {
			w.dst = append(w.dst, "0.0"...)
		} else {
			w.dst = appendAmount(w.dst, x.total(blob), x.digits(x.currency()))
		}
	}
	if !fields.has(fieldRevenueByCurrency) {
		return
	}
	w.key("revenue_by_currency")
	w.dst = append(w.dst, '{')
	Revenue(blob, func(currency [3]byte, minor int64) {
		w.separate()
		w.dst = append(jsonvalue.AppendString(w.dst, currency[:]), ':')
		w.dst = appendAmount(w.dst, minor, x.digits(currency))
	})
	w.dst = append(w.dst, '}')
}

func (x *Export) currency() [3]byte {
	if x.Currency == [3]byte{} {
		return [3]byte{'U', 'S', 'D'}
	}
	return x.Currency
}

func (x *Export) digits(currency [3]byte) int {
	if x.Digits == nil {
		return 2
	}
	return min(max(x.Digits(currency), 0), 18)
}

// total is the sum of the revenue, in minor units of the export's currency.
func (x *Export) total(blob []byte) int64 {
	want, sum := x.currency(), int64(0)
	Revenue(blob, func(currency [3]byte, minor int64) {
		if currency == want {
			sum = saturatingAdd(sum, minor)
			return
		}
		if x.Rate == nil {
			return
		}
		if rate, ok := x.Rate(currency); ok {
			exact := float64(minor) * rate * math.Pow10(x.digits(want)-x.digits(currency))
			sum = saturatingAdd(sum, toInt64(math.RoundToEven(exact)))
		}
	})
	return sum
}

func toInt64(f float64) int64 {
	switch {
	case f != f:
		return 0
	case f >= 1<<63:
		return math.MaxInt64
	case f < -1<<63:
		return math.MinInt64
	}
	return int64(f)
}

// appendAmount appends minor units as a decimal with all its digits: 1250 with 2 is 12.50.
func appendAmount(dst []byte, minor int64, digits int) []byte {
	u := uint64(minor)
	if minor < 0 {
		dst = append(dst, '-')
		u = -u
	}
	var raw [20]byte
	text := strconv.AppendUint(raw[:0], u, 10)
	if digits == 0 {
		return append(dst, text...)
	}
	if whole := len(text) - digits; whole > 0 {
		dst = append(append(append(dst, text[:whole]...), '.'), text[whole:]...)
		return dst
	}
	dst = append(dst, '0', '.')
	for range digits - len(text) {
		dst = append(dst, '0')
	}
	return append(dst, text...)
}

// jsonWriter appends members of objects, with a comma before each that doesn't follow an opening bracket.
type jsonWriter struct{ dst []byte }

func (w *jsonWriter) separate() { w.dst = jsonvalue.AppendComma(w.dst) }

func (w *jsonWriter) key(name string) {
	w.separate()
	w.dst = append(append(append(w.dst, '"'), name...), '"', ':')
}

// element begins an element of an array, and with the first element the array, too; close ends the array.
func (w *jsonWriter) element(name string, first *bool) {
	if *first {
		w.key(name)
		w.dst = append(w.dst, '[')
		*first = false
		return
	}
	w.dst = append(w.dst, ',')
}

func (w *jsonWriter) close(first bool) {
	if !first {
		w.dst = append(w.dst, ']')
	}
}

func (w *jsonWriter) text(name string, s []byte) {
	w.key(name)
	w.dst = jsonvalue.AppendString(w.dst, s)
}

func (w *jsonWriter) time(name string, millis int64) {
	w.key(name)
	w.dst = jsonvalue.AppendTimeString(w.dst, millis)
}
