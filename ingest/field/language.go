package field

import (
	"sync"

	"golang.org/x/text/language"
)

// Language returns the code of a language in lower case: two letters of ISO 639-1 where they exist, else the three of
// ISO 639-2 or 639-3, such as agq, ksf or tzm (reference.md 2). Three-letter spellings of a two-letter code and
// withdrawn codes are read as today's code (eng as en, iw as he). A locale stands for its language: en-US and pt_BR are
// en and pt. The codes for no particular language (und, mul, mis, zxx, qaa to qtz) are refused. A two-letter code costs
// no allocation.
func Language(b []byte) (canonical string, ok bool) {
	end := 0
	for end < len(b) && b[end] != '-' && b[end] != '_' {
		end++
	}
	if !isSubtags(b[end:]) {
		return "", false
	}
	switch end {
	case 2:
		x, y := lower(b[0])-'a', lower(b[1])-'a'
		if x >= 26 || y >= 26 {
			return "", false
		}
		canonical = twoLetterLanguages()[x][y]
	case 3:
		canonical = longLanguage(string([]byte{lower(b[0]), lower(b[1]), lower(b[2])}))
	}
	return canonical, canonical != ""
}

// isSubtags reports whether b is empty or a sequence of subtags of one to eight letters and digits, each after - or _.
func isSubtags(b []byte) bool {
	length := 1
	for i, c := range b {
		switch {
		case c == '-' || c == '_':
			if i > 0 && length == 0 {
				return false
			}
			length = 0
		case !isAlphanumeric(c) || length == 8:
			return false
		default:
			length++
		}
	}
	return length > 0
}

var twoLetterLanguages = sync.OnceValue(func() *[26][26]string {
	table := new([26][26]string)
	for x := range table {
		for y := range table[x] {
			code := string([]byte{'a' + byte(x), 'a' + byte(y)})
			if current, ok := withdrawnLanguages[code]; ok {
				table[x][y] = current
			} else if _, err := language.ParseBase(code); err == nil {
				table[x][y] = code
			}
		}
	}
	return table
})

func longLanguage(code string) string {
	if current, ok := withdrawnLanguages[code]; ok {
		return current
	}
	if code >= "qaa" && code <= "qtz" {
		return ""
	}
	switch code {
	case "und", "mul", "mis", "zxx":
		return ""
	}
	base, err := language.ParseBase(code)
	if err != nil {
		return ""
	}
	return base.String()
}

// withdrawnLanguages are former two-letter codes and the bibliographic codes of ISO 639-2.
var withdrawnLanguages = map[string]string{
	"in": "id", "iw": "he", "ji": "yi", "jw": "jv", "mo": "ro",
	"alb": "sq", "arm": "hy", "baq": "eu", "bur": "my", "chi": "zh", "cze": "cs", "dut": "nl", "fre": "fr", "geo": "ka",
	"ger": "de",
	"gre": "el", "ice": "is", "mac": "mk", "mao": "mi", "may": "ms", "per": "fa", "rum": "ro", "slo": "sk", "tib": "bo",
	"wel": "cy",
}
