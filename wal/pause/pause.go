// Package pause makes goroutines wait, once or between rounds of endless work, until they are told to end.
package pause

import (
	"context"
	"iter"
	"time"
)

// For waits. It returns the context's error when the context ends before the time is up.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Every has a turn each time an interval is over, until end is closed or the loop is left.
func Every(interval time.Duration, end <-chan struct{}) iter.Seq[time.Time] {
	return func(turn func(time.Time) bool) {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				if !turn(now) {
					return
				}
			}
		}
	}
}
