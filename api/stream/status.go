package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// PartStatus is how far a stream is in one event log. Lag and error are known for the logs that this node carries, or
// would carry if the stream weren't paused.
type PartStatus struct {
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

// Status is how far a stream is.
type Status struct {
	State  string `json:"state"` // running, failing, slow, waiting, paused; of the parts that this node carries
	Events int64  `json:"events"`
	Files  int64  `json:"files"`
	Bytes  int64  `json:"bytes"`
	// Refused is how many of the events the destination has refused for good.
	Refused int64 `json:"refused,omitempty"`
	// LagEvents is about how many events wait, of all kinds and names; LagSeconds is how long the first of them has
	// waited.
	LagEvents  int64   `json:"lag_events"`
	LagSeconds float64 `json:"lag_seconds"`
	// AttemptSeconds is how long the longest attempt under way has taken or waited.
	AttemptSeconds float64      `json:"attempt_seconds,omitempty"`
	Error          string       `json:"error,omitempty"`
	Parts          []PartStatus `json:"parts"`
}

// slowAfter is how long an attempt takes that is called slow: a request, a write or a rename may hang.
const slowAfter = time.Minute

// state is that of a part.
func (p *PartStatus) state() string {
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

// Status returns how far a stream is, according to what is stored and to what this node carries of it.
func (m *Manager) Status(workspace string, s *document.Stream) Status {
	all, status := map[string]PartStatus{}, Status{State: "running", Parts: []PartStatus{}}
	for group, doc := range m.o.Control.StreamCursors(workspace, s.ID) {
		var c cursor
		if json.Unmarshal(doc, &c) == nil && c.StartedAt == s.StartedAt {
			all[group] = describe(group, &c)
		}
	}
	for t, w := range m.snapshot() {
		if t.workspace == workspace && t.stream == s.ID && w.stream.StartedAt == s.StartedAt && !w.hasEnded() {
			all[t.group] = w.status()
		}
	}
	if s.Paused {
		m.addWaiting(workspace, s, all)
	}
	for _, group := range slices.Sorted(maps.Keys(all)) {
		p := all[group]
		status.Parts = append(status.Parts, p)
		status.Events += p.Events
		status.Files += p.Files
		status.Bytes += p.Bytes
		status.Refused += p.Refused
		status.LagEvents += p.LagEvents
		status.LagSeconds = max(status.LagSeconds, p.LagSeconds)
		status.AttemptSeconds = max(status.AttemptSeconds, p.AttemptSeconds)
		if p.Error != "" {
			status.Error = p.Error
		}
		status.State = worse(status.State, p.state())
	}
	if s.Paused {
		status.State = "paused"
	}
	return status
}

// states are those of a part, the worst one last.
var states = []string{"running", "waiting", "slow", "failing"}

// worse returns that of two states which says more about why a stream does not get on.
func worse(a, b string) string {
	return states[max(slices.Index(states, a), slices.Index(states, b))]
}

// addWaiting adds what waits for a stream that is paused, which nobody carries, in the event logs that this node reads.
func (m *Manager) addWaiting(workspace string, s *document.Stream, all map[string]PartStatus) {
	ws := m.o.Control.Snapshot().Lookup(workspace)
	since, err := s.Since()
	if ws == nil || err != nil {
		return
	}
	for _, part := range m.o.Parts() {
		p := all[part.Group]
		if p.Here { // the carrier has yet to end
			continue
		}
		if at := firstWaiting(part.Events, p.Position, ws, s, since); !at.IsZero() {
			p.Group, p.LagSeconds = part.Group, secondsSince(at)
			p.LagEvents = max(1, part.Events.Behind(p.Position, ws.Number, since))
			all[part.Group] = p
		}
	}
}

// firstWaiting returns when the first event of a stream behind a position was accepted; zero: there is none. When it
// can't be found quickly, it is estimated.
func firstWaiting(
	l *eventlog.Log, position uint64, ws *control.Workspace, s *document.Stream, since time.Time,
) time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var first time.Time
	q := eventlog.Query{Workspace: ws.Number, Kinds: kindsOf(s), Names: s.Names}
	_, err := l.Follow(position, q, since).Read(ctx, math.MaxUint64, func(e *event.Event) error {
		first = e.AcceptedAt
		return eventlog.Stop
	})
	if err != nil {
		return l.Waits(position, ws.Number, since)
	}
	return first
}

func describe(group string, c *cursor) PartStatus {
	return PartStatus{Group: group, Position: c.Position, Pending: c.Pending, Events: c.Events, Files: c.Files,
		Bytes: c.Bytes, Refused: c.Refused,
		LastEventAt: timeOf(time.UnixMicro(c.LastEventAt), c.LastEventAt),
		MovedAt:     timeOf(time.UnixMilli(c.MovedAt), c.MovedAt),
		ExpiredAt:   timeOf(time.UnixMilli(c.ExpiredAt), c.ExpiredAt)}
}

// secondsSince is never less than 0, and a whole number of milliseconds.
func secondsSince(at time.Time) float64 {
	return float64(max(0, time.Since(at).Milliseconds())) / 1000
}

// timeOf returns nil for a missing time.
func timeOf(t time.Time, is int64) *time.Time {
	if is == 0 {
		return nil
	}
	t = t.UTC()
	return &t
}

func (k *carrier) status() PartStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := describe(k.part.Group, &k.cursor)
	p.Here = true
	if !k.oldest.IsZero() {
		p.LagSeconds = secondsSince(k.oldest)
		p.LagEvents = k.waiting(k.cursor.Position)
	}
	if !k.began.IsZero() {
		p.AttemptSeconds, p.Waits = secondsSince(k.began), k.waits
	}
	if k.err != nil {
		p.Error, p.ErrorAt = k.err.Error(), timeOf(k.errAt, 1)
	}
	return p
}

