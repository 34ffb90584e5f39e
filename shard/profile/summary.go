package profile

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// A summary is what follows the name in a field of tagEvent, tagProduct and tagApp:
//
//	count u48 | first i48 ms | last i48 ms | n u8 | n × u32 Unix seconds, ascending | unused room for more: zeros
//
// The u32s are recent occurrences without the newest, which is last. Times outside of 48 bits (year -2490 to 6429),
// counts beyond 2^48-1 and seconds outside of 32 bits are kept as the nearest ones that fit.
const (
	summaryFixed = 6 + 6 + 6 + 1
	recentSlack  = 8 // a field shrinks when it has room for more than twice what it needs, plus so many occurrences
	maxCount     = 1<<48 - 1
	maxMillis    = 1<<47 - 1
	minMillis    = -1 << 47
	namedMinimum = fieldHeader + 2 // smallest field with a name

	recentMax  = 50 // occurrences kept per event name and product (service.md 4.2)
	recentDays = 30 // days before the newest occurrence for which they are kept

	daySeconds = 24 * 60 * 60
)

// Summary is a custom event (service.md 4.2), a product or, with sessions for count, an app of a profile. First and
// Last are Unix ms.
type Summary struct {
	Count       uint64
	First, Last int64
	recent      []byte
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
	n := int(p[18])
	return Summary{get48(p), getMillis(p[6:]), getMillis(p[12:]), p[summaryFixed : summaryFixed+4*n : summaryFixed+4*n]}
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
		e.recent = e.recent[:0]
		for range min(int(times), recentMax) - 1 {
			e.recent = append(e.recent, seconds(millis))
		}
		size := 2 + len(name) + summaryFixed + 4*recentRoom(len(e.recent))
		b, p := e.resize(b, span{}, tag, size)
		binary.LittleEndian.PutUint16(b[p:], uint16(len(name)))
		copy(b[p+2:], name)
		putSummary(b[p+2+len(name):p+size], uint64(times), millis, millis, e.recent)
		return b, true
	}
	p := s.start + 2 + len(name)
	put48(b[p:], min(get48(b[p:])+uint64(times), maxCount))
	if millis < getMillis(b[p+6:]) {
		put48(b[p+6:], uint64(millis))
	}
	last := getMillis(b[p+12:])
	if millis >= last && times == 1 {
		return e.advance(b, s, p, tag, last, millis), false
	}
	e.recent = readRecent(e.recent[:0], b[p:s.end])
	if millis >= last {
		e.recent = append(e.recent, seconds(last))
		for range min(int(times), recentMax) - 1 {
			e.recent = append(e.recent, seconds(millis))
		}
		last = millis
		put48(b[p+12:], uint64(last))
	} else {
		at, _ := slices.BinarySearch(e.recent, seconds(millis))
		for range min(int(times), recentMax) {
			e.recent = slices.Insert(e.recent, at, seconds(millis))
		}
	}
	return e.putRecent(b, s, p, tag, trimRecent(e.recent, last)), false
}

// advance is the usual case of observe: one occurrence, not older than the last one, which becomes one of the recent
// ones.
func (e *Editor) advance(b []byte, s span, p int, tag byte, last, millis int64) []byte {
	put48(b[p+12:], uint64(millis))
	list, n := b[p+summaryFixed:s.end], int(b[p+18])
	oldest := cutoff(millis)
	drop := 0
	for drop < n && binary.LittleEndian.Uint32(list[4*drop:]) < oldest {
		drop++
	}
	joined := seconds(last)
	if joined < oldest { // ascending: when the last one is too old, all are
		return e.putRecent(b, s, p, tag, nil)
	}
	if drop = max(drop, n+1-(recentMax-1)); drop > 0 {
		copy(list, list[4*drop:4*n])
		clear(list[4*(n-drop) : 4*n])
		n -= drop
	}
	room := len(list) / 4
	if n+1 > room || isWide(room, n+1) {
		b, p = e.resizeSummary(b, s, p, tag, recentRoom(n+1))
		_, _, end := fieldAt(b, s.at)
		list = b[p+summaryFixed : end]
		clear(list[4*n:])
	}
	binary.LittleEndian.PutUint32(list[4*n:], joined)
	b[p+18] = byte(n + 1)
	return b
}

// resizeSummary gives the summary at p in the field at s room for so many occurrences. New room is not cleared.
func (e *Editor) resizeSummary(b []byte, s span, p int, tag byte, room int) (out []byte, at int) {
	out, start := e.resize(b, s, tag, p-s.start+summaryFixed+4*room)
	return out, start + p - s.start
}

// putRecent writes list into the summary at p.
func (e *Editor) putRecent(b []byte, s span, p int, tag byte, list []uint32) []byte {
	room := (s.end - p - summaryFixed) / 4
	if len(list) > room || isWide(room, len(list)) {
		b, p = e.resizeSummary(b, s, p, tag, recentRoom(len(list)))
	}
	b[p+18] = byte(len(list))
	_, _, end := fieldAt(b, s.at)
	putSeconds(b[p+summaryFixed:end], list)
	return b
}

// putSeconds fills room with list and then zeros: the old content may be anything.
func putSeconds(room []byte, list []uint32) {
	for i, v := range list {
		binary.LittleEndian.PutUint32(room[4*i:], v)
	}
	clear(room[4*len(list):])
}

// trimRecent drops occurrences that are older than the window before last, or too many. list lacks the newest
// occurrence.
func trimRecent(list []uint32, last int64) []uint32 {
	if extra := len(list) - (recentMax - 1); extra > 0 {
		list = list[extra:]
	}
	oldest := cutoff(last)
	for len(list) > 0 && list[0] < oldest {
		list = list[1:]
	}
	return list
}

func readRecent(dst []uint32, summary []byte) []uint32 {
	for i := range int(summary[18]) {
		dst = append(dst, binary.LittleEndian.Uint32(summary[summaryFixed+4*i:]))
	}
	return dst
}

// putSummary fills the summary p, which has been given its room.
func putSummary(p []byte, count uint64, first, last int64, recent []uint32) {
	put48(p, min(count, maxCount))
	put48(p[6:], uint64(first))
	put48(p[12:], uint64(last))
	p[18] = byte(len(recent))
	putSeconds(p[summaryFixed:], recent)
}

// recentRoom is the room that a summary gets for n occurrences: 2, 4, 8, 16, …, until there is room for all that are
// kept. So a growing summary moves what is behind it less and less often. The room depends on n alone, since profiles
// must be the same on all nodes.
func recentRoom(n int) int {
	if n == 0 {
		return 0
	}
	return max(n, min(max(2, 1<<bits.Len(uint(n-1))), recentMax-1))
}

// isWide says whether room for so many occurrences is reduced when n are left.
func isWide(room, n int) bool { return room > 2*n+recentSlack }

// cutoff is the earliest second of the window that ends with the newest occurrence.
func cutoff(lastMillis int64) uint32 {
	return clampSeconds(floorDiv(lastMillis, 1000) - recentDays*daySeconds)
}

func seconds(millis int64) uint32 { return clampSeconds(floorDiv(millis, 1000)) }

func clampSeconds(s int64) uint32 { return uint32(min(max(s, 0), 1<<32-1)) }

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
