package api

import (
	"sync"
	"time"
)

// deadlineSlack is how much later than it was asked for a deadline may be; or an eighth of the time until then, if that
// is less.
const deadlineSlack = time.Second

// deadline is one of a connection's, for reading or for writing. fasthttp asks for three in each request, and to set
// one changes a timer of the runtime, which takes a thirtieth of the CPU of a small request. So each is set a little
// later than asked for, and those that are asked for up to then need not be set.
type deadline struct {
	mu         sync.Mutex
	asked, set time.Time // zero: none
}

// ask has apply set the deadline at, or one that is within the slack, unless the present one is.
func (d *deadline) ask(at time.Time, apply func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !at.Before(d.asked) && !at.After(d.set) {
		return nil
	}
	d.asked, d.set = at, at
	if !at.IsZero() {
		d.set = at.Add(min(max(time.Until(at), 0)/8, deadlineSlack))
	}
	return apply(d.set)
}
