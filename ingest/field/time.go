package field

import (
	"encoding/binary"
	"time"
)

// Time reads a datetime in one of the shapes of reference.md 1.5 and returns the instant in milliseconds since the Unix
// epoch. No zone means UTC; a date alone means midnight UTC.
//
//	2026-11-21T04:23:01.123Z        ISO 8601: T, t or a blank in the middle; seconds optional; a fraction of any length
//	2026-11-21 04:23:01             behind a point or a comma, cut to milliseconds; zone absent, Z, UTC, GMT, +01:00,
//	2026-11-21 04:23:01 -0500       +0100, +01 or +1:00, with or without one blank before it
//	2026-11-21T04:23:01:123Z        yyyy-MM-ddTHH:mm:ss:SSSZ, with exactly three digits; zones as above
//	20261121T042301Z                ISO 8601 basic; the rest as above. The bare date 20261121 is a number, not a date
//	2026-11-21
//	11/21/2026, 1/2/2026            month first
//	Sat 11 21 04:23:01.PST 2026     ddd MM dd HH:mm:ss.TZD YYYY; month as number or name; zone as above or American
//
// The calendar is the proleptic Gregorian one, with the years 0 to 9999 in UTC. A time that its zone carries beyond
// 9999 is the end of that year. Second 60 is read as 59.999, and 24:00:00 as the midnight that ends the day. The name
// of the weekday has to be one, but not the right one.
func Time(b []byte) (unixMillis int64, ok bool) {
	if unixMillis, ok = plainTime(b); ok {
		return unixMillis, true
	}
	return otherTime(b)
}

// otherTime reads the shapes that plainTime does not take.
func otherTime(b []byte) (unixMillis int64, ok bool) {
	if len(b) < len("1/1/2026") {
		return 0, false
	}
	switch {
	case !isDigit(b[0]):
		unixMillis, ok = weekdayTime(b)
	case len(b) >= len("2026-11-21") && b[4] == '-' && b[7] == '-':
		unixMillis, ok = extendedTime(b)
	case len(b) >= len("20261121T0423") && b[8] == 'T':
		unixMillis, ok = basicTime(b)
	default:
		unixMillis, ok = slashDate(b)
	}
	// A zone may carry the first and the last day over the edge. What comes after the end is in the future anyway.
	return min(unixMillis, maxUnixMillis), ok && unixMillis >= minUnixMillis
}

// LooksLikeTime reports whether Time reads b. The first bytes rule out most strings.
func LooksLikeTime(b []byte) bool {
	_, ok := Time(b)
	return ok
}

// AttributeTime is Time for the value of a custom attribute, where a year after 3000 does not count as a time and the
// string stays a string (reference.md 1.5).
func AttributeTime(b []byte) (unixMillis int64, ok bool) {
	unixMillis, ok = Time(b)
	return unixMillis, ok && unixMillis < afterYear3000
}

// Times reads times as Time does, and remembers the day of the last one: most times of a request are on one day, and
// the calendar is most of the cost of a time. The zero value is ready. It belongs to one goroutine.
type Times struct {
	head, tail uint64 // the day as it was written: the first eight bytes, and the eight up to the T; 0: none yet
	midnight   int64
}

// Time is the function Time.
func (t *Times) Time(b []byte) (unixMillis int64, ok bool) {
	if len(b) == shortZ || len(b) == longZ {
		if unixMillis, ok = t.sameDay(b); ok {
			return unixMillis, true
		}
		if unixMillis, ok = plainTime(b); ok {
			t.head, t.tail = dayWords(b)
			t.midnight = unixMillis - (unixMillis%dayMillis+dayMillis)%dayMillis
			return unixMillis, true
		}
	}
	return otherTime(b)
}

// AttributeTime is the function AttributeTime.
func (t *Times) AttributeTime(b []byte) (unixMillis int64, ok bool) {
	unixMillis, ok = t.Time(b)
	return unixMillis, ok && unixMillis < afterYear3000
}

// sameDay is plainTime for a time, in one of its two lengths, on the day of the last one.
func (t *Times) sameDay(b []byte) (unixMillis int64, ok bool) {
	if head, tail := dayWords(b); head != t.head || tail != t.tail || tail == 0 {
		return 0, false
	}
	clock := daytimePattern.of(b[11:19])
	hour, minute, second, millis := tens(clock, 0), tens(clock, 3), tens(clock, 6), 0
	if len(b) == longZ {
		rest := fractionPattern.of(b[16:])
		clock |= rest
		millis = tens(rest, 4)*10 + int(rest>>48&0xf)
	} else if b[19] != 'Z' {
		return 0, false
	}
	if clock&highBits != 0 || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	return t.midnight + int64(hour)*hourMillis + int64(minute)*minuteMillis + int64(second)*1000 + int64(millis), true
}

