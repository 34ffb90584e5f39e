// Package throttle bounds the lines of a log that may come again thousands of times a second: a few of them are written
// each minute, and the number of the others. A log of debug lines gets all of them.
package throttle

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// interval is what Lines.Most counts for.
const interval = time.Minute

// Lines are lines of one kind. Their methods are safe for concurrent use.
type Lines struct {
	Most int // in a minute. Default 1

	mu      sync.Mutex
	since   time.Time // when the minute began; mu guards it and what follows
	written int       // in this minute
	left    int       // out, since a line said so
}

// Error writes a line or counts it.
func (l *Lines) Error(log *slog.Logger, text string, args ...any) {
	l.write(log, slog.LevelError, text, args)
}

// Warn writes a line or counts it.
func (l *Lines) Warn(log *slog.Logger, text string, args ...any) {
	l.write(log, slog.LevelWarn, text, args)
}

func (l *Lines) write(log *slog.Logger, level slog.Level, text string, args []any) {
	if !log.Enabled(context.Background(), slog.LevelDebug) && !l.take() {
		return
	}
	if left := l.TakeLeft(); left > 0 {
		args = append(args, "left_out", left)
	}
	log.Log(context.Background(), level, text, args...)
}

// take reports whether another line may be written, and counts it.
func (l *Lines) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) >= interval {
		l.since, l.written = now, 0
	}
	if l.written >= cmp.Or(l.Most, 1) {
		l.left++
		return false
	}
	l.written++
	return true
}

// TakeLeft is how many lines were left out and are still to be told: for an owner that ends and writes no other line.
func (l *Lines) TakeLeft() (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, l.left = l.left, 0
	return left
}
