package store

import (
	"log/slog"
	"sync"
	"time"
)

// seldom logs errors of one kind, which may come some thousand times a second: a few of them as they are in each
// interval, and how many more there were.
type seldom struct {
	log *slog.Logger

	mu     sync.Mutex
	since  time.Time // when the interval began
	logged int       // in this interval
	left   int       // out, in this interval
}

const (
	seldomInterval = time.Minute
	seldomMost     = 8
)

// error logs a message or counts it.
func (s *seldom) error(text string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.since) >= seldomInterval {
		s.tell()
		s.since, s.logged = now, 0
	}
	if s.logged == seldomMost {
		s.left++
		return
	}
	s.logged++
	s.log.Error(text, args...)
}

// end says what was left out at last.
func (s *seldom) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell()
}

// tell says how many messages were left out. mu is held.
func (s *seldom) tell() {
	if s.left > 0 {
		s.log.Error("state store: more errors like these", "left_out", s.left)
	}
	s.left = 0
}
