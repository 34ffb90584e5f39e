package field

import (
	"archive/zip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/language"
	"golang.org/x/text/language/display"
)

func TestCountry(t *testing.T) {
	country := func(in, want string) {
		t.Helper()
		got, ok := Country([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(got[:]), in)
	}
	country("US", "US")
	country("us", "US")
	country("Us", "US")
	country("USA", "US")
	country("deu", "DE")
	country("UK", "GB")
	country("XK", "XK")
	country("Australia", "AU")
	country("aUSTRALIA", "AU")
	country("  India ", "IN")
	country("United States of America", "US")
	country("U.S.A.", "US")
	country("The Netherlands", "NL")
	country("Côte d’Ivoire", "CI")
	country("COTE D'IVOIRE", "CI")
	country("Co\u0302te d'Ivoire", "CI") // the accent apart
	country("Bosnia and Herzegovina", "BA")
	country("Bosnia & Herzegovina", "BA")
	country("Türkiye", "TR")
	country("Turkey", "TR")
	country("South Korea", "KR")
	country("Russia", "RU")
	country("Guinea", "GN")
	country("Guinea-Bissau", "GW")
	country("Dominica", "DM")
	country("Niger", "NE")
	country("Hong Kong", "HK")
	country("Congo - Kinshasa", "CD")
	for _, bad := range []string{"", " ", "U", "ZZ", "AA", "EU", "SU", "AN", "YU", "QO", "U\x00", "\xff\xff", "840", "ANT", "ZZZ", "Europe", "Atlantis", "the", "字", strings.Repeat("a", 81), strings.Repeat("Germany", 12)} {
		_, ok := Country([]byte(bad))
		require.False(t, ok, bad)
	}
}

func TestEveryCountryByCodeAndName(t *testing.T) {
	require.Len(t, alpha2Codes, 250*3)
	seen := map[string]bool{}
	for code := range strings.FieldsSeq(alpha2Codes) {
		require.False(t, seen[code], code)
		seen[code] = true
		region := language.MustParseRegion(code)
		require.True(t, region.IsCountry(), code)
		require.Equal(t, region, region.Canonicalize(), "withdrawn: %s", code)
		for _, in := range []string{code, strings.ToLower(code), region.ISO3(), strings.ToLower(region.ISO3()), display.English.Regions().Name(region)} {
			got, ok := Country([]byte(in))
			require.True(t, ok, "%s %q", code, in)
			require.Equal(t, code, string(got[:]), in)
		}
	}
	for code, names := range otherCountryNames {
		for _, name := range names {
			got, ok := Country([]byte(name))
			require.True(t, ok, name)
			require.Equal(t, code, string(got[:]), name)
		}
	}
}

func TestLanguage(t *testing.T) {
	lang := func(in, want string) {
		t.Helper()
		got, ok := Language([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, got, in)
	}
	lang("en", "en")
	lang("EN", "en")
	lang("agq", "agq")
	lang("ksf", "ksf")
	lang("tzm", "tzm")
	lang("TZM", "tzm")
	lang("eng", "en")
	lang("deu", "de")
	lang("ger", "de")
	lang("iw", "he")
	lang("en-IN", "en")
	lang("pt_BR", "pt")
	lang("zh-Hant-TW", "zh")
	for _, bad := range []string{"", "e", "english", "xx", "e1", "xyz", "und", "mul", "zxx", "qaa", "qtz", "en-", "en--US", "en-US-", "-en", "en US", "en-abcdefghi", "e\x00", "é", "en-é", "123"} {
		_, ok := Language([]byte(bad))
		require.False(t, ok, bad)
	}
	for former, current := range withdrawnLanguages {
		lang(former, current)
		lang(current, current)
	}
}

func TestTwoLetterLanguagesAreTheStandardOnes(t *testing.T) {
	count := 0
	for x := 'a'; x <= 'z'; x++ {
		for y := 'a'; y <= 'z'; y++ {
			code := string(x) + string(y)
			if got, ok := Language([]byte(code)); ok && got == code {
				count++
			}
		}
	}
	require.Equal(t, 185, count) // 183 of today, and the withdrawn bh and sh, which have no single successor
}

func TestTimeZone(t *testing.T) {
	zone := func(in, want string) {
		t.Helper()
		got, ok := TimeZone([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, got, in)
	}
	zone("America/New_York", "America/New_York")
	zone("UTC", "UTC")
	zone("Asia/Calcutta", "Asia/Calcutta")
	zone("Singapore", "Singapore") // a name of both kinds
	zone("Eastern Time (US & Canada)", "America/New_York")
	zone("Guadalajara", "America/Mexico_City")
	zone("Nuku'alofa", "Pacific/Tongatapu")
	zone("St. Petersburg", "Europe/Moscow")
	for _, bad := range []string{"", " ", "Local", "america/new_york", "America/New_York ", "EASTERN TIME (US & CANADA)", "../etc/passwd", "/etc/localtime", "America", "America/", "Factory", "posixrules", "Mars/Phobos", "+01:00", "\x00"} {
		_, ok := TimeZone([]byte(bad))
		require.False(t, ok, bad)
	}
}

func TestEveryZoneCanBeLoaded(t *testing.T) {
	require.Greater(t, len(timeZones()), 700)
	for name, iana := range timeZones() {
		require.NotEmpty(t, name)
		location, err := time.LoadLocation(iana)
		require.NoError(t, err, name)
		require.Equal(t, iana, location.String())
	}
	rails := strings.Count(railsZones, "\n") + strings.Count(railsZones, ", ")
	require.Equal(t, 151, rails)
}

// The list may be older than the compiler, but not by much: when there is a new zone, zones.txt has to be written
// again.
func TestZoneNamesAreThoseOfGo(t *testing.T) {
	archive, err := zip.OpenReader(filepath.Join(runtime.GOROOT(), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Skipf("no zone database beside the compiler: %v", err)
	}
	defer archive.Close()
	var names []string
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, "/") && file.Name != "Factory" {
			names = append(names, file.Name)
		}
	}
	slices.Sort(names)
	require.Equal(t, names, strings.Fields(zoneNames))
}

func FuzzPlace(f *testing.F) {
	for _, seed := range []string{"us", "Côte d’Ivoire", "the", "pt_BR", "Eastern Time (US & Canada)"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if code, ok := Country(in); ok {
			if again, ok := Country(code[:]); !ok || again != code {
				t.Fatalf("%q is %q, which is %q %v", in, code, again, ok)
			}
		}
		if code, ok := Language(in); ok {
			if again, ok := Language([]byte(code)); !ok || again != code {
				t.Fatalf("%q is %q, which is %q %v", in, code, again, ok)
			}
		}
		if name, ok := TimeZone(in); ok {
			if again, ok := TimeZone([]byte(name)); !ok || again != name {
				t.Fatalf("%q is %q, which is %q %v", in, name, again, ok)
			}
		}
	})
}
