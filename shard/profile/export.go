package profile

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"millrace/shard/op"
)

// Fields is a set of keys of the export; 0 stands for all.
type Fields uint64

// AddField adds a name of fields_to_export to the set; ok is false for one that the export doesn't know.
func (f Fields) AddField(name []byte) (_ Fields, ok bool) {
	bit, ok := exportBits[string(name)]
	return f | bit, ok
}

func (f Fields) has(bit Fields) bool { return f == 0 || f&bit != 0 }

// Keys of the export that are no attributes. The bits from 32 on are theirs, the bit of an attribute is its code.
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
	Braze  bool   // it is called braze_id, and appboy_id too (`profile_id_name: braze_id`)
	Number uint64 // of the profile: random_bucket comes from it; left out when 0

	Currency [3]byte                    // of total_revenue; zero: USD
	Digits   func(currency [3]byte) int // digits behind the point of a currency; nil: 2
	// one unit of a currency in Currency; nil: none is known
	Rate func(currency [3]byte) (inCurrency float64, ok bool)

	GroupName func(id [16]byte) string // of a subscription group, "" for unknown; nil: no names
	AppName   func(id []byte) string   // the same for apps
}

// AppendJSON appends a profile as a user of /users/export/ids (export-shape.md, decisions.md D9). What has a value
// whether it was set or not is always there: aliases, the email and push state, revenue. Other attributes that are
// absent are left out, times and the date of birth are ISO 8601 in UTC with milliseconds, amounts are exact decimals.
// What is converted by a rate is rounded to the currency's digits; a currency without a rate is in revenue_by_currency
// only. session_count is the sum that merges conserve.
//
// It is a view for people and clients: recent occurrences, actors and times of changes are not in it.
func AppendJSON(dst, blob []byte, fields Fields, x Export) []byte {
	w := jsonWriter{dst: append(dst, '{')}
	if fields.has(fieldCreatedAt) {
		w.key("created_at")
		w.dst = appendTimeString(w.dst, floorDiv(Created(blob), 1000))
	}
	if id := ExternalID(blob); id != nil && fields.has(fieldExternalID) {
		w.key("external_id")
		w.dst = AppendJSONString(w.dst, id)
	}
	if fields.has(fieldUserAliases) {
		w.aliases(blob)
	}
	w.serviceIDs(fields, x)
	if x.Number != 0 && fields.has(fieldRandomBucket) {
		w.key("random_bucket")
		w.dst = strconv.AppendUint(w.dst, RandomBucket(x.Number), 10)
	}
	w.attributes(blob, fields, x.AppName)
	if v, ok := Attr(blob, op.AttrDevices); ok && fields.has(1<<op.AttrDevices) {
		w.key("devices")
		w.dst = AppendJSONValue(w.dst, v)
	}
	if at, ok := HardBounce(blob); ok && fields.has(fieldEmailHardBouncedAt) {
		w.key("email_hard_bounced_at")
		w.dst = appendTimeString(w.dst, floorDiv(at, 1000))
	}
	if fields.has(fieldSubscriptionGroups) {
		w.groups(blob, x.GroupName)
	}
	if fields.has(fieldCustomAttributes) {
		w.customs(blob)
	}
	if fields.has(fieldCustomEvents) {
		w.summaries(blob, tagEvent, "custom_events")
	}
	if fields.has(fieldPurchases) {
		w.summaries(blob, tagProduct, "purchases")
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

// RandomBucket is the bucket 0–9999 of a profile's number.
func RandomBucket(number uint64) uint64 {
	number ^= number >> 33
	number *= 0xFF51AFD7ED558CCD
	number ^= number >> 33
	number *= 0xC4CEB9FE1A85EC53
	return (number ^ number>>33) % 10_000
}

// jsonWriter appends members; a comma stands before all but those that follow an opening bracket.
type jsonWriter struct{ dst []byte }

func (w *jsonWriter) separate() {
	if last := w.dst[len(w.dst)-1]; last != '{' && last != '[' {
		w.dst = append(w.dst, ',')
	}
}

func (w *jsonWriter) key(name string) {
	w.separate()
	w.dst = append(append(append(w.dst, '"'), name...), '"', ':')
}

// element begins an element of an array, and the array with its first one; close ends it.
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
	w.dst = AppendJSONString(w.dst, s)
}

func (w *jsonWriter) time(name string, millis int64) {
	w.key(name)
	w.dst = appendTimeString(w.dst, millis)
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
		if w.dst = AppendJSONValue(w.dst, v); code == op.AttrDateOfBirth && len(v.Bytes()) == len(time.DateOnly) {
			w.dst = append(w.dst[:len(w.dst)-1], `T00:00:00.000Z"`...)
		}
	}
}

