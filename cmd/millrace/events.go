package main

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"millrace/api/admin"
	"millrace/ingest/field"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Exports of events: GET /admin/events.

// maxEventExports is how many exports of events may run at a time: each has blocks and, for Parquet, tens of megabytes
// of rows in memory for as long as its reader takes.
const maxEventExports = 8

// serveEvents is GET /admin/events?workspace=&user=&since=&until=&name=&kind=&format=. The answer streams.
func (n *node) serveEvents(w http.ResponseWriter, r *http.Request) {
	q, format, err := n.eventQuery(r.URL.Query())
	if err != nil {
		admin.Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if svcID := r.URL.Query().Get("user"); svcID != "" {
		number, ok := n.engine.ParseSvcID(q.Workspace, []byte(svcID))
		if !ok {
			admin.Refuse(w, http.StatusBadRequest, "'user' is not the svc_id of a user of 'workspace'")
			return
		}
		if err = n.engine.Barrier(); err == nil {
			q.Of, err = n.engine.EventsOf(q.Workspace, number)
		}
		if err != nil {
			answerFailure(w, err)
			return
		}
	}
	select {
	case n.exports <- struct{}{}:
		defer func() { <-n.exports }()
	default:
		admin.Refuse(w, http.StatusConflict, fmt.Sprintf("%d other exports of events are running", maxEventExports))
		return
	}
	if err := n.control.Audit(admin.ActorOf(r), "events exported", r.URL.Query().Get("workspace"),
		"format", string(format), "since", r.URL.Query().Get("since"),
		"until", r.URL.Query().Get("until"), "names", len(q.Names)); err != nil {
		answerFailure(w, err)
		return
	}
	n.sendEvents(w, r, q, format)
}

func (n *node) sendEvents(w http.ResponseWriter, r *http.Request, q eventlog.Query, format event.Format) {
	w.Header().Set("Content-Type",
		map[event.Format]string{event.NDJSON: "application/x-ndjson",
			event.Parquet: "application/vnd.apache.parquet"}[format])
	out := &streamed{ResponseWriter: w}
	to := impatient{out, http.NewResponseController(w), r.Context()} // the others wait for the place of a dead reader
	if err := eventlog.Write(r.Context(), n.events, to, format, q, n.engine.AppendSvcID); err != nil {
		if out.begun {
			n.log.Warn("an export of events was broken off", "error", err)
		}
		out.fail(err)
	}
}

func (n *node) eventQuery(v url.Values) (q eventlog.Query, format event.Format, err error) {
	if slug := v.Get("workspace"); slug != "" {
		w := n.control.Snapshot().Lookup(slug)
		if w == nil {
			return q, "", fmt.Errorf("'workspace' %q does not exist", slug)
		}
		q.Workspace = w.Number
	}
	for name, into := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if s := v.Get(name); s != "" {
			millis, ok := field.Time([]byte(s))
			if !ok {
				return q, "", fmt.Errorf("'%s' is not valid: want ISO 8601", name)
			}
			*into = time.UnixMilli(millis)
		}
	}
	q.Names = v["name"]
	for _, kind := range v["kind"] {
		k, ok := map[string]op.Kind{"event": op.Event, "purchase": op.Purchase}[kind]
		if !ok {
			return q, "", fmt.Errorf("'kind' is not valid: want event or purchase")
		}
		q.Kinds = append(q.Kinds, k)
	}
	format = event.NDJSON
	if s := v.Get("format"); s != "" {
		format, err = event.ParseFormat(s)
	}
	return q, format, err
}
