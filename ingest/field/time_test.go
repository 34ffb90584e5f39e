package field

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

func TestTimeShapes(t *testing.T) {
	read := func(in, want string) {
		t.Helper()
		millis, ok := Time([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, written(millis), in)
		require.True(t, LooksLikeTime([]byte(in)), in)
	}
	// ISO 8601
	read("2026-11-21T04:23:01Z", "2026-11-21T04:23:01.000Z")
	read("2026-11-21T04:23:01.123Z", "2026-11-21T04:23:01.123Z")
	read("2026-11-21t04:23:01.123z", "2026-11-21T04:23:01.123Z")
	read("2026-11-21T04:23:01.1Z", "2026-11-21T04:23:01.100Z")
	read("2026-11-21T04:23:01,12Z", "2026-11-21T04:23:01.120Z")
	read("2026-11-21T04:23:01.123999999999999999999999999999Z", "2026-11-21T04:23:01.123Z")
	read("2026-11-21T04:23:01", "2026-11-21T04:23:01.000Z")
	read("2026-11-21T04:23:01.5", "2026-11-21T04:23:01.500Z")
	read("2026-11-21T04:23", "2026-11-21T04:23:00.000Z")
	read("2026-11-21T04:23+01:00", "2026-11-21T03:23:00.000Z")
	read("2020-01-24T11:59:02.402+05:30", "2020-01-24T06:29:02.402Z")
	read("2020-01-24T11:59:02.402-0530", "2020-01-24T17:29:02.402Z")
	read("2020-01-24T11:59:02-08", "2020-01-24T19:59:02.000Z")
	read("2013-07-16T19:20:30+1:00", "2013-07-16T18:20:30.000Z")
	read("20261121T042301Z", "2026-11-21T04:23:01.000Z")
	read("20261121T042301.25+0100", "2026-11-21T03:23:01.250Z")
	read("20261121T0423", "2026-11-21T04:23:00.000Z")
	// the rest of reference.md 1.5
	read("2026-11-21T04:23:01:123Z", "2026-11-21T04:23:01.123Z")
	read("2026-11-21T04:23:01:123-0800", "2026-11-21T12:23:01.123Z")
	read("2026-11-21 04:23:01", "2026-11-21T04:23:01.000Z")
	read("2019-02-15 00:00:00 -0500", "2019-02-15T05:00:00.000Z")
	read("2019-02-15 00:00:00 UTC", "2019-02-15T00:00:00.000Z")
	read("2019-02-15 00:00:00 +0000 UTC", "2019-02-15T00:00:00.000Z")
	read("2026-11-21", "2026-11-21T00:00:00.000Z")
	read("11/21/2026", "2026-11-21T00:00:00.000Z")
	read("12/1/2021", "2021-12-01T00:00:00.000Z")
	read("1/2/2021", "2021-01-02T00:00:00.000Z")
	read("Sat 11 21 04:23:01.PST 2026", "2026-11-21T12:23:01.000Z")
	read("Sat 11 21 04:23:01.Z 2026", "2026-11-21T04:23:01.000Z")
	read("Sat 11 21 04:23:01.+01:00 2026", "2026-11-21T03:23:01.000Z")
	read("sat 1 2 04:23:01 2026", "2026-01-02T04:23:01.000Z")
	read("Sat Nov 21 04:23:01 EDT 2026", "2026-11-21T08:23:01.000Z")
	read("Mon Nov  2 04:23:01 2026", "2026-11-02T04:23:01.000Z")
	read("Sat 11 21 04:23:01.250 2026", "2026-11-21T04:23:01.250Z")
	// the calendar
	read("0000-01-01", "0000-01-01T00:00:00.000Z")
	read("0000-02-29", "0000-02-29T00:00:00.000Z")
	read("2000-02-29", "2000-02-29T00:00:00.000Z")
	read("2024-02-29", "2024-02-29T00:00:00.000Z")
	read("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z")
	read("9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.999Z")
	read("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999Z")
	read("2016-12-31T23:59:60.5Z", "2016-12-31T23:59:59.999Z")
	// 24 is the midnight that ends a day
	read("2026-11-21T24:00:00Z", "2026-11-22T00:00:00.000Z")
	read("2026-12-31T24:00:00.000Z", "2027-01-01T00:00:00.000Z")
	read("2024-02-28T24:00+01:00", "2024-02-28T23:00:00.000Z")
	read("20261121T240000,0", "2026-11-22T00:00:00.000Z")
	read("2026-11-21 24:00:00:000 -0500", "2026-11-22T05:00:00.000Z")
	read("9999-12-31T24:00:00Z", "9999-12-31T23:59:59.999Z")
}

func TestTimeRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "now", "2026", "2026-11", "20261121", "1795234981", "2026-11-21T", "2026-11-21T04", "2026-11-21T04:", "2026-11-21T04:2",
		"2026-13-01", "2026-00-01", "2026-01-00", "2026-04-31", "2023-02-29", "1900-02-29", "2026-1-01", "2026-01-1", "2026/01/01", "2026-11-21 ",
		" 2026-11-21", "2026-11-21x04:23:01", "2026-11-21T25:00:00Z", "2026-11-21T04:60:00Z", "2026-11-21T04:23:61Z", "2026-11-21T04:23:1Z",
		"2026-11-21T24:00:01Z", "2026-11-21T24:00:00.001Z", "2026-11-21T24:01Z", "2026-11-21T24:00:60Z",
		"2026-11-21T04:23:01.Z", "2026-11-21T04:23:01.", "2026-11-21T04:23.5Z", "2026-11-21T04:23:01:12Z", "2026-11-21T04:23:01:1234Z",
		"2026-11-21T04:23:01+", "2026-11-21T04:23:01+1", "2026-11-21T04:23:01+24:00", "2026-11-21T04:23:01+01:60", "2026-11-21T04:23:01+01:0",
		"2026-11-21T04:23:01 ", "2026-11-21T04:23:01  Z", "2026-11-21T04:23:01ZZ", "2026-11-21T04:23:01 -0500 UTC", "2026-11-21T04:23:01 PST",
		"0000-01-01T00:00:00+01:00", "-2026-11-21", "12026-11-21",
		"13/01/2021", "2/30/2021", "1/2/21", "1/2/20211", "001/2/2021", "1//2021", "1-2-2021", "1/2/2021 10:00",
		"20261121T04", "20261121T042", "20261121T0423.5", "20261321T042301",
		"Sat 11 21 04:23:01.XYZ 2026", "Foo 11 21 04:23:01.PST 2026", "Sat Foo 21 04:23:01 PST 2026", "Sat 11 31 04:23:01.PST 2026", "Sat 11 21 04:23:01.PST 26",
		"Sat 11 21 25:23:01 PST 2026", "Saturday 11 21 04:23:01 2026", "Sat, 21 Nov 2026 04:23:01 GMT", "éat 11 21 04:23:01.PST 2026", "１２３４-01-01",
	} {
		_, ok := Time([]byte(in))
		require.False(t, ok, in)
		require.False(t, LooksLikeTime([]byte(in)), in)
	}
}

