package ingest

import (
	"encoding/binary"
	"unicode/utf8"
	"unsafe"

	"millrace/ingest/grammar"
)

// The lexical layer: RFC 8259, strict, eight bytes at a time.
//
// Every function takes the index at which its token begins and returns the index after it, or -1 if the JSON is bad;
// d.badAt then says where. The text ends with padding bytes of zero. Zero is not part of any token, so that a scan ends
// there by itself and loads of 8 bytes at an index up to the end stay inside the slice. Where strings stop is known
// beforehand (stops.go). Nothing is read twice: a string with escapes is decoded in place.

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// word returns the eight bytes at b[i], the first one lowest, without a check: i is an index of the text, or up to
// padding-8 past its end.
func word(b []byte, i int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i))[:])
}

// farStopWide is farStop over text in any script: it skips what is not ASCII.
func (d *Decoder) farStopWide(i int) int {
	for {
		i = d.farStop(i)
		if d.in[i] < utf8.RuneSelf {
			return i
		}
		for d.in[i] >= utf8.RuneSelf {
			i++
		}
	}
}

// at returns b[i] without a check, for the same i as word.
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

// text reads a string; i is after its opening quote. Its content is d.in[i:end], and next is after the closing quote.
func (d *Decoder) text(i int) (end, next int) {
	if end = d.stopAt(i); at(d.in, end) == '"' {
		return end, end + 1
	}
	return d.textSlow(i, end)
}

// textSlow continues at i, the place up to which text has looked, in the string that began at start.
func (d *Decoder) textSlow(start, i int) (end, next int) {
	in := d.in
	i = d.farStopWide(i)
	if in[i] == '\\' {
		return d.textEscaped(start, i)
	}
	if in[i] != '"' {
		return 0, d.fail(i)
	}
	if at := grammar.InvalidUTF8(in[start:i]); at >= 0 {
		return 0, d.fail(start + at)
	}
	return i, i + 1
}

// textEscaped decodes the rest of a string in place: a decoded string is never longer than its escapes. i is the first
// backslash.
func (d *Decoder) textEscaped(start, i int) (end, next int) {
	in := d.in
	if at := grammar.InvalidUTF8(in[start:i]); at >= 0 {
		return 0, d.fail(start + at)
	}
	out := i
	for in[i] != '"' {
		if in[i] != '\\' {
			j := d.farStopWide(i)
			if at := grammar.InvalidUTF8(in[i:j]); at >= 0 {
				return 0, d.fail(i + at)
			}
			if j == i { // a control character or the end of the text
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

// unescaped has the meaning of what follows a backslash, except for u.
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

// literal reads true, false or null; i is at its first letter.
func (d *Decoder) literal(i int, word string) int {
	// All three have at least four letters, and the first one has been seen.
	if last := len(word) - 4; binary.LittleEndian.Uint32(d.in[i+
		last:]) == binary.LittleEndian.Uint32([]byte(word[last:])) {
		return i + len(word)
	}
	for k := 0; d.in[i] == word[k]; k++ {
		i++
	}
	return d.fail(i)
}

// skip reads a value only for its grammar and its safety; level is how many arrays and objects contain it, within its
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

// skipDeep handles values that are nested too deeply: it refuses the object, then reads on for the grammar alone, with
// an explicit stack.
func (d *Decoder) skipDeep(i int) int {
	if i = d.unsound(i, reasonDepth); i < 0 {
		return -1
	}
	stack := d.nesting[:0] // one byte per level: the closing bracket
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
		// After a value: close what ends here.
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

// openObject reads the brace at i. If more is true, next is at the quote of the first member's name; otherwise it is
// after the closing brace, or -1.
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

// nextMember reads what follows a member's value; its result is that of openObject. Loops that every object goes
// through first ask another.
func (d *Decoder) nextMember(i int) (next int, more bool) {
	if d.another(i) {
		return i + 1, true
	}
	return d.nextMemberSlow(i)
}

// another reports whether there is a comma at i with the quote of a name right after it.
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

// nextElement reads what follows an element of an array. If more is true, next is at the next element; otherwise it is
// after the bracket, or -1.
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
