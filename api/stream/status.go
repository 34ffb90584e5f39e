package stream

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// Status returns how far a stream is, according to what is stored and to what this node carries of it.
func (m *Manager) Status(workspace string, s *document.Stream) answers.StreamStatus {
	all := map[string]answers.StreamPart{}
	status := answers.StreamStatus{State: "running", Parts: []answers.StreamPart{}}
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
		status.State = worse(status.State, stateOf(&p))
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
func (m *Manager) addWaiting(workspace string, s *document.Stream, all map[string]answers.StreamPart) {
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
			p.Group, p.LagSeconds = part.Group, seconds(m.o.Now().Sub(at))
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
