package bounded

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// MaxLater is the longest wait that a server may ask for: a window of an hour.
const MaxLater = time.Hour

// RetryAfter reads the value of Retry-After (RFC 9110): seconds, however many, or a time. A time that has passed, and
// what makes no sense, is no wait. date is the Date of the same answer: by it a time means the same whatever the clock
// here says. An answer without one is taken to be of now.
func RetryAfter(value, date string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(seconds)*time.Second, MaxLater)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if said, err := http.ParseTime(date); err == nil {
		now = said
	}
	return min(max(at.Sub(now), 0), MaxLater)
}