// dayWords returns the first eight bytes of YYYY-MM-DDT and the last eight, which together are all of them.
func dayWords(b []byte) (head, tail uint64) {
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[3:])
}

// DateOfBirth returns the date YYYY-MM-DD of anything that Time reads. It is the written date, not the date in UTC at
// that time: nobody's birthday depends on a zone. (For the rare form with a weekday it is the date in UTC.)
func DateOfBirth(b []byte) (date [10]byte, ok bool) {
	millis, ok := Time(b)
	if !ok {
		return date, false
	}
	switch {
	case b[4] == '-' && b[7] == '-':
		return [10]byte(b), true
	case len(b) > len("1/1/2026") && b[8] == 'T':
		return [10]byte{b[0], b[1], b[2], b[3], '-', b[4], b[5], '-', b[6], b[7]}, true
	}
	time.UnixMilli(millis).UTC().AppendFormat(date[:0], time.DateOnly)
	return date, true
}

const (
	minuteMillis = 60 * 1000
	hourMillis   = 60 * minuteMillis
	dayMillis    = 24 * hourMillis

	minUnixMillis = -719528 * dayMillis   // 0000-01-01T00:00:00Z
	maxUnixMillis = 2932897*dayMillis - 1 // 9999-12-31T23:59:59.999Z
	afterYear3000 = 376565 * dayMillis    // 3001-01-01T00:00:00Z
)

// The two lengths that plainTime takes.
const shortZ, longZ = len("2026-11-21T04:23:01Z"), len("2026-11-21T04:23:01.123Z")

// plainTime reads what most clients send, YYYY-MM-DDTHH:MM:SSZ with or without three digits of a fraction, eight bytes
// at a time. What it refuses, such as a leap second, may still be a time.
func plainTime(b []byte) (unixMillis int64, ok bool) {
	if len(b) != shortZ && len(b) != longZ {
		return 0, false
	}
	date, clock := datePattern.of(b[:8]), clockPattern.of(b[8:16])
	var rest uint64
	var second, millis int
	if len(b) == longZ {
		rest = fractionPattern.of(b[16:])
		second, millis = tens(rest, 1), tens(rest, 4)*10+int(rest>>48&0xf)
	} else {
		rest = secondsPattern.of(b[12:])
		second = tens(rest, 5)
	}
	year, month, day := tens(date, 0)*100+tens(date, 2), tens(date, 5), tens(clock, 0)
	hour, minute := tens(clock, 3), tens(clock, 6)
	if (date|clock|rest)&highBits != 0 || month < 1 || month > 12 || day < 1 ||
		day > daysIn(year, month) || hour > 23 || minute > 59 ||
		second > 59 {
		return 0, false
	}
	of := int64(hour)*hourMillis + int64(minute)*minuteMillis + int64(second)*1000 + int64(millis)
	return epochDay(year, month, day)*dayMillis + of, true
}

const highBits = 0x8080808080808080

// pattern is eight bytes in which 0 stands for any digit.
type pattern struct{ text, limit uint64 }

var (
	datePattern     = newPattern("0000-00-")
	clockPattern    = newPattern("00T00:00")
	secondsPattern  = newPattern("0:00:00Z")
	fractionPattern = newPattern(":00.000Z")
	daytimePattern  = newPattern("00:00:00")
)

// newPattern returns the pattern of text. Adding limit carries a forbidden difference into the highest bit of its byte:
// any difference at all, and at a digit one above 9.
func newPattern(text string) (p pattern) {
	for i := range len(text) {
		limit := uint64(0x7f)
		if text[i] == '0' {
			limit -= 9
		}
		p.text |= uint64(text[i]) << (8 * i)
		p.limit |= limit << (8 * i)
	}
	return p
}

// of returns the digits of b in the low halves of its bytes, the first one lowest. A byte of b that does not fit has
// its highest bit set.
func (p *pattern) of(b []byte) uint64 {
	v := binary.LittleEndian.Uint64(b) ^ p.text
	return v | (v&^highBits+p.limit)&highBits
}

// tens returns the number made of the two digits at i and i+1.
func tens(digits uint64, i int) int {
	return int(digits>>(8*i)&0xf)*10 + int(digits>>(8*i+8)&0xf)
}

