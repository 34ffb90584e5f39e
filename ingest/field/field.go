// Package field holds the value rules of single fields: what counts as a time, an email address, a phone number, a
// country, an amount of money. It knows neither HTTP nor JSON nor profiles: the bytes that it gets are those of one
// decoded JSON string (or, for MinorUnits, of one JSON number), and it says whether they are valid and what they mean.
// It also says how much of a value a message shows.
//
// Invariants
//   - Functions are pure: the answer depends on the argument and on compiled-in tables. They use no clock, no network
//     and no file, so that every node of a cluster judges alike.
//   - Arguments are only read and never kept. Strings that are returned belong to the package and live forever.
//   - No bytes make a function panic, invalid UTF-8 included (it is refused wherever a rule looks at characters).
//   - An ordinary value allocates nothing; a rare one (a country by its name, a number seen for the first time) may.
//   - All functions may be called from any number of goroutines. Phones is the only value with state, a bounded memory
//     of earlier answers that never changes an answer.
//
// Which name has which rule is not decided here but in the track decoder.
package field

import (
	"unicode"
	"unicode/utf8"
)

// Sizes in the contract. Characters are code points; ids are limited in bytes.
const (
	MaxStringChars     = 255 // strings, event, product, attribute and property names (service.md 2.7)
	MaxExternalIDBytes = 987 // reference.md 1.4
	MaxAliasBytes      = 236 // alias_name and alias_label, each (reference.md 1.4)
	minDeviceIDBytes   = 8   // reference.md 1.3, BAD_DEVICE_ID
	maxDeviceIDBytes   = 255
)

// Runes255 reports whether b has at most 255 characters.
func Runes255(b []byte) bool {
	if len(b) <= MaxStringChars { // no string has more characters than bytes
		return true
	}
	return len(b) <= MaxStringChars*utf8.UTFMax && utf8.RuneCount(b) <= MaxStringChars
}

// Name reports whether b is a valid name of an event or id of a product: 1 to 255 characters (reference.md 1.6, 1.7).
func Name(b []byte) bool {
	return len(b) > 0 && Runes255(b)
}

// AttributeName returns the name of a custom attribute as it is stored, without leading and trailing blanks, and
// whether 1 to 255 characters are left of it (reference.md 3). The result is a part of b.
func AttributeName(b []byte) (trimmed []byte, ok bool) {
	trimmed = trim(b)
	return trimmed, Name(trimmed)
}

// NestedKey reports whether b may be a key inside an object-valued custom attribute: 1 to 255 characters, no blank,
// full stop or dollar sign (reference.md 3).
func NestedKey(b []byte) bool {
	for _, c := range b {
		if isBlank(c) || c == '.' || c == '$' {
			return false
		}
	}
	return Name(b)
}

// ExternalID reports whether b has the length of an external_id: 1 to 987 bytes. Every byte counts, blanks too.
func ExternalID(b []byte) bool {
	return len(b) >= 1 && len(b) <= MaxExternalIDBytes
}

// Alias reports whether b has the length of an alias_name or an alias_label: 1 to 236 bytes.
func Alias(b []byte) bool {
	return len(b) >= 1 && len(b) <= MaxAliasBytes
}

// DeviceID reports whether b has the length of a device_id: 8 to 255 bytes.
func DeviceID(b []byte) bool {
	return len(b) >= minDeviceIDBytes && len(b) <= maxDeviceIDBytes
}

// Gender returns the letter of a gender, which is sent as M, F, O, N or P or as the words for these (decisions.md D9),
// in any case.
func Gender(b []byte) (letter byte, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	letter = upper(b[0])
	words, ok := genders[letter]
	return letter, ok && (len(b) == 1 || equalWords(b, words))
}

var genders = map[byte]string{'M': "male", 'F': "female", 'O': "other", 'N': "not applicable", 'P': "prefer not to say"}

// equalWords reports whether b is the words, in any case; an underscore or a hyphen may also separate two words.
func equalWords(b []byte, words string) bool {
	if len(b) != len(words) {
		return false
	}
	for i, c := range b {
		if c == '_' || c == '-' {
			c = ' '
		}
		if lower(c) != words[i] {
			return false
		}
	}
	return true
}

// UUID decodes the canonical form of a UUID, 8-4-4-4-12 hexadecimal digits of any case. It does not check version and
// variant.
func UUID(b []byte) (id [16]byte, ok bool) {
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return id, false
	}
	at := 0
	for i := range id {
		if at == 8 || at == 13 || at == 18 || at == 23 {
			at++
		}
		high, low := unhex[b[at]], unhex[b[at+1]]
		if high|low > 0xf {
			return [16]byte{}, false
		}
		id[i] = high<<4 | low
		at += 2
	}
	return id, true
}

// unhex holds the value of each hexadecimal digit and 0xff for every other byte.
var unhex = func() (table [256]byte) {
	for i := range table {
		table[i] = 0xff
	}
	for i := byte(0); i < 10; i++ {
		table['0'+i] = i
	}
	for i := byte(0); i < 6; i++ {
		table['a'+i], table['A'+i] = 10+i, 10+i
	}
	return table
}()

func trim(b []byte) []byte {
	for len(b) > 0 && isBlank(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isBlank(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isBlank(c byte) bool {
	return c == ' ' || c >= '\t' && c <= '\r'
}

func isDigit(c byte) bool {
	return c-'0' <= 9
}

// lower and upper change only ASCII letters.
func lower(c byte) byte {
	if c-'A' < 26 {
		return c + ('a' - 'A')
	}
	return c
}

func upper(c byte) byte {
	if c-'a' < 26 {
		return c - ('a' - 'A')
	}
	return c
}

// appendLower appends b with every letter in its simple lower case. Bytes that aren't valid UTF-8 stay as they are.
func appendLower(dst, b []byte) []byte {
	for i := 0; i < len(b); {
		if b[i] < utf8.RuneSelf {
			dst = append(dst, lower(b[i]))
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, b[i])
		} else {
			dst = utf8.AppendRune(dst, unicode.ToLower(r))
		}
		i += size
	}
	return dst
}