// labels returns the labels of a stream's metrics. A workspace and a stream have no characters that would need quoting.
func (t task) labels() string { return fmt.Sprintf(`{workspace=%q,stream=%q}`, t.workspace, t.stream) }

// counter counts what a stream does on this node.
func (k *carrier) counter(what string) *metrics.Counter {
	name := map[string]string{"events": "millrace_stream_events_total", "files": "millrace_stream_files_total",
		"bytes":  "millrace_stream_bytes_total",
		"errors": "millrace_stream_errors_total", "gaps": "millrace_stream_gaps_total",
		"refused": "millrace_stream_refused_total"}[what]
	return metrics.GetOrCreateCounter(name + task{k.ws.ID, k.stream.ID, ""}.labels())
}

// writeMetrics shows how far the streams are that this node carries, for all groups together.
func (m *Manager) writeMetrics() {
	metrics.RegisterMetricsWriter(func(w io.Writer) {
		select {
		case <-m.ended:
			return
		default:
		}
		type lag struct{ events, seconds, failing, attempt float64 }
		all := map[string]lag{}
		for t, k := range m.snapshot() {
			if k.hasEnded() {
				continue
			}
			s, key := k.status(), t.labels()
			l := all[key]
			l.events, l.seconds = l.events+float64(s.LagEvents), max(l.seconds, s.LagSeconds)
			l.attempt = max(l.attempt, s.AttemptSeconds)
			if s.Error != "" {
				l.failing++
			}
			all[key] = l
		}
		keys := slices.Sorted(maps.Keys(all))
		for _, g := range []struct {
			name  string
			value func(lag) float64
		}{
			{"millrace_stream_lag_events", func(l lag) float64 { return l.events }},
			{"millrace_stream_lag_seconds", func(l lag) float64 { return l.seconds }},
			{"millrace_stream_failing", func(l lag) float64 { return l.failing }},
			{"millrace_stream_attempt_seconds", func(l lag) float64 { return l.attempt }},
		} {
			for _, key := range keys {
				metrics.WriteGaugeFloat64(w, g.name+key, g.value(all[key]))
			}
		}
	})
}
