package main

import (
	"encoding/json"
	"net/http"
	"time"

	"millrace/ingest/field"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// How many events and purchases there were, as the event log counts them when it packs.

const (
	defaultCountedTime = 30 * 24 * time.Hour
	maxCountedNames    = 100 // per workspace, for events and for products each
)

// eventCounts is the answer: the hours that have events, and the most frequent names.
type eventCounts struct {
	Since   string           `json:"since"`
	Hours   []eventHourCount `json:"hours"`
	Names   []eventNameCount `json:"names"`
	Missing int              `json:"missing_groups,omitempty"` // groups of which this node has no replica
}

type eventHourCount struct {
	Workspace string `json:"workspace"`
	Type      string `json:"type"`
	Hour      string `json:"hour"`
	Count     int    `json:"count"`
}

type eventNameCount struct {
	Workspace string `json:"workspace"`
	Type      string `json:"type"`
	Name      string `json:"name"` // empty: all rare ones
	Count     int    `json:"count"`
}

// serveEventCounts is GET /admin/events/counts?since=.
func (n *node) serveEventCounts(w http.ResponseWriter, r *http.Request) {
	since := time.Now().Add(-defaultCountedTime)
	if text := r.URL.Query().Get("since"); text != "" {
		millis, ok := field.Time([]byte(text))
		if !ok {
			answer(w, http.StatusBadRequest, "'since' is not valid: want ISO 8601")
			return
		}
		since = time.UnixMilli(millis)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(n.countEvents(since))
}

func (n *node) countEvents(since time.Time) eventCounts {
	tally := eventlog.NewTally(since)
	n.events.Tally(tally)
	snapshot := n.control.Snapshot()
	counts := eventCounts{Since: since.UTC().Truncate(time.Hour).Format(time.RFC3339), Hours: []eventHourCount{},
		Names: []eventNameCount{}, Missing: tally.Missing}
	tally.EachHour(func(h eventlog.Hour, events int) {
		if ws := snapshot.Workspace(h.Workspace); ws != nil {
			counts.Hours = append(counts.Hours, eventHourCount{ws.ID, event.KindName(h.Kind),
				time.UnixMilli(h.Begins).UTC().Format(time.RFC3339), events})
		}
	})
	tally.EachName(maxCountedNames, func(name eventlog.Name, events int) {
		if ws := snapshot.Workspace(name.Workspace); ws != nil {
			counts.Names = append(counts.Names, eventNameCount{ws.ID, event.KindName(name.Kind), name.Name, events})
		}
	})
	return counts
}
