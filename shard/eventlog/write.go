package eventlog

import (
	"context"
	"io"

	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Exporter yields events; see Log.Export. A *Log is one, and so is a node of a cluster.
type Exporter interface {
	Export(ctx context.Context, q Query, f func(*event.Event) error) error
}

// Write writes what x yields to w. svcID may be nil: then no svc_id is written. After an error, what has been written
// is incomplete, and a caller that has sent it on must make that known; nothing is written when the error came soon.
func Write(ctx context.Context, x Exporter, w io.Writer, format event.Format, q Query, svcID event.SvcIDFunc) error {
	if _, err := event.ParseFormat(string(format)); err != nil {
		return err
	}
	e := event.NewEncoder(w, format, op.Event, q.Workspace == 0, svcID, nil)
	if err := x.Export(ctx, q, e.Write); err != nil {
		return err
	}
	return e.Close()
}
