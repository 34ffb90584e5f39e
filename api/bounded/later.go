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
// what makes no sense, is no wait.
func RetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(seconds)*time.Second, MaxLater)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), MaxLater)
	}
	return 0
}
