package grammar

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzGrammar compares the check of lines with encoding/json, which has a bound for the depth, and takes strings that
// aren't UTF-8, as the check of an unmarked text does.
func FuzzGrammar(f *testing.F) {
	for _, text := range []string{
		`{}`, ` [ ] `, `{"a" : [1,-0.5e+7,"\u00eF\"\\",{"b":{}},[[]]] , "c":null}`, `[true,false,null]`, `"12345678\n12345678"`, ``,
		`{"a":1}}`, `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a"}`, `{"a":}`, `{a:1}`, `{1:1}`, `[1}`, `{"a":1]`, `[1 2]`, `[`, `{`, `"`,
		`01`, `-`, `-01`, `1.`, `.5`, `1e`, `1e+`, `1E5`, `0`, `-0`, `+1`, `1 1`, `tru`, `truE`, `nulll`, `"\x"`, `"\u12g4"`, `"\u123`, `"\`,
		"\"\x1f\"", "\"1234567\x001234567\"", "\"\x7f\"", "\"\xff\"", "\xa0{}", "{}\v", "\"1234567", "\"12345678\"", `"é2345678\"é"`,
	} {
		f.Add(text)
	}
	long := strings.Repeat("x", 56)
	for _, end := range []string{"", "x", "xx", "\xff", `\"`, `\"é`, "\\\"\xff", "\x1f"} { // near the last bit that is looked at
		for n := range 9 {
			f.Add(`["` + long + end + `"]` + strings.Repeat(" ", n))
			f.Add(`[` + strings.Repeat(" ", n) + `"` + long + end + `","`)
		}
	}
	var plain, marked Checker
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "[")+strings.Count(text, "{") < 10_000 {
			want := json.Valid([]byte(text))
			require.Equal(t, want, plain.IsValid([]byte(text)), "%q", text)
			marked.Mark([]byte(text))
			require.Equal(t, want && utf8.ValidString(text), marked.IsValid([]byte(text)), "%q", text)
		}
	})
}
