package answers

import "time"

// StreamStatus is how far a stream is.
type StreamStatus struct {
	State   string `json:"state"` // running, failing, slow, waiting, paused; of the parts that this node carries
	Events  int64  `json:"events"`
	Files   int64  `json:"files"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused,omitempty"` // how many of the events the destination has refused for good
	// LagEvents is about how many events wait, of all kinds and names; LagSeconds is how long the first of them has
	// waited.
	LagEvents  int64   `json:"lag_events"`
	LagSeconds float64 `json:"lag_seconds"`
	// AttemptSeconds is how long the longest attempt under way has taken or waited.
	AttemptSeconds float64      `json:"attempt_seconds,omitempty"`
	Error          string       `json:"error,omitempty"`
	Parts          []StreamPart `json:"parts"`
}

// StreamPart is how far a stream is in one event log. Lag and error are known for the logs that the answering node
// carries, or would carry if the stream weren't paused.
type StreamPart struct {
	Group       string     `json:"group,omitempty"`
	Here        bool       `json:"here"` // this node carries it
	Position    uint64     `json:"position"`
	Pending     uint64     `json:"pending,omitempty"`
	Events      int64      `json:"events"`
	Files       int64      `json:"files"`
	Bytes       int64      `json:"bytes"`
	Refused     int64      `json:"refused,omitempty"`       // how many of the events
	LastEventAt *time.Time `json:"last_event_at,omitempty"` // when the last event delivered was accepted
	MovedAt     *time.Time `json:"moved_at,omitempty"`
	ExpiredAt   *time.Time `json:"expired_at,omitempty"` // when events were found to have expired undelivered
	LagEvents   int64      `json:"lag_events,omitempty"` // about
	LagSeconds  float64    `json:"lag_seconds,omitempty"`
	// AttemptSeconds is how long the attempt under way has taken or, if it waits, how long it has waited.
	AttemptSeconds float64    `json:"attempt_seconds,omitempty"`
	Waits          bool       `json:"waits,omitempty"` // until one of the streams that deliver has finished
	Error          string     `json:"error,omitempty"`
	ErrorAt        *time.Time `json:"error_at,omitempty"`
}
