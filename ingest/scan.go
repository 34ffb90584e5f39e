package ingest

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

// The lexical layer: RFC 8259, strict, eight bytes at a time.
//
// Every function takes the index where its token begins and returns the index behind it, or -1 when the JSON is bad;
// d.badAt is then where. The text ends with padding bytes of zero. Zero is no part of any token, so that a scan ends
// there by itself and loads of 8 bytes at an index up to the end stay inside the slice. Nothing is read twice: a string
// with escapes is decoded in its place.

// padding is how many zero bytes follow the text; as many as the widest load at the last index needs.
const padding = 64

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// span returns the index of the first byte from i on that is a quote, a backslash, a control character or not ASCII.
func span(b []byte, i int) int {
	for {
		// Two words a turn, and no choice between them: most strings end in the first turn, and what can't be predicted
		// costs more than the second word.
		first, second := stops(word(b, i)), stops(word(b, i+8))
		if first|second != 0 {
			n, more := bits.TrailingZeros64(first)>>3, bits.TrailingZeros64(second)>>3 // 8 for zero
			return i + n + more&-(n>>3)
		}
		i += 16
	}
}

// stops has the highest bit of the first byte of v that is a quote, a backslash, a control character or not ASCII; bits
// above mean nothing.
func stops(v uint64) uint64 {
	quote, slash := v^lowBits*'"', v^lowBits*'\\'
	return ((quote - lowBits) | (slash - lowBits) | (v - lowBits*0x20) | v) & highBits
}

// word is the eight bytes at b[i], the first one lowest, without a check: i is an index of the text, or up to padding-8
// behind its end.
func word(b []byte, i int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i))[:])
}

// spanWide is span over text in any script: it goes on behind what is not ASCII.
func spanWide(b []byte, i int) int {
	for {
		i = span(b, i)
		if b[i] < utf8.RuneSelf {
			return i
		}
		for b[i] >= utf8.RuneSelf {
			i++
		}
	}
}

// at is b[i] without a check, for the same i as word.
func at(b []byte, i int) byte { return *(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i)) }

// fail notes where the JSON is bad.
func (d *Decoder) fail(i int) int {
	d.badAt = min(i, d.size)
	return -1
}

// space skips white space.
func (d *Decoder) space(i int) int {
	if d.in[i] > ' ' {
		return i
	}
	return d.spaces(i)
}

func (d *Decoder) spaces(i int) int {
	for {
		switch d.in[i] {
		case ' ', '\n', '\t', '\r':
			i++
		default:
			return i
		}
	}
}

// text reads a string; i is behind its opening quote. Its content is d.in[i:end], next is behind the closing quote.
func (d *Decoder) text(i int) (end, next int) {
	in := d.in
	end = i
	for {
		first, second := stops(word(in, end)), stops(word(in, end+8)) // as in span, which is too long to be inlined
		if first|second != 0 {
			n, more := bits.TrailingZeros64(first)>>3, bits.TrailingZeros64(second)>>3
			end += n + more&-(n>>3)
			break
		}
		end += 16
	}
	if at(in, end) == '"' {
		return end, end + 1
	}
	return d.textSlow(i, end)
}

// textSlow goes on at i, a byte that span does not know, in the string that began at start.
func (d *Decoder) textSlow(start, i int) (end, next int) {
	in := d.in
	i = spanWide(in, i)
	if in[i] == '\\' {
		return d.textEscaped(start, i)
	}
	if in[i] != '"' {
		return 0, d.fail(i)
	}
	if at := invalidUTF8(in[start:i]); at >= 0 {
		return 0, d.fail(start + at)
	}
	return i, i + 1
}

// textEscaped decodes the rest of a string in place: a decoded string is never longer than its escapes. i is the first
// backslash.
func (d *Decoder) textEscaped(start, i int) (end, next int) {
	in := d.in
	if at := invalidUTF8(in[start:i]); at >= 0 {
		return 0, d.fail(start + at)
	}
	out := i
	for in[i] != '"' {
		if in[i] != '\\' {
			j := spanWide(in, i)
			if at := invalidUTF8(in[i:j]); at >= 0 {
				return 0, d.fail(i + at)
			}
			if j == i { // a control character, the end of the text
				return 0, d.fail(i)
			}
			out += copy(in[out:], in[i:j])
			i = j
			continue
		}
		if c := unescaped[in[i+1]]; c != 0 {
			in[out] = c
			out, i = out+1, i+2
			continue
		}
		if in[i+1] != 'u' {
			return 0, d.fail(i + 1)
		}
		r := hex4(in[i+2 : i+6])
		if r < 0 {
			return 0, d.fail(i)
		}
		at := i
		i += 6
		if r >= 0xd800 && r < 0xe000 {
			low := rune(-1)
			if r < 0xdc00 && in[i] == '\\' && in[i+1] == 'u' {
				low = hex4(in[i+2 : i+6])
			}
			if low >= 0xdc00 && low < 0xe000 {
				r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
				i += 6
			} else {
				if d.unsound(at, reasonSurrogate) < 0 {
					return 0, -1
				}
				r = utf8.RuneError
			}
		}
		out += utf8.EncodeRune(in[out:out+4], r)
	}
	return out, i + 1
}

