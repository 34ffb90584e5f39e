package profile

import "encoding/binary"

// A summary is what follows the name in a field of tagEvent, tagProduct and tagApp:
//
//	count u48 | first i48 ms | last i48 ms | hours of recent occurrences, none for an app
//
// Times outside of 48 bits (year -2490 to 6429) and counts beyond 2^48-1 are kept as the nearest ones that fit.
const (
	summaryFixed = 6 + 6 + 6
	leastSummary = summaryFixed + 1 + 2 // of an event or product
	maxCount     = 1<<48 - 1
	maxMillis    = 1<<47 - 1
	minMillis    = -1 << 47
	namedMinimum = fieldHeader + 2 // smallest field with a name
)

// Summary is a custom event (service.md 4.2), a product or, with sessions for count, an app of a profile. First and
// Last are Unix ms.
type Summary struct {
	Count       uint64
	First, Last int64
	recent      hours
}

// Event and Product are the summaries of a custom event and of a product.
func Event(blob, name []byte) (Summary, bool)   { return summaryOf(blob, tagEvent, name) }
func Product(blob, name []byte) (Summary, bool) { return summaryOf(blob, tagProduct, name) }

// Events, Products and Apps call f for each summary.
func Events(blob []byte, f func(name []byte, s Summary))   { eachSummary(blob, tagEvent, f) }
func Products(blob []byte, f func(name []byte, s Summary)) { eachSummary(blob, tagProduct, f) }
func Apps(blob []byte, f func(id []byte, s Summary))       { eachSummary(blob, tagApp, f) }

func summaryOf(b []byte, tag byte, name []byte) (Summary, bool) {
	s := findNamed(b, tag, name)
	if s.none() {
		return Summary{}, false
	}
	return readSummary(b[s.start+2+len(name) : s.end]), true
}

func eachSummary(b []byte, tag byte, f func([]byte, Summary)) {
	each(b, tag, func(p []byte) {
		name, rest := splitName(p)
		f(name, readSummary(rest))
	})
}

func readSummary(p []byte) Summary {
	return Summary{get48(p), getMillis(p[6:]), getMillis(p[12:]), hours(p[summaryFixed:len(p):len(p)])}
}

// Revenue calls f for each currency with the sum of all purchases in minor units.
func Revenue(blob []byte, f func(currency [3]byte, minor int64)) {
	each(blob, tagRevenue, func(p []byte) { f([3]byte(p), int64(binary.LittleEndian.Uint64(p[3:]))) })
}

// Sessions is the number of sessions over all apps. It is kept separately: a merge adds both profiles' numbers
// (decisions.md D4), although it merges the data of an app only when both profiles have it (service.md 4.2).
func Sessions(blob []byte) uint64 {
	s := find(blob, tagSessions)
	if s.none() {
		return 0
	}
	return binary.LittleEndian.Uint64(blob[s.start:])
}

func (e *Editor) setSessions(b []byte, n uint64) []byte {
	b, p := e.resize(b, find(b, tagSessions), tagSessions, 8)
	binary.LittleEndian.PutUint64(b[p:], n)
	return b
}

func (e *Editor) addRevenue(b []byte, currency [3]byte, minor int64) []byte {
	s := e.findPrefix(b, tagRevenue, currency[:])
	var sum int64
	if !s.none() {
		sum = int64(binary.LittleEndian.Uint64(b[s.start+3:]))
	}
	b, p := e.resize(b, s, tagRevenue, revenueBytes)
	copy(b[p:], currency[:])
	binary.LittleEndian.PutUint64(b[p+3:], uint64(saturatingAdd(sum, minor)))
	return b
}

// observe counts so many occurrences at millis. fresh: the name is new.
func (e *Editor) observe(b []byte, tag byte, name []byte, millis int64, times uint32) (out []byte, fresh bool) {
	millis = clampMillis(millis)
	s := e.findNamed(b, tag, name)
	if s.none() {
		b, p := e.resize(b, span{}, tag, 2+len(name)+leastSummary)
		binary.LittleEndian.PutUint16(b[p:], uint16(len(name)))
		p += 2 + copy(b[p+2:], name)
		putSummary(b[p:], uint64(times), millis, millis)
		h := hours(b[p+summaryFixed : p+leastSummary])
		clear(h)
		h.add(hourOf(millis), hourOf(millis), times)
		return b, true
	}
	p := s.start + 2 + len(name)
	first, last := getMillis(b[p+6:]), getMillis(b[p+12:])
	putSummary(b[p:], get48(b[p:])+uint64(times), min(first, millis), max(last, millis))
	newest, hour := hourOf(last), hourOf(millis)
	if hour < newest-recentHours {
		return b, false
	}
	return e.countHour(b, s, p+summaryFixed, newest, hour, times), false
}

// countHour counts so many occurrences in an hour; newest was the newest one before. The list is at p, at the end of
// the field at s.
func (e *Editor) countHour(b []byte, s span, p int, newest, hour int64, times uint32) []byte {
	h := hours(b[p:s.end])
	if hour > newest {
		h.expire(newest, hour)
	}
	i, ok := h.find(newest, hour)
	if !ok {
		n := h.len()
		if room := hoursRoom(h.room(), n+1); room != h.room() {
			size := p - s.start + 1 + 2*room
			b, s.start = e.resize(b, s, b[s.at]&^wide, size)
			h = hours(b[s.start+size-1-2*room : s.start+size])
			clear(h[1+2*n:])
		}
		h.insert(i, hour)
	}
	h.count(i, times)
	return b
}

// putSummary fills the fixed part of a summary.
func putSummary(p []byte, count uint64, first, last int64) {
	put48(p, min(count, maxCount))
	put48(p[6:], uint64(first))
	put48(p[12:], uint64(last))
}

// hourOf is the hour of a time.
func hourOf(millis int64) int64 { return floorDiv(millis, 60*60*1000) }

func clampMillis(ms int64) int64 { return min(max(ms, minMillis), maxMillis) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func get48(p []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(p)) | uint64(binary.LittleEndian.Uint16(p[4:]))<<32
}

func getMillis(p []byte) int64 { return int64(get48(p)<<16) >> 16 }

func put48(p []byte, v uint64) {
	binary.LittleEndian.PutUint32(p, uint32(v))
	binary.LittleEndian.PutUint16(p[4:], uint16(v>>32))
}

func saturatingAdd(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return 1<<63 - 1
	case a < 0 && b < 0 && sum >= 0:
		return -1 << 63
	}
	return sum
}
