package disk

import (
	"sync"
	"time"
)

// Watch watches writes, of which there is one at a time.
type Watch struct {
	disk    *Disk         // told of a write that takes longer than timeout
	timeout time.Duration // not positive: there is none

	mu     sync.Mutex
	timer  *time.Timer
	begun  time.Time // when the current write began; zero: there is none
	isLate bool
}

// Watch makes a Watch. A timeout that isn't positive means that no write takes too long.
func (d *Disk) Watch(timeout time.Duration) *Watch { return &Watch{disk: d, timeout: timeout} }

// Begin is called before a write, and End after it.
func (w *Watch) Begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = time.Now()
	switch {
	case w.timeout <= 0:
	case w.timer == nil:
		w.timer = time.AfterFunc(w.timeout, w.passed)
	default:
		w.timer.Reset(w.timeout)
	}
}

// Taken returns how long the current write has taken so far; 0 when there is none.
func (w *Watch) Taken() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun.IsZero() {
		return 0
	}
	return time.Since(w.begun)
}

// End is called after a write.
func (w *Watch) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = time.Time{}
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.isLate {
		w.isLate = false
		w.disk.late(-1)
	}
}

// passed may run too late, when the next write is under way or there is none.
func (w *Watch) passed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun.IsZero() || w.isLate || time.Since(w.begun) < w.timeout {
		return
	}
	w.isLate = true
	w.disk.late(1)
}
