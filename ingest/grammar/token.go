package grammar

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const blanks uint64 = 1<<' ' | 1<<'\t' | 1<<'\n' | 1<<'\r'

// Blanks skips the white space at i, if there is any.
func Blanks(text []byte, i int) int {
	for i < len(text) && text[i] <= ' ' && 1<<text[i]&blanks != 0 {
		i++
	}
	return i
}

// stringAt checks the string at i. If it is none, the result is the complement of where that shows.
func stringAt(text []byte, i int) int {
	if i == len(text) || text[i] != '"' {
		return ^i
	}
	for i++; ; {
		for i+8 <= len(text) {
			if ends := specials(binary.LittleEndian.Uint64(text[i:])); ends != 0 {
				i += bits.TrailingZeros64(ends) / 8
				break
			}
			i += 8
		}
		switch {
		case i == len(text) || text[i] < ' ':
			return ^i
		case text[i] == '"':
			return i + 1
		case text[i] != '\\':
			i++
		default:
			next := escape(text, i+1)
			if next < 0 {
				return ^i
			}
			i = next
		}
	}
}

// specials returns a word with a bit set in the first of eight bytes that is a quote, a backslash or a control
// character, or no bit when there is none. With one bit inverted, the quote comes right after the control characters.
func specials(v uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	return (((v ^ ones*2) - ones*('"'^2+1)) | ((v ^ ones*'\\') - ones)) &^ v & high
}

// escape checks what follows a backslash.
func escape(text []byte, i int) int {
	if i == len(text) {
		return -1
	}
	switch text[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if i+5 > len(text) {
			return -1
		}
		for _, c := range text[i+1 : i+5] {
			if c-'0' > 9 && c|0x20-'a' > 5 {
				return -1
			}
		}
		return i + 5
	}
	return -1
}

// Number checks the number at i. If it is none, the result is the complement of where that shows.
func Number(text []byte, i int) int {
	if i < len(text) && text[i] == '-' {
		i++
	}
	whole := i
	if i = digits(text, i); i == whole || text[whole] == '0' && i > whole+1 {
		return ^whole
	}
	if i < len(text) && text[i] == '.' {
		from := i + 1
		if i = digits(text, from); i == from {
			return ^i
		}
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		if i++; i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		from := i
		if i = digits(text, from); i == from {
			return ^i
		}
	}
	return i
}

func digits(text []byte, i int) int {
	for i < len(text) && text[i]-'0' <= 9 {
		i++
	}
	return i
}

// InvalidUTF8 returns the index of the first byte that is not UTF-8, -1 when there is none.
func InvalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; ; {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
}