// extendedTime reads YYYY-MM-DD and what may follow. The caller has seen ten bytes and both hyphens.
func extendedTime(b []byte) (int64, bool) {
	midnight, ok := date(year4(b), pair(b[5], b[6]), pair(b[8], b[9]))
	if !ok || len(b) == 10 {
		return midnight, ok
	}
	if c := b[10]; c != 'T' && c != ' ' && c != 't' {
		return 0, false
	}
	b = b[11:]
	if len(b) < len("04:23") || b[2] != ':' {
		return 0, false
	}
	hour, minute := pair(b[0], b[1]), pair(b[3], b[4])
	b = b[5:]
	if len(b) >= 3 && b[0] == ':' {
		return join(midnight, hour, minute, pair(b[1], b[2]), b[3:])
	}
	return joinMinute(midnight, hour, minute, b)
}

// basicTime reads YYYYMMDDTHHMM[SS] and what may follow. The caller has seen thirteen bytes and the T.
func basicTime(b []byte) (int64, bool) {
	midnight, ok := date(year4(b), pair(b[4], b[5]), pair(b[6], b[7]))
	if !ok {
		return 0, false
	}
	hour, minute := pair(b[9], b[10]), pair(b[11], b[12])
	b = b[13:]
	if len(b) >= 2 && isDigit(b[0]) {
		return join(midnight, hour, minute, pair(b[0], b[1]), b[2:])
	}
	return joinMinute(midnight, hour, minute, b)
}

// slashDate reads MM/dd/yyyy with one or two digits for month and day.
func slashDate(b []byte) (int64, bool) {
	month, b, ok := shortNumber(b)
	if !ok || len(b) == 0 || b[0] != '/' {
		return 0, false
	}
	day, b, ok := shortNumber(b[1:])
	if !ok || len(b) != len("/2026") || b[0] != '/' {
		return 0, false
	}
	return date(year4(b[1:]), month, day)
}

// weekdayTime reads ddd MM dd HH:mm:ss.TZD YYYY. The point before the zone may be a blank or missing, so that the
// forms of C and Java (Sat Nov 21 04:23:01 PST 2026) are read too.
func weekdayTime(b []byte) (int64, bool) {
	const shortest = "Sat 1 1 04:23:01 2026"
	if len(b) < len(shortest) || b[3] != ' ' || !isWeekday(b[:3]) || b[len(b)-5] != ' ' {
		return 0, false
	}
	year := year4(b[len(b)-4:])
	b = b[4 : len(b)-5]

	month, b, ok := monthToken(b)
	if !ok || len(b) == 0 || b[0] != ' ' {
		return 0, false
	}
	b = b[1:]
	if len(b) > 0 && b[0] == ' ' { // C pads the day
		b = b[1:]
	}
	day, b, ok := shortNumber(b)
	if !ok || len(b) < len(" 04:23:01") || b[0] != ' ' || b[3] != ':' || b[6] != ':' {
		return 0, false
	}
	midnight, ok := date(year, month, day)
	if !ok {
		return 0, false
	}
	hour, minute, second := pair(b[1], b[2]), pair(b[4], b[5]), pair(b[7], b[8])
	b = b[9:]
	if len(b) >= 2 && b[0] == '.' && !isDigit(b[1]) {
		b = b[1:]
	}
	name := b
	if len(name) > 0 && name[0] == ' ' {
		name = name[1:]
	}
	if hours, found := americanZone(name); found {
		local, ok := join(midnight, hour, minute, second, nil)
		return local - hours*hourMillis, ok
	}
	return join(midnight, hour, minute, second, b)
}

// join combines a day and a time of day with the fraction and the zone that are left in rest.
func join(midnight int64, hour, minute, second int, rest []byte) (int64, bool) {
	if hour > 24 || minute > 59 || second > 60 {
		return 0, false
	}
	millis, rest, ok := fraction(rest)
	if !ok || hour == 24 && minute+second+millis > 0 {
		return 0, false
	}
	offsetMinutes, ok := zone(rest)
	if second == 60 {
		second, millis = 59, 999
	}
	of := int64(hour)*hourMillis + int64(minute)*minuteMillis + int64(second)*1000 + int64(millis)
	return midnight + of - int64(offsetMinutes)*minuteMillis, ok
}

// joinMinute is join for a time of day without seconds. A fraction would be one of a minute, and is refused.
func joinMinute(midnight int64, hour, minute int, rest []byte) (int64, bool) {
	if len(rest) > 0 && (rest[0] == '.' || rest[0] == ',' || rest[0] == ':') {
		return 0, false
	}
	return join(midnight, hour, minute, 0, rest)
}

// fraction reads .d…, ,d… or :ddd at the start of b and returns what follows. Having nothing to read is fine.
func fraction(b []byte) (millis int, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '.' && b[0] != ',' && b[0] != ':' {
		return 0, b, true
	}
	i, unit := 1, 100
	for ; i < len(b) && isDigit(b[i]); i++ {
		millis += unit * int(b[i]-'0')
		unit /= 10
	}
	if i == 1 || b[0] == ':' && i != 4 {
		return 0, nil, false
	}
	return millis, b[i:], true
}

