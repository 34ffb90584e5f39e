package eventlog

import (
	"context"
	"io"
	"math"
	"time"

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

// Export calls f with every event that q chooses and that was acknowledged before the call, each once, while the server
// runs: first from the blocks, then from the log, in the order of the log. Events of users deleted before the call are
// left out; events that are deleted or expire meanwhile may be left out. An error of f, or of ctx, ends the export and
// is returned. A block that can't be read causes an error that wraps ErrCorrupt.
func (l *Log) Export(ctx context.Context, q Query, f func(*event.Event) error) error {
	end, err := l.settled(ctx)
	if err != nil {
		return err
	}
	_, err = l.Follow(0, q, time.Time{}).read(ctx, end, f)
	return err
}

// settled returns a position up to which everything is applied, and after which nothing lies that is acknowledged by
// now. Usually that is where the engine is. While one of its workers lags, what another has acknowledged may lie
// further on.
func (l *Log) settled(ctx context.Context) (uint64, error) {
	end := l.src.AppliedPosition()
	err := l.src.ReadLog(end+1, math.MaxUint64, func(position uint64, _ uint32, _ []byte) error {
		end = position
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := l.applied(ctx, end); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(end, l.packed), nil // packed may be ahead of the engine of a replica
}
