package main

import (
	"net/http"
	"time"

	"millrace/api/admin"
	"millrace/api/admin/answers"
	"millrace/ingest/field"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// How many events and purchases there were, as the event log counts them when it packs.

const (
	defaultCountedTime = 30 * 24 * time.Hour
	maxCountedNames    = 100 // per workspace, for events and for products each
)

// serveEventCounts is GET /admin/events/counts?since=.
func (n *node) serveEventCounts(w http.ResponseWriter, r *http.Request) {
	since := time.Now().Add(-defaultCountedTime)
	if text := r.URL.Query().Get("since"); text != "" {
		millis, ok := field.Time([]byte(text))
		if !ok {
			admin.Refuse(w, http.StatusBadRequest, "'since' is not valid: want ISO 8601")
			return
		}
		since = time.UnixMilli(millis)
	}
	admin.Answer(w, http.StatusOK, n.countEvents(since))
}

func (n *node) countEvents(since time.Time) answers.EventCounts {
	tally := eventlog.NewTally(since)
	n.events.Tally(tally)
	snapshot := n.control.Snapshot()
	counts := answers.EventCounts{Since: since.UTC().Truncate(time.Hour).Format(time.RFC3339),
		Hours: []answers.EventHour{}, Names: []answers.EventName{}, Missing: tally.Missing}
	tally.EachHour(func(h eventlog.Hour, events int) {
		if ws := snapshot.Workspace(h.Workspace); ws != nil {
			counts.Hours = append(counts.Hours, answers.EventHour{Workspace: ws.ID, Type: event.KindName(h.Kind),
				Hour: time.UnixMilli(h.Begins).UTC().Format(time.RFC3339), Count: events})
		}
	})
	tally.EachName(maxCountedNames, func(name eventlog.Name, events int) {
		if ws := snapshot.Workspace(name.Workspace); ws != nil {
			counts.Names = append(counts.Names,
				answers.EventName{Workspace: ws.ID, Type: event.KindName(name.Kind), Name: name.Name, Count: events})
		}
	})
	return counts
}
