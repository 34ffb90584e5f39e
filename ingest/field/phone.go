package field

import (
	"strconv"
	"sync/atomic"
	"unicode/utf8"

	"github.com/nyaruka/phonenumbers/v2"
)

// Phones reads phone numbers. The numbering plan of the country says whether a number exists (plan.go), except for a
// number with a national prefix: that takes a call of the library of dozens of microseconds, so its answers are cached,
// for valid and invalid numbers alike.
//
// The cache is a table of a fixed size with one cache line per hash: a new number takes one of its four places. So its
// size is exact, it needs neither a lock nor eviction, and a number that has lost its place is only looked up again.
type Phones struct {
	lines []phoneLine // as many as a power of two
	shift uint        // leaves as many bits of a hash as lines has
}

type phoneLine [4]phoneAnswer

// phoneAnswer is what a number comes to: dialed are its digits with the country code, e164 those of the valid number, 0
// when there is none. Its halves are read and written one after the other: seal has both in it, so that halves of two
// numbers are neither's.
type phoneAnswer struct {
	e164 atomic.Uint64
	seal atomic.Uint64 // 0: free
}

func phoneSeal(dialed, e164 uint64) uint64 { return dialed ^ e164*phoneMix }

const phoneMix = 0x9e3779b97f4a7c15

// find finds the answer for a number.
func (l *phoneLine) find(dialed uint64) (e164 uint64, ok bool) {
	for i := range l {
		e164 = l[i].e164.Load()
		if l[i].seal.Load() == phoneSeal(dialed, e164) {
			return e164, true
		}
	}
	return 0, false
}

// put puts an answer into a free place, or into that of another one.
func (l *phoneLine) put(dialed, e164 uint64) {
	place := &l[dialed%uint64(len(l))]
	for i := range l {
		if l[i].seal.Load() == 0 {
			place = &l[i]
			break
		}
	}
	place.e164.Store(e164)
	place.seal.Store(phoneSeal(dialed, e164))
}

const (
	defaultPhoneCache = 1 << 16
	maxPhoneCache     = 1 << 26
	maxPhoneBytes     = 255
	maxDialedDigits   = 18 // E.164 has 15; national prefixes such as +44 (0)20 come on top; fits into 64 bits
)

// NewPhones returns a reader that remembers about cacheSize answers of the library, 16 bytes each. Zero or less means
// 65,536; the size is rounded up to a power of two and ends at 2^26.
func NewPhones(cacheSize int) *Phones {
	if cacheSize <= 0 {
		cacheSize = defaultPhoneCache
	}
	per := len(phoneLine{})
	bits := uint(0)
	for per<<bits < min(cacheSize, maxPhoneCache) {
		bits++
	}
	return &Phones{lines: make([]phoneLine, 1<<bits), shift: 64 - bits}
}

// Parse appends the E.164 form of a phone number (+ and digits) to dst, by the rules of reference.md 2: what is no
// digit falls away, except a + before the first digit; ten digits without + are taken for a number of the USA; anything
// else needs the +. The number has to be valid in its country. When it isn't, dst comes back as it was.
func (p *Phones) Parse(dst []byte, b []byte) (e164 []byte, ok bool) {
	if len(b) > maxPhoneBytes {
		return dst, false
	}
	dialed, ok := dialedDigits(b)
	if !ok {
		return dst, false
	}
	e164 = strconv.AppendUint(append(dst, '+'), dialed, 10)
	switch judgePhone(e164[len(dst)+1:]) {
	case isNumber:
		return e164, true
	case noNumber:
		return dst, false
	}
	number := p.ask(dialed)
	if number == 0 {
		return dst, false
	}
	return strconv.AppendUint(append(dst, '+'), number, 10), true
}

// AppendPossiblePhone appends a phone number in E.164 that has as many digits as numbers of its country have, in use or
// not. When there can be no such number, or its E.164 form is another one, dst comes back as it was: a number without
// its prefixes of dialing might still have some, and so have a third form.
func AppendPossiblePhone(dst, phone []byte) (e164 []byte, ok bool) {
	number, err := phonenumbers.Parse(string(phone), "ZZ")
	if err != nil || phonenumbers.IsPossibleNumberWithReason(number) != phonenumbers.IS_POSSIBLE {
		return dst, false
	}
	if phonenumbers.Format(number, phonenumbers.E164) != string(phone) {
		return dst, false
	}
	return append(dst, phone...), true
}

// ask returns what validNumber returns, from the cache when it can.
func (p *Phones) ask(dialed uint64) (e164 uint64) {
	line := &p.lines[dialed*phoneMix>>p.shift]
	e164, known := line.find(dialed)
	if !known {
		e164 = validNumber(dialed)
		line.put(dialed, e164)
	}
	return e164
}

// dialedDigits returns the digits of b with the country code in front. No country code begins with 0, so that the
// number says it all.
func dialedDigits(b []byte) (dialed uint64, ok bool) {
	international, digits := false, 0
	for i, c := range b {
		switch {
		case isDigit(c):
			if digits == maxDialedDigits {
				return 0, false
			}
			dialed = dialed*10 + uint64(c-'0')
			digits++
			if international && dialed == 0 {
				return 0, false
			}
		case c == '+' && digits == 0:
			international = true
		case c >= utf8.RuneSelf:
			// Digits of other scripts, and the plus sign of full width: rare enough to be written anew.
			return dialedDigits(asciiDigits(b[i:], b[:i]))
		}
	}
	switch {
	case international:
		return dialed, digits > 0
	case digits == 10:
		return 1_0000000000 + dialed, true
	}
	return 0, false
}

// asciiDigits returns done, and the digits and plus signs of rest, in nothing but ASCII.
func asciiDigits(rest, done []byte) []byte {
	ascii := append([]byte(nil), done...)
	for _, r := range string(rest) {
		if r == '+' || r == '\uff0b' {
			ascii = append(ascii, '+')
			continue
		}
		for _, digit := range phonenumbers.NormalizeDigitsOnly(string(r)) {
			if digit < utf8.RuneSelf {
				ascii = append(ascii, byte(digit))
			}
		}
	}
	return ascii
}

// validNumber returns the digits of the E.164 form, or 0 when no such number is in use anywhere.
func validNumber(dialed uint64) (e164 uint64) {
	number, err := phonenumbers.Parse("+"+strconv.FormatUint(dialed, 10), "ZZ")
	if err != nil || !phonenumbers.IsValidNumber(number) {
		return 0
	}
	text := phonenumbers.Format(number, phonenumbers.E164)
	if len(text) < 2 || text[0] != '+' {
		return 0
	}
	e164, err = strconv.ParseUint(text[1:], 10, 64)
	if err != nil {
		return 0
	}
	return e164
}