func TestAttributeTimeEndsInYear3000(t *testing.T) {
	_, ok := AttributeTime([]byte("3000-12-31T23:59:59.999Z"))
	require.True(t, ok)
	_, ok = AttributeTime([]byte("3001-01-01"))
	require.False(t, ok)
	_, ok = AttributeTime([]byte("hello you"))
	require.False(t, ok)
}

func TestDateOfBirth(t *testing.T) {
	for in, want := range map[string]string{
		"1971-01-01": "1971-01-01", "2000-02-29": "2000-02-29", "0001-01-01": "0001-01-01", "01/02/1971": "1971-01-02", "1/2/1971": "1971-01-02",
		"1980-12-21T00:00:00.000Z": "1980-12-21", "1980-12-21T00:00:00+14:00": "1980-12-21", "1980-12-21 23:30 -0500": "1980-12-21",
		"19801221T233000-0500": "1980-12-21", "Sun 12 21 10:00:00.UTC 1980": "1980-12-21", "9999-12-31T23:59:59-01:00": "9999-12-31",
	} {
		date, ok := DateOfBirth([]byte(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(date[:]), in)
	}
	for _, in := range []string{"", "13/01/1971", "1971-1-1", "1971-02-29", "1971-13-01", "19710101", "1971-01-0a", "1/2/71", "yesterday"} {
		_, ok := DateOfBirth([]byte(in))
		require.False(t, ok, in)
	}
}

// The standard library is the judge for random instants, in every layout that it can express.
func TestTimeAgreesWithStandardLibrary(t *testing.T) {
	random := testseed.Rand(t)
	layouts := []string{
		time.RFC3339, "2006-01-02T15:04:05.000Z07:00", "2006-01-02T15:04:05.000000000-0700", "2006-01-02T15:04:05-07", "2006-01-02T15:04:05", "2006-01-02 15:04:05",
		"2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05.000", "2006-01-02T15:04Z07:00", "2006-01-02", "01/02/2006", "1/2/2006", "20060102T150405Z0700",
		"Mon 01 02 15:04:05.-07:00 2006", "Mon Jan _2 15:04:05 2006", "Mon Jan 02 15:04:05 -0700 2006",
	}
	const day = 86400
	for range 30_000 {
		instant := random.Int64N(maxUnixMillis/1000-2*day-(minUnixMillis/1000+2*day)) + minUnixMillis/1000 + 2*day
		zone := time.FixedZone("", (random.IntN(28*60)-14*60)*60)
		layout := layouts[random.IntN(len(layouts))]
		if strings.HasSuffix(layout, "-07") {
			zone = time.FixedZone("", (random.IntN(28)-14)*3600)
		}
		text := time.Unix(instant, random.Int64N(1e9)).In(zone).Format(layout)
		want, err := time.Parse(layout, text)
		require.NoError(t, err, text)
		got, ok := Time([]byte(text))
		require.True(t, ok, text)
		require.Equal(t, want.UnixMilli(), got, text)
	}
}

// A text with one changed byte mustn't be read differently from what time.Parse says, where time.Parse is as strict as
// we are.
func TestTimeAgreesOnDamagedText(t *testing.T) {
	random := testseed.Rand(t)
	const layout = "2006-01-02T15:04:05.000Z"
	for range 50_000 {
		text := []byte(time.UnixMilli(random.Int64N(4e12)).UTC().Format(layout))
		place := random.IntN(len(layout) - 5) // not in the fraction, where we accept more
		text[place] = "0123456789-:T./ aZ"[random.IntN(18)]
		if place == 10 || place == 19 { // other separators are fine
			continue
		}
		want, err := time.Parse(layout, string(text))
		got, ok := Time(text)
		if strings.HasPrefix(string(text[17:]), "60") || strings.HasPrefix(string(text[11:]), "24:00:00.000") {
			continue
		}
		require.Equal(t, err == nil, ok, "%s", text)
		if ok {
			require.Equal(t, want.UnixMilli(), got, "%s", text)
		}
	}
}

// What Times remembers about a day changes no answer, whatever text comes next.
func TestTimesAgreesWithTime(t *testing.T) {
	random := testseed.Rand(t)
	layouts := []string{"2006-01-02T15:04:05.000Z", "2006-01-02T15:04:05Z", "2006-01-02T15:04:05-07:00", "2006-01-02"}
	var times Times
	agree := func(text string) {
		t.Helper()
		want, wantOK := Time([]byte(text))
		got, ok := times.Time([]byte(text))
		require.Equal(t, wantOK, ok, text)
		if ok {
			require.Equal(t, want, got, text)
		}
		want, wantOK = AttributeTime([]byte(text))
		got, ok = times.AttributeTime([]byte(text))
		require.Equal(t, wantOK, ok, text)
		if ok {
			require.Equal(t, want, got, text)
		}
	}
	// No day is remembered before the first one was read.
	agree(strings.Repeat("\x00", 11) + "04:23:01.123Z")
	for range 20_000 {
		day := minUnixMillis + dayMillis*random.Int64N((maxUnixMillis-minUnixMillis)/dayMillis)
		for range 4 {
			text := []byte(time.UnixMilli(day + random.Int64N(dayMillis)).UTC().Format(layouts[random.IntN(len(layouts))]))
			agree(string(text))
			for range random.IntN(3) {
				text[random.IntN(len(text))] = "0123456789-:T./ aZ6"[random.IntN(19)]
			}
			agree(string(text))
		}
	}
	for _, text := range []string{"2026-11-21T23:59:59.999Z", "2026-11-21T23:59:60.123Z", "2026-11-21T24:00:00.000Z", "2026-11-21T23:60:00Z",
		"2026-11-21T23:59:59.999z", "2026-11-21T23:59:59.99Z", "2026-11-21T23:59:5912Z", "1969-12-31T23:59:59.999Z", "1969-12-31T00:00:00Z"} {
		agree(text)
	}
}

// Whatever time the standard library writes is read as the same time, up to both ends of the calendar.
func TestTimesOfTheStandardLibrary(t *testing.T) {
	random := testseed.Rand(t)
	for range 50_000 {
		millis := random.Int64N(maxUnixMillis-minUnixMillis+1) + minUnixMillis
		back, ok := Time([]byte(written(millis)))
		require.True(t, ok)
		require.Equal(t, millis, back)
	}
	require.Equal(t, "0000-01-01T00:00:00.000Z", written(minUnixMillis))
	require.Equal(t, "9999-12-31T23:59:59.999Z", written(maxUnixMillis))
}

func written(millis int64) string {
	return time.UnixMilli(millis).UTC().Format("2006-01-02T15:04:05.000Z")
}

func TestEveryDayOfTheCalendar(t *testing.T) {
	at := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := int64(minUnixMillis / dayMillis); day <= maxUnixMillis/dayMillis; day++ {
		year, month, monthDay := at.Date()
		if got := epochDay(year, int(month), monthDay); got != day {
			t.Fatalf("%d-%d-%d is day %d, not day %d", year, month, monthDay, got, day)
		}
		at = at.AddDate(0, 0, 1)
	}
}

func FuzzTime(f *testing.F) {
	for _, seed := range []string{"2026-11-21T04:23:01.123Z", "2019-02-15 00:00:00 -0500", "12/1/2021", "Sat 11 21 04:23:01.PST 2026", "20261121T042301Z", "2026-11-21T04:23:01:123+1:00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		millis, ok := Time(in)
		if !ok {
			return
		}
		again, ok := Time([]byte(written(millis)))
		if !ok || again != millis {
			t.Fatalf("%q is %d, then %d %v", in, millis, again, ok)
		}
	})
}

func BenchmarkTime(b *testing.B) {
	for _, in := range []string{"2026-11-21T04:23:01Z", "2026-11-21T04:23:01.123+05:30", "Sat 11 21 04:23:01.PST 2026", "an ordinary string"} {
		text := []byte(in)
		b.Run(in, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Time(text)
			}
		})
	}
}
