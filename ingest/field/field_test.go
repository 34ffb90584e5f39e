package field

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func text(s string, times int) []byte {
	return bytes.Repeat([]byte(s), times)
}

func TestLengthsInCharacters(t *testing.T) {
	for _, char := range []string{"a", "é", "字", "😀"} {
		require.True(t, Runes255(text(char, 255)), char)
		require.False(t, Runes255(text(char, 256)), char)
		require.True(t, Name(text(char, 255)), char)
		require.False(t, Name(text(char, 256)), char)
		_, ok := AttributeName(append([]byte("  "), text(char, 255)...))
		require.True(t, ok, char)
		_, ok = AttributeName(text(char, 256))
		require.False(t, ok, char)
	}
	require.True(t, Runes255(nil))
	require.False(t, Runes255(text("a", 1021)))
	require.False(t, Runes255(text("a", 1<<20)))
}

func TestLengthsInBytes(t *testing.T) {
	within := func(rule func([]byte) bool, low, high int) {
		t.Helper()
		require.False(t, rule(text("a", low-1)))
		require.True(t, rule(text("a", low)))
		require.True(t, rule(text("a", high)))
		require.False(t, rule(text("a", high+1)))
		require.False(t, rule(text("é", high/2+1)))
	}
	within(ExternalID, 1, 987)
	within(Alias, 1, 236)
	within(DeviceID, 8, 255)
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{"a": "a", " a b\t": "a b", "\n\v\f\r a": "a", "\u00a0a": "\u00a0a", "$a": "$a"} {
		got, ok := AttributeName([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(got))
	}
	for _, bad := range []string{"", " ", "\t\n\v\f\r "} {
		_, ok := AttributeName([]byte(bad))
		require.False(t, ok, bad)
	}
	require.True(t, NestedKey([]byte("naïve_key-1")))
	for _, bad := range []string{"", "a b", "a.b", "a$b", "$a", "a\t", strings.Repeat("a", 256)} {
		require.False(t, NestedKey([]byte(bad)), bad)
	}
}

func TestGender(t *testing.T) {
	for _, good := range []string{"M", "F", "O", "N", "P"} {
		letter, ok := Gender([]byte(good))
		require.True(t, ok, good)
		require.Equal(t, good[0], letter)
	}
	for in, want := range map[string]byte{"m": 'M', "f": 'F', "male": 'M', "Female": 'F', "OTHER": 'O', "not applicable": 'N', "Not_Applicable": 'N',
		"prefer not to say": 'P', "prefer-not-to-say": 'P'} {
		letter, ok := Gender([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, letter, in)
	}
	for _, bad := range []string{"", "u", "X", "MF", "mal", "males", "M ", "\x00", "maſe", "prefernottosay", "prefer not to saÿ"} {
		_, ok := Gender([]byte(bad))
		require.False(t, ok, bad)
	}
}

func TestUUID(t *testing.T) {
	for range 1000 {
		want := uuid.New()
		for _, in := range []string{want.String(), strings.ToUpper(want.String())} {
			got, ok := UUID([]byte(in))
			require.True(t, ok, in)
			require.Equal(t, [16]byte(want), got)
		}
	}
	const good = "11ae5b4b-2445-4440-a04f-bf537764c9ad"
	for i := range good {
		for _, c := range []byte{'g', 'G', '/', ':', '@', '`', 0, 0x80, 0xff, ' '} {
			damaged := []byte(good)
			damaged[i] = c
			_, ok := UUID(damaged)
			require.False(t, ok, "%q", damaged)
		}
	}
	for _, bad := range []string{"", good[1:], good + "0", "{" + good + "}", "urn:uuid:" + good, strings.ReplaceAll(good, "-", ""), "11ae5b4b24-45-4440-a04f-bf537764c9ad"} {
		_, ok := UUID([]byte(bad))
		require.False(t, ok, bad)
	}
}

// The checks of values that most objects have allocate nothing.
func TestOrdinaryValuesAllocateNothing(t *testing.T) {
	phones := NewPhones(16)
	buf := make([]byte, 0, 64)
	for name, work := range map[string]func() bool{
		"Time":           func() bool { _, ok := Time([]byte("2026-11-21T04:23:01.123+01:00")); return ok },
		"Time weekday":   func() bool { _, ok := Time([]byte("Sat Nov 21 04:23:01 PST 2026")); return ok },
		"LooksLikeTime":  func() bool { return !LooksLikeTime([]byte("Saturday night at the movies")) },
		"Email":          func() bool { return Email([]byte("firstname.lastname+x@mail.example.co.uk")) },
		"Email upper":    func() bool { return Email([]byte("JOE@EXAMPLE.COM")) },
		"Email unicode":  func() bool { return Email([]byte("jürgen@example.de")) },
		"Email strict":   func() bool { return Email([]byte("joe@hotmail.com")) && Email([]byte("joe@gmail.com")) },
		"Phones":         func() bool { _, ok := phones.Parse(buf[:0], []byte("(415) 555-2671")); return ok },
		"Phones bad":     func() bool { _, ok := phones.Parse(buf[:0], []byte("+11112223333")); return !ok },
		"Country":        func() bool { _, ok := Country([]byte("us")); return ok },
		"Country 3":      func() bool { _, ok := Country([]byte("USA")); return ok },
		"Country name":   func() bool { _, ok := Country([]byte("United States")); return ok },
		"Language":       func() bool { _, ok := Language([]byte("en-US")); return ok },
		"TimeZone":       func() bool { _, ok := TimeZone([]byte("America/Los_Angeles")); return ok },
		"TimeZone Rails": func() bool { _, ok := TimeZone([]byte("Eastern Time (US & Canada)")); return ok },
		"TimeZone bad":   func() bool { _, ok := TimeZone([]byte("Mars/Phobos")); return !ok },
		"Currency":       func() bool { _, _, ok := Currency([]byte("usd")); return ok },
		"MinorUnits":     func() bool { _, ok := MinorUnits([]byte("-1234.56789e1"), 2, 3); return ok },
		"UUID":           func() bool { _, ok := UUID([]byte("11ae5b4b-2445-4440-a04f-bf537764c9ad")); return ok },
		"Names":          func() bool { _, ok := AttributeName([]byte(" naïve ")); return ok && Name([]byte("naïve")) },
	} {
		require.True(t, work(), name) // also builds the tables
		require.Zero(t, testing.AllocsPerRun(200, func() { work() }), name)
	}
}
