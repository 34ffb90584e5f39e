package field

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/publicsuffix"

	"millrace/loadtest/testseed"
)

func TestEmailAccepts(t *testing.T) {
	for _, in := range []string{
		"a@b.co", "first.last@example.com", "FIRST.LAST@EXAMPLE.COM", "o'brien+news@example.co.uk", "a_b-c@sub.domain.example.org", "_@example.com", "-a-@example.com",
		"a..b@example.com", "a#b&c/d@example.com", "1@1.com", "jürgen@example.de", "用户@example.cn", "eé@example.com", "٣@example.com",
		"a@xn--80ak6aa92e.com", "a@example.xn--p1ai", "a@x.np", "a@x.com.np", "a@foo.appspot.com", "a@example.museum",
		"ab@gmail.com", "ab@googlemail.com", "é1@gmail.com", "a.b-c_d+x'y@hotmail.com", "_a@live.fr", "a+b@outlook.co.uk",
		"o'brien@live.example.com", "o'brien@nothotmail.com", "o'brien@mail.hotmail.com", // by their first label and suffix these are not Microsoft's
		strings.Repeat("a", 64) + "@example.com",
		"a@" + strings.Repeat("b", 63) + ".com",
		"a@" + strings.Repeat("b.", 124) + "com", // 253 bytes
	} {
		require.True(t, Email([]byte(in)), in)
	}
}

func TestEmailRefuses(t *testing.T) {
	for _, in := range []string{
		"", "a", "@", "a@", "@b.co", "a@b", "a@b.", "a@.co", "a@b..co", "a@b.co.", "a@@b.co", "a@b@c.co", "a b@c.co", " a@b.co", "a@b.co ", "a@b.co\n", "a\t@b.co",
		".a@b.co", "a.@b.co", "+a@b.co", "a+@b.co", "'a@b.co", "a'@b.co", "a*b@c.co", "a?b@c.co", "a!b@c.co", "\"a\"@b.co", "a,b@c.co", "a=b@c.co", "a\x00b@c.co",
		"a@-b.co", "a@b-.co", "a@b_c.co", "a@127.0.0.1", "a@[127.0.0.1]", "a@[::1]", "a@b.123", "a@bücher.de", "a@example.рф", "a@example.notatld", "a@localhost.localdomain",
		"a@example.\u212aom", "a\xff@b.co", "\xffa@b.co", "a@b\xff.co", "\u0301a@example.com",
		"a@gmail.com", "é@gmail.com", "a@GMAIL.com", "a@googlemail.com",
		"o'brien@hotmail.com", "-a@hotmail.com", "a..b@MSN.com", "a&b@live.co.uk", "é@outlook.com", "a#b+c@hotmail.fr", "o'brien@Live.COM.AU",
		strings.Repeat("a", 65) + "@example.com", strings.Repeat("é", 33) + "@example.com",
		"a@" + strings.Repeat("b", 64) + ".com",
		"ab" + "@" + strings.Repeat("b.", 124) + "coma",
		"abc" + "@" + strings.Repeat("b.", 124) + "com", // 255 bytes
	} {
		require.False(t, Email([]byte(in)), in)
	}
	require.Len(t, "abc"+"@"+strings.Repeat("b.", 124)+"com", maxEmailBytes+1)
	require.True(t, Email([]byte("ab"+"@"+strings.Repeat("b.", 124)+"com")))
}

// These are the expressions of reference.md 2.1. Ruby's i and \w mean ASCII there, so Go's case folding is left out.
var (
	hostExpression      = regexp.MustCompile(`^[a-zA-Z\d](?:[a-zA-Z\d-]{0,61}[a-zA-Z\d])?(?:\.[a-zA-Z\d](?:[a-zA-Z\d-]{0,61}[a-zA-Z\d])?)+$`)
	localExpression     = regexp.MustCompile(`\A[\p{L}\p{N}_\-](?:[\.\+\'\p{L}\p{N}_&#\/\-]*[\p{L}\p{N}_\-])?\z`)
	microsoftExpression = regexp.MustCompile(`\A\w[\-\w]*(?:\.[\-\w]+)*\z`)
)

