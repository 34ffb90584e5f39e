package bounded

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration, layout string) string { return now.Add(d).Format(layout) }
	for value, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, "120": 2 * time.Minute, "3600": time.Hour, "3601": MaxLater, "99999999999": MaxLater,
		strings.Repeat("9", 30): MaxLater, "": 0, "soon": 0, "-1": 0, "+1": 0, "1.5": 0, "1e3": 0, "0x10": 0, "NaN": 0, "Inf": 0,
		in(time.Minute, http.TimeFormat): time.Minute, in(time.Minute, time.RFC850): time.Minute,
		in(time.Minute, time.ANSIC): time.Minute, in(0, http.TimeFormat): 0, in(-time.Hour, http.TimeFormat): 0,
		in(1000*time.Hour, http.TimeFormat): MaxLater, "Fri, 31 Dec 9999 23:59:59 GMT": MaxLater,
		"Mon, 01 Jan 0001 00:00:00 GMT": 0,
	} {
		require.Equal(t, want, RetryAfter(value, "", now), value)
		require.Equal(t, want, RetryAfter(value, "today", now), value)
		for _, ahead := range []time.Duration{-9 * time.Minute, 9 * time.Minute, 1000 * time.Hour} { // of the clock here
			require.Equal(t, want, RetryAfter(value, now.Format(http.TimeFormat), now.Add(ahead)), value)
		}
	}
}