// zone reads all of b as a zone and returns its distance from UTC, positive to the east.
func zone(b []byte) (minutes int, ok bool) {
	if len(b) == 0 || len(b) == 1 && (b[0] == 'Z' || b[0] == 'z') {
		return 0, true
	}
	if b[0] == ' ' {
		b = b[1:]
	}
	switch string(b) {
	case "":
		return 0, false
	case "Z", "z", "UTC", "GMT", "+0000 UTC": // the last is how Go prints
		return 0, true
	}
	sign := 1
	switch b[0] {
	case '-':
		sign = -1
	case '+':
	default:
		return 0, false
	}
	b = b[1:]
	hour, minute := 0, 0
	switch {
	case len(b) == len("01"):
		hour = pair(b[0], b[1])
	case len(b) == len("0100"):
		if b[1] == ':' { // +1:00 is in the documentation of the public API
			hour, minute = pair('0', b[0]), pair(b[2], b[3])
		} else {
			hour, minute = pair(b[0], b[1]), pair(b[2], b[3])
		}
	case len(b) == len("01:00") && b[2] == ':':
		hour, minute = pair(b[0], b[1]), pair(b[3], b[4])
	default:
		return 0, false
	}
	return sign * (hour*60 + minute), hour <= 23 && minute <= 59
}

// americanZone knows the zone names of RFC 822 other than UT and GMT.
func americanZone(b []byte) (hours int64, found bool) {
	switch string(b) {
	case "EDT":
		return -4, true
	case "EST", "CDT":
		return -5, true
	case "CST", "MDT":
		return -6, true
	case "MST", "PDT":
		return -7, true
	case "PST":
		return -8, true
	}
	return 0, false
}

// notDigits is larger than every limit that results of pair are compared with.
const notDigits = 1 << 20

// pair returns the value of two digits, or notDigits.
func pair(tens, ones byte) int {
	t, o := tens-'0', ones-'0'
	if t > 9 || o > 9 {
		return notDigits
	}
	return int(t)*10 + int(o)
}

// year4 returns the value of the first four bytes of b, or something above 9999 when one is no digit.
func year4(b []byte) int {
	return pair(b[0], b[1])*100 + pair(b[2], b[3])
}

// shortNumber reads one or two digits at the start of b.
func shortNumber(b []byte) (value int, rest []byte, ok bool) {
	switch {
	case len(b) == 0 || !isDigit(b[0]):
		return 0, nil, false
	case len(b) == 1 || !isDigit(b[1]):
		return int(b[0] - '0'), b[1:], true
	}
	return pair(b[0], b[1]), b[2:], true
}

// monthToken reads the number or the English three-letter name of a month at the start of b.
func monthToken(b []byte) (month int, rest []byte, ok bool) {
	if len(b) < 3 || isDigit(b[0]) {
		return shortNumber(b)
	}
	i := index3(monthNames, b)
	return i + 1, b[3:], i >= 0
}

func isWeekday(b []byte) bool {
	return index3(weekdayNames, b) >= 0
}

const (
	monthNames   = "janfebmaraprmayjunjulaugsepoctnovdec"
	weekdayNames = "sunmontuewedthufrisat"
)

// index3 returns the index of the first three letters of b, in any case, in a list of three-letter names, or -1.
func index3(names string, b []byte) int {
	for i := 0; i < len(names); i += 3 {
		if names[i] == lower(b[0]) && names[i+1] == lower(b[1]) && names[i+2] == lower(b[2]) {
			return i / 3
		}
	}
	return -1
}

// date returns midnight UTC of a calendar day.
func date(year, month, day int) (unixMillis int64, ok bool) {
	if year > 9999 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, false
	}
	return epochDay(year, month, day) * dayMillis, true
}

func daysIn(year, month int) int {
	if month == 2 && year%4 == 0 && (year%100 != 0 || year%400 == 0) {
		return 29
	}
	return int("\x00\x1f\x1c\x1f\x1e\x1f\x1e\x1f\x1f\x1e\x1f\x1e\x1f"[month])
}

// epochDay counts the days since 1970-01-01. The year is taken to begin in March, which puts the leap day last, and
// the calendar repeats every 400 years of 146,097 days.
func epochDay(year, month, day int) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	year += 400 // keeps January and February of year 0 above zero
	yearDay := (153*(month-3)+2)/5 + day - 1
	return int64(365*year+year/4-year/100+year/400+yearDay) - 146097 - 719468
}