// subscribed is what the states of email and push are by default.
var subscribed = op.Value(op.AppendString(nil, []byte("subscribed")))

// pushTokens appends the tokens, each with the name of its app too, which is what readers of the public API know.
func (w *jsonWriter) pushTokens(v op.Value, nameOf func([]byte) string) {
	w.dst = append(w.dst, '[')
	for rest := content(v, op.Array); len(rest) > 0; {
		token, tail, ok := op.NextValue(rest)
		if !ok {
			break
		}
		rest = tail
		w.separate()
		w.dst = AppendJSONValue(w.dst, token)
		app, _ := member(content(token, op.Object), memberAppID)
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
	longitude, hasLongitude := member(content(location, op.Object), memberLongitude)
	latitude, hasLatitude := member(content(location, op.Object), memberLatitude)
	if !hasLongitude || !hasLatitude {
		return
	}
	w.key("last_coordinates")
	w.dst = append(AppendJSONValue(append(w.dst, '['), longitude), ',')
	w.dst = append(AppendJSONValue(w.dst, latitude), ']')
}

var memberLongitude, memberLatitude = []byte("longitude"), []byte("latitude")

func (w *jsonWriter) groups(blob []byte, nameOf func([16]byte) string) {
	first := true
	Groups(blob, func(id [16]byte, subscribed bool, _ int64, _ uint32) {
		w.element("subscription_groups", &first)
		w.dst = append(w.dst, '{')
		w.key("id")
		w.dst = append(AppendUUID(append(w.dst, '"'), id), '"')
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

func (w *jsonWriter) customs(blob []byte) {
	first := true
	Customs(blob, func(name []byte, v op.Value) {
		if first {
			w.key("custom_attributes")
			w.dst = append(w.dst, '{')
			first = false
		}
		w.separate()
		w.dst = append(AppendJSONString(w.dst, name), ':')
		w.dst = AppendJSONValue(w.dst, v)
	})
	if !first {
		w.dst = append(w.dst, '}')
	}
}

func (w *jsonWriter) summaries(blob []byte, tag byte, key string) {
	first := true
	eachSummary(blob, tag, func(name []byte, s Summary) {
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
		w.dst = append(AppendJSONString(w.dst, currency[:]), ':')
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

// total is the revenue in minor units of the export's currency.
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

// AppendJSONValue appends a stored value as JSON: times as ISO 8601 strings, floats always with a point or an exponent,
// text that was kept as JSON as that JSON.
func AppendJSONValue(dst []byte, v op.Value) []byte {
	switch v.Tag() {
	case op.False:
		return append(dst, "false"...)
	case op.True:
		return append(dst, "true"...)
	case op.Int:
		return strconv.AppendInt(dst, v.Int(), 10)
	case op.Float:
		return appendFloat(dst, v.Float())
	case op.String:
		return AppendJSONString(dst, v.Bytes())
	case op.Time:
		return appendTimeString(dst, v.Millis())
	case op.JSON:
		if text := v.Bytes(); json.Valid(text) && utf8.Valid(text) {
			for _, c := range text {
				if c >= 0x20 { // a line break between tokens would cut a line of the export in two
					dst = append(dst, c)
				}
			}
			return dst
		}
		return AppendJSONString(dst, v.Bytes())
	case op.Array:
		w := jsonWriter{append(dst, '[')}
		for rest := v.Bytes(); len(rest) > 0; {
			element, tail, ok := op.NextValue(rest)
			if !ok {
				break
			}
			w.separate()
			w.dst = AppendJSONValue(w.dst, element)
			rest = tail
		}
		return append(w.dst, ']')
	case op.Object:
		w := jsonWriter{append(dst, '{')}
		for rest := v.Bytes(); len(rest) > 0; {
			name, member, tail, ok := op.NextMember(rest)
			if !ok {
				break
			}
			w.separate()
			w.dst = append(AppendJSONString(w.dst, name), ':')
			w.dst = AppendJSONValue(w.dst, member)
			rest = tail
		}
		return append(w.dst, '}')
	}
	return append(dst, "null"...)
}

func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	at := len(dst)
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e15) {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	for _, c := range dst[at:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, '.', '0')
}

const timeLayout = "2006-01-02T15:04:05.000Z"

// AppendTime appends Unix ms as ISO 8601 in UTC with milliseconds.
func AppendTime(dst []byte, millis int64) []byte {
	return time.UnixMilli(millis).UTC().AppendFormat(dst, timeLayout)
}

func appendTimeString(dst []byte, millis int64) []byte {
	return append(AppendTime(append(dst, '"'), millis), '"')
}

// AppendUUID appends a UUID as text.
func AppendUUID(dst []byte, id [16]byte) []byte {
	var text [36]byte
	at := 0
	for i := 0; i < len(id); i += 4 {
		digits := hexDigits(binary.BigEndian.Uint32(id[i:]))
		if i == 0 || i == 12 { // groups of 8-4-4-4-12 digits
			binary.BigEndian.PutUint64(text[at:], digits)
			at += 8
			continue
		}
		text[at] = '-'
		binary.BigEndian.PutUint32(text[at+1:], uint32(digits>>32))
		text[at+5] = '-'
		binary.BigEndian.PutUint32(text[at+6:], uint32(digits))
		at += 10
	}
	return append(dst, text[:]...)
}

// AppendHex appends the eight hexadecimal digits of a number.
func AppendHex(dst []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint64(dst, hexDigits(v))
}

// hexDigits are the hexadecimal digits of a number, a byte each, the first one highest.
func hexDigits(v uint32) uint64 {
	const ones = 0x0101010101010101
	x := uint64(v)
	x = (x | x<<16) & 0x0000FFFF0000FFFF
	x = (x | x<<8) & 0x00FF00FF00FF00FF
	x = (x | x<<4) & 0x0F0F0F0F0F0F0F0F
	letters := (x + 6*ones) >> 4 & ones // 1 for each of 10 and more
	return x + '0'*ones + letters*('a'-'0'-10)
}

// AppendJSONString appends a JSON string. What is no UTF-8 becomes U+FFFD.
func AppendJSONString[T []byte | string](dst []byte, s T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := plainPrefix(s); i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			var four [utf8.UTFMax]byte
			if r, size := utf8.DecodeRune(four[:copy(four[:], s[i:])]); r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
			dst = append(append(dst, s[start:i]...), "\uFFFD"...)
		} else {
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
			}
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

// plainPrefix is how many bytes at the beginning of s, eight at a time, stand for themselves in a JSON string.
func plainPrefix[T []byte | string](s T) (n int) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; n+8 <= len(s); n += 8 {
		x := uint64(s[n]) | uint64(s[n+1])<<8 | uint64(s[n+2])<<16 | uint64(s[n+3])<<24 |
			uint64(s[n+4])<<32 | uint64(s[n+5])<<40 | uint64(s[n+6])<<48 | uint64(s[n+7])<<56
		quote, backslash := x^'"'*ones, x^'\\'*ones
		// The high bit of a byte: it isn't ASCII, is less than a space, or is one of the two.
		if (x|(x-' '*ones)|(quote-ones)|(backslash-ones))&highs != 0 {
			return n
		}
	}
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
