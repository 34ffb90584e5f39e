// Package stamp is the clock of a node: it issues the stamps of records, which strictly rise and are never too far
// ahead of the system's clock.
package stamp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"millrace/wal/throttle"
)

// ErrClock is returned when stamps are further ahead of a clock than permitted: one of the two is wrong, and stamps
// never go back.
var ErrClock = errors.New("stamps are too far ahead of the clock")

// DefaultMaxClockOffset is generous: what has to be kept out is a clock that is wrong by hours or years.
const DefaultMaxClockOffset = 10 * time.Minute

// Clock gives the stamps of a node: Unix µs, rising whatever the system's clock does, and later than every stamp that
// the node has seen.
//
// Once a stamp from a wrong time was given, all later ones of the store, and of all nodes of a cluster, come after it.
// So three things are bounded by MaxOffset: what a node finds on its disk (Check), what other nodes say (Accept), and
// how far the system's clock may jump ahead while the process runs. A larger jump isn't followed, and stamps go on at
// the pace of the steady clock. A restart takes the clock as it is then.
//
// Stamps of other nodes may be ahead by twice MaxOffset: two clocks may be that far apart, one ahead and one behind,
// without either node having to end, so each must take the other's stamps, and start with them.
type Clock struct {
	Now       func() time.Time // default time.Now
	MaxOffset time.Duration    // default DefaultMaxClockOffset
	Shared    bool             // the node is one of a cluster: stamps of other nodes are on its disk
	Logger    *slog.Logger     // default slog.Default()
	// Steady is the steady clock. Default: Go's, which is a part of what time.Now returns.
	Steady func() time.Duration

	last     atomic.Int64
	anchor   atomic.Pointer[anchor]
	warnings throttle.Lines
	// slept is how long the machine was suspended since it was booted: the steady clock stands still then. nil: what
	// the system says.
	slept func() time.Duration
}

// anchor is a moment at which the system's clock was believed.
type anchor struct {
	time.Time
	steady time.Duration
	slept  time.Duration
}

// anchorLife is how often the clock is believed anew, so that changes of it in small steps are followed.
const anchorLife = time.Minute

// Next is a stamp for a record of n ops: each op has its own, counted from the record's.
func (c *Clock) Next(n int) int64 {
	t := c.Time().UnixMicro()
	if behind := time.Duration(c.last.Load()-t) * time.Microsecond; behind > c.mostAhead() {
		c.warn("the system's clock is behind the newest change; stamps stand still until it has caught up, "+
			"and a restart is refused before", behind, c.mostAhead())
	}
	for {
		last := c.last.Load()
		t = max(t, last+1)
		if c.last.CompareAndSwap(last, t+int64(n)) {
			return t
		}
	}
}

// Last is the latest stamp that was given or seen.
func (c *Clock) Last() int64 { return c.last.Load() }

// Observe makes later stamps later than stamp, which is in a log.
func (c *Clock) Observe(stamp int64) {
	for last := c.last.Load(); last < stamp && !c.last.CompareAndSwap(last, stamp); last = c.last.Load() {
	}
}

// Accept is Observe for a stamp that another node sends. ErrClock: the stamp is too far ahead, and nothing was done.
func (c *Clock) Accept(stamp int64) error {
	if stamp <= c.last.Load() {
		return nil
	}
	if ahead := c.ahead(stamp); ahead > 2*c.Bound() {
		return fmt.Errorf("%w: by %v, and %v are permitted (twice --max-clock-offset)", ErrClock, ahead, 2*c.Bound())
	}
	c.Observe(stamp)
	return nil
}

// Check returns ErrClock when the latest stamp is too far ahead of the clock.
func (c *Clock) Check() error {
	last := c.last.Load()
	if ahead := c.ahead(last); ahead > c.mostAhead() {
		return fmt.Errorf("%w: the newest change was stamped %s, and the clock says %s, %v earlier; %v are "+
			"permitted. Set the clock right, if it is wrong. If it "+
			"is right, it was wrong when the change was made: go back to a backup from before, or start with a "+
			"larger --max-clock-offset, and stamps stay ahead",
			ErrClock, time.UnixMicro(last).UTC().Format(time.RFC3339),
			c.Time().UTC().Format(time.RFC3339), ahead, c.mostAhead())
	}
	return nil
}

// ahead is by how much a stamp is ahead of the clock, in whole milliseconds.
func (c *Clock) ahead(stamp int64) time.Duration {
	return time.UnixMicro(stamp).Sub(c.Time()).Truncate(time.Millisecond)
}

// mostAhead is how far the latest stamp may be ahead of the clock.
func (c *Clock) mostAhead() time.Duration {
	if c.Shared {
		return 2 * c.Bound()
	}
	return c.Bound()
}

// Bound is MaxOffset, or its default.
func (c *Clock) Bound() time.Duration {
	if c.MaxOffset > 0 {
		return c.MaxOffset
	}
	return DefaultMaxClockOffset
}

// Time is the system's time, or, when that has jumped too far ahead, what it would be without the jump.
func (c *Clock) Time() time.Time {
	t, _ := c.times()
	return t
}

// Aging is the time by which what has a stamp ages. It is Time, but while stamps stand still because the system's clock
// was put back it goes on at the pace of the steady clock.
func (c *Clock) Aging() time.Time {
	t, steady := c.times()
	if now := t.UnixMicro(); now < c.last.Load() && now < steady.UnixMicro() { // by After, Go's steady clock decides
		return steady
	}
	return t
}

// times returns Time, and what the system's time would be had it not jumped since it was last believed.
func (c *Clock) times() (t, steady time.Time) {
	t = c.system()
	anchor := c.anchor.Load()
	if anchor == nil {
		c.believe(t)
		return t, t
	}
	elapsed := t.Sub(anchor.Time)
	if c.Steady != nil {
		elapsed = c.Steady() - anchor.steady
	}
	expected := anchor.Add(elapsed)
	jump := time.Duration(t.UnixMicro()-expected.UnixMicro()) * time.Microsecond
	if jump > c.Bound() {
		slept := c.suspended() - anchor.slept
		expected, jump = expected.Add(slept), jump-slept
	}
	switch {
	case jump > c.Bound():
		c.warn("the system's clock has jumped ahead; stamps don't follow it until a restart", jump, c.Bound())
		return expected, expected
	case expected.Sub(anchor.Time) > anchorLife && jump >= -c.Bound():
		c.believe(t)
	}
	return t, expected
}

func (c *Clock) system() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// suspended is how long the machine was suspended since it was booted, 0 where that can't be told.
func (c *Clock) suspended() time.Duration {
	if c.slept != nil {
		return c.slept()
	}
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}

func (c *Clock) believe(t time.Time) {
	a := &anchor{Time: t, slept: c.suspended()}
	if c.Steady != nil {
		a.steady = c.Steady()
	}
	c.anchor.Store(a)
}

// warn logs what is wrong with the system's clock.
func (c *Clock) warn(message string, by, permitted time.Duration) {
	c.warnings.Error(cmp.Or(c.Logger, slog.Default()), message, "by", by.String(), "permitted", permitted.String())
}