// unescaped has what stands behind a backslash, apart from u.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func hex4(b []byte) (r rune) {
	for _, c := range b {
		switch {
		case c-'0' < 10:
			c -= '0'
		case c|0x20-'a' < 6:
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// invalidUTF8 is the index of the first byte that is not UTF-8, -1 when there is none.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// numberKind says what a number's bits are.
type numberKind uint8

const (
	numberInt     numberKind = iota // an int64
	numberFloat                     // a float64
	numberOutside                   // neither an int64 nor a finite float64 (decisions.md D9)
	numberLong                      // more than maxNumberBytes long, and no integer
)

// maxNumberBytes bounds what strconv is asked to read: 4 MB of digits would cost it 26 ms. No int64 has more than
// maxIntBytes.
const (
	maxNumberBytes = 1024
	maxIntBytes    = 20
)

var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
	1e19, 1e20, 1e21, 1e22}

var tens = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// eightDigits is the number of the digits that v begins with, and how many there are.
func eightDigits(v uint64) (number uint64, n int) {
	v ^= lowBits * '0'
	other := (v + lowBits*0x76 | v) & highBits // right up to the lowest
	n = bits.TrailingZeros64(other) >> 3
	if n == 0 {
		return 0, 0
	}
	v <<= 64 - 8*uint(n) // zeros in front
	v = v*10 + v>>8      // pairs of digits in every other byte
	const pairs = 0x000000ff000000ff
	return ((v&pairs)*(100+1_000_000<<32) + (v>>16&pairs)*(1+10_000<<32)) >> 32, n
}

// number reads a number. Digits without point and exponent are an int64, anything else a float64.
func (d *Decoder) number(i int) (next int, kind numberKind, value uint64) {
	in, start := d.in, i
	negative := at(in, i) == '-'
	if negative {
		i++
	}
	digits := i
	mantissa, n := eightDigits(word(in, i))
	if n == 0 {
		return d.fail(i), 0, 0
	}
	if at(in, i) == '0' {
		mantissa, n = 0, 1
	}
	if i += n; n == 8 {
		for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
			mantissa = mantissa*10 + uint64(c)
			i++
		}
	}
	significant, exponent := i-digits, 0
	if at(in, i) != '.' && at(in, i)|0x20 != 'e' {
		if significant <= 18 {
			if negative {
				mantissa = -mantissa
			}
			return i, numberInt, mantissa
		}
		return i, d.wideInt(start, i, &value), value
	}
	if at(in, i) == '.' {
		i++
		point := i
		fraction, n := eightDigits(word(in, i))
		if n == 0 {
			return d.fail(i), 0, 0
		}
		mantissa = mantissa*tens[n] + fraction
		if i += n; n == 8 {
			for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
				mantissa = mantissa*10 + uint64(c)
				i++
			}
		}
		significant, exponent = significant+i-point, point-i
	}
	if at(in, i)|0x20 == 'e' {
		i++
		sign := 1
		if at(in, i) == '-' {
			sign = -1
			i++
		} else if at(in, i) == '+' {
			i++
		}
		first, e := i, 0
		for c := at(in, i) - '0'; c <= 9; c = at(in, i) - '0' {
			if e < 10000 {
				e = e*10 + int(c)
			}
			i++
		}
		if i == first {
			return d.fail(i), 0, 0
		}
		exponent += sign * e
	}
	if i-start > maxNumberBytes {
		return i, numberLong, 0
	}
	// Both factors are exact, so one rounding makes the nearest float64.
	if significant <= 18 && mantissa < 1<<53 && exponent >= -22 && exponent <= 22 {
		f := float64(mantissa)
		if exponent < 0 {
			f /= powersOfTen[-exponent]
		} else {
			f *= powersOfTen[exponent]
		}
		if negative {
			f = -f
		}
		return i, numberFloat, math.Float64bits(f)
	}
	f, err := strconv.ParseFloat(d.borrow(start, i), 64)
	if err != nil {
		return i, numberOutside, 0
	}
	return i, numberFloat, math.Float64bits(f)
}

// wideInt reads an integer of more than 18 digits.
func (d *Decoder) wideInt(start, end int, value *uint64) numberKind {
	if end-start > maxIntBytes {
		return numberOutside
	}
	n, err := strconv.ParseInt(d.borrow(start, end), 10, 64)
	if err != nil {
		return numberOutside
	}
	*value = uint64(n)
	return numberInt
}

// borrow lends a piece of the text as a string for the length of one call: strconv keeps nothing of it, its errors hold
// a copy.
func (d *Decoder) borrow(start, end int) string {
	return unsafe.String(&d.in[start], end-start)
}

