// Package ratelimit counts requests in fixed clock windows, per workspace and bucket (decisions.md D2).
//
// A window begins at a multiple of its length since the Unix epoch, as clients expect of X-RateLimit-Reset. One atomic
// word holds the window's index and its count, so taking is one addition; nobody owns a window and nothing ever has to
// be swept. The clock is the caller's. When it jumps, either way, the word's index no longer fits and a new window
// begins: nobody is held back for longer than one window.
//
// In a cluster a Limiter counts instead, for all nodes together (shared.go).
package ratelimit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Limit is how many requests a window takes. Burst, if not zero, is a second limit within BurstWindow (mau plans: an
// hour and a second).
type Limit struct {
	Requests    uint32
	Window      time.Duration // whole milliseconds
	Burst       uint32
	BurstWindow time.Duration
}

// String returns the form of settings: "3000/3s", "250000/1h".
func (l Limit) String() string { return format(l.Requests, l.Window) }

// BurstString does the same for the burst limit.
func (l Limit) BurstString() string { return format(l.Burst, l.BurstWindow) }

func format(n uint32, window time.Duration) string {
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if window%u.d == 0 {
			return fmt.Sprintf("%d/%d%s", n, window/u.d, u.name)
		}
	}
	return fmt.Sprintf("%d/%dms", n, window.Milliseconds())
}

const (
	maxRequests = 1_000_000_000
	minWindow   = 100 * time.Millisecond
	maxWindow   = 31 * 24 * time.Hour
)

// Parse reads "3000/3s": a number of requests and a window. The window is a Go duration, or a unit alone: s, m, h, d
// (also min, hour, day).
func Parse(text string) (Limit, error) {
	count, window, ok := strings.Cut(text, "/")
	n, err := strconv.ParseUint(strings.TrimSpace(count), 10, 32)
	if !ok || err != nil || n == 0 || n > maxRequests {
		return Limit{}, fmt.Errorf("rate limit %q: want requests/window such as 3000/3s", text)
	}
	d, err := parseWindow(strings.TrimSpace(window))
	if err != nil || d < minWindow || d > maxWindow || d%time.Millisecond != 0 {
		const want = "the window must be between 100ms and 31 days, such as 3s, 1m, 1h or 1d"
		return Limit{}, fmt.Errorf("rate limit %q: %s", text, want)
	}
	return Limit{Requests: uint32(n), Window: d}, nil
}

var errWindow = errors.New("not a window")

func parseWindow(text string) (time.Duration, error) {
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"day", 24 * time.Hour}, {"d", 24 * time.Hour}, {"hour", time.Hour}, {"min", time.Minute}} {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			if number == "" {
				return u.d, nil
			}
			n, err := strconv.ParseUint(number, 10, 16)
			if err != nil {
				return 0, errWindow
			}
			return time.Duration(n) * u.d, nil
		}
	}
	if text != "" && (text[0] < '0' || text[0] > '9') {
		text = "1" + text
	}
	return time.ParseDuration(text)
}

// Window counts the requests of one workspace in one bucket. The zero value is ready; it is safe for concurrent use.
type Window struct {
	main, burst counter
}

// State is what the response to a request says: the three X-RateLimit headers. ResetMillis is the end of the window,
// Unix ms.
type State struct {
	Limit, Remaining uint32
	ResetMillis      int64
	Burst            bool // the burst limit refused it; Limit, Remaining and ResetMillis are the burst's
}

// ResetSeconds is the end of the window in UTC epoch seconds, rounded up.
func (s State) ResetSeconds() int64 { return (s.ResetMillis + 999) / 1000 }

// RetryAfterSeconds is how long to wait, in whole seconds, at least one.
func (s State) RetryAfterSeconds(nowMillis int64) int64 {
	return max(1, (s.ResetMillis-nowMillis+999)/1000)
}

// Take counts one request. ok is false when it is over the limit.
func (w *Window) Take(l Limit, nowMillis int64) (State, bool) {
	if l.Burst != 0 {
		if s, ok := w.burst.take(l.Burst, l.BurstWindow, nowMillis); !ok {
			s.Burst = true
			return s, false
		}
	}
	return w.main.take(l.Requests, l.Window, nowMillis)
}

// Peek returns the state without counting a request.
func (w *Window) Peek(l Limit, nowMillis int64) State {
	return w.main.peek(l.Requests, l.Window, nowMillis)
}

// counter has the index of the window in the upper 32 bits, and the requests so far in the lower ones. Requests beyond
// the limit are counted up to countCap only, so the lower half can't overflow into the index.
type counter struct{ word atomic.Uint64 }

const (
	countMask = 1<<32 - 1
	countCap  = 1 << 31
	// lateMillis: a request that reads the clock just before a window begins, and arrives just after, counts in the new
	// window. A larger difference means that the clock went backwards.
	lateMillis = 50
)

func (c *counter) take(limit uint32, window time.Duration, nowMillis int64) (State, bool) {
	millis := window.Milliseconds()
	for {
		word := c.word.Load()
		index, begun := current(word, nowMillis, millis)
		s := State{Limit: limit, ResetMillis: resetMillis(index, nowMillis, millis)}
		if !begun {
			if c.word.CompareAndSwap(word, uint64(uint32(index))<<32|1) {
				s.Remaining = limit - 1
				return s, true
			}
			continue
		}
		if word&countMask >= countCap {
			return s, false
		}
		word = c.word.Add(1)
		if word>>32 != uint64(uint32(index)) { // another window has begun in between and has counted this request
			index = index&^countMask | int64(word>>32)
			s.ResetMillis = resetMillis(index, nowMillis, millis)
		}
		n := word & countMask
		if n > uint64(limit) {
			return s, false
		}
		s.Remaining = limit - uint32(n)
		return s, true
	}
}

func (c *counter) peek(limit uint32, window time.Duration, nowMillis int64) State {
	millis := window.Milliseconds()
	word := c.word.Load()
	index, begun := current(word, nowMillis, millis)
	s := State{Limit: limit, Remaining: limit, ResetMillis: resetMillis(index, nowMillis, millis)}
	if begun {
		s.Remaining -= uint32(min(uint64(limit), word&countMask))
	}
	return s
}

// current returns the index of the window that a request belongs to, and whether the counter is at that window.
func current(word uint64, nowMillis, millis int64) (index int64, begun bool) {
	index = nowMillis / millis
	stored := uint32(word >> 32)
	switch {
	case word == 0:
		return index, false
	case stored == uint32(index):
		return index, true
	case stored == uint32(index+1) && (index+1)*millis-nowMillis <= lateMillis:
		return index + 1, true
	}
	return index, false
}

// resetMillis never lies further ahead than a window and a little: that is the promise about clock jumps.
func resetMillis(index, nowMillis, millis int64) int64 {
	return min((index+1)*millis, nowMillis+millis+lateMillis)
}
