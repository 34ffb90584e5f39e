package op

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestEmailKey(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		require.Equal(t, want, string(AppendEmailKey([]byte("-@"), []byte(in)))[2:])
		require.Equal(t, want, string(AppendEmailKey(nil, []byte(want))), "a key is its own key")
	}
	f("Ada@Example.COM", "ada@example.com")
	f("", "")
	f("@", "@")

	// Before the @ only ASCII letters are folded.
	f("JOSÉ@example.com", "josÉ@example.com")
	f("\u212AIM@example.com", "\u212Aim@example.com")
	f("\u0130DA@example.com", "\u0130da@example.com")
	f("\u017FAM@example.com", "\u017Fam@example.com")
	f("JOSE\u0301@example.com", "jose\u0301@example.com")
	f("bad\xffBYTE@EXAMPLE.com", "bad\xffbyte@example.com")
	f("BÜCHER.de", "bÜcher.de")

	// Behind the @ the rules of DNS apply.
	for _, host := range []string{"bücher.de", "BÜCHER.de", "Bu\u0308cher.DE", "xn--bcher-kva.de", "XN--Bcher-KVA.de", "bücher。de"} {
		f("A@"+host, "a@xn--bcher-kva.de")
	}
	f("a@\u212Aelvin.de", "a@kelvin.de")
	f("a@\u0130.de", "a@xn--i-9bb.de") // i and a dot above
	f("a@straße.de", "a@xn--strae-oqa.de")
	f("a@strasse.de", "a@strasse.de")
	f("a@Ü.de.", "a@xn--tda.de.")
	f("a@ｅｘａｍｐｌｅ.com", "a@example.com")
	f("É@mail.BÜCHER.example", "É@mail.xn--bcher-kva.example")
	f("a@b@BÜCHER.de", "a@b@xn--bcher-kva.de")

	// A text that is no domain stays as its bytes.
	for _, host := range []string{"bÜ_cher.de", "-Ü.de", "Ü..de", "\u00AD", "\xffÜ.de", "a b.Ü", "Ü\u2100.de", "\uFF20Ü.de", "א1a.de", "xn--Ü.de", strings.Repeat("Ü", 64) + ".de",
		strings.Repeat("Ü.", 140) + "de", strings.Repeat("\u00AD", 600) + "Ü.de"} {
		f("A@"+host, "a@"+asciiLower(host))
	}
}

func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// Before the @ each letter that isn't ASCII has a key of its own. Whatever stands behind the @, the key of a key is
// that key.
func TestEmailKeyOfEachRune(t *testing.T) {
	var key, again []byte
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		key = AppendEmailKey(key[:0], []byte(string(r)+"@x.de"))
		if r >= utf8.RuneSelf {
			require.Equal(t, string(r)+"@x.de", string(key))
		}
		if r > 0x3000 && r%251 != 0 { // letters with forms are below, for the most part
			continue
		}
		key = AppendEmailKey(key[:0], []byte("a@x"+string(r)+"y.de"))
		again = AppendEmailKey(again[:0], key)
		require.Equal(t, string(key), string(again), "%U", r)
	}
}

func TestEmailKeyAllocatesNothing(t *testing.T) {
	dst := make([]byte, 0, 64)
	for _, address := range []string{"Ada@Example.com", "JOSÉ@example.com"} {
		require.Zero(t, testing.AllocsPerRun(100, func() { dst = AppendEmailKey(dst[:0], []byte(address)) }), address)
	}
}
