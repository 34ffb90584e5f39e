package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"millrace/api/admin"
	"millrace/api/stream"
	"millrace/wal"
)

// Streams: what goes out of a running server.

func (c *serveCommand) streamOptions(logger *slog.Logger) stream.Options {
	floor := wal.Floor{MinFreeBytes: int64(c.MinFreeBytes), MinFreePercent: c.MinFreePercent}
	return stream.Options{HasRoom: floor.Check, Dir: cmp.Or(c.StreamDir, filepath.Join(c.Data, "streams")),
		CredentialsDir: cmp.Or(c.StreamCredentials, filepath.Join(c.Data, "stream-credentials")),
		FileBytes:      int64(c.StreamFileBytes), FileAfter: c.StreamFileAfter,
		Interval: min(time.Second, c.StreamFileAfter), MaxRetryAfter: c.StreamRetryMax,
		MessageBytes: int64(c.StreamMessageBytes), MessageInterval: c.StreamMessageEvery,
		RequestTimeout: c.StreamRequestTimeout, RefusedBytes: int64(c.StreamRefusedBytes), Logger: logger}
}

// openStreams begins to carry the streams of this node; they end before anything else does.
func (n *node) openStreams(o stream.Options) (err error) {
	o.Control, o.SvcID = n.control, n.engine.AppendSvcID
	o.Users = n.engine
	if n.streams, err = stream.New(o); err != nil {
		return err
	}
	n.ends = append(n.ends, n.streams.Close)
	return nil
}

// ledParts are the event logs of the groups that this node leads. One that is still taking in what earlier leaders have
// decided is left out: its log ends before the cursors of streams, and carriers would take it for that of a backup.
func (n *node) ledParts() (parts []stream.Part) {
	for _, r := range n.cluster.Replicas() {
		if r.Events != nil && r.Leads {
			parts = append(parts, stream.Part{Group: r.Events.Group(), Events: r.Events})
		}
	}
	return parts
}

// serveStreamStatus is GET /admin/workspaces/{workspace}/streams/{id}/status.
func (n *node) serveStreamStatus(w http.ResponseWriter, r *http.Request) {
	s := n.control.Streams.Get(r.PathValue("workspace"), r.PathValue("id"))
	if s == nil {
		admin.Refuse(w, http.StatusNotFound, fmt.Sprintf("stream %q not found", r.PathValue("id")))
		return
	}
	admin.Answer(w, http.StatusOK, n.streams.Status(r.PathValue("workspace"), s))
}
