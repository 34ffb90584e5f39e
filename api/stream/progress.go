package stream

import (
	"slices"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/control/document"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// cursor is how far a stream has come in an event log, in the form in which it is stored.
type cursor struct {
	StartedAt document.Millis `json:"started_at"` // when the stream was started
	Position  uint64          `json:"position"`   // everything up to here is delivered
	// Pending, if greater than Position, is the end of a delivery that is partially done, or about to begin.
	Pending uint64 `json:"pending,omitempty"`
	// choice is that of the pending delivery: the stream may choose something else by the time it is repeated.
	choice
	Events      int64 `json:"events"`
	Files       int64 `json:"files"`
	Bytes       int64 `json:"bytes"`
	Refused     int64 `json:"refused,omitempty"`       // how many of the events the destination has refused for good
	LastEventAt int64 `json:"last_event_at,omitempty"` // when the last event delivered was accepted, Unix µs
	MovedAt     int64 `json:"moved_at,omitempty"`      // Unix ms
	// ExpiredAt is when events were last found to have expired before they were delivered, Unix ms.
	ExpiredAt int64 `json:"expired_at,omitempty"`
}

// choice is what a stream chooses, and may choose otherwise later.
type choice struct {
	Kinds       []string `json:"kinds,omitempty"`
	Names       []string `json:"names,omitempty"`
	Columns     []string `json:"columns,omitempty"`
	Compression string   `json:"compression,omitempty"`
}

func choiceOf(s *document.Stream) choice { return choice{s.Kinds, s.Names, s.Columns, s.Compression} }

func (c choice) equals(d choice) bool {
	return slices.Equal(c.Kinds, d.Kinds) && slices.Equal(c.Names, d.Names) && slices.Equal(c.Columns, d.Columns) &&
		c.Compression == d.Compression
}

func kindsOf(s *document.Stream) (kinds []op.Kind) {
	for _, name := range s.Kinds {
		if k, ok := event.KindNamed(name); ok {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// slowAfter is how long an attempt takes that is called slow: a request, a write or a rename may hang.
const slowAfter = time.Minute

// stateOf returns the state of a part.
func stateOf(p *answers.StreamPart) string {
	switch {
	case p.Error != "":
		return "failing"
	case p.AttemptSeconds < slowAfter.Seconds():
		return "running"
	case p.Waits:
		return "waiting"
	}
	return "slow"
}

func describe(group string, c *cursor) answers.StreamPart {
	return answers.StreamPart{Group: group, Position: c.Position, Pending: c.Pending, Events: c.Events, Files: c.Files,
		Bytes: c.Bytes, Refused: c.Refused,
		LastEventAt: timeOf(time.UnixMicro(c.LastEventAt), c.LastEventAt),
		MovedAt:     timeOf(time.UnixMilli(c.MovedAt), c.MovedAt),
		ExpiredAt:   timeOf(time.UnixMilli(c.ExpiredAt), c.ExpiredAt)}
}

// seconds is never less than 0, and a whole number of milliseconds.
func seconds(d time.Duration) float64 { return float64(max(0, d.Milliseconds())) / 1000 }

// timeOf returns nil for a missing time.
func timeOf(t time.Time, is int64) *time.Time {
	if is == 0 {
		return nil
	}
	t = t.UTC()
	return &t
}
