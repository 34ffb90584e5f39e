package files

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"millrace/ingest/stops"
)

// grammar checks that a text is one JSON value according to RFC 8259. It accepts any depth. UTF-8 is checked elsewhere,
// unless the text is marked: then few strings need a look at it.
type grammar struct {
	open  []byte // the brackets that close what is open
	stops []byte // a bit for each byte of a marked text: whether a string stops there
}

// mark determines where the strings of a text stop, before it is passed. It writes to the text what is there.
func (g *grammar) mark(text []byte) {
	whole, rest := len(text)/stops.BlockBytes, [stops.BlockBytes]byte{}
	if need := (whole + 2) * stops.BlockBytes / 8; cap(g.stops) < need { // a word may be read behind the last one
		g.stops = make([]byte, need, need+need/4)
	} else {
		g.stops = g.stops[:need]
	}
	if whole > 0 {
		stops.Mark(&text[0], &text[0], &g.stops[0], whole)
	}
	copy(rest[:], text[whole*stops.BlockBytes:])
	stops.Mark(&rest[0], &rest[0], &g.stops[whole*stops.BlockBytes/8], 1)
}

// passString is the function passString, which goes on where a string doesn't end at its first stop, and also checks
// UTF-8 if the text is marked.
func (g *grammar) passString(text []byte, i int) int {
	if first := i + 1; first>>3+8 <= len(g.stops) && first < len(text) && text[i] == '"' {
		// At least the first 57 of the bits are there. With none of them set, the index is only a guess.
		stop := first + bits.TrailingZeros64(binary.LittleEndian.Uint64(g.stops[first>>3:])>>(first&7)|1<<57)
		if stop < len(text) && text[stop] == '"' {
			return stop + 1
		}
		if stop = passString(text, i); stop > 0 && !utf8.Valid(text[i:stop]) {
			return -1
		}
		return stop
	}
	return passString(text, i)
}

// valid reports whether text is one value, possibly between blanks.
func (g *grammar) valid(text []byte) bool {
	i := g.pass(text, passBlanks(text, 0))
	return i >= 0 && passBlanks(text, i) == len(text)
}

// pass skips the value at i, with everything in it.
func (g *grammar) pass(text []byte, i int) int {
	g.open = g.open[:0]
	for {
		more := false
		if i, more = g.value(text, passBlanks(text, i)); i < 0 {
			return -1
		}
		for !more {
			if len(g.open) == 0 {
				return i
			}
			i = passBlanks(text, i)
			switch {
			case i == len(text):
				return -1
			case text[i] == ',':
				if i, more = passBlanks(text, i+1), true; g.open[len(g.open)-1] == '}' {
					if i = g.passName(text, i); i < 0 {
						return -1
					}
				}
			case text[i] == g.open[len(g.open)-1]:
				g.open = g.open[:len(g.open)-1]
				i++
			default:
				return -1
			}
		}
	}
}

// value skips the value at i or, if it contains others, moves to the first of them; more is true then. A negative
// result means that there is no value.
func (g *grammar) value(text []byte, i int) (next int, more bool) {
	if i == len(text) {
		return -1, false
	}
	switch c := text[i]; c {
	case '"':
		return g.passString(text, i), false
	case '{':
		if i = passBlanks(text, i+1); i < len(text) && text[i] == '}' {
			return i + 1, false
		}
		g.open = append(g.open, '}')
		return g.passName(text, i), true
	case '[':
		if i = passBlanks(text, i+1); i < len(text) && text[i] == ']' {
			return i + 1, false
		}
		g.open = append(g.open, ']')
		return i, true
	case 't':
		return passWord(text, i, "true"), false
	case 'f':
		return passWord(text, i, "false"), false
	case 'n':
		return passWord(text, i, "null"), false
	}
	return passNumber(text, i), false
}

const blanks uint64 = 1<<' ' | 1<<'\t' | 1<<'\n' | 1<<'\r'

func passBlanks(text []byte, i int) int {
	for i < len(text) && text[i] <= ' ' && 1<<text[i]&blanks != 0 {
		i++
	}
	return i
}

func passWord(text []byte, i int, word string) int {
	if end := i + len(word); end <= len(text) && string(text[i:end]) == word {
		return end
	}
	return -1
}

// passName skips the name at i and its colon.
func (g *grammar) passName(text []byte, i int) int {
	if i = g.passString(text, i); i < 0 {
		return -1
	}
	if i = passBlanks(text, i); i == len(text) || text[i] != ':' {
		return -1
	}
	return i + 1
}

// passString skips the string at i.
func passString(text []byte, i int) int {
	if i == len(text) || text[i] != '"' {
		return -1
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
			return -1
		case text[i] == '"':
			return i + 1
		case text[i] != '\\':
			i++
		default:
			if i = passEscape(text, i+1); i < 0 {
				return -1
			}
		}
	}
}

// specials returns a word with a bit set in the first of eight bytes that is a quote, a backslash or a control
// character, or no bit when there is none. With one bit inverted, the quote comes right after the control characters.
func specials(v uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	return (((v ^ ones*2) - ones*('"'^2+1)) | ((v ^ ones*'\\') - ones)) &^ v & high
}

// passEscape skips what follows a backslash.
func passEscape(text []byte, i int) int {
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

// passNumber skips the number at i.
func passNumber(text []byte, i int) int {
	if i < len(text) && text[i] == '-' {
		i++
	}
	whole := i
	if i = passDigits(text, i); i == whole || text[whole] == '0' && i > whole+1 {
		return -1
	}
	if i < len(text) && text[i] == '.' {
		from := i + 1
		if i = passDigits(text, from); i == from {
			return -1
		}
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		if i++; i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		from := i
		if i = passDigits(text, from); i == from {
			return -1
		}
	}
	return i
}

func passDigits(text []byte, i int) int {
	for i < len(text) && text[i]-'0' <= 9 {
		i++
	}
	return i
}
