package jsonvalue

import (
	"encoding/binary"
	"math"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// AppendFloat appends a double as JSON that is read as a double again: with a fraction or an exponent.
func AppendFloat(dst []byte, f float64) []byte {
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

// TimeLayout is the form of times, as in package time.
const TimeLayout = "2006-01-02T15:04:05.000Z"

// AppendTime appends Unix ms as ISO 8601 in UTC with milliseconds.
func AppendTime(dst []byte, millis int64) []byte { return AppendInstant(dst, time.UnixMilli(millis)) }

// AppendInstant is AppendTime of a time. Times are a good part of the cost of an event in a stream, so it does without
// the layouts of package time, and takes dates that were asked for before from a memo.
func AppendInstant(dst []byte, t time.Time) []byte {
	seconds := t.Unix()
	day := seconds / secondsOfDay
	if seconds -= day * secondsOfDay; seconds < 0 {
		day, seconds = day-1, seconds+secondsOfDay
	}
	year, month, date, ok := dateOf(day)
	if !ok {
		return t.UTC().AppendFormat(dst, TimeLayout)
	}
	start := len(dst)
	dst = append(dst, TimeLayout...)
	b := dst[start:]
	pair := func(at, n int) { copy(b[at:at+2], digitPairs[2*n:2*n+2]) }
	pair(0, year/100)
	pair(2, year%100)
	pair(5, month)
	pair(8, date)
	ofDay := int(seconds)
	pair(11, ofDay/3600)
	pair(14, ofDay/60%60)
	pair(17, ofDay%60)
	millis := t.Nanosecond() / 1e6
	b[20] = byte('0' + millis/100)
	pair(21, millis%100)
	return dst
}

const secondsOfDay = 24 * 60 * 60

// dates is a memo of dates, by the day's number: that number, from another beginning, in the upper half, then year,
// month and day. Each is read and written as a whole, so goroutines need no lock.
var dates [64]atomic.Uint64

// dateOf returns the date of a day since 1970; ok is false unless its year has four digits.
func dateOf(day int64) (year, month, date int, ok bool) {
	key := uint64(day + 1<<24) // which of years with four digits is positive, and fits in half a word
	memo := &dates[key%uint64(len(dates))]
	packed := memo.Load()
	if packed == 0 || packed>>32 != key {
		y, m, d := time.Unix(day*secondsOfDay, 0).UTC().Date()
		if y < 0 || y > 9999 {
			return 0, 0, 0, false
		}
		packed = key<<32 | uint64(y)<<16 | uint64(m)<<8 | uint64(d)
		memo.Store(packed)
	}
	return int(packed >> 16 & 0xffff), int(packed >> 8 & 0xff), int(packed & 0xff), true
}

// digitPairs are the numbers from 00 to 99.
const digitPairs = "00010203040506070809" + "10111213141516171819" + "20212223242526272829" + "30313233343536373839" +
	"40414243444546474849" + "50515253545556575859" + "60616263646566676869" + "70717273747576777879" +
	"80818283848586878889" + "90919293949596979899"

// AppendTimeString is AppendTime as a JSON string.
func AppendTimeString(dst []byte, millis int64) []byte {
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

// AppendHex appends a number as eight hexadecimal digits.
func AppendHex(dst []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint64(dst, hexDigits(v))
}

// hexDigits are the eight hexadecimal digits of a number as characters, the first one in the highest byte.
func hexDigits(v uint32) uint64 {
	const ones = 0x0101010101010101
	x := uint64(v)
	x = (x | x<<16) & 0x0000FFFF0000FFFF
	x = (x | x<<8) & 0x00FF00FF00FF00FF
	x = (x | x<<4) & 0x0F0F0F0F0F0F0F0F
	letters := (x + 6*ones) >> 4 & ones // 1 for each digit of 10 or more
	return x + '0'*ones + letters*('a'-'0'-10)
}

// AppendString appends a JSON string. Bytes that are no UTF-8 become U+FFFD.
func AppendString[T []byte | string](dst []byte, s T) []byte {
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
		// A byte's high bit says that the byte isn't ASCII, is less than a space, or is a quote or a backslash.
		if (x|(x-' '*ones)|(quote-ones)|(backslash-ones))&highs != 0 {
			return n
		}
	}
	return n
}