// literal reads true, false or null; i is at its first letter.
func (d *Decoder) literal(i int, word string) int {
	// All of them have at least four letters, and the first one has been seen.
	if last := len(word) - 4; binary.LittleEndian.Uint32(d.in[i+last:]) == binary.LittleEndian.Uint32([]byte(word[last:])) {
		return i + len(word)
	}
	for k := 0; d.in[i] == word[k]; k++ {
		i++
	}
	return d.fail(i)
}

// skip reads a value for its grammar and its safety only; level is how many arrays and objects it stands in, within its
// object.
func (d *Decoder) skip(i, level int) int {
	switch c := d.in[i]; c {
	case '"':
		_, i = d.text(i + 1)
		return i
	case '{':
		if level >= d.maxDepth {
			return d.skipDeep(i)
		}
		return d.skipObject(i, level+1)
	case '[':
		if level >= d.maxDepth {
			return d.skipDeep(i)
		}
		i = d.space(i + 1)
		if d.in[i] == ']' {
			return i + 1
		}
		for {
			if i = d.skip(i, level+1); i < 0 {
				return -1
			}
			more := false
			if i, more = d.nextElement(i); !more {
				return i
			}
		}
	case 't':
		return d.literal(i, "true")
	case 'f':
		return d.literal(i, "false")
	case 'n':
		return d.literal(i, "null")
	default:
		at := i
		i, kind, _ := d.number(i)
		if kind >= numberOutside {
			d.outside(at, kind)
		}
		return i
	}
}

func (d *Decoder) skipObject(i, level int) int {
	i, more := d.openObject(i)
	p := d.newPath(shapeNested.atLevel(level))
	for more {
		if i = d.member(&p, i); i < 0 {
			return -1
		}
		if i = d.skip(i, level); i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	return i
}

// skipDeep is for what is nested too deeply: it refuses the object, then reads on for the grammar alone, on a stack of
// bits.
func (d *Decoder) skipDeep(i int) int {
	if i = d.unsound(i, reasonDepth); i < 0 {
		return -1
	}
	stack := d.nesting[:0] // one byte a level: the bracket that ends it
	defer func() { d.nesting = stack[:0] }()
	for {
		// i is at a value.
		c := d.in[i]
		switch c {
		case '{':
			var more bool
			if i, more = d.openObject(i); i < 0 {
				return -1
			}
			if more {
				stack = append(stack, '}')
				if i = d.skipName(i); i < 0 {
					return -1
				}
				continue
			}
		case '[':
			i = d.space(i + 1)
			if d.in[i] != ']' {
				stack = append(stack, ']')
				continue
			}
			i++
		case '"':
			_, i = d.text(i + 1)
		case 't':
			i = d.literal(i, "true")
		case 'f':
			i = d.literal(i, "false")
		case 'n':
			i = d.literal(i, "null")
		default:
			i, _, _ = d.number(i)
		}
		if i < 0 {
			return -1
		}
		// Behind a value: close what ends here.
		for {
			if len(stack) == 0 {
				return i
			}
			top, more := stack[len(stack)-1], false
			if top == '}' {
				if i, more = d.nextMember(i); more {
					i = d.skipName(i)
				}
			} else {
				i, more = d.nextElement(i)
			}
			if i < 0 {
				return -1
			}
			if more {
				break
			}
			stack = stack[:len(stack)-1]
		}
	}
}

// skipName reads a member's name and the colon; i is at the opening quote.
func (d *Decoder) skipName(i int) int {
	if _, i = d.text(i + 1); i < 0 {
		return -1
	}
	return d.colon(i)
}

// colon reads the colon between name and value.
func (d *Decoder) colon(i int) int {
	if i = d.space(i); d.in[i] != ':' {
		return d.fail(i)
	}
	return d.space(i + 1)
}

// openObject reads the brace at i. more: next is at the quote of the first member's name; otherwise behind the closing
// brace, or -1.
func (d *Decoder) openObject(i int) (next int, more bool) {
	i = d.space(i + 1)
	switch d.in[i] {
	case '"':
		return i, true
	case '}':
		return i + 1, false
	}
	return d.fail(i), false
}

// nextMember reads what stands behind a member's value; the result is as openObject's. Loops that every object goes
// through ask another first.
func (d *Decoder) nextMember(i int) (next int, more bool) {
	if d.another(i) {
		return i + 1, true
	}
	return d.nextMemberSlow(i)
}

// another says whether a comma stands at i and the quote of a name behind it.
func (d *Decoder) another(i int) bool { return uint16(word(d.in, i)) == ','|'"'<<8 }

func (d *Decoder) nextMemberSlow(i int) (next int, more bool) {
	i = d.space(i)
	switch d.in[i] {
	case ',':
		if i = d.space(i + 1); d.in[i] == '"' {
			return i, true
		}
	case '}':
		return i + 1, false
	}
	return d.fail(i), false
}

// nextElement reads what stands behind an element of an array. more: next is at the next element; otherwise behind the
// bracket, or -1.
func (d *Decoder) nextElement(i int) (next int, more bool) {
	i = d.space(i)
	switch d.in[i] {
	case ',':
		return d.space(i + 1), true
	case ']':
		return i + 1, false
	}
	return d.fail(i), false
}