// emailByReference is the rule written a second time, slow and from the text of the reference.
func emailByReference(in string) bool {
	at := strings.LastIndexByte(in, '@')
	if at < 0 || len(in) > 254 || at > 64 {
		return false
	}
	local, host := in[:at], in[at+1:]
	if !localExpression.MatchString(local) || !hostExpression.MatchString(host) {
		return false
	}
	host = strings.ToLower(host)
	labels := strings.Split(host, ".")
	tld := labels[len(labels)-1]
	if _, icann := publicsuffix.PublicSuffix("x." + tld); !icann {
		return false
	}
	if registered, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil && registered == host {
		switch labels[0] {
		case "msn", "hotmail", "outlook", "live":
			before, _, _ := strings.Cut(local, "+")
			return microsoftExpression.MatchString(before)
		}
	}
	if host == "gmail.com" || host == "googlemail.com" {
		return utf8.RuneCountInString(local) > 1
	}
	return true
}

func randomEmail(random *rand.Rand) []byte {
	pick := func(from []string, upTo int) string {
		var s strings.Builder
		for range 1 + random.IntN(upTo) {
			s.WriteString(from[random.IntN(len(from))])
		}
		return s.String()
	}
	local := pick([]string{"a", "B", "z", "0", "9", "_", "-", ".", "+", "'", "&", "#", "/", "é", "字", "٣", "ſ", "joe", "\u0301", " ", "!", "@"}[:17+random.IntN(6)], 6)
	host := []string{"hotmail", "live", "OUTLOOK", "msn", "gmail", "googlemail", "a", "b-c", "-d", "e_f", "xn--abc", "7", "K"}[random.IntN(13)]
	for range random.IntN(2) {
		host = pick([]string{"x", "live", "y1"}, 2) + "." + host
	}
	return []byte(local + "@" + host + []string{".com", ".fr", ".co.uk", ".np", ".COM.au", ".xyz", ".nope", ".12", "", ".appspot.com", ".ſe"}[random.IntN(11)])
}

func TestEmailAgreesWithReference(t *testing.T) {
	random := testseed.Rand(t)
	good := 0
	for range 200_000 {
		in := randomEmail(random)
		for range random.IntN(3) { // damage it
			switch place := random.IntN(len(in)); random.IntN(3) {
			case 0:
				in[place] = "a.-_@+9\x80 "[random.IntN(9)]
			case 1:
				in = append(in[:place], in[place+1:]...)
			default:
				in = bytes.Clone(append(in[:place:place], append([]byte{"a.-_@+9"[random.IntN(7)]}, in[place:]...)...))
			}
			if len(in) == 0 {
				in = []byte("@")
			}
		}
		// Go's expressions see the replacement character in place of bytes that are no UTF-8; both implementations
		// refuse it.
		want := emailByReference(string(in))
		require.Equal(t, want, Email(in), "%q", in)
		if want {
			good++
		}
	}
	require.Greater(t, good, 20_000, "too few good addresses to prove anything")
}

func TestEveryCountryHasItsTopLevelDomain(t *testing.T) {
	for i := 0; i < len(alpha2Codes); i += 3 {
		code := strings.ToLower(alpha2Codes[i : i+2])
		switch code {
		case "bl", "bq", "eh", "mf", "um", "xk": // never delegated
			require.False(t, Email([]byte("joe@example."+code)), code)
		case "gb": // delegated as uk
		default:
			require.True(t, Email([]byte("joe@example."+code)), code)
		}
	}
	require.True(t, Email([]byte("joe@example.uk")))
}

func FuzzEmail(f *testing.F) {
	for _, seed := range []string{"a@b.co", "o'brien+x@live.com", "é1@gmail.com", "a@x.np", "a.b@xn--80ak6aa92e.com"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		ok := Email(in)
		if ok != emailByReference(string(in)) {
			t.Fatalf("%q: %v, the reference differs", in, ok)
		}
	})
}

func BenchmarkEmail(b *testing.B) {
	for _, in := range []string{"firstname.lastname+news@example.com", "firstname.lastname@mail.example.co.uk", "jürgen@example.de", "joe@hotmail.com"} {
		text := []byte(in)
		b.Run(in, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Email(text)
			}
		})
	}
}
